"""A file that is not put into place leaves nothing, whatever goes wrong and whatever it lies on."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from nousd.errors import ToolError
from nousd.tools.fs import file_changes
from nousd.tools.fs.staged_file import StagedFile
from tests.tools.bench import Bench

CHANGE = """\
--- a/sub/one
+++ b/sub/one
@@ -1 +1 @@
-1
+one
--- a/sub/two
+++ b/sub/two
@@ -1 +1 @@
-2
+two
"""


@pytest.fixture(params=["files without names", "only files with names"], autouse=True)
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test on a file system of either kind."""
    if request.param == "files without names":
        return
    real = os.open

    def refusing(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refusing)


def files(bench: Bench) -> dict[str, str]:
    """Return the text of every file in the workspace."""
    return {
        str(path.relative_to(bench.work)): path.read_text()
        for path in bench.work.rglob("*")
        if path.is_file() and not path.is_relative_to(bench.hidden)
    }


async def test_a_write_that_loses_the_race_for_its_name_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = StagedFile.put

    def losing(*args: Any) -> None:
        (bench.work / "a.txt").mkdir()
        real(*args)

    monkeypatch.setattr(StagedFile, "put", losing)
    with pytest.raises(ToolError, match=r"^write_failed: a.txt: Is a directory$"):
        await bench.call("write", path="a.txt", content="new")
    assert bench.names() == {".state", "a.txt"}
    assert not list((bench.work / "a.txt").iterdir())


@pytest.mark.parametrize("failing", ["fsync", "fchmod", "replace"])
async def test_a_write_that_the_disk_or_the_kernel_refuses_leaves_nothing(
    failing: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("a.txt", "old")

    def refusing(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, refusing)
    with pytest.raises(ToolError, match=r"^write_failed: a.txt: No space left on device$"):
        await bench.call("write", path="a.txt", content="new")
    assert files(bench) == {"a.txt": "old"}


async def test_a_patch_whose_directory_is_moved_away_leaves_nothing_in_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("sub/one", "1\n")
    bench.put("sub/two", "2\n")
    real = file_changes._put

    def too_late(*args: Any) -> None:
        if (bench.work / "sub").exists():
            (bench.work / "sub").rename(bench.work / "moved")
        real(*args)

    monkeypatch.setattr(file_changes, "_put", too_late)
    with pytest.raises(ToolError, match="No such file or directory"):
        await bench.call("patch", patch=CHANGE)
    assert files(bench) == {"moved/one": "1\n", "moved/two": "2\n"}


async def test_a_patch_that_cannot_be_taken_back_leaves_only_its_own_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("sub/one", "1\n")
    bench.put("sub/two", "2\n")
    real, calls = os.replace, []

    def failing(*args: Any, **options: Any) -> None:
        calls.append(args)
        if len(calls) > 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(*args, **options)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(ToolError, match="these files could not be put back: sub/two, sub/one"):
        await bench.call("patch", patch=CHANGE)
    assert files(bench) == {"sub/one": "one\n", "sub/two": "2\n"}


async def test_a_patch_closes_what_it_opened(bench: Bench) -> None:
    bench.put("sub/one", "1\n")
    bench.put("sub/two", "2\n")
    await bench.call("patch", patch=CHANGE, dryRun=True)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    await bench.call("patch", patch=CHANGE)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert files(bench) == {"sub/one": "one\n", "sub/two": "two\n"}
