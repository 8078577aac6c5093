"""How much of a workspace is searched for denied paths, and what is cached."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

from nousd.tools.sandbox import deny_scan as rule_walk
from nousd.tools.sandbox.deny_scan import ClosedByRules, Search
from nousd.tools.sandbox.interface import Request
from nousd.tools.sandbox.trap_watch import names_of
from nousd.tools.sandbox.visible_paths import places_of
from tests.tools.sandbox_bench import CHOSEN, SandboxBench

NAMES = names_of(("AGENTS.md",), ())


class Clock:
    """Stands still, but for what each look at it costs."""

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


def searched(search: Search, workdir: Path) -> ClosedByRules:
    found = search.closed_by(workdir, (), (), NAMES)
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
def test_what_was_found_once_stays_closed_whatever_is_put_before_it(tmp_path: Path) -> None:
    clock = Clock(step=0.01)
    search = Search(clock)
    put(tmp_path, "a/b/AGENTS.md")
    assert searched(search, tmp_path) == of("a/b/AGENTS.md", is_partial=False)
    flood(tmp_path)
    put(tmp_path, "a/c/AGENTS.md")
    assert searched(search, tmp_path) == of("a/b/AGENTS.md", is_partial=True)


@pytest.mark.usefixtures("short")
def test_all_is_searched_again_when_it_takes_little_of_the_time(tmp_path: Path) -> None:
    clock = Clock(step=0.01)
    search = Search(clock)
    flood(tmp_path)
    searched(search, tmp_path)
    put(tmp_path, "a/b/AGENTS.md")
    took, clock.step = clock.now, 0.0
    clock.now = took / rule_walk.SEARCHING_SHARE_MAX * 0.9
    assert searched(search, tmp_path) == of(is_partial=True)
    clock.now = took / rule_walk.SEARCHING_SHARE_MAX * 1.1
    assert searched(search, tmp_path) == of("a/b/AGENTS.md", is_partial=False)


def test_nobody_waits_for_long(tmp_path: Path) -> None:
    flood(tmp_path, 100)
    (tmp_path / "AGENTS.md").touch()
    found = searched(Search(Clock(step=rule_walk.SECONDS_MAX / 10)), tmp_path)
    assert found == of("AGENTS.md", is_partial=True)


def test_one_folder_may_have_any_number_of_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        (tmp_path / f"_{number}").touch()
    for entries_max, is_partial in ((8, True), (9, False), (10, False)):
        monkeypatch.setattr(rule_walk, "ENTRIES_MAX", entries_max)
        assert searched(Search(), tmp_path).is_partial is is_partial


def test_the_first_that_were_found_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_walk, "PROTECTED_MAX", 2)
    search = Search()
    put(tmp_path, "x/AGENTS.md", "y/AGENTS.md")
    both = searched(search, tmp_path)
    assert (set(both.protected), both.is_partial) == (
        {Path("x/AGENTS.md"), Path("y/AGENTS.md")},
        False,
    )
    put(tmp_path, "a/AGENTS.md", "AGENTS.md")
    after = searched(search, tmp_path)
    assert (after.protected, after.is_partial) == (both.protected, True)


def test_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    search = Search()
    put(tmp_path, "x/AGENTS.md")
    searched(search, tmp_path)
    (tmp_path / "x" / "AGENTS.md").unlink()
    assert searched(search, tmp_path) == of(is_partial=False)


def test_what_rules_deny_to_read_is_not_only_protected(tmp_path: Path) -> None:
    search = Search()
    put(tmp_path, "x/AGENTS.md")
    searched(search, tmp_path)
    found = search.closed_by(tmp_path, [re.compile("x")], (), NAMES)
    assert found == ClosedByRules((tmp_path / "x",), (), False)


def test_a_folder_that_cannot_be_looked_into_is_closed_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a/x", "b/x")
    scandir = os.scandir

    def refusing(path: Path) -> object:
        if path.name == "a":
            raise PermissionError
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert searched(Search(), tmp_path) == of("a", is_partial=False)
    found = Search().closed_by(tmp_path, [re.compile("secret")], (), NAMES)
    assert found == ClosedByRules((tmp_path / "a",), (), False)


@pytest.mark.usefixtures("short")
def test_the_workdirs_of_the_last_commands_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_walk, "WORKDIRS_MAX", 2)
    search = Search(Clock(step=0.01))
    for name in "abc":
        put(tmp_path, f"{name}/x/y/AGENTS.md")
        searched(search, tmp_path / name)
        flood(tmp_path / name)
    assert searched(search, tmp_path / "b").is_partial  # known, so it is searched in short
    assert not searched(search, tmp_path / "a").is_partial


@pytest.mark.slow
@pytest.mark.usefixtures("short")
async def test_a_command_cannot_open_a_closed_place_by_a_flood_of_folders(
    held: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_walk, "SEARCHING_SHARE_MAX", 1e-9)
    held.put("a/b/c/AGENTS.md", "good")
    (held.work / "other").mkdir()
    before = await held.call("bash", command="for n in $(seq 40); do mkdir other/_$n; done")
    outcomes = await held.attack("""
tried("change", lambda: open("a/b/c/AGENTS.md", "a").write("bad"))
tried("replace", lambda: os.rename("a/b/c", "a/b/d"))
""")
    assert "done" not in outcomes.values()
    assert (held.work / "a" / "b" / "c" / "AGENTS.md").read_text() == "good"
    after = await held.call("bash", command="true")
    assert before.sandbox is not None
    assert after.sandbox is not None
    assert (before.sandbox.is_partial, after.sandbox.is_partial) == (False, True)


@pytest.mark.usefixtures("short")
def test_where_nothing_can_be_written_nothing_is_left_open(tmp_path: Path) -> None:
    flood(tmp_path)
    search = Search(Clock(step=0.01))
    request = Request(argv=["/x"], env={}, workdir=tmp_path)
    assert [places_of(request, CHOSEN, search).is_partial for _ in range(2)] == [False, True]
    reading = msgspec.structs.replace(request, is_read_only=True)
    assert not places_of(reading, CHOSEN, search).is_partial
