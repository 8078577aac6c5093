from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from nousd.errors import ToolError
from nousd.tools.fs.resolved_path import ResolvedPath
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import REPOSITORY, Bench


@pytest.fixture
def umask_027() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


async def test_a_file_and_its_directories_are_created(bench: Bench) -> None:
    result = await bench.call("write", path="a/b/c.txt", content="héllo\r\n")
    assert result.text == "Wrote 8 bytes to a/b/c.txt."
    assert (bench.work / "a/b/c.txt").read_bytes() == "héllo\r\n".encode()


async def test_a_new_file_has_the_mode_of_the_umask(bench: Bench, umask_027: None) -> None:
    await bench.call("write", path="a.txt", content="")
    assert (bench.work / "a.txt").stat().st_mode & 0o7777 == 0o640


async def test_a_replaced_file_keeps_its_mode(bench: Bench, umask_027: None) -> None:
    script = bench.put("run.sh", "old")
    script.chmod(0o757)
    await bench.call("write", path="run.sh", content="new")
    assert script.read_text() == "new"
    assert script.stat().st_mode & 0o7777 == 0o757


async def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("a.txt", "old")
    names = bench.names()

    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(ToolError, match=r"^write_failed: a.txt: No space left on device$"):
        await bench.call("write", path="a.txt", content="new")
    assert (bench.work / "a.txt").read_text() == "old"
    assert bench.names() == names


async def test_a_write_cancelled_while_it_syncs_is_completed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("a.txt", "old")
    names = bench.names()
    real = os.fsync
    with trio.CancelScope() as scope:

        def cancelled_meanwhile(descriptor: int) -> None:
            trio.from_thread.run_sync(scope.cancel)
            real(descriptor)

        monkeypatch.setattr(os, "fsync", cancelled_meanwhile)
        await bench.call("write", path="a.txt", content="new")
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert (bench.work / "a.txt").read_text() == "new"
    assert bench.names() == names


async def test_a_reader_of_the_old_file_keeps_reading_the_old_file(bench: Bench) -> None:
    bench.put("a.txt", "old")
    with (bench.work / "a.txt").open() as reader:
        await bench.call("write", path="a.txt", content="new")
        assert reader.read() == "old"


@pytest.mark.parametrize(
    ("path", "reason"),
    [("folder", "Is a directory"), (".", "Is a directory"), ("file/x", "Not a directory")],
)
async def test_a_path_that_cannot_be_written_is_refused_with_the_reason(
    path: str, reason: str, bench: Bench
) -> None:
    (bench.work / "folder").mkdir()
    bench.put("file", "")
    with pytest.raises(ToolError) as caught:
        await bench.call("write", path=path, content="")
    assert str(caught.value) == f"write_failed: {path}: {reason}"


async def test_a_file_without_write_permission_is_not_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("a.txt", "old")

    def refusing(place: ResolvedPath, flags: int) -> int:
        assert flags == os.O_WRONLY
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # The mode of the file would not stop root.
    monkeypatch.setattr(ResolvedPath, "open", refusing)
    with pytest.raises(ToolError, match=r"^write_failed: a.txt: Permission denied$"):
        await bench.call("write", path="a.txt", content="new")
    assert (bench.work / "a.txt").read_text() == "old"


async def test_concurrent_writes_of_one_file_leave_one_of_them_whole(bench: Bench) -> None:
    contents = [letter * 100_000 for letter in "abcdefgh"]

    async def write(content: str) -> None:
        await bench.call("write", path="a", content=content)

    async with trio.open_nursery() as nursery:
        for content in contents:
            nursery.start_soon(write, content)
    assert (bench.work / "a").read_text() in contents


KILLED = """
import os, signal, sys
from pathlib import Path
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.fs.text_files import replace_file
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
with PathSandbox(Path(sys.argv[1]), ()).locate("a.txt") as place:
    replace_file(place, b"new")
"""


async def test_a_daemon_killed_while_it_writes_a_file_leaves_only_the_old_one(
    tmp_path: Path,
) -> None:
    work = tmp_path / "killed"
    work.mkdir()
    (work / "a.txt").write_text("old")
    with trio.fail_after(WAIT_SECONDS):
        ended = await trio.run_process(
            [sys.executable, "-c", KILLED, str(work)], cwd=REPOSITORY, check=False
        )
    assert ended.returncode == -signal.SIGKILL
    assert {path.name: path.read_text() for path in work.iterdir()} == {"a.txt": "old"}
