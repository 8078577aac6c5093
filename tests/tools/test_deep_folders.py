"""Folders that are deeper than Python's own functions bear."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nousd.tools.fs.deep_folders import remove_folder, walk
from tests.tools.sandbox_bench import SandboxBench

TIMES = (sys.getrecursionlimit() + 500) // 250

DEEPEN = f"""cd %s && deep=$(printf 'd/%%.0s' {{1..250}})
for n in {{1..{TIMES}}}; do mkdir -p "$deep" && cd "$deep" || exit 1; done
touch last"""


def deepen(folder: Path) -> None:
    """Make folders in it whose whole path is longer than the system takes."""
    subprocess.run(["/bin/bash", "-c", DEEPEN % folder], check=True)


@pytest.fixture(autouse=True)
def _leaves_nothing_deep(tmp_path: Path) -> Iterator[None]:
    # pytest cannot remove it either.
    yield
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


@pytest.mark.slow
def test_a_walk_reads_as_deep_as_paths_can_be_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a.txt").touch()
    (tmp_path / "there/link").symlink_to(tmp_path)
    deepen(tmp_path / "there")
    seen = list(walk(str(tmp_path / "there")))
    folder, folders, others = seen[0]
    assert (folder, folders, sorted(others)) == (f"{tmp_path}/there", ["d"], ["a.txt", "link"])
    assert len(seen) > sys.getrecursionlimit()
    assert [inner[1] for inner in seen[1:-1]] == [["d"]] * (len(seen) - 2)


def test_a_folder_is_removed_whatever_is_in_it(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("stays")
    gone = tmp_path / "gone"
    for name in ("one/two", "one/one", "closed/inner/inner", "empty"):
        (gone / name).mkdir(parents=True)
        (gone / name / "file").touch()
    (gone / "link").symlink_to(kept)
    (gone / "one/link").symlink_to(kept / "file")
    os.mkfifo(gone / "one/pipe")
    (gone / "closed/inner").chmod(0)
    (gone / "closed").chmod(0)
    deepen(gone)
    remove_folder(gone)
    assert not gone.exists()
    assert (kept / "file").read_text() == "stays"


def test_what_is_no_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link", "missing"):
        remove_folder(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["$TMPDIR", ".vscode", "shown"])
async def test_a_command_can_make_folders_of_any_depth(
    folder: str, sandbox_bench: SandboxBench
) -> None:
    work = sandbox_bench.work
    for name in (".vscode", "shown"):
        (work / name).mkdir()
    (work / ".zed").symlink_to("shown")
    made = await sandbox_bench.call("bash", command=DEEPEN % folder)
    assert not made.is_error, made.text
    again = await sandbox_bench.call("bash", command="echo fine")
    assert (again.text, again.is_error) == ("fine", False)
    written = await sandbox_bench.call("write", path="note.txt", content="x")
    assert not written.is_error
