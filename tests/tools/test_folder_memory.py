"""What is found in a workspace whose folders are not all read again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nousd.tools.sandbox import deny_scan, folder_memory
from nousd.tools.sandbox.deny_scan import Search
from nousd.tools.sandbox.folder_memory import UNSETTLED_NS, FolderMemory, Stamp, listing_of
from nousd.tools.sandbox.trap_watch import names_of

NAMES = names_of(("AGENTS.md",), ())
MINUTE_NS = 60_000_000_000


class Looker:
    """Searches a workspace and tells which of its folders were read."""

    def __init__(self, workdir: Path, memory: FolderMemory) -> None:
        self.workdir = workdir
        self.memory = memory
        self.search = Search(memory=memory)
        self.read: list[str] = []

    def found(self, names: deny_scan.Names = NAMES) -> list[str]:
        """Return what a command must not change; ``read`` are the folders of this search alone."""
        self.read.clear()
        found = self.search.find_closed_paths(self.workdir, (), (), names)
        return [str(path.relative_to(self.workdir)) for path in found.protected]


MakeLooker = Callable[..., Looker]


@pytest.fixture
def looker_in(monkeypatch: pytest.MonkeyPatch) -> MakeLooker:
    """Makes one whose folders have not changed for a minute, unless it is given another clock."""

    def make(workdir: Path, wall_ns: Callable[[], int] | None = None) -> Looker:
        memory = FolderMemory(wall_ns or (lambda: time.time_ns() + MINUTE_NS))
        looker = Looker(workdir, memory)

        def noted(path: str, most: int) -> folder_memory.Listing:
            looker.read.append(os.path.relpath(path, workdir))
            return listing_of(path, most)

        monkeypatch.setattr(deny_scan, "listing_of", noted)
        return looker

    return make


def put(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")


def let_the_clock_step(beside: Path) -> None:
    """Wait for the file system's clock: two changes in one step of it have the same time."""
    probe = beside / "probe"
    probe.touch()
    first = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == first:
        probe.touch()
    probe.unlink()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    put(work / "a" / "b" / "x", work / "c" / "AGENTS.md")
    return work


def test_folders_that_are_as_they_were_are_not_read_again(
    work: Path, looker_in: MakeLooker
) -> None:
    looker = looker_in(work)
    assert looker.found() == ["c/AGENTS.md"]
    assert sorted(looker.read) == [".", "a", "a/b", "c"]
    assert looker.found() == ["c/AGENTS.md"]
    assert looker.read == []


def add(work: Path) -> None:
    put(work / "a" / "b" / "AGENTS.md")


def rename(work: Path) -> None:
    (work / "a" / "b" / "x").rename(work / "a" / "b" / "AGENTS.md")


def add_and_set_times_back(work: Path) -> None:
    status = (work / "a" / "b").stat()
    add(work)
    os.utime(work / "a" / "b", ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_a_folder(work: Path) -> None:
    put(work.parent / "other" / "AGENTS.md")
    os.utime(work.parent / "other", (0, 0))
    (work / "a" / "b").rename(work.parent / "old")
    (work.parent / "other").rename(work / "a" / "b")


def replace_a_folder_above(work: Path) -> None:
    put(work.parent / "other" / "b" / "AGENTS.md")
    (work / "a").rename(work.parent / "old")
    (work.parent / "other").rename(work / "a")


def move_a_folder_in(work: Path) -> None:
    put(work.parent / "other" / "AGENTS.md")
    os.utime(work.parent / "other", (0, 0))
    (work.parent / "other").rename(work / "a" / "b" / "new")


def turn_a_file_into_a_folder(work: Path) -> None:
    (work / "a" / "b" / "x").unlink()
    put(work / "a" / "b" / "x" / "AGENTS.md")


def make_the_folder_anew(work: Path) -> None:
    (work / "a" / "b" / "x").unlink()
    (work / "a" / "b").rmdir()
    add(work)


CHANGES: dict[Callable[[Path], None], str] = {
    add: "a/b/AGENTS.md",
    rename: "a/b/AGENTS.md",
    add_and_set_times_back: "a/b/AGENTS.md",
    replace_a_folder: "a/b/AGENTS.md",
    replace_a_folder_above: "a/b/AGENTS.md",
    move_a_folder_in: "a/b/new/AGENTS.md",
    turn_a_file_into_a_folder: "a/b/x/AGENTS.md",
    make_the_folder_anew: "a/b/AGENTS.md",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_since_the_last_look_is_found(
    change: Callable[[Path], None], work: Path, looker_in: MakeLooker
) -> None:
    looker = looker_in(work)
    looker.found()
    let_the_clock_step(work.parent)
    change(work)
    assert looker.found() == ["c/AGENTS.md", CHANGES[change]]
    assert "c" not in looker.read


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_leaves_the_same_times_right_after_a_look_is_found(
    change: Callable[[Path], None],
    work: Path,
    looker_in: MakeLooker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def coarse(status: os.stat_result) -> Stamp:
        seconds = 2_000_000_000
        mtime, ctime = status.st_mtime_ns, status.st_ctime_ns
        return status.st_dev, 0, mtime // seconds * seconds, ctime // seconds * seconds

    monkeypatch.setattr(folder_memory, "stamp_of", coarse)
    looker = looker_in(work, time.time_ns)
    looker.found()
    change(work)
    assert looker.found() == ["c/AGENTS.md", CHANGES[change]]


@pytest.mark.parametrize("more_ns", [0, 1])
def test_a_folder_is_remembered_once_its_last_change_is_long_ago(
    more_ns: int, work: Path, looker_in: MakeLooker
) -> None:
    let_the_clock_step(work.parent)
    put(work / "d" / "last")
    last = (work / "d").stat().st_ctime_ns
    looker = looker_in(work, lambda: last + UNSETTLED_NS + more_ns)
    looker.found()
    looker.found()
    assert ("d" in looker.read) is (more_ns == 0)
    assert "a" not in looker.read


def test_a_change_while_a_folder_is_read_is_found_by_the_next_look(
    work: Path, looker_in: MakeLooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looker = looker_in(work)
    let_the_clock_step(work.parent)

    def changed_behind(path: str, most: int) -> folder_memory.Listing:
        listing = listing_of(path, most)
        if path.endswith("/a/b"):
            add(work)
        return listing

    with monkeypatch.context() as patch:
        patch.setattr(deny_scan, "listing_of", changed_behind)
        assert looker.found() == ["c/AGENTS.md"]
    assert looker.found() == ["c/AGENTS.md", "a/b/AGENTS.md"]


def test_a_file_system_that_may_not_keep_the_times_is_read_each_time(
    work: Path, looker_in: MakeLooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_memory, "_FILE_SYSTEMS_WITH_TIMES", frozenset())
    looker = looker_in(work)
    looker.found()
    looker.found()
    assert sorted(looker.read) == [".", "a", "a/b", "c"]
    assert listing_of("/proc/self", 1).stamp is None


def test_a_folder_of_which_a_part_was_read_is_read_for_more(
    work: Path, looker_in: MakeLooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looker = looker_in(work)
    for most in (1, 100, 1):
        monkeypatch.setattr(deny_scan, "ENTRIES_MAX", most)
        monkeypatch.setattr(deny_scan, "SHORT_ENTRIES_MAX", most)
        found = looker.search.look(work, NAMES)
        assert found.is_partial is (most == 1)
        assert found.named == (("c/AGENTS.md",) if most == 100 else ())


def test_other_names_are_looked_for_in_folders_that_are_as_they_were(
    work: Path, looker_in: MakeLooker
) -> None:
    looker = looker_in(work)
    looker.found()
    assert "a/b/x" in looker.found(names_of(("x",), ()))


def test_no_more_folders_are_remembered_than_the_bound(
    tmp_path: Path, looker_in: MakeLooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_memory, "FOLDERS_MAX", 3)
    looker = looker_in(tmp_path)
    for name in ("one", "two", "one"):
        looker.workdir = tmp_path / name
        put(*(looker.workdir / str(number) / "AGENTS.md" for number in range(5)))
        for _ in range(2):
            assert len(looker.found()) == 5
        assert 0 < looker.memory.folders <= 2 * 3
