"""How much of a workspace is searched for denied paths, and what is cached."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

from nousd.tools.sandbox import deny_scan as rule_walk
from nousd.tools.sandbox.deny_scan import ClosedByRules, FoundFiles, Search
from nousd.tools.sandbox.interface import Request
from nousd.tools.sandbox.trap_watch import names_of
from nousd.tools.sandbox.visible_paths import places_of
from tests.tools.sandbox_bench import CHOSEN, SandboxBench

NAMES = names_of(("AGENTS.md",), ())


class Clock:
    """A clock that advances only by a fixed step at each reading."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def flood(folder: Path, number: int = 20) -> None:
    for name in range(number):
        (folder / f"_{name}").mkdir()


def search_in(search: Search, workdir: Path) -> ClosedByRules:
    found = search.find_closed_paths(workdir, (), (), NAMES)
    return ClosedByRules(
        protected=tuple(path.relative_to(workdir) for path in found.protected),
        is_partial=found.is_partial,
    )


def of(*names: str, is_partial: bool) -> ClosedByRules:
    return ClosedByRules((), tuple(map(Path, names)), is_partial)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_walk, "SHORT_ENTRIES_MAX", 10)


@pytest.mark.usefixtures("short")
def test_a_path_found_once_stays_closed_after_a_flood_of_directories(tmp_path: Path) -> None:
    clock = Clock(step=0.01)
    search = Search(clock)
    put(tmp_path, "a/b/AGENTS.md")
    assert search_in(search, tmp_path) == of("a/b/AGENTS.md", is_partial=False)
    flood(tmp_path)
    put(tmp_path, "a/c/AGENTS.md")
    assert search_in(search, tmp_path) == of("a/b/AGENTS.md", is_partial=True)


@pytest.mark.usefixtures("short")
def test_a_full_search_repeats_when_it_takes_a_small_share_of_the_time(tmp_path: Path) -> None:
    clock = Clock(step=0.01)
    search = Search(clock)
    flood(tmp_path)
    search_in(search, tmp_path)
    put(tmp_path, "a/b/AGENTS.md")
    took, clock.step = clock.now, 0.0
    clock.now = took / rule_walk.SEARCHING_SHARE_MAX * 0.9
    assert search_in(search, tmp_path) == of(is_partial=True)
    clock.now = took / rule_walk.SEARCHING_SHARE_MAX * 1.1
    assert search_in(search, tmp_path) == of("a/b/AGENTS.md", is_partial=False)


def test_a_slow_search_stops_early_with_a_partial_result(tmp_path: Path) -> None:
    flood(tmp_path, 100)
    (tmp_path / "AGENTS.md").touch()
    found = search_in(Search(Clock(step=rule_walk.SECONDS_MAX / 10)), tmp_path)
    assert found == of("AGENTS.md", is_partial=True)


def test_a_directory_with_more_entries_than_the_limit_gives_a_partial_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        (tmp_path / f"_{number}").touch()
    for entries_max, is_partial in ((8, True), (9, False), (10, False)):
        monkeypatch.setattr(rule_walk, "ENTRIES_MAX", entries_max)
        assert search_in(Search(), tmp_path).is_partial is is_partial


def test_paths_beyond_the_limit_are_not_protected_and_the_result_is_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_walk, "PROTECTED_MAX", 2)
    search = Search()
    put(tmp_path, "x/AGENTS.md", "y/AGENTS.md")
    both = search_in(search, tmp_path)
    assert (set(both.protected), both.is_partial) == (
        {Path("x/AGENTS.md"), Path("y/AGENTS.md")},
        False,
    )
    put(tmp_path, "a/AGENTS.md", "AGENTS.md")
    after = search_in(search, tmp_path)
    assert (after.protected, after.is_partial) == (both.protected, True)


def test_a_removed_path_is_forgotten(tmp_path: Path) -> None:
    search = Search()
    put(tmp_path, "x/AGENTS.md")
    search_in(search, tmp_path)
    (tmp_path / "x" / "AGENTS.md").unlink()
    assert search_in(search, tmp_path) == of(is_partial=False)


def test_a_path_denied_to_reading_is_closed_to_reading_instead_of_protected(tmp_path: Path) -> None:
    search = Search()
    put(tmp_path, "x/AGENTS.md")
    search_in(search, tmp_path)
    found = search.find_closed_paths(tmp_path, [re.compile("x")], (), NAMES)
    assert found == ClosedByRules((tmp_path / "x",), (), False)


def test_a_directory_that_cannot_be_listed_is_closed_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a/x", "b/x")
    open_ = os.open

    def refusing(path: str, flags: int) -> int:
        if path == f"{tmp_path}/a":
            raise PermissionError
        return open_(path, flags)

    monkeypatch.setattr(os, "open", refusing)
    unseen = FoundFiles(named=("a",))
    assert search_in(Search(), tmp_path) == of("a", is_partial=False)
    assert Search().look(tmp_path, NAMES) == unseen
    found = Search().find_closed_paths(tmp_path, [re.compile("secret")], (), NAMES)
    assert found == ClosedByRules((tmp_path / "a",), (), False, unseen)


@pytest.mark.usefixtures("short")
def test_the_workspaces_of_the_last_commands_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_walk, "WORKDIRS_MAX", 2)
    search = Search(Clock(step=0.01))
    for name in "abc":
        put(tmp_path, f"{name}/x/y/AGENTS.md")
        search_in(search, tmp_path / name)
        flood(tmp_path / name)
    assert search_in(search, tmp_path / "b").is_partial  # known, so the search is short
    assert not search_in(search, tmp_path / "a").is_partial


@pytest.mark.slow
@pytest.mark.usefixtures("short")
async def test_a_flood_of_directories_does_not_open_a_protected_path(
    sandbox_bench: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_walk, "SEARCHING_SHARE_MAX", 1e-9)
    sandbox_bench.put("a/b/c/AGENTS.md", "good")
    (sandbox_bench.work / "other").mkdir()
    before = await sandbox_bench.call(
        "bash", command="for n in $(seq 40); do mkdir other/_$n; done"
    )
    outcomes = await sandbox_bench.attack("""
tried("change", lambda: open("a/b/c/AGENTS.md", "a").write("bad"))
tried("replace", lambda: os.rename("a/b/c", "a/b/d"))
""")
    assert "done" not in outcomes.values()
    assert (sandbox_bench.work / "a" / "b" / "c" / "AGENTS.md").read_text() == "good"
    after = await sandbox_bench.call("bash", command="true")
    assert before.sandbox is not None
    assert after.sandbox is not None
    assert (before.sandbox.is_partial, after.sandbox.is_partial) == (False, True)


@pytest.mark.usefixtures("short")
def test_the_search_for_a_read_only_request_is_never_partial(tmp_path: Path) -> None:
    flood(tmp_path)
    search = Search(Clock(step=0.01))
    request = Request(argv=["/x"], env={}, workdir=tmp_path)
    assert [places_of(request, CHOSEN, search).is_partial for _ in range(2)] == [False, True]
    reading = msgspec.structs.replace(request, is_read_only=True)
    assert not places_of(reading, CHOSEN, search).is_partial
