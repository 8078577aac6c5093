"""Properties of framing: the same lines for any cuts, and never more memory."""

from __future__ import annotations

from itertools import pairwise
from typing import Final
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from nousd.wire.codec.framing import (
    LINE_TOO_LONG,
    NO_ROOM_FOR_LINE,
    LineBudget,
    LineSplitter,
    LineTooLong,
)

Line = bytes | LineTooLong

# Bytes with a meaning are frequent, so that lines of every length up to the limit appear.
bytes_of_all_kinds: Final = st.lists(
    st.binary(max_size=12) | st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"x" * 30]),
    max_size=20,
).map(b"".join)


def lines_by_the_rules(data: bytes, limit: int) -> list[Line]:
    """Return the lines of the whole input, as the contract defines them."""
    *lines, last = data.split(b"\n")
    lines += [last] if last else []
    stripped = [line[:-1] if line.endswith(b"\r") else line for line in lines]
    return [line if len(line) <= limit else LINE_TOO_LONG for line in stripped]


@st.composite
def chunk_lists(draw: st.DrawFn) -> list[bytes]:
    data = draw(bytes_of_all_kinds)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=10)))
    return [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]


@given(chunk_lists(), st.integers(0, 40))
@example([b"x" * 9, b"\r", b"\n"], 9)
@example([b"x" * 10, b"\r", b"\n"], 9)
@example([b"x" * 9, b"\r", b"\r", b"\n"], 9)
def test_any_chunks_of_any_bytes_give_the_lines_of_the_contract(
    chunks: list[bytes], limit: int
) -> None:
    splitter, lines = LineSplitter(limit), list[Line]()
    for chunk in chunks:
        lines += splitter.feed(chunk)
        assert len(splitter._rest) <= limit + 1
        assert b"\n" not in splitter._rest
    assert lines + splitter.end() == lines_by_the_rules(b"".join(chunks), limit)


@given(
    st.lists(chunk_lists(), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(0, 60),
)
def test_many_connections_share_a_budget_that_is_returned_in_full(
    streams: list[list[bytes]], turns: list[int], budget_bytes: int
) -> None:
    limit, long_line = 40, 8
    budget = LineBudget(budget_bytes)
    with patch("nousd.wire.codec.framing.LONG_LINE_BYTES", long_line):
        splitters = [LineSplitter(limit, budget) for _ in streams]
        lines: list[list[Line]] = [[] for _ in streams]
        left = [iter(chunks) for chunks in streams]
        for turn in [*turns, *(number for number, s in enumerate(streams) for _ in s)]:
            number = turn % len(streams)
            chunk = next(left[number], None)
            if chunk is not None:
                lines[number] += splitters[number].feed(chunk)
            assert 0 <= budget.left <= budget_bytes
            held = sum(max(0, len(each._rest) - long_line) for each in splitters)
            assert held <= budget_bytes - budget.left
        for splitter, got in zip(splitters, lines, strict=True):
            got.extend(splitter.end())
            splitter.close()
    assert budget.left == budget_bytes
    for chunks, got in zip(streams, lines, strict=True):
        expected = lines_by_the_rules(b"".join(chunks), limit)
        assert len(got) == len(expected)
        for line, right in zip(got, expected, strict=True):
            was_long = isinstance(right, LineTooLong) or len(right) >= long_line
            assert line == right or (line is NO_ROOM_FOR_LINE and was_long)
