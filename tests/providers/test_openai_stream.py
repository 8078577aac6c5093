from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from nousd.errors import ContextOverflow, ProviderError
from nousd.providers.interface import (
    Finished,
    Piece,
    ReasoningDelta,
    TextDelta,
    ToolCallPiece,
)
from nousd.providers.openai_calls import ARGUMENTS_CHARS_MAX, CALLS_MAX
from nousd.providers.openai_stream import BODY_BYTES_MAX, ChatStream
from nousd.wire.entries import Usage
from tests.providers.helpers import calls_of, cuts, finish_of, reasoning_of, text_of
from tests.stub_model import call_delta, delta

Chunk = dict[str, Any] | bytes

DONE = b"[DONE]"
STOP: Chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def ended(reason: str) -> Chunk:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def sse(*chunks: Chunk) -> bytes:
    payloads = (c if isinstance(c, bytes) else json.dumps(c).encode() for c in chunks)
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads)


def decode(chunks: Sequence[bytes], names: dict[str, str] | None = None) -> list[Piece]:
    stream = ChatStream(names)
    pieces = [piece for chunk in chunks for piece in stream.feed(chunk)]
    return [*pieces, *stream.end()]


def answer(*chunks: Chunk) -> list[Piece]:
    """Returns the pieces of a good stream, after checking that cutting it changes nothing."""
    data = sse(*chunks, STOP, DONE)
    expected = decode([data])
    for cut in cuts(data):
        assert decode(cut) == expected
    return expected


def failure_of(data: bytes) -> ProviderError:
    """Returns the error of a bad stream, after checking that cutting it changes nothing."""
    errors = []
    for cut in cuts(data):
        with pytest.raises(ProviderError) as caught:
            decode(cut)
        errors.append(caught.value)
    assert len({(str(error), error.retryable, error.status) for error in errors}) == 1
    return errors[0]


# --- text, reasoning, usage ------------------------------------------------------------------


def test_each_delta_is_one_piece() -> None:
    assert answer(delta(role="assistant", content=""), delta(content="a"), delta(content="b")) == [
        TextDelta("a"),
        TextDelta("b"),
        Finished("stop"),
    ]


@pytest.mark.parametrize(
    "texts",
    [["a", " ", "b", "\n", "c"], ["\n\n", "\t"], [" "], ["grü", "ße 😀", "\u2028"], ["\x00"], []],
)
def test_every_character_of_the_text_is_kept(texts: list[str]) -> None:
    assert text_of(answer(*(delta(content=text) for text in texts))) == "".join(texts)


def test_an_empty_answer_is_just_finished() -> None:
    assert answer() == [Finished("stop")]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart_from_the_text(field: str) -> None:
    pieces = answer(delta(**{field: "hm, "}), delta(**{field: "so", "content": "Yes"}))
    assert pieces[:-1] == [ReasoningDelta("hm, "), ReasoningDelta("so"), TextDelta("Yes")]


def test_reasoning_sent_under_both_names_counts_once() -> None:
    assert reasoning_of(answer(delta(reasoning_content="hm", reasoning="hm"))) == "hm"


def test_a_refusal_is_the_text() -> None:
    assert text_of(answer(delta(content=None, refusal="I cannot."))) == "I cannot."


def test_text_in_parts_is_read() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": []}, {"text": "b"}, 7]
    assert text_of(answer(delta(content=parts))) == "ab"


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (
            {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
            Usage(input=3, output=2, total=5),
        ),
        ({"prompt_tokens": 3, "completion_tokens": 2}, Usage(input=3, output=2, total=5)),
        (
            {
                "prompt_tokens": 30,
                "completion_tokens": 20,
                "total_tokens": 50,
                "prompt_tokens_details": {"cached_tokens": 10, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 15},
            },
            Usage(input=30, output=20, total=50, cache_read=10, reasoning=15),
        ),
        (
            {"prompt_tokens": 1.0, "completion_tokens": None, "prompt_tokens_details": None},
            Usage(input=1, output=0, total=1),
        ),
        ({"prompt_tokens": "many", "completion_tokens": -1}, Usage(input=0, output=0, total=0)),
        ({"prompt_tokens": 10**30}, Usage(input=0, output=0, total=0)),
        (None, None),
        ([], None),
    ],
)
def test_usage_is_read_from_a_last_chunk_without_choices(
    reported: Any, usage: Usage | None
) -> None:
    data = sse(delta(content="a"), STOP, {"choices": [], "usage": reported}, DONE)
    assert finish_of(decode([data])).usage == usage


def test_usage_is_read_wherever_it_stands_and_the_last_counts() -> None:
    first = {"prompt_tokens": 1, "completion_tokens": 1}
    second = {"prompt_tokens": 1, "completion_tokens": 2}
    chunk = delta(content="a") | {"usage": first}
    in_choice = {"choices": [{"delta": {}, "finish_reason": "stop", "usage": second}]}
    assert finish_of(answer(chunk)).usage == Usage(input=1, output=1, total=2)
    assert finish_of(answer(chunk, in_choice)).usage == Usage(input=1, output=2, total=3)


@pytest.mark.parametrize(
    ("word", "reason"),
    [("stop", "stop"), ("length", "length"), ("max_tokens", "length"), ("eos", "stop")],
)
def test_finish_reasons_are_mapped(word: str, reason: str) -> None:
    assert finish_of(decode([sse(delta(content="a"), ended(word), DONE)])).reason == reason


def test_a_filtered_answer_is_an_error_behind_its_text() -> None:
    stream = ChatStream()
    fed = stream.feed(sse(delta(content="a"), ended("content_filter"), DONE))
    assert next(fed) == TextDelta("a")
    with pytest.raises(ProviderError, match="content filter") as caught:
        next(fed)
    assert not caught.value.retryable


@pytest.mark.parametrize("word", ["error", "abort", "insufficient_system_resource"])
def test_an_answer_that_the_server_broke_off_can_be_asked_for_again(word: str) -> None:
    assert failure_of(sse(ended(word), DONE)).retryable


@pytest.mark.parametrize(
    "ending",
    [sse(STOP, DONE), sse(STOP), sse(DONE), sse(STOP).rstrip(), b"data: [DONE]", sse(STOP) + b"da"],
    ids=["both", "finish reason", "marker", "no empty line", "bare marker", "a cut line behind"],
)
def test_a_stream_is_complete_with_a_finish_reason_or_the_end_marker(ending: bytes) -> None:
    for cut in cuts(sse(delta(content="a")) + ending):
        assert decode(cut) == [TextDelta("a"), Finished("stop")]


def test_finished_comes_with_the_end_marker_and_what_follows_is_ignored() -> None:
    stream = ChatStream()
    assert not stream.complete
    assert list(stream.feed(sse(STOP))) == []
    assert stream.complete
    assert not stream.finished
    assert list(stream.feed(sse(DONE, delta(content="late"), b"{"))) == [Finished("stop")]
    assert stream.finished
    assert list(stream.feed(sse(delta(content="later")))) == []
    assert list(stream.end()) == []


# --- tool calls ------------------------------------------------------------------------------


def function(name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


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
def test_calls_are_put_together_however_they_are_sent(
    chunks: list[Chunk], calls: list[tuple[str, str]]
) -> None:
    pieces = answer(*chunks)
    assert calls_of(pieces) == calls
    assert finish_of(pieces).reason == ("tool_use" if calls else "stop")


def test_calls_come_behind_the_text_with_the_ids_of_the_model() -> None:
    assert answer(
        call_delta(index=0, id="c1", function=function("read", "{}")), delta(content="Looking.")
    ) == [TextDelta("Looking."), ToolCallPiece("c1", "read", "{}"), Finished("tool_use")]


def test_a_call_without_an_id_is_given_one() -> None:
    pieces = answer(delta(tool_calls=[{"index": i, "function": function("a")} for i in (0, 1)]))
    assert [p.id for p in pieces if isinstance(p, ToolCallPiece)] == ["call_0", "call_1"]


def test_the_name_that_the_server_was_told_is_turned_back() -> None:
    data = sse(call_delta(index=0, id="c", function=function("demo_echo", "{}")), STOP, DONE)
    assert calls_of(decode([data], {"demo_echo": "demo.echo"})) == [("demo.echo", "{}")]


def test_a_finish_reason_without_the_calls_it_speaks_of_is_a_stop() -> None:
    assert finish_of(decode([sse(ended("tool_calls"), DONE)])).reason == "stop"


def test_an_answer_cut_in_its_calls_says_length() -> None:
    data = sse(call_delta(index=0, id="c", function=function("a", '{"b')), ended("length"), DONE)
    assert finish_of(decode([data])).reason == "length"


def test_arguments_over_the_limit_are_an_error() -> None:
    half = "x" * (ARGUMENTS_CHARS_MAX // 2)
    first, second = (call_delta(index=i, function=function("a", half)) for i in (0, 1))
    assert len(calls_of(decode([sse(first, second, DONE)]))) == 2
    more = call_delta(index=1, function={"arguments": "x"})
    with pytest.raises(ProviderError, match=str(ARGUMENTS_CHARS_MAX)):
        decode([sse(first, second, more, DONE)])


def test_more_calls_than_the_limit_are_an_error() -> None:
    calls = [{"index": i, "function": function("a")} for i in range(CALLS_MAX + 1)]
    assert len(calls_of(decode([sse(delta(tool_calls=calls[1:]), DONE)]))) == CALLS_MAX
    with pytest.raises(ProviderError, match=str(CALLS_MAX)):
        decode([sse(delta(tool_calls=calls), DONE)])


# --- what servers send that they should not --------------------------------------------------


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": None},
        {},
        {"choices": []},
        {"choices": [{"delta": None, "finish_reason": None}]},
        {"choices": [{}], "error": None, "x": {"y": [1]}},
        {"choices": [{"delta": {"content": None, "tool_calls": None, "audio": {}}}]},
        {"choices": [{"delta": {"content": 7, "reasoning": {"a": 1}, "refusal": []}}]},
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        b"",
        b"   ",
    ],
)
def test_chunks_that_say_nothing_are_passed_over(chunk: Chunk) -> None:
    assert answer(delta(content="a"), chunk, delta(content="b"))[:-1] == [
        TextDelta("a"),
        TextDelta("b"),
    ]


def test_only_the_first_choice_is_read() -> None:
    both = {"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}, "index": 1}]}
    assert text_of(answer(both)) == "a"


def test_invalid_utf8_becomes_replacement_characters() -> None:
    assert text_of(answer(b'{"choices":[{"delta":{"content":"a\xffb\xc3"}}]}')) == "a\ufffdb\ufffd"


@pytest.mark.parametrize(
    ("halves", "text"),
    [
        ([r"a\ud83d", r"\ude00b"], "a😀b"),
        ([r"\ud83d", r"\ude00"], "😀"),
        ([r"\ud83d", "x"], "\ufffdx"),
        ([r"x\ude00"], "x\ufffd"),
        ([r"x\ud83d"], "x\ufffd"),
        ([r"\ud83d\ude00"], "😀"),
    ],
)
def test_surrogates_are_joined_over_deltas_and_scrubbed_alone(halves: list[str], text: str) -> None:
    chunks = [b'{"choices":[{"delta":{"content":"%b"}}]}' % half.encode() for half in halves]
    assert text_of(answer(*chunks)) == text


def test_surrogates_in_calls_are_scrubbed() -> None:
    arguments = {"path": "\ud800"}
    pieces = answer(call_delta(index=0, id="\ud800", function=function("a\udc00", arguments)))
    assert pieces[0] == ToolCallPiece("\ufffd", "a\ufffd", '{"path": "\ufffd"}')


@pytest.mark.parametrize(
    "payload",
    [b"nonsense", b"{", b"[1]", b'"text"', b'{"choices":7}', b"[" * 100_000, b'{"choices":[7]}'],
)
def test_an_event_that_is_no_chunk_is_an_error_that_shows_it(payload: bytes) -> None:
    with pytest.raises(ProviderError, match="no chunk") as caught:
        decode([sse(delta(content="a"), payload)])
    assert payload[:20].decode() in str(caught.value)
    assert not caught.value.retryable


# --- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"", sse(delta(content="a")), sse(delta()), b": ping\n\n", b'data: {"choices":[{"del'],
    ids=["nothing", "text", "an empty chunk", "a comment", "half a chunk"],
)
def test_a_stream_that_just_ends_is_an_error_that_can_be_tried_again(data: bytes) -> None:
    error = failure_of(data)
    assert str(error) == "the stream ended before the answer was complete"
    assert error.retryable


def test_an_answer_that_is_no_stream_is_shown() -> None:
    error = failure_of(b"<html>\n<body>Sign in</body>\n</html>\n")
    shown = "<html> <body>Sign in</body> </html>"
    assert str(error) == f"the server's answer is no model stream: {shown}"
    assert not error.retryable


@pytest.mark.parametrize(
    ("chunk", "words", "status", "retryable"),
    [
        ({"error": {"message": "boom", "type": "server_error"}}, "boom", None, True),
        ({"error": {"message": "busy", "code": 503}}, "busy", 503, True),
        ({"error": {"message": "bad", "code": 400}, "choices": []}, "bad", 400, False),
        ({"error": "boom"}, "boom", None, False),
        ({"error": "slow down", "code": 429}, "slow down", 429, True),
        ({"object": "error", "message": "bad model", "code": 404}, "bad model", 404, False),
        ({"error": {"code": "rate_limit_exceeded"}}, "the server reported an error", None, True),
    ],
)
def test_an_error_in_the_stream_is_told_in_the_words_of_the_server(
    chunk: Chunk, words: str, status: int | None, retryable: bool
) -> None:
    error = failure_of(sse(delta(content="a"), chunk, DONE))
    assert (str(error), error.status, error.retryable) == (words, status, retryable)


def test_the_pieces_before_an_error_in_the_same_chunk_are_given_back() -> None:
    stream = ChatStream()
    fed = stream.feed(sse(delta(content="a"), {"error": {"message": "boom"}}))
    assert next(fed) == TextDelta("a")
    with pytest.raises(ProviderError, match="boom"):
        next(fed)


def test_an_overflow_is_recognised_in_the_stream() -> None:
    words = b"the request exceeds the available context size. try increasing it"
    data = b'error: {"code":400,"message":"%b","type":"invalid_request_error"}\n\n' % words
    error = failure_of(data + sse(DONE))
    assert isinstance(error, ContextOverflow)
    assert str(error) == words.decode()


# --- servers that do not stream --------------------------------------------------------------


def completion(message: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": message, **more}]}).encode()


@pytest.mark.parametrize("padding", [b"", b"  \n\n"])
def test_a_whole_completion_is_read_like_a_stream(padding: bytes) -> None:
    body = {
        "choices": [
            {
                "message": {
                    "role": "assistant",
                    "content": "Looking.",
                    "reasoning_content": "hm",
                    "tool_calls": [{"id": "c1", "function": function("read", "{}")}],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    for cut in cuts(padding + json.dumps(body).encode() + b"\n"):
        assert decode(cut) == [
            ReasoningDelta("hm"),
            TextDelta("Looking."),
            ToolCallPiece("c1", "read", "{}"),
            Finished("tool_use", Usage(input=3, output=2, total=5)),
        ]


@pytest.mark.parametrize(
    ("body", "pieces"),
    [
        (completion({"content": ""}, finish_reason="stop"), [Finished("stop")]),
        (completion({"content": None}), [Finished("stop")]),
        (
            completion({"content": "a"}, finish_reason="length"),
            [TextDelta("a"), Finished("length")],
        ),
    ],
)
def test_a_whole_completion_may_be_empty_or_lack_its_reason(
    body: bytes, pieces: list[Piece]
) -> None:
    assert decode([body]) == pieces


def test_an_error_as_a_whole_answer_is_told_in_the_words_of_the_server() -> None:
    assert str(failure_of(b'{"error":{"message":"boom"}}')) == "boom"


@pytest.mark.parametrize("body", [b"{}", b'{"choices":[]}', b'{"choices":[{"mess', b'{"hello":1}'])
def test_a_whole_answer_that_is_no_completion_is_an_error(body: bytes) -> None:
    assert "is no completion" in str(failure_of(body))


def test_a_whole_answer_over_the_limit_is_an_error() -> None:
    stream = ChatStream()
    assert list(stream.feed(b"{" + b" " * (BODY_BYTES_MAX - 1))) == []
    with pytest.raises(ProviderError, match=str(BODY_BYTES_MAX)):
        list(stream.feed(b" "))
