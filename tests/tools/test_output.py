from __future__ import annotations

import errno
import hashlib
import os
import stat
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from nousd.redaction.redactor import Redactor
from nousd.tools.interface import ToolResult
from nousd.tools.output import output_capture as whole_output
from nousd.tools.output.output_capture import SPOOL_PIECE_BYTES
from nousd.tools.output.tool_output import (
    RUNS_MAX,
    OutputCollector,
    OutputStream,
    WholeCharacters,
    head_of,
    within_bounds,
)
from nousd.tools.secrets_interface import NO_SECRETS
from nousd.tools.spooled_file import SpooledFile
from nousd.wire.limits import (
    EVENT_TEXT_BYTES_MAX,
    TOOL_RESULT_BYTES_MAX,
    TOOL_RESULT_LINES_MAX,
    TOOL_UPDATES_BYTES_MAX,
)
from nousd.wire.objects.field_types import OutputKind


async def collect(*chunks: bytes) -> OutputCollector:
    collector = OutputCollector()
    for chunk in chunks:
        collector.feed(chunk)
        await collector.wait_room()
    await collector.finish()
    return collector


async def full_bytes(result: ToolResult) -> bytes:
    """Return the whole output that belongs to a result."""
    assert result.full is not None
    if isinstance(result.full, bytes):
        return result.full
    whole = await result.full.read(0, 2 * result.full.size_bytes)
    assert result.full.artifact_id == f"sha256:{hashlib.sha256(whole).hexdigest()}"
    return whole


@pytest.mark.parametrize(
    "output", [b"", b"x", b"x" * 6144, b"\n" * TOOL_RESULT_LINES_MAX, "é".encode(), b"x\r\n"]
)
async def test_an_output_that_fits_into_an_event_is_returned_whole_and_not_stored(
    output: bytes,
) -> None:
    for result in ((await collect(output)).head(), (await collect(output)).tail()):
        assert result.text == output.decode().rstrip("\n")
        assert result.full is None


@pytest.mark.parametrize("size", [EVENT_TEXT_BYTES_MAX, TOOL_RESULT_BYTES_MAX, 300_000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n", b"\r\n", b"\xff", b"\xff\n"])
async def test_what_is_stored_of_an_output_is_equal_to_it_with_its_last_newline(
    end: bytes, size: int
) -> None:
    output = b"a line\r\n" * (size // 8)
    output = output[: size - len(end)] + end
    collector = await collect(output)
    for result in (collector.head(), collector.tail()):
        assert await full_bytes(result) == output
        assert not result.text.endswith("\n")


async def test_what_becomes_too_long_for_an_event_as_text_is_stored_too() -> None:
    output = b"\xff" * 3000
    result = (await collect(output)).tail()
    assert result.text == "\ufffd" * 3000
    assert result.full == output


async def test_too_many_lines_are_cut_at_either_end() -> None:
    output = "".join(f"line {number}\n" for number in range(TOOL_RESULT_LINES_MAX + 1)).encode()
    head, tail = (await collect(output)).head(), (await collect(output)).tail()
    note = f"[Output cut: the %s 2000 of 2001 lines are shown, {len(output)} bytes in all.]"
    assert head.text.startswith("line 0\n")
    assert head.text.endswith(f"line 1999\n\n{note % 'first'}")
    assert tail.text.startswith("line 1\n")
    assert tail.text.endswith(f"line 2000\n\n{note % 'last'}")
    assert head.full == tail.full == output


async def test_a_last_line_without_a_newline_counts() -> None:
    output = b"\n".join(b"x" for _ in range(TOOL_RESULT_LINES_MAX + 1))
    assert "the last 2000 of 2001 lines" in (await collect(output)).tail().text


async def test_too_many_bytes_are_cut_between_lines() -> None:
    output = b"".join(b"%04d" % number + b"x" * 95 + b"\n" for number in range(600))
    head, tail = (await collect(output)).head(), (await collect(output)).tail()
    assert head.text.split("\n\n")[0] == output[:51200].decode().rstrip("\n")
    assert tail.text.split("\n\n")[0] == output[-51200:].decode().rstrip("\n")


async def test_a_line_that_is_too_long_is_cut_between_characters() -> None:
    output = b"a" + "é".encode() * TOOL_RESULT_BYTES_MAX
    for result in ((await collect(output)).head(), (await collect(output)).tail()):
        text = result.text.split("\n\n")[0]
        assert TOOL_RESULT_BYTES_MAX - 2 <= len(text.encode()) <= TOOL_RESULT_BYTES_MAX
        assert "\ufffd" not in text


async def test_invalid_bytes_count_as_replacement_characters() -> None:
    result = (await collect(b"\xff" * TOOL_RESULT_BYTES_MAX)).head()
    text = result.text.split("\n\n")[0]
    assert set(text) == {"\ufffd"}
    assert len(text.encode()) <= TOOL_RESULT_BYTES_MAX
    assert result.full == b"\xff" * TOOL_RESULT_BYTES_MAX


async def test_the_cut_does_not_depend_on_the_chunks_of_the_output() -> None:
    output = b"".join(b"%d\n" % number for number in range(20_000))
    pieces = [output[at : at + 7] for at in range(0, len(output), 7)]
    assert (await collect(output)).tail() == (await collect(*pieces)).tail()
    assert (await collect(output)).head() == (await collect(*pieces)).head()


@pytest.mark.parametrize("size", [SPOOL_PIECE_BYTES, SPOOL_PIECE_BYTES + 1, 5_000_000])
async def test_a_long_output_is_stored_whole_and_beyond_one_piece_in_a_file(size: int) -> None:
    output = b"".join(b"%07d\n" % number for number in range(size // 8 + 1))[:size]
    chunks = [output[at : at + 65_536] for at in range(0, size, 65_536)]
    result = (await collect(*chunks)).tail()
    assert isinstance(result.full, SpooledFile) is (size > SPOOL_PIECE_BYTES)
    assert await full_bytes(result) == output
    assert f"{size} bytes in all.]" in result.text


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit an artifact to 100,000 bytes, with the last 10,000 of a longer output."""
    monkeypatch.setattr(whole_output, "ARTIFACT_BYTES_MAX", 100_000)
    monkeypatch.setattr(whole_output, "END_BYTES", 10_000)
    monkeypatch.setattr(whole_output, "SPOOL_PIECE_BYTES", 20_000)


@pytest.mark.parametrize("size", [99_999, 100_000, 100_001, 130_000, 1_000_000])
@pytest.mark.parametrize("piece", [1000, 65_536, 1_000_000])
async def test_an_output_beyond_the_limit_keeps_its_beginning_and_its_end(
    small_bounds: None, size: int, piece: int
) -> None:
    output = b"".join(b"%06d\n" % number for number in range(size // 7 + 1))[:size]
    result = (await collect(*[output[at : at + piece] for at in range(0, size, piece)])).tail()
    whole = await full_bytes(result)
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


def test_a_text_beyond_the_limit_keeps_its_beginning_and_its_end(small_bounds: None) -> None:
    text = "x" * 89_000 + "y" * 50_000
    result = head_of(text, NO_SECRETS)
    assert isinstance(result.full, bytes)
    assert len(result.full) <= 100_000
    assert result.full.startswith(b"x" * 80_000)
    assert result.full.endswith(b" bytes of the output were not kept]\n" + b"y" * 10_000)
    assert "It is kept whole but for" in result.text
    assert within_bounds(text.encode()) == result.full
    assert within_bounds(b"short") == b"short"


async def test_on_a_full_disk_the_result_is_returned_without_the_whole_output(
    small_bounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0

    def write(self: SpooledFile, data: bytes) -> None:
        nonlocal written
        written += len(data)
        if written > 50_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(SpooledFile, "write", write)
    result = (await collect(*[b"x" * 999 + b"\n"] * 300)).tail()
    assert result.full is None
    assert result.text.startswith("x" * 999 + "\n")
    assert result.text.endswith(
        "300000 bytes in all. The whole could not be kept: No space left on device.]"
    )


async def test_without_its_directory_the_result_is_returned_without_the_whole_output(
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


async def test_a_spooled_file_is_unnamed_and_private_and_closed_with_its_object(
    tmp_path: Path,
) -> None:
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


def test_head_of_cuts_a_text_like_an_output() -> None:
    assert head_of("short\n", NO_SECRETS).text == "short"
    assert "the first 2000 of 3000 lines" in head_of("x\n" * 3000, NO_SECRETS).text
    assert head_of("bad \ud800", NO_SECRETS).text == "bad ?"


class Watcher:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.streams: list[str | None] = []
        self.may_go_on = trio.Event()
        self.may_go_on.set()

    async def emit(self, piece: str, stream: str | None = None) -> None:
        self.pieces.append(piece)
        self.streams.append(stream)
        await self.may_go_on.wait()


async def stream_chunks(*chunks: bytes) -> list[str]:
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
        assert "".join(await stream_chunks(*[bytes([byte]) for byte in text.encode()])) == text


async def test_invalid_bytes_are_streamed_as_replacement_characters(autojump_clock: object) -> None:
    assert "".join(await stream_chunks(b"a\xffb", b"\xe2\x82")) == "a\ufffdb\ufffd"


async def test_an_empty_output_streams_nothing(autojump_clock: object) -> None:
    assert await stream_chunks() == []
    assert await stream_chunks(b"") == []


async def test_output_during_a_pause_is_one_piece(autojump_clock: object) -> None:
    pieces = await stream_chunks(b"first\n", *[b"x\n"] * 100)
    assert pieces == ["first\n", "x\n" * 100]


async def stream_of_both(*chunks: tuple[OutputKind, bytes]) -> list[tuple[str | None, str]]:
    """Return the pieces of chunks that all come in one pause."""
    watcher = Watcher()
    stream = OutputStream(watcher.emit)
    for kind, chunk in chunks:
        stream.feed(chunk, kind)
    stream.finish()
    await stream.run()
    return list(zip(watcher.streams, watcher.pieces, strict=True))


async def test_each_piece_is_of_one_stream_in_the_order_of_arrival(autojump_clock: object) -> None:
    pieces = await stream_of_both(
        ("stdout", b"a\n"), ("stdout", b"b\n"), ("stderr", b"c\n"), ("stdout", b"d\n")
    )
    assert pieces == [("stdout", "a\nb\n"), ("stderr", "c\n"), ("stdout", "d\n")]


async def test_a_character_of_one_stream_may_be_split_around_another(
    autojump_clock: object,
) -> None:
    pieces = await stream_of_both(("stdout", b"\xc3"), ("stderr", b"e"), ("stdout", b"\xa9"))
    assert pieces == [("stderr", "e"), ("stdout", "é")]


async def test_streams_that_alternate_without_end_make_a_bounded_number_of_pieces(
    autojump_clock: object,
) -> None:
    both: tuple[OutputKind, OutputKind] = ("stdout", "stderr")
    pieces = await stream_of_both(
        *[(both[number % 2], f"{number}\n".encode()) for number in range(10_000)]
    )
    assert len(pieces) == RUNS_MAX
    for first, kind in enumerate(both):
        told = "".join(text for stream, text in pieces if stream == kind)
        assert told == "".join(f"{number}\n" for number in range(first, 10_000, 2))


@given(st.text(), st.data())
def test_chunks_of_whole_characters_are_the_same_bytes(text: str, data: st.DataObject) -> None:
    encoded = text.encode("utf-8", "replace")
    at = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=5)))
    cuts = [0, *at, len(encoded)]
    characters = WholeCharacters()
    chunks = [characters.feed(encoded[start:end]) for start, end in pairwise(cuts)]
    for chunk in chunks:
        chunk.decode()
    assert b"".join(chunks) == encoded
    assert characters.finish() == b""


@pytest.mark.parametrize("data", [b"\xff", b"a\x80\x80\x80\x80", b"\xc3(", b"\xe2\x82", b"\xf0"])
def test_bytes_that_are_no_characters_are_not_lost(data: bytes) -> None:
    characters = WholeCharacters()
    assert characters.feed(data) + characters.finish() == data


async def test_a_stalled_watcher_does_not_block_the_tool_and_receives_bounded_text(
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


async def test_an_output_of_exactly_the_limit_has_no_note(autojump_clock: object) -> None:
    assert (
        "".join(await stream_chunks(b"x" * TOOL_UPDATES_BYTES_MAX)) == "x" * TOOL_UPDATES_BYTES_MAX
    )


@pytest.mark.parametrize("cut", range(1, len("sk-secret-0123456789")))
def test_a_bound_cuts_no_secret(cut: int) -> None:
    """Neither that of the result nor that of what is kept of it."""
    before, behind = "x" * (TOOL_RESULT_BYTES_MAX - cut), "y" * 50_000
    result = head_of(f"{before}sk-secret-0123456789{behind}", Redactor(["sk-secret-0123456789"]))
    without = f"{before}[redacted]{behind}"
    assert result.text.split("\n")[0] == without[:TOOL_RESULT_BYTES_MAX]
    assert result.full == without.encode()
