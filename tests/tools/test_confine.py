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
    """A workdir full of ways out."""
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


@every_path_tool
async def test_ways_out_are_refused_by_the_name_they_were_given(tool: str, trap: Bench) -> None:
    names = trap.names()
    # A process is started for each search: a part of the list tells as much.
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


@every_path_tool
async def test_impossible_names_are_refused_in_so_many_words(tool: str, bench: Bench) -> None:
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
async def test_a_very_long_path_never_becomes_a_long_error(tool: str, bench: Bench) -> None:
    with pytest.raises(ToolError) as caught:
        await bench.call(tool, path="x" * 5000, **PATH_TOOLS[tool])
    assert len(str(caught.value)) < 300


@every_path_tool
async def test_a_fifo_is_refused_without_waiting_for_it(tool: str, bench: Bench) -> None:
    os.mkfifo(bench.work / "fifo")
    with pytest.raises(ToolError, match=rf"^{tool}_failed: fifo: "):
        await bench.call(tool, path="fifo", **PATH_TOOLS[tool])


@every_path_tool
async def test_a_device_inside_the_workdir_is_no_file(tool: str, bench: Bench) -> None:
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


async def test_links_that_stay_inside_are_followed(bench: Bench, tmp_path: Path) -> None:
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


async def test_writing_through_a_link_changes_what_it_leads_to(bench: Bench) -> None:
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


async def test_a_secret_in_the_environment_does_not_become_part_of_a_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    await bench.call("write", path="$OPENAI_API_KEY", content="")
    assert "$OPENAI_API_KEY" in bench.names()
    assert "sk-very-secret" not in bench.names()


async def test_a_workdir_reached_by_a_link_is_the_same_workdir(
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


async def test_hidden_places_are_not_listed(bench: Bench) -> None:
    bench.put("a.txt", "the-secret-inside")
    assert await bench.text("ls") == "a.txt"
    assert await bench.text("find", pattern="*") == "a.txt"
    assert await bench.text("grep", pattern="the-secret") == "a.txt:1: the-secret-inside"


def test_a_hidden_place_that_is_not_there_yet_cannot_be_made(bench: Bench) -> None:
    path_sandbox = PathSandbox(bench.work, (bench.work / "config" / "nousd",))
    with (
        pytest.raises(ToolError, match="path_outside_workdir"),
        path_sandbox.locate("config/nousd/config.toml", create_parents=True),
    ):
        pass
    assert not (bench.work / "config" / "nousd").exists()


def test_a_workdir_that_is_hidden_or_missing_is_refused(tmp_path: Path) -> None:
    for hidden in (tmp_path, tmp_path.parent):
        with pytest.raises(ConfigError, match="lies in the daemon's own state"):
            PathSandbox(tmp_path, (hidden,))
    with pytest.raises(ConfigError, match="is not a directory"):
        PathSandbox(tmp_path / "missing")


def exchange_for_link(folder: Path, target: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(target)


def test_a_folder_exchanged_for_a_link_after_the_check_leads_nowhere(bench: Bench) -> None:
    bench.put("sub/secret.txt", "inside")
    with bench.context.path_sandbox.locate("sub/secret.txt") as place:
        exchange_for_link(bench.work / "sub", bench.outside)
        with place.open_file() as file:
            assert file.read() == b"inside"


def test_a_file_exchanged_for_a_link_after_the_check_is_not_opened(bench: Bench) -> None:
    file = bench.put("secret.txt", "inside")
    with bench.context.path_sandbox.locate("secret.txt") as place:
        exchange_for_link(file, bench.outside / "secret.txt")
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            place.open_file()


def test_a_folder_exchanged_between_two_steps_of_the_walk_is_not_entered(
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


def test_a_folder_exchanged_during_a_search_is_not_entered(bench: Bench) -> None:
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


# --- real places -----------------------------------------------------------------------------


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
def test_the_real_place_of_a_path_is_known_before_it_is_there(
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
def test_what_has_no_real_place_inside_is_refused(bench: Bench, given: str) -> None:
    with pytest.raises(ToolError, match=r"^path_(outside_workdir|invalid): "):
        bench.context.path_sandbox.real(given)


@pytest.mark.parametrize("given", ["../x", "/etc/passwd", "new/../../x", "a\0b"])
def test_the_facts_of_a_call_have_the_path_as_it_was_given_if_it_leads_out(
    bench: Bench, given: str
) -> None:
    assert real_path(given, bench.context) == given.replace("\0", "\\0")


async def test_nothing_is_made_on_the_way_to_what_may_not_be_made(bench: Bench) -> None:
    bench.close(writing=["new/folder/secret"])
    for path in ("new/folder/secret", "new/x/../../../outside/x", "new/../.state/x"):
        with pytest.raises(ToolError, match=r"^path_"):
            await bench.call("write", path=path, content="")
    assert bench.names() == {".state"}


# --- places that are closed to a call --------------------------------------------------------

CLOSED_USES = {
    "read": {},
    "edit": {"oldText": "secret", "newText": "x"},
    "grep": {"pattern": "secret"},
}


@pytest.fixture
def closed(bench: Bench) -> Bench:
    bench.put("secret/key.txt", "secret")
    bench.put("src/.env", "secret")
    bench.put("src/main.py", "secret")
    (bench.work / "link").symlink_to("secret")
    bench.close(reading=["secret", r"(?:.*/)?\.env"])
    return bench


@pytest.mark.behaviour("a_closed_place_is_closed_where_it_is_opened")
@pytest.mark.parametrize("tool", CLOSED_USES)
async def test_a_place_that_is_closed_to_reading_is_not_read(tool: str, closed: Bench) -> None:
    for path in ("secret/key.txt", "link/key.txt", "src/.env", "src/../src/.env"):
        with pytest.raises(ToolError) as caught:
            await closed.call(tool, path=path, **CLOSED_USES[tool])
        assert str(caught.value) == f"path_denied: {path}: reading it is not allowed"
    assert "src/main.py" in await closed.text("grep", pattern="secret")


@pytest.mark.parametrize("tool", ["ls", "find", "grep"])
async def test_a_folder_that_is_closed_is_not_listed(tool: str, closed: Bench) -> None:
    args = {} if tool == "ls" else {"pattern": "secret" if tool == "grep" else "*"}
    for path in ("secret", "link"):
        with pytest.raises(ToolError, match=rf"^path_denied: {path}: reading it is not allowed$"):
            await closed.call(tool, path=path, **args)


async def test_what_is_closed_to_reading_is_not_seen_in_lists_and_searches(closed: Bench) -> None:
    assert await closed.text("ls") == "link\nsrc/"
    assert await closed.text("find", pattern="*") == "link\nsrc/\nsrc/main.py"
    assert await closed.text("grep", pattern="secret") == "src/main.py:1: secret"
    assert await closed.text("ls", path="src") == "main.py"


async def test_what_is_closed_to_reading_can_be_written(closed: Bench) -> None:
    await closed.call("write", path="src/.env", content="new")
    assert (closed.work / "src/.env").read_text() == "new"


async def test_what_is_closed_to_writing_can_be_read_and_nothing_else(bench: Bench) -> None:
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


def test_what_is_closed_stays_closed_in_a_further_copy(bench: Bench) -> None:
    first = bench.context.path_sandbox.closed_to(reading=[re.compile("a")])
    second = first.closed_to(reading=[re.compile("b")], writing=[re.compile("c")])
    assert [second.is_seen((name,)) for name in ("a", "b", "c")] == [False, False, True]
    assert first.is_seen(("b",))
    assert bench.context.path_sandbox.is_seen(("a",))


async def test_patterns_of_any_length_and_with_flags_reach_a_search(bench: Bench) -> None:
    bench.put("Secret", "x")
    bench.put("other", "x")
    long = re.compile("y" * 200_000)
    bench.context = bench.context.__class__(
        path_sandbox=bench.context.path_sandbox.closed_to(
            reading=[long, re.compile("secret", re.IGNORECASE)]
        ),
        emit=bench.context.emit,
    )
    assert await bench.text("grep", pattern="x") == "other:1: x"


def test_a_folder_that_becomes_a_link_to_a_closed_place_is_not_read_through(bench: Bench) -> None:
    """The rule was asked of what the path led to before."""
    bench.put("secret/key.txt", "secret")
    bench.put("open/key.txt", "open")
    path_sandbox = bench.context.path_sandbox.closed_to(reading=[re.compile("secret")])
    assert path_sandbox.real("open/key.txt") == "open/key.txt"
    exchange_for_link(bench.work / "open", bench.work / "secret")
    with (
        pytest.raises(ToolError, match=r"^path_denied: open/key\.txt"),
        path_sandbox.locate("open/key.txt") as place,
    ):
        place.open_file()


# --- places outside that are opened to one call ---------------------------------------------------


USES_OUTSIDE: dict[str, dict[str, Any]] = {
    "read": {},
    "write": {"content": "overwritten"},
    "edit": {"oldText": SECRET, "newText": "overwritten"},
    "grep": {"pattern": "secret"},
}
"""What each tool does with a file outside."""


@pytest.fixture
def beside(trap: Bench) -> Bench:
    """A workdir full of ways out, whose calls somebody can be asked about."""
    trap.restrict(trap.context.path_sandbox.asking())
    return trap


@pytest.mark.parametrize("way", [way for way in OUTSIDE[:-6] if not way.startswith("/proc")])
def test_a_way_out_is_known_by_where_it_arrives(way: str, beside: Bench) -> None:
    path_sandbox = beside.context.path_sandbox
    given = way.format(outside=beside.outside, work=beside.work)
    place = path_sandbox.beyond(given)
    assert place is not None
    assert place == os.path.realpath(beside.work / os.path.expandvars(os.path.expanduser(given)))  # noqa: PTH111
    assert path_sandbox.opened_to(()).real(given) == path_sandbox.spelled_from_workdir(place)


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
def test_nobody_is_asked_about_what_is_inside_hidden_or_no_place(way: str, beside: Bench) -> None:
    (beside.work / "link_to_environment").symlink_to("/proc/self/environ")
    (beside.outside / "loop").symlink_to("loop")
    given = way.format(outside=beside.outside, hidden=beside.hidden)
    assert beside.context.path_sandbox.beyond(given) is None
    assert PathSandbox(beside.work).beyond("../outside") is None


@pytest.mark.parametrize("tool", USES_OUTSIDE)
async def test_a_place_that_was_opened_is_used_and_nothing_beside_it(
    tool: str, beside: Bench
) -> None:
    other = beside.outside / "other.txt"
    other.write_text(SECRET)
    beside.open("../outside/secret.txt")
    await beside.call(tool, path="link_to_file", **USES_OUTSIDE[tool])
    written = tool in {"write", "edit"}
    assert (beside.outside / "secret.txt").read_text() == ("overwritten" if written else SECRET)
    for way in ("../outside/other.txt", "../outside", str(other), "/etc/hostname"):
        with pytest.raises(ToolError, match="path_outside_workdir"):
            await beside.call(tool, path=way, **USES_OUTSIDE[tool])
    assert other.read_text() == SECRET


async def test_of_a_folder_that_was_opened_all_in_it_is_seen_but_what_is_hidden(
    beside: Bench,
) -> None:
    beside.put("inside.txt", "a secret")
    beside.open("..")
    assert "outside/" in await beside.text("ls", path="..")
    found = (await beside.text("find", pattern="*.txt", path="..")).splitlines()
    assert {"../outside/secret.txt", "../work/inside.txt"} <= set(found)
    assert not [line for line in found if "state" in line]
    assert "log.db" not in await beside.text("grep", pattern="secret", path="..")


async def test_a_denial_holds_in_a_folder_outside_that_was_opened(beside: Bench) -> None:
    beside.put("inside.txt", "a secret")
    beside.open("..")
    beside.close(reading=[r"inside\.txt", r"(?:[^/]+/)*secret\.txt"])
    assert await beside.text("grep", pattern="secret", path="..") == "No matches found."
    with pytest.raises(ToolError, match="path_denied"):
        await beside.call("read", path="../work/inside.txt")
    beside.open("../outside/secret.txt")
    with pytest.raises(ToolError, match="path_denied"):
        await beside.call("read", path="../outside/secret.txt")


async def test_the_kernels_folders_are_entered_nowhere_in_what_was_opened(
    beside: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside.open("..")
    opened = beside.context.path_sandbox
    with open_tree(opened, "..") as tree:
        assert ("outside", "secret.txt") in {found.parts for found in tree}
        # As if all of it were the kernel's, mounted once more in another place.
        device = beside.outside.stat().st_dev
        monkeypatch.setattr(opened, "_kernel_devices", frozenset({device}))
        assert {len(found.parts) for found in tree} == {1}
    beside.open("../outside/secret.txt")
    assert await beside.text("read", path="../outside/secret.txt") == SECRET
    monkeypatch.setattr(beside.context.path_sandbox, "_kernel_devices", frozenset({device}))
    with pytest.raises(ToolError, match="path_outside_workdir"):
        await beside.call("read", path="../outside/secret.txt")


@pytest.mark.parametrize("tool", USES_OUTSIDE)
@pytest.mark.parametrize("target", ["../outside/other.txt", "/etc/hostname", ".state/log.db"])
async def test_a_link_that_is_exchanged_after_a_place_was_opened_leads_nowhere(
    tool: str, target: str, beside: Bench
) -> None:
    (beside.outside / "other.txt").write_text(SECRET)
    beside.open("link_to_file")
    (beside.work / "link_to_file").unlink()
    (beside.work / "link_to_file").symlink_to(target)
    with pytest.raises(ToolError, match="path_outside_workdir"):
        await beside.call(tool, path="link_to_file", **USES_OUTSIDE[tool])
    assert (beside.outside / "other.txt").read_text() == SECRET


@pytest.mark.parametrize("tool", USES_OUTSIDE)
async def test_a_place_that_became_a_link_after_it_was_opened_leads_nowhere(
    tool: str, beside: Bench
) -> None:
    beside.open("../outside/secret.txt")
    elsewhere = beside.outside.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.txt").write_text(SECRET)
    beside.outside.rename(beside.outside.with_name("before"))
    beside.outside.symlink_to(elsewhere)
    with pytest.raises(ToolError, match="path_outside_workdir"):
        await beside.call(tool, path="../outside/secret.txt", **USES_OUTSIDE[tool])
    assert (elsewhere / "secret.txt").read_text() == SECRET


async def test_folders_are_made_on_the_way_to_what_was_opened_and_nowhere_else(
    beside: Bench,
) -> None:
    beside.open("../outside/new/deep/file.txt")
    await beside.call("write", path="../outside/new/deep/file.txt", content="x")
    assert (beside.outside / "new/deep/file.txt").read_text() == "x"
    beside.open("link_to_folder/newer/file.txt")
    elsewhere = beside.outside.parent / "elsewhere"
    elsewhere.mkdir()
    (beside.work / "link_to_folder").unlink()
    (beside.work / "link_to_folder").symlink_to(elsewhere)
    with pytest.raises(ToolError, match="path_outside_workdir"):
        await beside.call("write", path="link_to_folder/newer/file.txt", content="x")
    assert not list(elsewhere.iterdir())


def test_no_folder_is_made_on_a_way_that_turned_elsewhere_meanwhile(beside: Bench) -> None:
    beside.open("../outside/new/file.txt")
    elsewhere = beside.outside.parent / "elsewhere"
    elsewhere.mkdir()
    way = PathWalk(beside.context.path_sandbox, "given")
    try:
        with pytest.raises(ToolError, match="path_outside_workdir: given"):
            way.to([*elsewhere.parts[1:], "new", "file.txt"], missing="create")
    finally:
        way.close()
    assert not list(elsewhere.iterdir())


async def test_a_patch_changes_files_inside_and_outside_together_or_none(beside: Bench) -> None:
    beside.put("inside.txt", "one\n")
    (beside.outside / "note.txt").write_text("one\n")
    patch = "".join(
        f"--- {path}\n+++ {path}\n@@ -1 +1 @@\n-one\n+two\n"
        for path in ("inside.txt", "../outside/note.txt")
    )
    patch += "--- /dev/null\n+++ ../outside/made/new.txt\n@@ -0,0 +1 @@\n+made\n"
    beside.open("../outside/note.txt")
    with pytest.raises(ToolError, match="path_outside_workdir"):
        await beside.call("patch", patch=patch, strip=0)
    assert (beside.work / "inside.txt").read_text() == "one\n"
    assert not (beside.outside / "made").exists()
    beside.open("../outside/note.txt", "../outside/made/new.txt")
    await beside.call("patch", patch=patch, strip=0)
    assert (beside.work / "inside.txt").read_text() == "two\n"
    assert (beside.outside / "note.txt").read_text() == "two\n"
    assert (beside.outside / "made/new.txt").read_text() == "made\n"


async def test_what_a_call_would_touch_names_the_places_outside_by_both_spellings(
    beside: Bench,
) -> None:
    tool = beside.registry.get("read")
    assert tool is not None
    access = await tool.access(tool.validated({"path": "link_to_file"}), beside.context)
    assert access.outside == (str(beside.outside.resolve() / "secret.txt"),)
    assert access.paths == ("link_to_file", "../outside/secret.txt")


@pytest.mark.parametrize("more", [0, 1])
async def test_a_call_that_leads_to_more_places_than_anyone_reads_is_not_asked_about(
    more: int, beside: Bench
) -> None:
    tool = beside.registry.get("patch")
    assert tool is not None
    patch = "".join(
        f"--- /dev/null\n+++ ../outside/{number}\n@@ -0,0 +1 @@\n+x\n"
        for number in range(OUTSIDE_PLACES_MAX + more)
    )
    access = await tool.access(tool.validated({"patch": patch, "strip": 0}), beside.context)
    assert len(access.outside) == (0 if more else OUTSIDE_PLACES_MAX)
