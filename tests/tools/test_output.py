from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

import pytest
import trio
import trio.testing

from nousd.tools.interface import ToolResult
from nousd.tools.output import output_capture as whole_output
from nousd.tools.output.output_capture import SPOOL_PIECE_BYTES
from nousd.tools.output.tool_output import OutputCollector, OutputStream, head_of, within_bounds
from nousd.tools.spooled_file import SpooledFile
from nousd.wire.limits import TOOL_RESULT_BYTES_MAX, TOOL_RESULT_LINES_MAX, TOOL_UPDATES_BYTES_MAX


async def collected(*chunks: bytes) -> OutputCollector:
    collector = OutputCollector()
    for chunk in chunks:
        collector.feed(chunk)
        await collector.wait_room()
    await collector.finish()
    return collector


async def kept(result: ToolResult) -> bytes:
    """Return the whole output that a result goes with."""
    assert result.full is not None
    if isinstance(result.full, bytes):
        return result.full
    whole = await result.full.read(0, 2 * result.full.size_bytes)
    assert result.full.artifact_id == f"sha256:{hashlib.sha256(whole).hexdigest()}"
    return whole


@pytest.mark.parametrize(
    "output", [b"", b"x", b"x" * TOOL_RESULT_BYTES_MAX, b"\n" * TOOL_RESULT_LINES_MAX, "é".encode()]
)
async def test_what_fits_is_told_whole_and_kept_nowhere_else(output: bytes) -> None:
    for result in ((await collected(output)).head(), (await collected(output)).tail()):
        assert result.text == output.decode().rstrip("\n")
        assert result.full is None


async def test_more_lines_than_fit_are_cut_at_either_end() -> None:
    output = "".join(f"line {number}\n" for number in range(TOOL_RESULT_LINES_MAX + 1)).encode()
    head, tail = (await collected(output)).head(), (await collected(output)).tail()
    note = f"[Output cut: the %s 2000 of 2001 lines are shown, {len(output)} bytes in all.]"
    assert head.text.startswith("line 0\n")
    assert head.text.endswith(f"line 1999\n\n{note % 'first'}")
    assert tail.text.startswith("line 1\n")
    assert tail.text.endswith(f"line 2000\n\n{note % 'last'}")
    assert head.full == tail.full == output


async def test_a_last_line_without_an_end_counts() -> None:
    output = b"\n".join(b"x" for _ in range(TOOL_RESULT_LINES_MAX + 1))
    assert "the last 2000 of 2001 lines" in (await collected(output)).tail().text


async def test_more_bytes_than_fit_are_cut_between_lines() -> None:
    output = b"".join(b"%04d" % number + b"x" * 95 + b"\n" for number in range(600))
    head, tail = (await collected(output)).head(), (await collected(output)).tail()
    assert head.text.split("\n\n")[0] == output[:51200].decode().rstrip("\n")
    assert tail.text.split("\n\n")[0] == output[-51200:].decode().rstrip("\n")


async def test_a_line_longer_than_fits_is_cut_between_characters() -> None:
    output = b"a" + "é".encode() * TOOL_RESULT_BYTES_MAX
    for result in ((await collected(output)).head(), (await collected(output)).tail()):
        text = result.text.split("\n\n")[0]
        assert TOOL_RESULT_BYTES_MAX - 2 <= len(text.encode()) <= TOOL_RESULT_BYTES_MAX
        assert "\ufffd" not in text


async def test_bytes_that_are_no_text_count_as_they_are_shown() -> None:
    result = (await collected(b"\xff" * TOOL_RESULT_BYTES_MAX)).head()
    text = result.text.split("\n\n")[0]
    assert set(text) == {"\ufffd"}
    assert len(text.encode()) <= TOOL_RESULT_BYTES_MAX
    assert result.full == b"\xff" * TOOL_RESULT_BYTES_MAX


async def test_the_cut_does_not_depend_on_how_the_output_arrived() -> None:
    output = b"".join(b"%d\n" % number for number in range(20_000))
    pieces = [output[at : at + 7] for at in range(0, len(output), 7)]
    assert (await collected(output)).tail() == (await collected(*pieces)).tail()
    assert (await collected(output)).head() == (await collected(*pieces)).head()


@pytest.mark.parametrize("size", [SPOOL_PIECE_BYTES, SPOOL_PIECE_BYTES + 1, 5_000_000])
async def test_a_long_output_is_kept_whole_and_in_a_file_beyond_a_piece(size: int) -> None:
    output = b"".join(b"%07d\n" % number for number in range(size // 8 + 1))[:size]
    chunks = [output[at : at + 65_536] for at in range(0, size, 65_536)]
    result = (await collected(*chunks)).tail()
    assert isinstance(result.full, SpooledFile) is (size > SPOOL_PIECE_BYTES)
    assert await kept(result) == output
    assert f"{size} bytes in all.]" in result.text


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """An artifact of 100,000 bytes at most; of a longer output the last 10,000 are kept."""
    monkeypatch.setattr(whole_output, "ARTIFACT_BYTES_MAX", 100_000)
    monkeypatch.setattr(whole_output, "END_BYTES", 10_000)
    monkeypatch.setattr(whole_output, "SPOOL_PIECE_BYTES", 20_000)


@pytest.mark.parametrize("size", [99_999, 100_000, 100_001, 130_000, 1_000_000])
@pytest.mark.parametrize("piece", [1000, 65_536, 1_000_000])
async def test_of_an_output_past_the_bound_the_beginning_and_the_end_are_kept(
    small_bounds: None, size: int, piece: int
) -> None:
    output = b"".join(b"%06d\n" % number for number in range(size // 7 + 1))[:size]
    result = (await collected(*[output[at : at + piece] for at in range(0, size, piece)])).tail()
    whole = await kept(result)
    assert len(whole) <= 100_000
    if size <= 100_000:
        assert whole == output
        assert "not kept" not in result.text
        assert "kept whole but" not in result.text
    else:
        begin, gap, end = whole.partition(b"\n[")[0], whole.split(b"[")[1], whole[-10_000:]
        assert output.startswith(begin)
        assert output.endswith(end)
        missing = size - len(begin) - 10_000
        assert gap.startswith(b"%d bytes of the output were not kept]\n" % missing)
        assert (
            f"It is kept whole but for {missing} bytes in front of its last 10000." in result.text
        )


def test_a_text_past_the_bound_is_kept_as_an_output_is(small_bounds: None) -> None:
    text = "x" * 89_000 + "y" * 50_000
    result = head_of(text)
    assert isinstance(result.full, bytes)
    assert len(result.full) <= 100_000
    assert result.full.startswith(b"x" * 80_000)
    assert result.full.endswith(b" bytes of the output were not kept]\n" + b"y" * 10_000)
    assert "It is kept whole but for" in result.text
    assert within_bounds(text.encode()) == result.full
    assert within_bounds(b"short") == b"short"


async def test_a_disk_that_is_full_costs_what_would_be_kept_and_nothing_else(
    small_bounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0

    def write(self: SpooledFile, data: bytes) -> None:
        nonlocal written
        written += len(data)
        if written > 50_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(SpooledFile, "write", write)
    result = (await collected(*[b"x" * 999 + b"\n"] * 300)).tail()
    assert result.full is None
    assert result.text.startswith("x" * 999 + "\n")
    assert result.text.endswith(
        "300000 bytes in all. The whole could not be kept: No space left on device.]"
    )


async def test_a_folder_that_is_gone_costs_what_would_be_kept_and_nothing_else(
    small_bounds: None, tmp_path: Path
) -> None:
    collector = OutputCollector(tmp_path / "gone")
    for _ in range(100):
        collector.feed(b"x" * 1000)
        await collector.wait_room()
    await collector.finish()
    result = collector.head()
    assert result.full is None
    assert "The whole could not be kept: No such file or directory.]" in result.text


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def test_a_file_has_no_name_is_private_and_goes_with_who_holds_it(tmp_path: Path) -> None:
    before = open_descriptors()
    spool = SpooledFile(tmp_path)
    spool.write(b"secret")
    assert os.listdir(tmp_path) == []  # noqa: PTH208
    (handle,) = open_descriptors() - before
    status = os.fstat(int(handle))
    assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o600, 0)
    assert not os.get_inheritable(int(handle))
    assert await spool.read(1, 100) == b"ecret"
    spool.close()
    spool.close()
    assert open_descriptors() == before
    SpooledFile(tmp_path).write(b"held by nobody")
    assert open_descriptors() == before


def test_a_text_is_cut_as_an_output_is() -> None:
    assert head_of("short\n").text == "short"
    assert "the first 2000 of 3000 lines" in head_of("x\n" * 3000).text
    assert head_of("bad \ud800").text == "bad ?"


class Watcher:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.may_go_on = trio.Event()
        self.may_go_on.set()

    async def emit(self, piece: str) -> None:
        self.pieces.append(piece)
        await self.may_go_on.wait()


async def streamed(*chunks: bytes) -> list[str]:
    watcher = Watcher()
    stream = OutputStream(watcher.emit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        for chunk in chunks:
            stream.feed(chunk)
            await trio.testing.wait_all_tasks_blocked()
        stream.finish()
    return watcher.pieces


async def test_a_character_split_between_chunks_is_one_character(autojump_clock: object) -> None:
    for text in ("é", "€", "😀"):
        assert "".join(await streamed(*[bytes([byte]) for byte in text.encode()])) == text


async def test_bytes_that_are_no_text_are_streamed_as_replacements(autojump_clock: object) -> None:
    assert "".join(await streamed(b"a\xffb", b"\xe2\x82")) == "a\ufffdb\ufffd"


async def test_no_output_is_no_piece(autojump_clock: object) -> None:
    assert await streamed() == []
    assert await streamed(b"") == []


async def test_what_comes_during_a_pause_is_one_piece(autojump_clock: object) -> None:
    pieces = await streamed(b"first\n", *[b"x\n"] * 100)
    assert pieces == ["first\n", "x\n" * 100]


async def test_a_watcher_that_stalls_stops_neither_the_tool_nor_fills_the_memory(
    autojump_clock: object,
) -> None:
    watcher = Watcher()
    watcher.may_go_on = trio.Event()
    stream = OutputStream(watcher.emit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        for _ in range(100):
            stream.feed(b"x" * 65536)
            await trio.testing.wait_all_tasks_blocked()
        stream.finish()
        watcher.may_go_on.set()
    text = "".join(watcher.pieces)
    assert text == "x" * TOOL_UPDATES_BYTES_MAX + "\n[Output goes on; no more of it is streamed.]\n"


async def test_an_output_of_just_the_bound_has_no_note(autojump_clock: object) -> None:
    assert "".join(await streamed(b"x" * TOOL_UPDATES_BYTES_MAX)) == "x" * TOOL_UPDATES_BYTES_MAX
