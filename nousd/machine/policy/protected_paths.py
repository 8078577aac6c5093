"""Files that programs obey although the user only looks: no tool writes them without approval.

Git runs commands that its directory names, editors and shells run files of a folder when it is opened or
entered, and agent programs follow the instructions in their files. Write access to them means running
anything later, outside of every rule. Files that run when the user builds, tests or installs are not
protected.

The names are ordinary rules, which ask. Files that git obeys because of their content or layout,
whatever their name, are found by ``tools.fs.git_layout`` and judged in the same way (``Access.obeyed``).
"""

from __future__ import annotations

import functools
from typing import Final, Literal, NamedTuple

from nousd.machine.policy.rules import Rule, rules_of


class ObeyedFiles(NamedTuple):
    """Files that one program obeys: in any directory, in any case, each with everything in it.

    Args:
        when: the user's action in which the program obeys them.
        in_sandbox: ``closed`` if commands in a sandbox cannot change existing ones; ``reported`` if they
            can, because git itself must replace such files, and the changes are reported.
    """

    program: str
    when: str
    places: tuple[str, ...]
    in_sandbox: Literal["closed", "reported"] = "closed"


OBEYED: Final = (
    ObeyedFiles("git", "runs any git command in the folder", (".git", ".gitmodules")),
    ObeyedFiles(
        "git", "runs any git command in the folder", (".gitconfig", ".config/git"), "reported"
    ),
    ObeyedFiles(
        "nousd", "runs an agent in the workspace", (".nousd", "AGENTS.md", "AGENTS.override.md")
    ),
    ObeyedFiles(
        "other agent programs",
        "runs one of them in the folder",
        (
            "CLAUDE.md",
            "CLAUDE.local.md",
            "GEMINI.md",
            "QWEN.md",
            "CONVENTIONS.md",
            ".agents",
            ".aider*",
            ".amazonq",
            ".claude",
            ".cline*",
            ".codex",
            ".continue",
            ".cursor*",
            ".gemini",
            ".github/copilot-instructions.md",
            ".github/instructions",
            ".junie",
            ".kiro",
            ".mcp.json",
            ".opencode",
            "opencode.json*",
            ".roo",
            ".rooignore",
            ".roomodes",
            ".roorules*",
            ".windsurf*",
        ),
    ),
    ObeyedFiles("editors", "opens the folder", (".vscode", ".idea")),
    ObeyedFiles(
        "editors",
        "opens the folder",
        (".zed", ".helix", ".devcontainer", ".devcontainer.json"),
        "reported",
    ),
    ObeyedFiles("direnv", "enters the folder", (".envrc",)),
    ObeyedFiles(
        "mise",
        "enters the folder",
        ("mise.toml", "mise.*.toml", "mise/config*", ".mise*", ".config/mise*"),
        "reported",
    ),
    ObeyedFiles("husky", "runs git commit", (".husky",)),
    ObeyedFiles("pre-commit", "runs git commit", (".pre-commit-config.yaml",), "reported"),
    ObeyedFiles(
        "lefthook",
        "runs git commit",
        ("lefthook.*", "lefthook-local.*", ".lefthook*", ".config/lefthook*"),
        "reported",
    ),
    ObeyedFiles("overcommit", "runs git commit", (".overcommit.yml",), "reported"),
    ObeyedFiles(
        "vim",
        "opens a file in the folder",
        (".exrc", ".vimrc", ".gvimrc", ".nvimrc", ".nvim.lua"),
        "reported",
    ),
    ObeyedFiles("lazygit", "runs it in the folder or below", (".lazygit.yml",), "reported"),
    ObeyedFiles(
        "Mercurial",
        "runs any hg command in the folder",
        (".hg/hgrc", ".hg/hgrc-not-shared", ".hg/sharedpath"),
        "reported",
    ),
    ObeyedFiles(
        "Jujutsu", "runs any jj command in the folder", (".jj/repo/config.toml",), "reported"
    ),
    ObeyedFiles("npm", "runs npm run or exec in the folder", (".npmrc",), "reported"),
    ObeyedFiles("GitHub", "runs git push", (".github/workflows",), "reported"),
)

PROTECTED_PLACES: Final = tuple(place for files in OBEYED for place in files.places)
"""The names of all protected files."""


def places_in_sandbox(kind: Literal["closed", "reported"]) -> tuple[str, ...]:
    """Return the names of the protected files that a sandbox treats in this way."""
    return tuple(place for files in OBEYED if files.in_sandbox == kind for place in files.places)


@functools.cache
def protection() -> tuple[Rule, ...]:
    """Return the rules that ask before a protected file is written."""
    places = (f"write(**/{place})" for place in PROTECTED_PLACES)
    return rules_of("ask", places, "the protected places")
