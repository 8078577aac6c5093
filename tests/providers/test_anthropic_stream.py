from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.errors import ContextOverflow, ProviderError
from nousd.providers.anthropic.request import build_reasoning_block
from nousd.providers.anthropic.stream import MessagesAnswer
from nousd.providers.encoding import provider_state as kept_data
from nousd.providers.http.answer_stream import AnswerStream
from nousd.providers.interface import (
    Finished,
    Piece,
    ReasoningDelta,
    ReasoningKept,
    TextDelta,
    ToolCallPiece,
    UsageSoFar,
)
from nousd.wire.objects.entries import Usage
from tests.harness.stub_model import Part
from tests.providers import decoding
from tests.providers.conformance import Scene
from tests.providers.dialects.anthropic import (
    PING,
    begin,
    begin_block,
    delta,
    end,
    end_block,
    error,
    stream,
)
from tests.providers.helpers import text_of


def new_decoder() -> AnswerStream[Any]:
    return AnswerStream(MessagesAnswer({"demo_echo": "demo.echo"}))


decode = partial(decoding.decode, new_decoder)


def sse(*parts: Part) -> bytes:
    return decoding.sse(*_events(parts))


def answer(*parts: Part) -> list[Piece]:
    """Return the pieces of a good stream, after checking that cutting it changes nothing."""
    pieces = decoding.pieces_of(new_decoder, *_events((begin(), *parts)))
    return [piece for piece in pieces if not isinstance(piece, UsageSoFar)]


def failure_of(*parts: Part) -> ProviderError:
    return decoding.failure_of(new_decoder, *_events((begin(), *parts)))


def _events(parts: Iterable[Part]) -> Iterator[dict[str, Any]]:
    """Yield the parts without the pauses between them."""
    return (part for part in parts if isinstance(part, dict))


def said(words: str, index: int = 0) -> list[Part]:
    return [
        begin_block(index, type="text", text=""),
        delta(index, "text_delta", text=words),
        end_block(index),
    ]


def test_pings_and_unknown_events_are_ignored() -> None:
    news: Part = {"type": "news", "delta": {"text": 5}, "index": 3}
    assert answer(PING, *said("a"), news, PING, *end()) == [TextDelta("a"), Finished("stop")]


def test_a_signed_reasoning_block_is_kept_unchanged_with_its_position() -> None:
    pieces = answer(
        begin_block(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="h"),
        delta(0, "thinking_delta", thinking="m"),
        delta(0, "signature_delta", signature="c2ln"),
        end_block(0),
        *said("Look:", 1),
        begin_block(2, type="redacted_thinking", data="eHg="),
        end_block(2),
        begin_block(3, type="tool_use", id="toolu_1", name="demo_echo", input={}),
        delta(3, "input_json_delta", partial_json='{"a":'),
        delta(3, "input_json_delta", partial_json=" 1}"),
        end_block(3),
        *end("tool_use"),
    )
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    hidden = {"type": "redacted_thinking", "data": "eHg="}
    assert pieces == [
        ReasoningDelta("h"),
        ReasoningDelta("m"),
        ReasoningKept(build_reasoning_block(thought, text_before=0, calls_before=0)),
        TextDelta("Look:"),
        ReasoningKept(build_reasoning_block(hidden, text_before=5, calls_before=0)),
        ToolCallPiece("toolu_1", "demo.echo", '{"a": 1}'),
        Finished("tool_use"),
    ]


def test_a_reasoning_block_without_text_is_kept() -> None:
    pieces = answer(
        begin_block(0, type="thinking", thinking="", signature=""),
        delta(0, "signature_delta", signature="c2ln"),
        end_block(0),
        *said("a", 1),
        *end(),
    )
    thought = {"type": "thinking", "thinking": "", "signature": "c2ln"}
    assert pieces[0] == ReasoningKept(build_reasoning_block(thought, text_before=0, calls_before=0))


@pytest.mark.parametrize("kind", ["thinking_delta", "signature_delta"])
def test_kept_reasoning_has_a_size_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_data, "UNSTREAMED_ANSWER_BYTES_MAX", 10_000)
    field = kind.removesuffix("_delta")
    parts = [
        begin_block(0, type="thinking", thinking="", signature=""),
        *[delta(0, kind, **{field: "x" * 1000})] * 12,
        end_block(0),
        *end(),
    ]
    assert "thought for more than 10000" in str(failure_of(*parts))
    assert answer(*parts[:5], *parts[-3:])[-1] == Finished("stop")


def test_a_lone_surrogate_in_a_signature_is_replaced() -> None:
    data = (
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking"}}\n\n'
        b'data: {"type":"content_block_delta","index":0,"delta":{"signature":"a\\ud83d"}}\n\n'
        b'data: {"type":"content_block_stop","index":0}\n\n'
    )
    kept = decode([data + sse(*end())])[0]
    assert isinstance(kept, ReasoningKept)
    assert kept.block.data["block"]["signature"] == "a\ufffd"


def test_a_call_without_arguments_is_a_call() -> None:
    pieces = answer(
        begin_block(0, type="tool_use", id="toolu_1", name="now", input={}),
        end_block(0),
        *end("tool_use"),
    )
    assert pieces == [ToolCallPiece("toolu_1", "now", ""), Finished("tool_use")]


def test_a_call_cut_off_before_its_arguments_is_dropped() -> None:
    pieces = answer(
        begin_block(0, type="tool_use", id="toolu_1", name="read", input={}),
        delta(0, "input_json_delta", partial_json='{"path":'),
        end_block(0),
        begin_block(1, type="tool_use", id="toolu_2", name="now", input={}),
        *end("max_tokens"),
    )
    assert pieces == [ToolCallPiece("toolu_1", "read", '{"path":'), Finished("length")]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("tool_use", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("something_new", "stop"),
    ],
)
def test_stop_reasons_are_mapped(word: str, reason: str) -> None:
    assert answer(*said("a"), *end(word))[-1] == Finished(reason)  # type: ignore[arg-type]


def test_a_refusal_of_the_model_is_an_error_with_its_explanation() -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "It could harm."}
    refused = failure_of(*said("a"), *end("refusal", stop_details=details))
    assert str(refused) == "the model refused to answer: It could harm."
    assert not refused.retryable
    assert str(failure_of(*end("refusal"))) == "the model refused to answer"


def test_an_input_that_leaves_no_room_for_any_answer_is_an_overflow() -> None:
    assert isinstance(failure_of(*end("model_context_window_exceeded")), ContextOverflow)


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(400, False), (401, False), (413, False), (429, True), (500, True), (529, True)],
)
def test_the_status_of_a_stream_error_decides_if_it_is_retryable(
    status: int, *, retryable: bool
) -> None:
    failed = failure_of(*said("a"), error(status, "boom"))
    assert (str(failed), failed.retryable) == ("boom", retryable)
    assert json.loads(failed.raw) == error(status, "boom")


def test_the_last_count_of_each_kind_of_token_is_used() -> None:
    first = begin(Usage(input=100, output=0, total=0, cache_read=60, cache_write=30))
    last: Part = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {
            "input_tokens": 14,
            "output_tokens": 20,
            "cache_read_input_tokens": None,
            "output_tokens_details": {"thinking_tokens": 9},
        },
    }
    finished = decode([sse(first, *said("a"), last, {"type": "message_stop"})])[-1]
    usage = Usage(input=104, output=20, total=124, cache_read=60, cache_write=30, reasoning=9)
    assert finished == Finished("stop", usage)


def test_the_usage_of_the_input_is_reported_first() -> None:
    first = begin(Usage(input=100, output=0, total=0, cache_read=60))
    assert decode([sse(first, *said("a"), *end())])[0] == UsageSoFar(
        Usage(input=100, output=1, total=101, cache_read=60)
    )


@pytest.mark.parametrize("parts", [(), (end()[0],)], ids=["nothing", "no more than the reason"])
def test_an_answer_is_complete_once_it_has_a_stop_reason(parts: tuple[Part, ...]) -> None:
    data = sse(begin(), *said("a"), *parts)
    if parts:
        assert decode([data]) == [TextDelta("a"), Finished("stop")]
    else:
        with pytest.raises(ProviderError, match="ended before the answer was complete"):
            decode([data])


def test_a_message_that_is_not_streamed_is_decoded() -> None:
    whole: dict[str, Any] = {
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "text", "text": "Look:"},
            {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 7, "output_tokens": 5},
    }
    thought = whole["content"][0]
    usage = Usage(input=7, output=5, total=12)
    pieces = decode([json.dumps(whole).encode()])
    assert [piece for piece in pieces if not isinstance(piece, UsageSoFar)] == [
        ReasoningDelta("hm"),
        ReasoningKept(build_reasoning_block(thought, text_before=0, calls_before=0)),
        TextDelta("Look:"),
        ToolCallPiece("toolu_1", "read", '{"path": "a"}'),
        Finished("tool_use", usage),
    ]


def test_an_end_marker_of_another_dialect_is_ignored() -> None:
    data = sse(begin(), *said("a"), *end()) + b"data: [DONE]\n\n"
    assert decode([data]) == [TextDelta("a"), Finished("stop")]


@pytest.mark.slow(keep=11)
@pytest.mark.parametrize("strange", [None, 5, [], {"a": 1}, "x"])
@pytest.mark.parametrize(
    "field", ["text", "thinking", "signature", "partial_json", "stop_reason", "stop_details"]
)
def test_a_field_of_an_unexpected_type_is_ignored(field: str, strange: object) -> None:
    odd: Part = {"type": "content_block_delta", "index": 0, "delta": {field: strange}}
    assert text_of(answer(*said("a"), odd, *end())).startswith("a")


def test_a_surrogate_pair_split_over_two_deltas_is_one_character() -> None:
    halves = ('{"text":"ü\\ud83d"}'.encode(), b'{"text":"\\ude00"}')
    deltas = b"".join(
        b'data: {"type":"content_block_delta","index":0,"delta":%b}\n\n' % half for half in halves
    )
    assert text_of(decode([deltas + sse(*end())])) == "ü😀"


def test_text_and_calls_of_a_scene_are_decoded() -> None:
    scene = Scene(text="grüße", calls=(("a", {}), ("b", {"x": 1})))
    pieces = decode([sse(*stream(scene))])
    assert text_of(pieces) == "grüße"
    assert [piece.name for piece in pieces if isinstance(piece, ToolCallPiece)] == ["a", "b"]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "id"]), inner)
    ),
    max_leaves=6,
)
TYPES = (
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "error",
    "ping",
)
FIELDS = ("index", "message", "content_block", "delta", "usage", "error", "content")
BLOCK_FIELDS = ("type", "text", "thinking", "signature", "partial_json", "id", "name", "input")


@pytest.mark.slow
@given(
    st.lists(
        st.builds(
            lambda kind, fields, inner: {**fields, **inner, "type": kind},
            st.sampled_from(TYPES),
            st.dictionaries(st.sampled_from(FIELDS), anything, max_size=2),
            st.dictionaries(
                st.sampled_from(["delta", "content_block"]),
                st.dictionaries(st.sampled_from(BLOCK_FIELDS), anything),
            ),
        ),
        max_size=6,
    )
)
def test_any_stream_gives_pieces_or_a_provider_error(
    events: list[dict[str, Any]],
) -> None:
    try:
        pieces = decode([sse(*events)])
    except ProviderError:
        return
    assert isinstance(pieces[-1], Finished)
