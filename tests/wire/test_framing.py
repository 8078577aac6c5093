"""Framing: the same lines however the bytes are cut, in bounded memory."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.wire.codec import framing
from nousd.wire.codec.framing import (
    LINE_TOO_LONG,
    NO_ROOM_FOR_LINE,
    LineBudget,
    LineSplitter,
    LineTooLong,
)
from nousd.wire.limits import LONG_LINE_BYTES

Line = bytes | LineTooLong

LIMIT = 8


def split(chunks: list[bytes], limit: int = LIMIT) -> list[Line]:
    splitter = LineSplitter(limit)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.end()


CASES: list[tuple[bytes, list[Line]]] = [
    (b"", []),
    (b"one\n", [b"one"]),
    (b"one\ntwo\nthree\n", [b"one", b"two", b"three"]),
    (b"\n\n", [b"", b""]),
    (b"one\r\ntwo\r\n", [b"one", b"two"]),
    (b"a\rb\n", [b"a\rb"]),
    (b"a\r\r\n", [b"a\r"]),
    ("a\u2028b\n".encode(), ["a\u2028b".encode()]),
    (b"a\x0b\x0c\x85\n", [b"a\x0b\x0c\x85"]),
    (b"one\nlast", [b"one", b"last"]),
    (b"last\r", [b"last"]),
    (b"1234567\n", [b"1234567"]),
    (b"12345678\n", [b"12345678"]),
    (b"12345678\r\n", [b"12345678"]),
    (b"12345678", [b"12345678"]),
    (b"123456789\n", [LINE_TOO_LONG]),
    (b"12345678\r\r\n", [LINE_TOO_LONG]),
    (b"123456789", [LINE_TOO_LONG]),
    (b"123456789abcdef\n", [LINE_TOO_LONG]),
    (b"123456789abcdef", [LINE_TOO_LONG]),
    (b"123456789abcdef\nnext\n", [LINE_TOO_LONG, b"next"]),
    (
        b"one\n123456789abc\ntwo\n123456789abc\r\nthree",
        [b"one", LINE_TOO_LONG, b"two", LINE_TOO_LONG, b"three"],
    ),
]


@pytest.mark.behaviour("only_lf_ends_a_line")
@pytest.mark.parametrize(("data", "lines"), CASES)
def test_whole_input_gives_these_lines(data: bytes, lines: list[Line]) -> None:
    assert split([data]) == lines


@pytest.mark.parametrize(("data", "lines"), CASES)
def test_single_bytes_give_the_same_lines(data: bytes, lines: list[Line]) -> None:
    assert split([data[i : i + 1] for i in range(len(data))]) == lines


@pytest.mark.parametrize(("data", "lines"), CASES)
def test_every_cut_in_two_gives_the_same_lines(data: bytes, lines: list[Line]) -> None:
    for cut in range(len(data) + 1):
        assert split([data[:cut], data[cut:]]) == lines, cut


@pytest.mark.parametrize(("data", "lines"), CASES)
def test_every_cut_in_three_gives_the_same_lines(data: bytes, lines: list[Line]) -> None:
    for first, second in itertools.combinations_with_replacement(range(len(data) + 1), 2):
        assert split([data[:first], data[first:second], data[second:]]) == lines, (first, second)


@given(st.lists(st.sampled_from([b"\n", b"\r", b"x", b"12345678", b"ab"]), max_size=30), st.data())
def test_any_cut_of_any_input_gives_the_same_lines(
    pieces: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    edges = [0, *cuts, len(whole)]
    chunks = [whole[start:end] for start, end in itertools.pairwise(edges)]
    assert split(chunks) == split([whole])


@given(st.binary(max_size=60))
def test_lines_are_never_longer_than_the_limit(data: bytes) -> None:
    assert all(len(line) <= LIMIT for line in split([data]) if not isinstance(line, LineTooLong))


def test_a_line_is_returned_as_soon_as_its_lf_arrives() -> None:
    splitter = LineSplitter(LIMIT)
    assert splitter.feed(b"one\ntw") == [b"one"]
    assert splitter.feed(b"o") == []
    assert splitter.feed(b"\n") == [b"two"]
    assert splitter.end() == []


@pytest.mark.behaviour("a_long_line_is_one_error")
def test_a_long_line_is_reported_once_before_it_ends() -> None:
    splitter = LineSplitter(LIMIT)
    assert splitter.feed(b"x" * 20) == [LINE_TOO_LONG]
    assert splitter.feed(b"x" * 20) == []
    assert splitter.feed(b"\nnext\n") == [b"next"]


def test_a_skipped_long_line_is_not_buffered() -> None:
    splitter = LineSplitter(LIMIT)
    for _ in range(100):
        splitter.feed(b"x" * 1000)
        assert len(splitter._rest) == 0


def test_a_chunk_given_as_bytearray_can_be_reused() -> None:
    splitter = LineSplitter(LIMIT)
    buffer = bytearray(b"one\ntwo")
    lines = splitter.feed(buffer)
    buffer[:] = b"XXXXXXX"
    assert lines + splitter.end() == [b"one", b"two"]


# --- one budget for many connections ---------------------------------------------------------


@pytest.fixture
def no_free_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every byte of an unfinished line."""
    monkeypatch.setattr(framing, "LONG_LINE_BYTES", 0)


def test_a_line_up_to_the_free_size_takes_no_budget() -> None:
    budget = LineBudget(0)
    splitter = LineSplitter(2 * LONG_LINE_BYTES, budget)
    assert splitter.feed(b"x" * LONG_LINE_BYTES) == []
    assert splitter.feed(b"\n") == [b"x" * LONG_LINE_BYTES]
    assert splitter.feed(b"x" * LONG_LINE_BYTES) == []
    assert splitter.feed(b"x") == [NO_ROOM_FOR_LINE]


@pytest.mark.usefixtures("no_free_bytes")
def test_a_line_without_budget_is_reported_once_and_skipped() -> None:
    budget = LineBudget(10)
    other, splitter = LineSplitter(100, budget), LineSplitter(100, budget)
    other.feed(b"x" * 8)
    assert splitter.feed(b"yyy") == [NO_ROOM_FOR_LINE]
    assert splitter.feed(b"yyyy") == []
    assert splitter.feed(b"y\nz\nzz\n") == [b"z", b"zz"]
    assert other.feed(b"xx\n") == [b"x" * 10], "a line that has its budget keeps it"


@pytest.mark.usefixtures("no_free_bytes")
def test_a_line_keeps_its_budget_until_the_next_feed() -> None:
    budget = LineBudget(10)
    splitter = LineSplitter(100, budget)
    splitter.feed(b"12345678")
    assert splitter.feed(b"\nab") == [b"12345678"]
    assert budget.left == 2, "the line is still being worked on"
    splitter.feed(b"c")
    assert budget.left == 7
    splitter.close()
    assert budget.left == 10


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([b"\n", b"a", b"abcd\n", b"x" * 9, b"\r"])),
        max_size=40,
    )
)
def test_the_budget_is_never_exceeded_and_is_returned_in_full(
    fed: list[tuple[int, bytes]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "LONG_LINE_BYTES", 2)
        budget = LineBudget(12)
        splitters = [LineSplitter(20, budget) for _ in range(3)]
        for which, piece in fed:
            for line in splitters[which].feed(piece):
                assert isinstance(line, LineTooLong) or len(line) <= 20
            assert 0 <= budget.left <= 12
            assert sum(max(0, len(splitter._rest) - 2) for splitter in splitters) <= 12
        for splitter in splitters:
            splitter.end()
            splitter.close()
        assert budget.left == 12
