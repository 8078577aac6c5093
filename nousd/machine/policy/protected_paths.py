"""Places that no tool writes to unless the user agrees, because what is there makes other programs act.

Git runs what its folder says, and agent programs obey what their files say: whoever can write there can
have anything done later, outside of every rule. One table of rules like any other; they ask.
"""

from __future__ import annotations

import functools
from typing import Final

from nousd.machine.policy.rules import Rule, rules_of

PROTECTED_PLACES: Final = (
    ".git",
    ".gitmodules",
    ".nousd",
    "AGENTS.md",
    "AGENTS.override.md",
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
    ".roo*",
    ".windsurf*",
    ".vscode",
    ".idea",
    ".envrc",
    ".husky",
)
"""What git, this daemon, other agent programs, editors and shells obey; in any folder, in any case,
each with all in it."""


@functools.cache
def protection() -> tuple[Rule, ...]:
    """Return the rules that ask about writing to them."""
    places = (f"write(**/{place})" for place in PROTECTED_PLACES)
    return rules_of("ask", places, "the protected places")
