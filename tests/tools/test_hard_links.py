"""Files that rules close, by the other names that they have."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest

from nousd.errors import ToolError
from nousd.tools.fs import hard_links
from nousd.tools.fs.hard_links import find_linked_files, other_names
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.sandbox import deny_scan
from nousd.tools.sandbox.deny_scan import Search
from nousd.tools.sandbox.interface import Request
from nousd.tools.sandbox.visible_paths import places_of
from tests.tools.bench import SECRET, Bench
from tests.tools.sandbox_bench import CHOSEN, SandboxBench

ENV = r"(?:.*/)?\.env"


async def output(bench: Bench, command: str) -> str:
    return (await bench.call("bash", command=command)).text


# --- commands ------------------------------------------------------------------------------------


@pytest.mark.behaviour("a_denied_file_is_closed_by_all_its_names")
@pytest.mark.parametrize("name", ["other", "sub/other", "sub/deep/er/other"])
@pytest.mark.slow
async def test_a_denied_file_with_a_second_name_is_unreadable_in_a_sandbox_by_every_name(
    sandbox_bench: SandboxBench, name: str
) -> None:
    first = sandbox_bench.put("a/.env", SECRET)
    sandbox_bench.put("sub/beside", "seen")
    (sandbox_bench.work / name).parent.mkdir(parents=True, exist_ok=True)
    (sandbox_bench.work / name).hardlink_to(first)
    sandbox_bench.close(reading=[ENV])
    for path in ("a/.env", name):
        assert SECRET not in await output(sandbox_bench, f"cat {path}; cp {path} a/copy; cat a/*")
    assert await output(sandbox_bench, "cat sub/beside") == "seen"


async def test_a_file_of_a_denied_folder_is_unreadable_in_a_sandbox_by_its_name_elsewhere(
    sandbox_bench: SandboxBench,
) -> None:
    key = sandbox_bench.put("secrets/deep/key", SECRET)
    (sandbox_bench.work / "sub").mkdir()
    (sandbox_bench.work / "sub" / "other").hardlink_to(key)
    sandbox_bench.close(reading=["secrets"])
    told = await output(sandbox_bench, "cat sub/other; cat secrets/deep/key")
    assert SECRET not in told


async def test_the_target_of_a_denied_link_is_unreadable_in_a_sandbox_by_its_other_names(
    sandbox_bench: SandboxBench,
) -> None:
    shared = sandbox_bench.put("shared/env", SECRET)
    (sandbox_bench.work / ".env").symlink_to("shared/env")
    (sandbox_bench.work / "other").hardlink_to(shared)
    sandbox_bench.close(reading=[ENV])
    assert SECRET not in await output(sandbox_bench, "cat .env; cat shared/env; cat other")


async def test_a_command_cannot_give_a_denied_file_a_second_name(
    sandbox_bench: SandboxBench,
) -> None:
    sandbox_bench.put("a/.env", SECRET)
    (sandbox_bench.work / "b").mkdir()
    sandbox_bench.close(reading=[ENV])
    await output(sandbox_bench, "ln a/.env a/other; ln a/.env b/other; mv a/.env b/moved")
    assert SECRET not in await output(sandbox_bench, "cat a/* b/*")


@pytest.mark.parametrize("kind", ["read_paths", "write_paths"])
@pytest.mark.slow
async def test_a_denied_file_is_unreadable_by_its_name_in_a_folder_that_the_settings_show(
    sandbox_bench: SandboxBench, tmp_path: Path, kind: str
) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "other").hardlink_to(sandbox_bench.put(".env", SECRET))
    (shown / "beside").write_text("seen")
    chosen = msgspec.structs.replace(CHOSEN, **{kind: (*CHOSEN.read_paths, shown)})
    bench = SandboxBench(tmp_path, sandbox_bench.find().name, chosen)  # type: ignore[union-attr, arg-type]
    bench.close(reading=[ENV])
    folder = shlex.quote(str(shown))
    assert SECRET not in await output(bench, f"cat {folder}/other; cat .env")
    assert await output(bench, f"cat {folder}/beside") == "seen"


@pytest.mark.parametrize("rule", [True, False])
@pytest.mark.slow(keep=1)
async def test_a_protected_file_with_a_second_name_is_unwritable_in_a_sandbox_by_every_name(
    sandbox_bench: SandboxBench, *, rule: bool
) -> None:
    path = "migrations/1.sql" if rule else "AGENTS.md"
    first = sandbox_bench.put(path, "kept")
    (sandbox_bench.work / "sub").mkdir()
    (sandbox_bench.work / "sub" / "other").hardlink_to(first)
    sandbox_bench.close(writing=["migrations"] if rule else [])
    await output(sandbox_bench, f"echo bad >> sub/other; echo bad >> {path}")
    assert first.read_text() == "kept"
    assert await output(sandbox_bench, f"cat sub/other {path}") == "keptkept"


# --- the search ----------------------------------------------------------------------------------


def put(folder: Path, name: str, other: str | None = None) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    if other is not None:
        (folder / other).parent.mkdir(parents=True, exist_ok=True)
        (folder / other).hardlink_to(path)
    return path


def names_of(folder: Path, *closed: str, most: int = 100) -> tuple[set[str], bool]:
    paths = [folder / name for name in closed]
    found = other_names(find_linked_files(paths, most), (folder,), set(map(str, paths)), most)
    return {str(path.relative_to(folder)) for path in found.paths}, found.is_partial


def test_the_search_finds_all_other_names_of_closed_files(tmp_path: Path) -> None:
    first = put(tmp_path, "closed/file", "a/other")
    (tmp_path / "closed" / "again").hardlink_to(first)
    (tmp_path / "third").hardlink_to(first)
    put(tmp_path, "x", "a/x")
    assert names_of(tmp_path, "closed") == ({"a/other", "third"}, False)


def test_no_other_names_are_searched_where_every_file_has_one(tmp_path: Path) -> None:
    put(tmp_path, "closed/file")
    (tmp_path / "many").mkdir()
    for number in range(20):
        put(tmp_path, f"many/{number}")
    assert names_of(tmp_path, "closed", most=10) == (set(), False)


def test_the_search_ends_when_every_name_was_found_and_is_partial_if_it_ended_before(
    tmp_path: Path,
) -> None:
    put(tmp_path, "closed", "a/other")
    for number in range(20):
        put(tmp_path, f"b/c/{number}")
    assert names_of(tmp_path, "closed", most=10) == ({"a/other"}, False)
    (tmp_path / "b" / "c" / "more").hardlink_to(tmp_path / "closed")
    assert names_of(tmp_path, "closed", most=10)[1]


def test_a_closed_folder_that_is_too_large_matters_only_beside_files_with_unknown_names(
    tmp_path: Path,
) -> None:
    for number in range(20):
        put(tmp_path, f"closed/{number}/file")
    put(tmp_path, "x", "y")
    assert names_of(tmp_path, "closed", most=10) == (set(), False)
    (tmp_path / "z").hardlink_to(tmp_path / "closed" / "0" / "file")
    assert names_of(tmp_path, "closed", most=10) == (set(), True)


def test_a_name_in_a_nested_start_is_counted_once(tmp_path: Path) -> None:
    first = put(tmp_path, "closed", "a/other")
    (tmp_path / "z").hardlink_to(first)
    linked = find_linked_files([tmp_path / "closed", tmp_path / "closed"], 100)
    starts = (tmp_path / "a", tmp_path)
    found = other_names(linked, starts, {str(tmp_path / "closed")}, 100)
    assert set(found.paths) == {tmp_path / "a" / "other", tmp_path / "z"}


def test_a_command_is_told_of_a_partial_search_and_runs_only_if_it_may_miss_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, ".env")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    put(tmp_path, "deep/er/.env")
    monkeypatch.setattr(deny_scan, "HIDDEN_MAX", 1)
    reading = (re.compile(ENV),)
    request = Request(argv=["/x"], env={}, workdir=tmp_path, reading=reading)
    assert not Search().finds_hidden(tmp_path, reading, (), CHOSEN.names)
    with pytest.raises(ToolError, match=r"^sandbox_failed: rules deny reading"):
        places_of(request, CHOSEN, Search())
    places = places_of(msgspec.structs.replace(request, may_miss=True), CHOSEN, Search())
    assert (places.hidden, places.is_partial) == ((tmp_path / ".env",), True)


def test_a_search_before_a_command_counts_for_the_decisions_on_the_next_ones(
    tmp_path: Path,
) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.01
        return now[0]

    search, reading = Search(clock), (re.compile(ENV),)
    search.find_closed_paths(tmp_path, reading, (), CHOSEN.names)
    took = now[0]
    assert search.finds_hidden(tmp_path, reading, (), CHOSEN.names)
    assert now[0] == took + 0.01  # looked at the clock once, and at nothing else
    other = (re.compile("other"),)
    assert search.finds_hidden(tmp_path, other, (), CHOSEN.names)
    assert now[0] > took + 0.02


# --- file tools ----------------------------------------------------------------------------------


@pytest.fixture
def linked(bench: Bench) -> Bench:
    """A workspace with a denied file, whose user allows files with several names."""
    first = bench.put("a/.env", SECRET)
    for name in ("other", "sub/other"):
        (bench.work / name).parent.mkdir(exist_ok=True)
        (bench.work / name).hardlink_to(first)
    bench.put("mine", "mine")
    (bench.work / "mine2").hardlink_to(bench.work / "mine")
    bench.restrict(PathSandbox(bench.work, (bench.hidden,), hard_links=True))
    return bench


PATCH = f"--- PATH\n+++ PATH\n@@ -1 +1 @@\n-{SECRET}\n\\ No newline at end of file\n+x\n"


@pytest.mark.behaviour("a_denied_file_is_closed_by_all_its_names")
@pytest.mark.parametrize("path", ["other", "sub/other"])
@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("read", {}),
        ("grep", {"pattern": "."}),
        ("edit", {"oldText": SECRET, "newText": "x"}),
        ("write", {"content": "x"}),
        ("patch", {"patch": PATCH, "strip": 0}),
    ],
)
async def test_file_tools_refuse_the_other_names_of_a_denied_file(
    linked: Bench, tool: str, args: dict[str, object], path: str
) -> None:
    if tool == "patch":
        args = {**args, "patch": PATCH.replace("PATH", path)}
    else:
        args = {**args, "path": path}
    linked.close(reading=[ENV])
    try:
        told = await linked.text(tool, **args)
    except ToolError as error:
        told = str(error)
    assert "another name (hard link) of a file that a rule closes" in told
    assert SECRET not in told
    assert (linked.work / path).read_text() == SECRET


async def test_a_search_leaves_out_the_other_names_of_denied_files_only(linked: Bench) -> None:
    linked.close(reading=[ENV])
    told = await linked.text("grep", pattern="mine|secret")
    assert "mine:1: mine" in told
    assert "mine2:1: mine" in told
    assert SECRET not in told
    assert "[2 files were not searched: several names each (hard links).]" in told


async def test_file_tools_refuse_a_file_of_which_a_closed_name_may_have_been_missed(
    linked: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = linked.context.path_sandbox
    monkeypatch.setattr(hard_links, "ENTRIES_MAX", 1)
    linked.close(reading=[ENV])
    assert linked.context.path_sandbox.is_unknown("mine2")
    with pytest.raises(ToolError, match="too large for telling whether a rule closes"):
        await linked.text("read", path="mine2")
    linked.restrict(plain.restrict(reading=[re.compile(ENV)], may_miss=True))
    assert await linked.text("read", path="mine2") == "mine"
