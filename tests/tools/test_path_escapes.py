"""Every argument that takes a path, against every way out of the workspace.

A tool that takes a path is in ``USES``; one that does not is in ``PATHLESS``. A tool that is in
neither fails a test, so that none is forgotten.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nousd.daemon.blobs import attachments
from nousd.errors import ToolError
from nousd.tools.builtin.catalog import BUILTIN_NAMES, builtin_tools
from nousd.tools.fs.path_sandbox import PathSandbox
from tests.tools.bench import SECRET, Bench

Use = Callable[[Bench, str], Awaitable[str]]
"""Use a path, and return the resulting text."""


async def _call(bench: Bench, path: str, tool: str, **args: Any) -> str:
    result = await bench.call(tool, path=path, **args)
    if result.is_error:
        raise ToolError(result.text)
    return result.text


def use(tool: str, **args: Any) -> Use:
    return partial(_call, tool=tool, **args)


async def _patch(bench: Bench, path: str, text: str) -> str:
    return await bench.text("patch", patch=text.replace("PATH", path), strip=0)


def patching(text: str) -> Use:
    return partial(_patch, text=text)


async def _attach(bench: Bench, path: str) -> str:
    return attachments._file_bytes(bench.context.path_sandbox, path).decode()


USES: dict[str, Use] = {
    "read": use("read"),
    "write": use("write", content="overwritten"),
    "edit": use("edit", oldText=SECRET, newText="overwritten"),
    "ls": use("ls"),
    "find": use("find", pattern="*"),
    "grep": use("grep", pattern="secret"),
    "git diff": use("git", subcommand="diff"),
    "patch a file": patching(f"--- PATH\n+++ PATH\n@@ -1 +1 @@\n-{SECRET}\n+overwritten\n"),
    "patch a new file": patching("--- /dev/null\n+++ PATH\n@@ -0,0 +1 @@\n+overwritten\n"),
    "patch away": patching(
        f"--- PATH\n+++ /dev/null\n@@ -1 +0,0 @@\n-{SECRET}\n\\ No newline at end of file\n"
    ),
    "patch from": patching("diff --git a/x b/y\nrename from PATH\nrename to taken\n"),
    "patch to": patching("diff --git a/x b/y\nrename from mine.txt\nrename to PATH\n"),
    "patch a copy": patching("diff --git a/x b/y\ncopy from PATH\ncopy to taken\n"),
    "attachment": _attach,
}

PATHLESS = {"bash", "question", "task", "todo", "web_fetch"}

WAYS_OUT = {
    "..": "../outside/secret.txt",
    ".. further on": "sub/../../outside/secret.txt",
    ".. behind a name that is not there": "not/there/../../../outside/secret.txt",
    "..'s folder": "..",
    "absolute": "{outside}/secret.txt",
    "absolute folder": "{outside}",
    "absolute with ..": "{work}/../outside/secret.txt",
    "two slashes": "//{outside}/secret.txt",
    "beside": "{work}2/secret.txt",
    "symlink to a file": "link_to_file",
    "symlink to a folder": "link_to_folder/secret.txt",
    "symlink to that": "link_to_link",
    "symlink to ..": "link_up/outside/secret.txt",
    "root of a process": "/proc/self/root{outside}/secret.txt",
    "folder of a process": "/proc/self/cwd/secret.txt",
    "hard link": "hard_link",
    "hard link in a folder": "sub/hard_link",
    "~": "~/secret.txt",
    "variable": "$HOME/secret.txt",
    "variable in braces": "${{HOME}}/secret.txt",
    "NUL": "secret.txt\0.md",
    "NUL behind a way out": "../outside/secret.txt\0",
    "long name": "x" * 300,
    "long path": "x/" * 3000 + "secret.txt",
    "own state": ".state/log.db",
    "own state by ..": "sub/../.state/log.db",
    "own state by a symlink": "link_to_state/log.db",
    "own state by a hard link": "hard_state",
    "own state that is not there yet": ".state/new",
}

every_use = pytest.mark.parametrize("name", USES)


def test_the_tables_cover_every_tool() -> None:
    assert {name.split()[0] for name in USES} - {"attachment"} | PATHLESS == BUILTIN_NAMES


def test_a_tool_without_paths_has_no_argument_named_like_a_path() -> None:
    for tool in builtin_tools(allow_exec=True):
        if tool.name in PATHLESS:
            names = " ".join(tool.parameters["properties"])
            assert not re.search(r"path|file|folder|dir|glob", names, re.IGNORECASE), tool.name


@pytest.fixture
def trap(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A workspace with many paths that lead out of it."""
    bench.put("mine.txt", "mine")
    (bench.work / "sub").mkdir()
    for link, target in {
        "link_to_file": bench.outside / "secret.txt",
        "link_to_folder": bench.outside,
        "link_to_link": Path("link_to_file"),
        "link_up": Path(".."),
        "link_to_state": Path(".state"),
    }.items():
        (bench.work / link).symlink_to(target)
    for link in ("hard_link", "sub/hard_link"):
        (bench.work / link).hardlink_to(bench.outside / "secret.txt")
    (bench.work / "hard_state").hardlink_to(bench.hidden / "log.db")
    monkeypatch.setenv("HOME", str(bench.outside))
    monkeypatch.chdir(bench.outside)
    return bench


def everything(bench: Bench) -> dict[str, tuple[int, bytes]]:
    """Return the inode and the content of every file in the workspace and outside of it."""
    root = bench.work.parent
    return {
        str(path.relative_to(root)): (
            path.lstat().st_ino,
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in root.rglob("*")
    }


@pytest.mark.slow(keep=13)
@pytest.mark.behaviour("a_path_leads_nowhere_out_of_the_workdir")
@every_use
@pytest.mark.parametrize("way", WAYS_OUT)
async def test_no_use_of_a_path_leads_out_of_the_workspace(
    name: str, way: str, trap: Bench
) -> None:
    path = WAYS_OUT[way].format(outside=trap.outside, work=trap.work)
    before = everything(trap)
    answer = ""
    try:
        answer = await USES[name](trap, path)
    except ToolError as error:
        answer = str(error)
        assert len(answer) < 2 * 4096
    else:
        # A long name cannot exist anywhere. Git is confined by its sandbox instead.
        assert name.startswith("git"), f"{way} was not refused: {answer}"
    assert SECRET not in answer
    assert everything(trap) == before


@pytest.mark.parametrize(
    "name", [name for name in USES if not name.startswith(("git", "find", "grep"))]
)
async def test_a_directory_replaced_by_a_link_during_the_walk_is_not_followed(
    name: str, trap: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search runs in another process; the tests of the walk cover it."""
    (trap.work / "sub" / "secret.txt").write_text("inside")
    real = os.readlink
    exchanged: list[str] = []

    def exchanging(path: str, *, dir_fd: int) -> str:
        try:
            return real(path, dir_fd=dir_fd)
        finally:  # the walk has just seen that this is no link
            if path == "sub" and not exchanged:
                exchanged.append(path)
                (trap.work / "sub").rename(trap.work / "moved")
                (trap.work / "sub").symlink_to(trap.outside)

    monkeypatch.setattr(os, "readlink", exchanging)
    with pytest.raises(ToolError):
        await USES[name](trap, "sub/secret.txt")
    assert exchanged
    assert (trap.outside / "secret.txt").read_text() == SECRET
    assert [path.name for path in trap.outside.iterdir()] == ["secret.txt"]


async def test_a_search_reports_the_number_of_skipped_hard_links(trap: Bench) -> None:
    answer = await trap.text("grep", pattern="mine|secret")
    assert answer == (
        "mine.txt:1: mine\n\n[3 files were not searched: several names each (hard links).]"
    )


# --- where the user allows hard links --------------------------------------------------------


@pytest.fixture
def lenient(trap: Bench) -> Bench:
    path_sandbox = PathSandbox(trap.work, (trap.hidden,), hard_links=True)
    trap.context = trap.context.__class__(path_sandbox=path_sandbox, emit=trap.context.emit)
    return trap


async def test_an_allowed_hard_link_is_readable_and_replaced_by_a_write(lenient: Bench) -> None:
    assert await lenient.text("read", path="hard_link") == SECRET
    assert f"sub/hard_link:1: {SECRET}" in await lenient.text("grep", pattern="secret")
    await lenient.call("write", path="hard_link", content="changed")
    assert (lenient.outside / "secret.txt").read_text() == SECRET


@every_use
async def test_the_daemons_state_is_unreachable_by_an_allowed_hard_link(
    name: str, lenient: Bench
) -> None:
    before = everything(lenient)
    try:
        answer = await USES[name](lenient, "hard_state")
    except ToolError as error:
        answer = str(error)
    assert SECRET not in answer
    assert everything(lenient) == before
