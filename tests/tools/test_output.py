from __future__ import annotations

import pytest
import trio
import trio.testing

from nousd.tools.output import (
    OutputCollector,
    OutputStream,
    head_of,
)
from nousd.wire.limits import (
    TOOL_OUTPUT_BYTES_MAX,
    TOOL_RESULT_BYTES_MAX,
    TOOL_RESULT_LINES_MAX,
    TOOL_UPDATES_BYTES_MAX,
)


def collected(*chunks: bytes) -> OutputCollector:
    collector = OutputCollector()
    for chunk in chunks:
        collector.feed(chunk)
    return collector


@pytest.mark.parametrize(
    "output", [b"", b"x", b"x" * TOOL_RESULT_BYTES_MAX, b"\n" * TOOL_RESULT_LINES_MAX, "é".encode()]
)
def test_what_fits_is_told_whole_and_kept_nowhere_else(output: bytes) -> None:
    for result in (collected(output).head(), collected(output).tail()):
        assert result.text == output.decode().rstrip("\n")
        assert result.full is None


def test_more_lines_than_fit_are_cut_at_either_end() -> None:
    output = "".join(f"line {number}\n" for number in range(TOOL_RESULT_LINES_MAX + 1)).encode()
    head, tail = collected(output).head(), collected(output).tail()
    note = f"[Output cut: the %s 2000 of 2001 lines are shown, {len(output)} bytes in all.]"
    assert head.text.startswith("line 0\n")
    assert head.text.endswith(f"line 1999\n\n{note % 'first'}")
    assert tail.text.startswith("line 1\n")
    assert tail.text.endswith(f"line 2000\n\n{note % 'last'}")
    assert head.full == tail.full == output


def test_a_last_line_without_an_end_counts() -> None:
    output = b"\n".join(b"x" for _ in range(TOOL_RESULT_LINES_MAX + 1))
    assert "the last 2000 of 2001 lines" in collected(output).tail().text


def test_more_bytes_than_fit_are_cut_between_lines() -> None:
    output = b"".join(b"%04d" % number + b"x" * 95 + b"\n" for number in range(600))
    head, tail = collected(output).head(), collected(output).tail()
    assert head.text.split("\n\n")[0] == output[:51200].decode().rstrip("\n")
    assert tail.text.split("\n\n")[0] == output[-51200:].decode().rstrip("\n")


def test_a_line_longer_than_fits_is_cut_between_characters() -> None:
    output = b"a" + "é".encode() * TOOL_RESULT_BYTES_MAX
    for result in (collected(output).head(), collected(output).tail()):
        text = result.text.split("\n\n")[0]
        assert TOOL_RESULT_BYTES_MAX - 2 <= len(text.encode()) <= TOOL_RESULT_BYTES_MAX
        assert "\ufffd" not in text


def test_bytes_that_are_no_text_count_as_they_are_shown() -> None:
    result = collected(b"\xff" * TOOL_RESULT_BYTES_MAX).head()
    text = result.text.split("\n\n")[0]
    assert set(text) == {"\ufffd"}
    assert len(text.encode()) <= TOOL_RESULT_BYTES_MAX
    assert result.full == b"\xff" * TOOL_RESULT_BYTES_MAX


def test_the_cut_does_not_depend_on_how_the_output_arrived() -> None:
    output = b"".join(b"%d\n" % number for number in range(20_000))
    pieces = [output[at : at + 7] for at in range(0, len(output), 7)]
    assert collected(output).tail() == collected(*pieces).tail()
    assert collected(output).head() == collected(*pieces).head()


def test_beyond_its_bound_an_output_is_counted_and_not_kept() -> None:
    chunk = b"y" * 99 + b"\n"
    collector = collected(*[chunk * 10_000] * 20)
    result = collector.tail()
    assert result.full is not None
    assert len(result.full) == TOOL_OUTPUT_BYTES_MAX
    assert (
        "of 200000 lines are shown, 20000000 bytes in all. Only the first 16777216" in result.text
    )


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
