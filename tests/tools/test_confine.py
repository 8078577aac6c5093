"""No file tool leaves the workspace or reaches the daemon's own state."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from nousd.errors import ConfigError, ToolError
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.fs.path_walk import PathWalk
from nousd.tools.fs.tree_walk import open_tree
from nousd.tools.function_tool import real_path
from nousd.wire.limits import OUTSIDE_PLACES_MAX
from tests.tools.bench import SECRET, Bench

PATH_TOOLS: dict[str, dict[str, Any]] = {
    "read": {},
    "write": {"content": "overwritten"},
    "edit": {"oldText": SECRET, "newText": "overwritten"},
    "ls": {},
    "find": {"pattern": "*"},
    "grep": {"pattern": "secret"},
}

OUTSIDE = [
    "..",
    "../outside/secret.txt",
    "sub/../../outside/secret.txt",
    "{outside}/secret.txt",
    "{outside}",
    "/",
    "//etc/hostname",
    "/etc/hostname",
    "{work}/../outside/secret.txt",
    "{work}2/x",
    "link_to_file",
    "link_to_folder",
    "link_to_folder/secret.txt",
    "link_to_link",
    "link_up/outside/secret.txt",
    "/proc/self/root/etc/hostname",
    "/proc/self/cwd",
    "~",
    "~/secret.txt",
    "$HOME/secret.txt",
    "${{HOME}}/secret.txt",
    ".state",
    ".state/log.db",
    ".state/new",
    "{hidden}/log.db",
    "sub/../.state/log.db",
    "link_to_state/log.db",
]

every_path_tool = pytest.mark.parametrize("tool", PATH_TOOLS)


@pytest.fixture
def trap(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A workspace with many paths that lead out of it."""
    (bench.work / "sub").mkdir()
    links = {
        "link_to_file": bench.outside / "secret.txt",
        "link_to_folder": bench.outside,
        "link_to_link": Path("link_to_file"),
        "link_up": Path(".."),
        "link_to_state": Path(".state"),
    }
    for name, target in links.items():
        (bench.work / name).symlink_to(target)
    monkeypatch.setenv("HOME", str(bench.outside))
    return bench


@pytest.mark.slow(keep=4)
@every_path_tool
async def test_a_path_out_of_the_workspace_is_refused_in_the_spelling_given(
    tool: str, trap: Bench
) -> None:
    names = trap.names()
    # Each search starts a process: a part of the list is enough.
    ways = OUTSIDE[::4] if tool in {"find", "grep"} else OUTSIDE
    for way in ways:
        path = way.format(outside=trap.outside, work=trap.work, hidden=trap.hidden)
        with pytest.raises(ToolError) as caught:
            await trap.call(tool, path=path, **PATH_TOOLS[tool])
        assert str(caught.value) == f"path_outside_workdir: {path}"
    assert (trap.outside / "secret.txt").read_text() == SECRET
    assert (trap.hidden / "log.db").read_text() == SECRET
    assert trap.names() == names
    assert [path.name for path in trap.hidden.iterdir()] == ["log.db"]


@pytest.mark.slow(keep=3)
@every_path_tool
async def test_an_impossible_path_is_refused_with_the_reason(tool: str, bench: Bench) -> None:
    (bench.work / "loop").symlink_to("loop")
    cases = {
        "a\0b": "path_invalid: a\\0b holds a NUL character",
        "x" * 4000: f"{tool}_failed: {'x' * 200}...: File name too long",
        "d/" * 300 + "x": "path_invalid: more than 128 folders deep",
        "loop/x": f"{tool}_failed: loop/x: Too many levels of symbolic links",
    }
    if tool != "write":
        deep = "d/" * 300 + "x"
        cases[deep] = f"{tool}_failed: {deep[:200]}...: No such file or directory"
    for path, text in cases.items():
        with pytest.raises(ToolError) as caught:
            await bench.call(tool, path=path, **PATH_TOOLS[tool])
        assert str(caught.value) == text


@every_path_tool
async def test_a_very_long_path_is_cut_in_the_error(tool: str, bench: Bench) -> None:
    with pytest.raises(ToolError) as caught:
        await bench.call(tool, path="x" * 5000, **PATH_TOOLS[tool])
    assert len(str(caught.value)) < 300


@every_path_tool
async def test_a_fifo_is_refused_without_waiting_for_it(tool: str, bench: Bench) -> None:
    os.mkfifo(bench.work / "fifo")
    with pytest.raises(ToolError, match=rf"^{tool}_failed: fifo: "):
        await bench.call(tool, path="fifo", **PATH_TOOLS[tool])


@every_path_tool
async def test_a_device_in_the_workspace_is_refused(tool: str, bench: Bench) -> None:
    if tool in {"ls", "find"}:
        path = "/dev/null"
    else:
        path = "null"
    bench.context = bench.context.__class__(
        path_sandbox=PathSandbox(Path("/dev")), emit=bench.context.emit
    )
    reason = "Not a directory" if tool in {"ls", "find"} else "not a regular file"
    with pytest.raises(ToolError, match=rf"^{tool}_failed: {path}: {reason}$"):
        await bench.call(tool, path=path, **PATH_TOOLS[tool])


async def test_links_inside_the_workspace_are_followed(bench: Bench, tmp_path: Path) -> None:
    bench.put("sub/a.txt", "hello")
    (bench.work / "relative").symlink_to("sub/a.txt")
    (bench.work / "absolute").symlink_to(bench.work / "sub")
    (bench.work / "sub" / "back").symlink_to("../sub/a.txt")
    for path in (
        "relative",
        "absolute/a.txt",
        "sub/back",
        "sub/../sub/./a.txt",
        "absolute/../relative",
    ):
        assert await bench.text("read", path=path) == "hello"
    assert await bench.text("read", path=str(bench.work / "sub/a.txt")) == "hello"


async def test_writing_through_a_link_changes_its_target(bench: Bench) -> None:
    target = bench.put("sub/a.txt", "old")
    (bench.work / "link").symlink_to("sub/a.txt")
    await bench.call("write", path="link", content="new")
    assert target.read_text() == "new"
    assert (bench.work / "link").is_symlink()


async def test_home_and_variables_are_expanded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("a.txt", "hello")
    bench.put("$UNKNOWN", "literal")
    monkeypatch.setenv("HOME", str(bench.work))
    for path in ("~/a.txt", "$HOME/a.txt", "${HOME}/a.txt"):
        assert await bench.text("read", path=path) == "hello"
    assert await bench.text("read", path="$UNKNOWN") == "literal"


async def test_secret_variables_are_not_expanded_in_a_path(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    await bench.call("write", path="$OPENAI_API_KEY", content="")
    assert "$OPENAI_API_KEY" in bench.names()
    assert "sk-very-secret" not in bench.names()


async def test_a_workspace_given_by_a_link_is_the_same_workspace(
    bench: Bench, tmp_path: Path
) -> None:
    bench.put("a.txt", "hello")
    alias = tmp_path / "alias"
    alias.symlink_to(bench.work)
    bench.context = bench.context.__class__(
        path_sandbox=PathSandbox(alias, (alias / ".state",)), emit=bench.context.emit
    )
    assert bench.context.workdir == bench.work
    assert await bench.text("read", path=str(alias / "a.txt")) == "hello"
    assert await bench.text("grep", path=str(alias / "a.txt"), pattern="h") != "No matches found."
    with pytest.raises(ToolError, match="path_outside_workdir"):
        await bench.call("read", path=".state/log.db")


async def test_hidden_paths_are_not_listed(bench: Bench) -> None:
    bench.put("a.txt", "the-secret-inside")
    assert await bench.text("ls") == "a.txt"
    assert await bench.text("find", pattern="*") == "a.txt"
    assert await bench.text("grep", pattern="the-secret") == "a.txt:1: the-secret-inside"


def test_a_hidden_path_that_does_not_exist_cannot_be_created(bench: Bench) -> None:
    path_sandbox = PathSandbox(bench.work, (bench.work / "config" / "nousd",))
    with (
        pytest.raises(ToolError, match="path_outside_workdir"),
        path_sandbox.locate("config/nousd/config.toml", create_parents=True),
    ):
        pass
    assert not (bench.work / "config" / "nousd").exists()


def test_a_workspace_that_is_hidden_or_missing_is_refused(tmp_path: Path) -> None:
    for hidden in (tmp_path, tmp_path.parent):
        with pytest.raises(ConfigError, match="lies in the daemon's own state"):
            PathSandbox(tmp_path, (hidden,))
    with pytest.raises(ConfigError, match="is not a directory"):
        PathSandbox(tmp_path / "missing")


def exchange_for_link(folder: Path, target: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(target)


def test_a_directory_replaced_by_a_link_after_the_check_is_not_followed(bench: Bench) -> None:
    bench.put("sub/secret.txt", "inside")
    with bench.context.path_sandbox.locate("sub/secret.txt") as place:
        exchange_for_link(bench.work / "sub", bench.outside)
        with place.open_file() as file:
            assert file.read() == b"inside"


def test_a_file_replaced_by_a_link_after_the_check_is_not_opened(bench: Bench) -> None:
    file = bench.put("secret.txt", "inside")
    with bench.context.path_sandbox.locate("secret.txt") as place:
        exchange_for_link(file, bench.outside / "secret.txt")
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            place.open_file()


def test_a_directory_replaced_by_a_link_during_the_walk_is_not_entered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("sub/secret.txt", "inside")
    real = os.readlink

    def exchanging(name: str, *, dir_fd: int) -> str:
        try:
            return real(name, dir_fd=dir_fd)
        finally:  # the walk has just seen that this is no link
            if name == "sub":
                exchange_for_link(bench.work / "sub", bench.outside)

    monkeypatch.setattr(os, "readlink", exchanging)
    with (
        pytest.raises(NotADirectoryError),
        bench.context.path_sandbox.locate("sub/secret.txt") as place,
    ):
        place.open_file()


def test_a_directory_replaced_by_a_link_during_a_search_is_not_entered(bench: Bench) -> None:
    bench.put("a.txt", "")
    bench.put("sub/b.txt", "")
    with open_tree(bench.context.path_sandbox, ".") as tree:
        found = iter(tree)
        assert next(found).parts == ("a.txt",)
        exchange_for_link(bench.work / "sub", bench.outside)
        assert [item.parts for item in found] == [("sub",)]


def test_no_descriptor_is_left_open(bench: Bench) -> None:
    bench.put("a/b/c/d.txt", "")
    os.mkfifo(bench.work / "fifo")
    before = set(Path("/proc/self/fd").iterdir())
    refused = ("a/b/../../../x", "a/missing/x", "a/b/c/d.txt/e", "a/b/c", "fifo")
    for path in ("a/b/c/d.txt", *refused):
        try:
            with bench.context.path_sandbox.locate(path) as place:
                place.open_file().close()
        except (OSError, ToolError):
            assert path in refused
    with open_tree(bench.context.path_sandbox, ".") as tree, pytest.raises(IsADirectoryError):
        tree.open_file(("a",)).__enter__()
    assert set(Path("/proc/self/fd").iterdir()) == before


# --- resolved paths --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "real"),
    [
        (".", "."),
        ("sub/..", "."),
        ("sub/a.txt", "sub/a.txt"),
        ("./sub//a.txt", "sub/a.txt"),
        ("link/a.txt", "sub/a.txt"),
        ("link", "sub"),
        ("sub/../link/./new", "sub/new"),
        ("{work}/link/a.txt", "sub/a.txt"),
        ("new/folder/file", "new/folder/file"),
        ("new/../sub/a.txt", "sub/a.txt"),
        ("new/../link/deep/er", "sub/deep/er"),
        ("new/a/../../link/x", "sub/x"),
        ("dangling", "not/there"),
        ("dangling/x", "not/there/x"),
        ("$HERE/new/x", "sub/new/x"),
    ],
)
def test_a_path_is_resolved_before_it_exists(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, given: str, real: str
) -> None:
    bench.put("sub/a.txt", "")
    (bench.work / "link").symlink_to("sub")
    (bench.work / "dangling").symlink_to("not/there")
    monkeypatch.setenv("TMPDIR", str(bench.work / "sub"))
    path = given.format(work=bench.work).replace("$HERE", "$TMPDIR")
    names = bench.names()
    assert bench.context.path_sandbox.real(path) == real
    assert bench.names() == names


@pytest.mark.parametrize("given", ["new/../..", "new/../../outside/x", ".state/new/x", "a/" * 200])
def test_a_path_that_resolves_to_none_in_the_workspace_is_refused(bench: Bench, given: str) -> None:
    with pytest.raises(ToolError, match=r"^path_(outside_workdir|invalid): "):
        bench.context.path_sandbox.real(given)


@pytest.mark.parametrize("given", ["../x", "/etc/passwd", "new/../../x", "a\0b"])
def test_real_path_returns_a_path_out_of_the_workspace_as_given(bench: Bench, given: str) -> None:
    assert real_path(given, bench.context) == given.replace("\0", "\\0")


async def test_a_refused_write_creates_no_directory(bench: Bench) -> None:
    bench.close(writing=["new/folder/secret"])
    for path in ("new/folder/secret", "new/x/../../../outside/x", "new/../.state/x"):
        with pytest.raises(ToolError, match=r"^path_"):
            await bench.call("write", path=path, content="")
    assert bench.names() == {".state"}


# --- paths that are closed to a call ---------------------------------------------------------

CLOSED_USES = {
    "read": {},
    "edit": {"oldText": "secret", "newText": "x"},
    "grep": {"pattern": "secret"},
}


@pytest.fixture
def closed_bench(bench: Bench) -> Bench:
    bench.put("secret/key.txt", "secret")
    bench.put("src/.env", "secret")
    bench.put("src/main.py", "secret")
    (bench.work / "link").symlink_to("secret")
    bench.close(reading=["secret", r"(?:.*/)?\.env"])
    return bench


@pytest.mark.behaviour("a_closed_place_is_closed_where_it_is_opened")
@pytest.mark.parametrize("tool", CLOSED_USES)
async def test_a_path_closed_to_reading_is_not_read(tool: str, closed_bench: Bench) -> None:
    for path in ("secret/key.txt", "link/key.txt", "src/.env", "src/../src/.env"):
        with pytest.raises(ToolError) as caught:
            await closed_bench.call(tool, path=path, **CLOSED_USES[tool])
        assert str(caught.value) == f"path_denied: {path}: reading it is not allowed"
    assert "src/main.py" in await closed_bench.text("grep", pattern="secret")


@pytest.mark.parametrize("tool", ["ls", "find", "grep"])
async def test_a_closed_directory_is_not_listed(tool: str, closed_bench: Bench) -> None:
    args = {} if tool == "ls" else {"pattern": "secret" if tool == "grep" else "*"}
    for path in ("secret", "link"):
        with pytest.raises(ToolError, match=rf"^path_denied: {path}: reading it is not allowed$"):
            await closed_bench.call(tool, path=path, **args)


async def test_paths_closed_to_reading_do_not_appear_in_lists_and_searches(
    closed_bench: Bench,
) -> None:
    assert await closed_bench.text("ls") == "link\nsrc/"
    assert await closed_bench.text("find", pattern="*") == "link\nsrc/\nsrc/main.py"
    assert await closed_bench.text("grep", pattern="secret") == "src/main.py:1: secret"
    assert await closed_bench.text("ls", path="src") == "main.py"


async def test_a_path_closed_to_reading_can_be_written(closed_bench: Bench) -> None:
    await closed_bench.call("write", path="src/.env", content="new")
    assert (closed_bench.work / "src/.env").read_text() == "new"


async def test_a_path_closed_to_writing_can_only_be_read(bench: Bench) -> None:
    file = bench.put(".git/config", "old\n")
    bench.put("mine", "old\n")
    bench.close(writing=[r"\.git"])
    assert await bench.text("read", path=".git/config") == "old"
    changing = "--- PATH\n+++ PATH\n@@ -1 +1 @@\n-old\n+new\n"
    moving = "diff --git a/x b/x\nrename from mine\nrename to .git/new\n"
    removing = "--- .git/config\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
    for tool, args in (
        ("write", {"path": ".git/config", "content": "new"}),
        ("write", {"path": ".git/hooks/new", "content": "new"}),
        ("edit", {"path": ".git/config", "oldText": "old", "newText": "new"}),
        ("patch", {"patch": changing.replace("PATH", ".git/config")}),
        ("patch", {"patch": removing}),
        ("patch", {"patch": moving}),
        ("patch", {"patch": changing.replace("PATH", "mine") + removing}),
    ):
        with pytest.raises(ToolError, match=r"^path_denied: \.git/\S+: writing it is not allowed$"):
            await bench.call(tool, **args)
    assert file.read_text() == "old\n"
    assert [path.name for path in file.parent.iterdir()] == ["config"]
    assert (bench.work / "mine").read_text() == "old\n"


def test_closed_paths_stay_closed_in_a_further_copy(bench: Bench) -> None:
    first = bench.context.path_sandbox.restrict(reading=[re.compile("a")])
    second = first.restrict(reading=[re.compile("b")], writing=[re.compile("c")])
    assert [second.is_seen((name,)) for name in ("a", "b", "c")] == [False, False, True]
    assert first.is_seen(("b",))
    assert bench.context.path_sandbox.is_seen(("a",))


@pytest.mark.slow
async def test_patterns_of_any_length_and_with_flags_reach_a_search(bench: Bench) -> None:
    bench.put("Secret", "x")
    bench.put("other", "x")
    long = re.compile("y" * 200_000)
    bench.context = bench.context.__class__(
        path_sandbox=bench.context.path_sandbox.restrict(
            reading=[long, re.compile("secret", re.IGNORECASE)]
        ),
        emit=bench.context.emit,
    )
    assert await bench.text("grep", pattern="x") == "other:1: x"


def test_a_directory_that_becomes_a_link_to_a_closed_path_is_not_read(bench: Bench) -> None:
    """The rule was checked against the earlier target of the path."""
    bench.put("secret/key.txt", "secret")
    bench.put("open/key.txt", "open")
    path_sandbox = bench.context.path_sandbox.restrict(reading=[re.compile("secret")])
    assert path_sandbox.real("open/key.txt") == "open/key.txt"
    exchange_for_link(bench.work / "open", bench.work / "secret")
    with (
        pytest.raises(ToolError, match=r"^path_denied: open/key\.txt"),
        path_sandbox.locate("open/key.txt") as place,
    ):
        place.open_file()


# --- paths outside that are opened to one call -----------------------------------------------


USES_OUTSIDE: dict[str, dict[str, Any]] = {
    "read": {},
    "write": {"content": "overwritten"},
    "edit": {"oldText": SECRET, "newText": "overwritten"},
    "grep": {"pattern": "secret"},
}
"""Tool -> its arguments besides the path of a file outside."""


@pytest.fixture
def asking_bench(trap: Bench) -> Bench:
    """A workspace with many paths that lead out of it, whose calls can be approved."""
    trap.restrict(trap.context.path_sandbox.asking())
    return trap


@pytest.mark.parametrize("way", [way for way in OUTSIDE[:-6] if not way.startswith("/proc")])
def test_a_path_out_of_the_workspace_is_resolved_to_its_target(
    way: str, asking_bench: Bench
) -> None:
    path_sandbox = asking_bench.context.path_sandbox
    given = way.format(outside=asking_bench.outside, work=asking_bench.work)
    place = path_sandbox.beyond(given)
    assert place is not None
    expanded = os.path.expandvars(os.path.expanduser(given))  # noqa: PTH111
    assert place == os.path.realpath(asking_bench.work / expanded)
    assert path_sandbox.allow_outside(()).real(given) == path_sandbox.make_relative(place)


@pytest.mark.parametrize(
    "way",
    [
        "inside.txt",
        "sub/../inside.txt",
        "{hidden}/log.db",
        ".state/new",
        "link_to_state/log.db",
        "../work/.state/log.db",
        "{outside}/../work/link_to_state/log.db",
        "/proc/self/environ",
        "/proc/self/root/etc/hostname",
        "/sys/kernel/notes",
        "/dev/mem",
        "link_to_environment",
        "../out\0side",
        "../out\nside",
        "{outside}/loop/x",
    ],
)
def test_a_path_that_is_inside_or_hidden_or_invalid_cannot_be_approved(
    way: str, asking_bench: Bench
) -> None:
    (asking_bench.work / "link_to_environment").symlink_to("/proc/self/environ")
    (asking_bench.outside / "loop").symlink_to("loop")
    given = way.format(outside=asking_bench.outside, hidden=asking_bench.hidden)
    assert asking_bench.context.path_sandbox.beyond(given) is None
    assert PathSandbox(asking_bench.work).beyond("../outside") is None


@pytest.mark.parametrize("tool", USES_OUTSIDE)
async def test_an_opened_path_outside_is_usable_and_its_siblings_are_not(
    tool: str, asking_bench: Bench
) -> None:
    other = asking_bench.outside / "other.txt"
    other.write_text(SECRET)
    asking_bench.open("../outside/secret.txt")
    await asking_bench.call(tool, path="link_to_file", **USES_OUTSIDE[tool])
    written = tool in {"write", "edit"}
    assert (asking_bench.outside / "secret.txt").read_text() == (
        "overwritten" if written else SECRET
    )
    for way in ("../outside/other.txt", "../outside", str(other), "/etc/hostname"):
        with pytest.raises(ToolError, match="path_outside_workdir"):
            await asking_bench.call(tool, path=way, **USES_OUTSIDE[tool])
    assert other.read_text() == SECRET


async def test_an_opened_directory_shows_its_contents_except_hidden_paths(
    asking_bench: Bench,
) -> None:
    asking_bench.put("inside.txt", "a secret")
    asking_bench.open("..")
    assert "outside/" in await asking_bench.text("ls", path="..")
    found = (await asking_bench.text("find", pattern="*.txt", path="..")).splitlines()
    assert {"../outside/secret.txt", "../work/inside.txt"} <= set(found)
    assert not [line for line in found if "state" in line]
    assert "log.db" not in await asking_bench.text("grep", pattern="secret", path="..")


async def test_a_denial_applies_inside_an_opened_directory(asking_bench: Bench) -> None:
    asking_bench.put("inside.txt", "a secret")
    asking_bench.open("..")
    asking_bench.close(reading=[r"inside\.txt", r"(?:[^/]+/)*secret\.txt"])
    assert await asking_bench.text("grep", pattern="secret", path="..") == "No matches found."
    with pytest.raises(ToolError, match="path_denied"):
        await asking_bench.call("read", path="../work/inside.txt")
    asking_bench.open("../outside/secret.txt")
    with pytest.raises(ToolError, match="path_denied"):
        await asking_bench.call("read", path="../outside/secret.txt")


async def test_kernel_file_systems_are_not_entered_in_an_opened_directory(
    asking_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking_bench.open("..")
    opened = asking_bench.context.path_sandbox
    with open_tree(opened, "..") as tree:
        assert ("outside", "secret.txt") in {found.parts for found in tree}
        # As if all of it were a kernel file system, mounted at another path.
        device = asking_bench.outside.stat().st_dev
        monkeypatch.setattr(opened, "_kernel_devices", frozenset({device}))
        assert {len(found.parts) for found in tree} == {1}
    asking_bench.open("../outside/secret.txt")
    assert await asking_bench.text("read", path="../outside/secret.txt") == SECRET
    monkeypatch.setattr(asking_bench.context.path_sandbox, "_kernel_devices", frozenset({device}))
    with pytest.raises(ToolError, match="path_outside_workdir"):
        await asking_bench.call("read", path="../outside/secret.txt")


@pytest.mark.parametrize("tool", USES_OUTSIDE)
@pytest.mark.parametrize("target", ["../outside/other.txt", "/etc/hostname", ".state/log.db"])
async def test_a_link_changed_after_its_target_was_opened_is_refused(
    tool: str, target: str, asking_bench: Bench
) -> None:
    (asking_bench.outside / "other.txt").write_text(SECRET)
    asking_bench.open("link_to_file")
    (asking_bench.work / "link_to_file").unlink()
    (asking_bench.work / "link_to_file").symlink_to(target)
    with pytest.raises(ToolError, match="path_outside_workdir"):
        await asking_bench.call(tool, path="link_to_file", **USES_OUTSIDE[tool])
    assert (asking_bench.outside / "other.txt").read_text() == SECRET


@pytest.mark.parametrize("tool", USES_OUTSIDE)
async def test_an_opened_path_whose_directory_became_a_link_is_refused(
    tool: str, asking_bench: Bench
) -> None:
    asking_bench.open("../outside/secret.txt")
    elsewhere = asking_bench.outside.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.txt").write_text(SECRET)
    asking_bench.outside.rename(asking_bench.outside.with_name("before"))
    asking_bench.outside.symlink_to(elsewhere)
    with pytest.raises(ToolError, match="path_outside_workdir"):
        await asking_bench.call(tool, path="../outside/secret.txt", **USES_OUTSIDE[tool])
    assert (elsewhere / "secret.txt").read_text() == SECRET


async def test_directories_are_created_only_for_an_opened_path(
    asking_bench: Bench,
) -> None:
    asking_bench.open("../outside/new/deep/file.txt")
    await asking_bench.call("write", path="../outside/new/deep/file.txt", content="x")
    assert (asking_bench.outside / "new/deep/file.txt").read_text() == "x"
    asking_bench.open("link_to_folder/newer/file.txt")
    elsewhere = asking_bench.outside.parent / "elsewhere"
    elsewhere.mkdir()
    (asking_bench.work / "link_to_folder").unlink()
    (asking_bench.work / "link_to_folder").symlink_to(elsewhere)
    with pytest.raises(ToolError, match="path_outside_workdir"):
        await asking_bench.call("write", path="link_to_folder/newer/file.txt", content="x")
    assert not list(elsewhere.iterdir())


def test_a_walk_creates_no_directory_for_a_path_that_was_not_opened(asking_bench: Bench) -> None:
    asking_bench.open("../outside/new/file.txt")
    elsewhere = asking_bench.outside.parent / "elsewhere"
    elsewhere.mkdir()
    way = PathWalk(asking_bench.context.path_sandbox, "given")
    try:
        with pytest.raises(ToolError, match="path_outside_workdir: given"):
            way.to([*elsewhere.parts[1:], "new", "file.txt"], missing="create")
    finally:
        way.close()
    assert not list(elsewhere.iterdir())


async def test_a_patch_changes_files_inside_and_outside_together_or_none(
    asking_bench: Bench,
) -> None:
    asking_bench.put("inside.txt", "one\n")
    (asking_bench.outside / "note.txt").write_text("one\n")
    patch = "".join(
        f"--- {path}\n+++ {path}\n@@ -1 +1 @@\n-one\n+two\n"
        for path in ("inside.txt", "../outside/note.txt")
    )
    patch += "--- /dev/null\n+++ ../outside/made/new.txt\n@@ -0,0 +1 @@\n+made\n"
    asking_bench.open("../outside/note.txt")
    with pytest.raises(ToolError, match="path_outside_workdir"):
        await asking_bench.call("patch", patch=patch, strip=0)
    assert (asking_bench.work / "inside.txt").read_text() == "one\n"
    assert not (asking_bench.outside / "made").exists()
    asking_bench.open("../outside/note.txt", "../outside/made/new.txt")
    await asking_bench.call("patch", patch=patch, strip=0)
    assert (asking_bench.work / "inside.txt").read_text() == "two\n"
    assert (asking_bench.outside / "note.txt").read_text() == "two\n"
    assert (asking_bench.outside / "made/new.txt").read_text() == "made\n"


async def test_the_access_of_a_call_lists_a_path_outside_in_both_spellings(
    asking_bench: Bench,
) -> None:
    tool = asking_bench.registry.get("read")
    assert tool is not None
    access = await tool.access(tool.validate({"path": "link_to_file"}), asking_bench.context)
    assert access.outside == (str(asking_bench.outside.resolve() / "secret.txt"),)
    assert access.paths == ("link_to_file", "../outside/secret.txt")


@pytest.mark.parametrize("more", [0, 1])
async def test_a_call_with_too_many_paths_outside_cannot_be_approved(
    more: int, asking_bench: Bench
) -> None:
    tool = asking_bench.registry.get("patch")
    assert tool is not None
    patch = "".join(
        f"--- /dev/null\n+++ ../outside/{number}\n@@ -0,0 +1 @@\n+x\n"
        for number in range(OUTSIDE_PLACES_MAX + more)
    )
    access = await tool.access(tool.validate({"patch": patch, "strip": 0}), asking_bench.context)
    assert len(access.outside) == (0 if more else OUTSIDE_PLACES_MAX)


async def test_a_closed_link_is_refused_where_it_is_followed(bench: Bench) -> None:
    bench.put("shared/env", "x")
    (bench.work / ".env").symlink_to("shared/env")
    (bench.work / "way").symlink_to(".env")
    bench.close(reading=[r"\.env"], writing=[r"\.env"])
    for path in (".env", "way"):
        with pytest.raises(ToolError, match="path_denied"):
            await bench.text("read", path=path)
        with pytest.raises(ToolError, match="path_denied"):
            await bench.text("write", path=path, content="y")
    assert await bench.text("read", path="shared/env") == "x"
