"""What a repository configures git to run: with the tool's own words on the command line the real git
runs none of it, and without them it does. (In the tool a sandbox is around it besides.)
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from nousd.tools.builtin import git as git_tool

RAN = "ran"

EVERYTHING: tuple[Mapping[str, object], ...] = (
    {"subcommand": "status"},
    {"subcommand": "log"},
    {"subcommand": "log", "ref": "HEAD", "path": "a.txt"},
    {"subcommand": "diff"},
    {"subcommand": "diff", "ref": "HEAD", "stat": True},
    {"subcommand": "diff", "staged": True},
    {"subcommand": "branch"},
    {"subcommand": "branch", "action": "create", "name": "made"},
    {"subcommand": "branch", "action": "delete", "name": "made"},
    {"subcommand": "worktree"},
    {"subcommand": "worktree", "action": "create", "name": "made2"},
    {"subcommand": "worktree", "action": "delete", "name": "made2"},
)


class Planted(NamedTuple):
    """Config of a repository that makes git run a program, and files.

    Args:
        look: a plain command of git's that runs it; None where git never does.
        hook: the name of a hook.
        terminal: whether only with a terminal.
    """

    look: Sequence[str] | None
    config: Mapping[str, str] = {}
    attributes: str = ""
    hook: str = ""
    terminal: bool = False


TOUCH = f"touch {{place}}/{RAN}; cat"

PLANTED = {
    "fsmonitor": Planted(("status",), {"core.fsmonitor": TOUCH}),
    "pager": Planted(("log",), {"core.pager": TOUCH}, terminal=True),
    "pager of a command": Planted(("log",), {"pager.log": TOUCH}, terminal=True),
    "external diff": Planted(("diff",), {"diff.external": f"sh -c '{TOUCH}'"}),
    "driver of diff": Planted(
        ("diff",), {"diff.d.command": f"sh -c '{TOUCH}'"}, attributes="*.txt diff=d\n"
    ),
    "textconv": Planted(
        ("diff",), {"diff.d.textconv": f"sh -c '{TOUCH}' --"}, attributes="*.txt diff=d\n"
    ),
    "alias": Planted(None, {"alias.status": f"!{TOUCH}", "alias.log": f"!{TOUCH}"}),
    "alias of another command": Planted(("st",), {"alias.st": f"!{TOUCH}"}),
    "signature": Planted(
        ("log",), {"log.showSignature": "true", "gpg.program": "{place}/.git/program"}
    ),
    "hook of branches": Planted(("branch", "x"), hook="reference-transaction"),
    "hook of checkouts": Planted(("worktree", "add", "../x"), hook="post-checkout"),
    "hook of the index": Planted(("status",), hook="post-index-change"),
    "missing object": Planted(
        ("diff", "HEAD"),
        {
            "core.repositoryFormatVersion": "1",
            "extensions.partialClone": "origin",
            "remote.origin.promisor": "true",
            "remote.origin.url": "{place}/.git",
            "remote.origin.uploadpack": f"touch {{place}}/{RAN}; false",
        },
    ),
    "missing object of another transport": Planted(
        ("diff", "HEAD"),
        {
            "core.repositoryFormatVersion": "1",
            "extensions.partialClone": "origin",
            "protocol.ext.allow": "always",
            "remote.origin.promisor": "true",
            "remote.origin.url": "ext::{place}/.git/program",
        },
    ),
}


def run(
    folder: Path, *words: str, terminal: bool = False, variables: Mapping[str, str] | None = None
) -> str:
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "u",
        "GIT_AUTHOR_EMAIL": "u@example.org",
        "GIT_COMMITTER_NAME": "u",
        "GIT_COMMITTER_EMAIL": "u@example.org",
        "TERM": "xterm",
        **(variables or {}),
    }
    ours, theirs = os.openpty()
    output = theirs if terminal else subprocess.PIPE
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=30,
        )
    finally:
        os.close(theirs)
        os.close(ours)
    return (done.stdout or b"").decode("utf-8", "replace")


def make_repository(folder: Path, planted: Planted) -> None:
    folder.mkdir()
    run(folder, "init", "-q", "-b", "main")
    folder.joinpath("a.txt").write_text("one\n")
    run(folder, "add", "-A")
    run(folder, "commit", "-qm", "one")
    signed = run(folder, "cat-file", "commit", "HEAD").replace(
        "\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n", 1
    )
    folder.joinpath("signed").write_text(signed)
    commit = run(folder, "hash-object", "-t", "commit", "-w", "signed").strip()
    run(folder, "reset", "-q", "--soft", commit)
    if "extensions.partialClone" in planted.config:
        blob = run(folder, "rev-parse", "HEAD:a.txt").strip()
        (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    folder.joinpath("a.txt").write_text("two\n")
    folder.joinpath(".gitattributes").write_text(planted.attributes)
    program = folder / ".git" / "program"
    program.write_text(f"#!/bin/sh\ntouch {folder}/{RAN}\n")
    program.chmod(0o755)
    if planted.hook:
        (folder / ".git" / "hooks").mkdir(exist_ok=True)
        (folder / ".git" / "hooks" / planted.hook).symlink_to("../program")
    for name, value in planted.config.items():
        run(folder, "config", name, value.format(place=folder))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_no_program_of_a_repository_runs_with_the_words_of_the_tool(
    tmp_path: Path, planted: Planted
) -> None:
    folder = tmp_path / "repository"
    make_repository(folder, planted)
    for args in EVERYTHING:
        words = git_tool._COMMANDS[args["subcommand"], args.get("action", "list")](  # type: ignore[index]
            msgspec.convert(dict(args), git_tool.Git)
        )
        variables = {**git_tool._VARIABLES}
        if args.get("action", "list") == "list":
            variables |= git_tool._READ_ONLY_VARIABLES
        said = run(
            folder, *git_tool._OPTIONS, *words, terminal=planted.terminal, variables=variables
        )
        assert not (folder / RAN).exists(), (args, said)
    if planted.look is None:
        run(folder, "status")
        assert not (folder / RAN).exists()
        return
    # Without these words it runs: the test can fail.
    folder.joinpath("a.txt").touch()
    said = run(folder, *planted.look, terminal=planted.terminal)
    assert (folder / RAN).exists(), said


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", ["diff", "log", "short"])
def test_no_program_of_a_submodule_runs_with_the_words_of_the_tool(
    tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "repository"
    for name in ("other", "repository"):
        make_repository(tmp_path / name, Planted(None))
    run(
        folder,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        str(tmp_path / "other"),
        "sub",
    )
    run(folder, "commit", "-qm", "two")
    sub = folder / "sub"
    run(sub, "commit", "-q", "--allow-empty", "-m", "two")
    sub.joinpath("a.txt").write_text("three\n")
    run(folder, "config", "diff.submodule", kind)
    run(folder, "config", "status.submoduleSummary", "true")
    run(sub, "config", "core.fsmonitor", f"touch {folder}/{RAN}; false")
    run(sub, "config", "diff.external", f"sh -c 'touch {folder}/{RAN}'")
    for args in EVERYTHING[:6]:
        words = git_tool._COMMANDS[args["subcommand"], "list"](  # type: ignore[index]
            msgspec.convert(dict(args), git_tool.Git)
        )
        said = run(folder, *git_tool._OPTIONS, *words, variables=git_tool._VARIABLES)
        assert not (folder / RAN).exists(), (args, said)
    run(folder, "status")
    assert (folder / RAN).exists()
