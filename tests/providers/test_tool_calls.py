from __future__ import annotations

import pytest

from nousd.errors import ProviderError
from nousd.providers.interface import Finished, TextDelta, ToolCallPiece
from nousd.wire.limits import TOOL_ARGUMENTS_CHARS_MAX, TOOL_CALLS_MAX
from tests.harness.stub_model import call_delta, delta
from tests.providers.decoding import sse
from tests.providers.helpers import calls_of, finish_of
from tests.providers.streams import DONE, STOP, Chunk, answer, decode, ended, function

CALLS: dict[str, tuple[list[Chunk], list[tuple[str, str]]]] = {
    "in fragments": (
        [
            call_delta(index=0, id="c1", type="function", function=function("read", "")),
            call_delta(index=0, function={"arguments": '{"pa'}),
            call_delta(index=0, function={"arguments": 'th":1}'}),
        ],
        [("read", '{"path":1}')],
    ),
    "interleaved": (
        [
            call_delta(index=1, id="c2", function=function("bash", "")),
            call_delta(index=0, id="c1", function=function("read", "")),
            call_delta(index=1, function={"arguments": '{"b"'}),
            call_delta(index=0, function={"arguments": '{"a"'}),
            delta(
                tool_calls=[
                    {"index": 0, "function": {"arguments": ":1}"}},
                    {"index": 1, "function": {"arguments": ":2}"}},
                ]
            ),
        ],
        [("read", '{"a":1}'), ("bash", '{"b":2}')],
    ),
    "whole calls in one chunk": (
        [
            delta(
                tool_calls=[
                    {"index": 0, "id": "c1", "function": function("read", '{"a":1}')},
                    {"index": 1, "id": "c2", "function": function("read", '{"a":2}')},
                ]
            )
        ],
        [("read", '{"a":1}'), ("read", '{"a":2}')],
    ),
    "id and name repeated": (
        [
            call_delta(index=0, id="c1", function=function("read", "{")),
            call_delta(index=0, id="c1", function=function("read", "}")),
        ],
        [("read", "{}")],
    ),
    "empty id and name in later fragments": (
        [
            call_delta(index=0, id="c1", function=function("read", "{")),
            call_delta(index=0, id="", function=function("", "}")),
            call_delta(index=0, id=None, function=function(None, None)),
        ],
        [("read", "{}")],
    ),
    "all numbered 0": (
        [
            call_delta(index=0, id="c1", function=function("read", '{"a":1}')),
            call_delta(index=0, id="c2", function=function("read", '{"a"')),
            call_delta(index=0, function={"arguments": ":2}"}),
        ],
        [("read", '{"a":1}'), ("read", '{"a":2}')],
    ),
    "an id but no index": (
        [
            call_delta(id="c1", function=function("read", "{")),
            call_delta(id="c1", function=function(None, "}")),
            call_delta(id="c2", function=function("bash", "{}")),
        ],
        [("read", "{}"), ("bash", "{}")],
    ),
    "an id and no index, later fragments bare": (
        [
            call_delta(id="c1", function=function("read", "{")),
            call_delta(function={"arguments": "}"}),
            call_delta(id="c2", function=function("read", "{")),
            call_delta(function={"arguments": "}"}),
        ],
        [("read", "{}"), ("read", "{}")],
    ),
    "an index but no id": (
        [
            call_delta(index=0, function=function("read", "{}")),
            call_delta(index=1, function=function("read", "{}")),
        ],
        [("read", "{}"), ("read", "{}")],
    ),
    "neither, in fragments": (
        [
            call_delta(function=function("read", "")),
            call_delta(function={"arguments": '{"a":'}),
            call_delta(function={"arguments": "1}"}),
        ],
        [("read", '{"a":1}')],
    ),
    "neither, whole": (
        [
            delta(tool_calls=[{"function": function("read", '{"a":1}')}] * 2),
            call_delta(function=function("bash", "")),
        ],
        [("read", '{"a":1}'), ("read", '{"a":1}'), ("bash", "")],
    ),
    "neither, the name repeated": (
        [
            call_delta(function=function("read", "")),
            call_delta(function=function("read", '{"a"')),
            call_delta(function=function("read", ":1}")),
        ],
        [("read", '{"a":1}')],
    ),
    "arguments as an object": (
        [call_delta(index=0, id="c1", function=function("read", {"path": "ä", "n": [1]}))],
        [("read", '{"path": "ä", "n": [1]}')],
    ),
    "no arguments": ([call_delta(index=0, id="c1", function={"name": "read"})], [("read", "")]),
    "no function": ([call_delta(index=0, id="c1")], [("", "")]),
    "indexes with gaps": (
        [
            call_delta(index=7, id="c7", function=function("b", "{}")),
            call_delta(index=3, id="c3", function=function("a", "{}")),
        ],
        [("a", "{}"), ("b", "{}")],
    ),
    "the older function_call": (
        [
            delta(function_call=function("read", "{")),
            delta(function_call=function(None, "}")),
        ],
        [("read", "{}")],
    ),
    "tool_calls null": ([delta(content="a", tool_calls=None)], []),
}


@pytest.mark.parametrize(("chunks", "calls"), CALLS.values(), ids=CALLS)
def test_calls_are_assembled_from_any_fragments(
    chunks: list[Chunk], calls: list[tuple[str, str]]
) -> None:
    pieces = answer(*chunks)
    assert calls_of(pieces) == calls
    assert finish_of(pieces).reason == ("tool_use" if calls else "stop")


def test_calls_come_after_the_text_with_the_ids_of_the_model() -> None:
    assert answer(
        call_delta(index=0, id="c1", function=function("read", "{}")), delta(content="Looking.")
    ) == [TextDelta("Looking."), ToolCallPiece("c1", "read", "{}"), Finished("tool_use")]


def test_a_call_without_an_id_gets_one() -> None:
    pieces = answer(delta(tool_calls=[{"index": i, "function": function("a")} for i in (0, 1)]))
    assert [p.id for p in pieces if isinstance(p, ToolCallPiece)] == ["call_0", "call_1"]


def test_a_call_has_the_original_tool_name() -> None:
    data = sse(call_delta(index=0, id="c", function=function("demo_echo", "{}")), STOP, DONE)
    assert calls_of(decode([data], {"demo_echo": "demo.echo"})) == [("demo.echo", "{}")]


def test_a_tool_calls_finish_reason_without_calls_is_a_stop() -> None:
    assert finish_of(decode([sse(ended("tool_calls"), DONE)])).reason == "stop"


def test_an_answer_cut_off_in_its_calls_has_finish_reason_length() -> None:
    data = sse(call_delta(index=0, id="c", function=function("a", '{"b')), ended("length"), DONE)
    assert finish_of(decode([data])).reason == "length"


def test_a_call_cut_off_before_its_arguments_is_dropped() -> None:
    begun = call_delta(index=1, id="d", function=function("ls", ""))
    data = sse(call_delta(index=0, id="c", function=function("a", '{"b')), begun, ended("length"))
    assert calls_of(decode([data])) == [("a", '{"b')]


def test_arguments_over_the_limit_are_an_error() -> None:
    half = "x" * (TOOL_ARGUMENTS_CHARS_MAX // 2)
    first, second = (call_delta(index=i, function=function("a", half)) for i in (0, 1))
    assert len(calls_of(decode([sse(first, second, DONE)]))) == 2
    more = call_delta(index=1, function={"arguments": "x"})
    with pytest.raises(ProviderError, match=str(TOOL_ARGUMENTS_CHARS_MAX)):
        decode([sse(first, second, more, DONE)])


def test_more_calls_than_the_limit_are_an_error() -> None:
    calls = [{"index": i, "function": function("a")} for i in range(TOOL_CALLS_MAX + 1)]
    assert len(calls_of(decode([sse(delta(tool_calls=calls[1:]), DONE)]))) == TOOL_CALLS_MAX
    with pytest.raises(ProviderError, match=str(TOOL_CALLS_MAX)):
        decode([sse(delta(tool_calls=calls), DONE)])


def test_lone_surrogates_in_calls_are_replaced() -> None:
    arguments = {"path": "\ud800"}
    pieces = answer(call_delta(index=0, id="\ud800", function=function("a\udc00", arguments)))
    assert pieces[0] == ToolCallPiece("\ufffd", "a\ufffd", '{"path": "\ufffd"}')
