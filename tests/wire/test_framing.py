"""Framing: however the bytes are cut, the same lines come out, in bounded memory."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.wire.framing import LINE_TOO_LONG, LineSplitter, LineTooLong

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


def test_a_line_is_given_as_soon_as_its_lf_is_there() -> None:
    splitter = LineSplitter(LIMIT)
    assert splitter.feed(b"one\ntw") == [b"one"]
    assert splitter.feed(b"o") == []
    assert splitter.feed(b"\n") == [b"two"]
    assert splitter.end() == []


@pytest.mark.behaviour("a_long_line_is_one_error")
def test_a_long_line_is_told_before_it_ends() -> None:
    splitter = LineSplitter(LIMIT)
    assert splitter.feed(b"x" * 20) == [LINE_TOO_LONG]
    assert splitter.feed(b"x" * 20) == []
    assert splitter.feed(b"\nnext\n") == [b"next"]


def test_skipping_a_long_line_keeps_nothing_of_it() -> None:
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
