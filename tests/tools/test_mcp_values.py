"""The values of a server's message are counted before it is parsed, and never too low."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nousd.tools.process.message_limits import ValuesOfLines, values_in
from nousd.wire.limits import MCP_MESSAGE_VALUES_MAX


def values_of(value: Any) -> int:
    match value:
        case list():
            return 1 + sum(map(values_of, value))
        case dict():
            return 1 + sum(map(values_of, value.values()))
    return 1


@pytest.mark.parametrize(
    "value",
    [
        0,
        "[[[,,,{{{",
        ["a\\", [], '","', {}, '\\"[', "\\\\"],
        {"a": [{}] * 1000, "b,[{": {"c": [[[]]]}},
        [0] * 1000,
    ],
)
def test_the_count_is_never_too_low_and_ignores_brackets_in_texts(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=1)):
        assert values_of(value) <= values_in(text.encode()) <= 2 * values_of(value) + 1


def test_a_long_text_is_one_value_and_many_texts_are_many() -> None:
    assert values_in(json.dumps("a, [b], {c} \n" * 100_000).encode()) == 1
    many = json.dumps([""] * (3 * MCP_MESSAGE_VALUES_MAX)).encode()
    assert values_in(many) > MCP_MESSAGE_VALUES_MAX


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_the_count_does_not_depend_on_the_chunks_of_a_stream(size: int) -> None:
    stream = b'data: [1,\r\ndata: "[,",\r\ndata: 3]\r\n\r\ndata: [1]\n\n: "\n\ndata: [1,2]\r\r'
    lines = ValuesOfLines(is_stream=True)
    for start in range(0, len(stream), size):
        lines.feed(stream[start : start + size])
    lines.finish()
    assert lines.largest == 6


def test_a_body_is_one_message_with_all_its_lines() -> None:
    lines = ValuesOfLines(is_stream=False)
    lines.feed(b"[1,\n\n2,\n\n")
    lines.feed(b"3]")
    lines.finish()
    assert lines.largest >= 4
