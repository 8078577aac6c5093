from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.errors import ContextOverflow, ProviderError
from nousd.machine.context.model_input import (
    ModelInput,
    ModelMessage,
    ToolResultMessage,
    UserMessage,
)
from nousd.providers.encoding import provider_state as kept_data
from nousd.providers.encoding.request_body import encode_body
from nousd.providers.http.answer_stream import AnswerStream
from nousd.providers.interface import (
    NO_BLOBS,
    Finished,
    Piece,
    ReasoningDelta,
    TextDelta,
    ToolCallPiece,
)
from nousd.providers.openai_responses.request import responses_body
from nousd.providers.openai_responses.stream import ResponsesAnswer
from nousd.wire.limits import NESTING_MAX
from nousd.wire.objects.entries import Usage
from tests.providers.conformance import Scene
from tests.providers.decoding import decode, failure_of, kept, pieces_of, remembered, shown, sse
from tests.providers.dialects.responses import (
    added,
    arguments_delta,
    arguments_done,
    call_item,
    done,
    ended,
    fault,
    message_item,
    reasoning_item,
    response,
    stream,
    summary_delta,
    summary_part,
    text_delta,
    usage,
)
from tests.providers.helpers import calls_of, finish_of, reasoning_of, text_of


def new_decoder(**names: str) -> AnswerStream[Any]:
    return AnswerStream(ResponsesAnswer(names))


answer = partial(pieces_of, new_decoder)
failure = partial(failure_of, new_decoder)


def test_reasoning_text_and_calls_are_decoded_in_order() -> None:
    scene = Scene(reasoning="ab", signature="X", text="hi", calls=(("read", {"p": 1}),))
    events = [part for part in stream(scene) if isinstance(part, dict)]
    pieces = answer(*events)
    assert pieces[:4] == [
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        TextDelta("h"),
        TextDelta("i"),
    ]
    assert pieces[-2:] == [
        ToolCallPiece("call_2", "read", '{"p": 1}'),
        Finished("tool_use"),
    ]


def test_calls_have_the_original_tool_names() -> None:
    events = [done(0, call_item(0, "mcp_read")), ended()]
    pieces = pieces_of(partial(new_decoder, mcp_read="mcp.read"), *events)
    assert calls_of(pieces) == [("mcp.read", "")]


def test_content_sent_in_deltas_is_not_repeated_from_complete_items() -> None:
    pieces = answer(
        added(0, message_item("")),
        text_delta(0, "once"),
        done(0, message_item("once")),
        added(1, call_item(1, "read", status="in_progress")),
        arguments_delta(1, '{"a":'),
        arguments_delta(1, "1}"),
        arguments_done(1, "read", '{"a":1}'),
        done(1, call_item(1, "read", '{"a":1}')),
        ended(output=[message_item("once"), call_item(1, "read", '{"a":1}')]),
    )
    assert shown(pieces) == ["once"]
    assert calls_of(pieces) == [("read", '{"a":1}')]


def test_items_without_deltas_are_decoded() -> None:
    pieces = answer(
        done(0, reasoning_item("thought")),
        done(1, message_item("said")),
        done(2, call_item(2, "read", "{}")),
        ended(),
    )
    assert reasoning_of(pieces) == "thought"
    assert text_of(pieces) == "said"
    assert calls_of(pieces) == [("read", "{}")]


def test_an_answer_only_in_its_last_event_is_decoded() -> None:
    items = [reasoning_item("thought", "X"), message_item("said"), call_item(2, "read", "{}")]
    pieces = answer(ended(output=items))
    assert (reasoning_of(pieces), text_of(pieces)) == ("thought", "said")
    assert calls_of(pieces) == [("read", "{}")]
    assert kept(pieces)[0] == items[0]


def test_an_answer_that_is_not_streamed_is_decoded() -> None:
    body = json.dumps(response(output=[message_item("said")])).encode()
    pieces = decode(new_decoder, [body])
    assert (text_of(pieces), finish_of(pieces).reason) == ("said", "stop")


def test_events_without_an_index_belong_to_the_open_item() -> None:
    events = [
        added(0, message_item("")),
        text_delta(0, "one"),
        done(0, message_item("one")),
        added(1, call_item(1, "read")),
        arguments_delta(1, "{}"),
        done(1, call_item(1, "read", "{}")),
        done(2, call_item(2, "bash", '{"a": 2}')),
        ended(),
    ]
    without = [{key: event[key] for key in event if key != "output_index"} for event in events]
    pieces = answer(*without)
    assert text_of(pieces) == "one"
    assert calls_of(pieces) == [("read", "{}"), ("bash", '{"a": 2}')]


def test_interleaved_calls_do_not_mix() -> None:
    pieces = answer(
        added(0, call_item(0, "read")),
        added(1, call_item(1, "bash")),
        arguments_delta(1, '{"b":'),
        arguments_delta(0, '{"a":'),
        arguments_delta(1, "2}"),
        arguments_delta(0, "1}"),
        ended(),
    )
    assert calls_of(pieces) == [("read", '{"a":1}'), ("bash", '{"b":2}')]


def test_parts_of_a_summary_are_separated() -> None:
    pieces = answer(
        added(0, reasoning_item()),
        summary_part(0, 0),
        summary_delta(0, "first", 0),
        summary_part(0, 1),
        summary_delta(0, "second", 1),
        ended(),
    )
    assert reasoning_of(pieces) == "first\n\nsecond"


def test_plain_reasoning_and_refusals_are_decoded() -> None:
    thought = {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "plain"}
    refused = {"type": "response.refusal.delta", "output_index": 1, "delta": "I will not."}
    pieces = answer(thought, refused, ended())
    assert (reasoning_of(pieces), text_of(pieces)) == ("plain", "I will not.")


def test_a_refusal_without_deltas_is_decoded() -> None:
    item = message_item(content=[{"type": "refusal", "refusal": "I will not."}])
    assert text_of(answer(done(0, item), ended())) == "I will not."


def test_a_surrogate_pair_split_over_two_deltas_is_one_character() -> None:
    pieces = answer(
        b'{"type":"response.output_text.delta","output_index":0,"delta":"a\\ud83d"}',
        b'{"type":"response.output_text.delta","output_index":0,"delta":"\\ude00b"}',
        ended(),
    )
    assert text_of(pieces) == "a😀b"


def test_a_lone_surrogate_at_the_end_is_replaced() -> None:
    pieces = answer(
        b'{"type":"response.output_text.delta","output_index":0,"delta":"a\\ud83d"}', ended()
    )
    assert text_of(pieces) == "a\ufffd"


# --- kept data -----------------------------------------------------------------------------------


def test_an_encrypted_item_is_kept_unchanged_with_the_order_of_all_items() -> None:
    item = {**reasoning_item("why", "X=="), "status": "completed", "future": [1, None]}
    pieces = answer(
        done(0, item), done(1, message_item("said")), done(2, call_item(2, "read")), ended()
    )
    assert kept(pieces) == [
        item,
        {"type": "message", "text_chars": 4, "id": "msg_stub"},
        {"type": "function_call"},
    ]


def test_reasoning_without_encrypted_or_plain_content_is_not_kept() -> None:
    pieces = answer(done(0, reasoning_item("why")), done(1, message_item("said")), ended())
    assert kept(pieces) == []


def test_plain_reasoning_is_kept() -> None:
    item = reasoning_item() | {"content": [{"type": "reasoning_text", "text": "why"}]}
    pieces = answer(done(0, item), done(1, message_item("said")), ended())
    assert reasoning_of(pieces) == "why"
    assert kept(pieces)[0] == item


def test_the_phase_of_a_message_is_kept() -> None:
    pieces = answer(
        done(0, message_item("I look.", phase="commentary")), done(1, call_item(1, "read")), ended()
    )
    assert kept(pieces) == [
        {"type": "message", "text_chars": 7, "id": "msg_stub", "phase": "commentary"},
        {"type": "function_call"},
    ]


@pytest.mark.slow
def test_reasoning_nested_too_deeply_is_not_kept() -> None:
    deep = b"[" * NESTING_MAX + b"]" * NESTING_MAX
    item = b'{"type":"reasoning","encrypted_content":"X","content":' + deep + b"}"
    event = b'{"type":"response.output_item.done","output_index":0,"item":' + item + b"}"
    assert kept(answer(event, ended())) == []


def test_a_lone_surrogate_in_an_item_is_replaced() -> None:
    item = b'{"type":"reasoning","encrypted_content":"\\ud83d"}'
    event = b'{"type":"response.output_item.done","output_index":0,"item":' + item + b"}"
    assert kept(answer(event, ended())) == [{"type": "reasoning", "encrypted_content": "\ufffd"}]


def test_reasoning_over_the_limit_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_data, "UNSTREAMED_ANSWER_BYTES_MAX", 10_000)
    events = [done(index, reasoning_item("", "x" * 500)) for index in range(20)]
    assert "thought for more than" in str(failure(*events))
    empty = [added(index, message_item("")) for index in range(101)]
    assert "thought for more than" in str(failure(*empty))


def test_items_of_other_kinds_are_ignored() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    pieces = answer(
        done(0, search), done(1, reasoning_item("", "X")), done(2, message_item("said")), ended()
    )
    assert [item["type"] for item in kept(pieces)] == ["reasoning", "message"]


items = st.lists(
    st.one_of(
        st.builds(lambda n: reasoning_item("why", f"X{n}") | {"id": f"rs_{n}"}, st.integers()),
        st.builds(
            lambda text, phase: message_item(text) | ({"phase": phase} if phase else {}),
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=9),
            st.sampled_from([None, "commentary", "final_answer"]),
        ),
        st.builds(lambda n: call_item(n, "read", json.dumps({"n": n})), st.integers()),
    ),
    max_size=8,
)


@given(items)
def test_any_answer_is_sent_back_in_its_original_order(output: list[dict[str, Any]]) -> None:
    has_blocks = any(item["type"] == "reasoning" or "phase" in item for item in output)
    events = [done(index, item) for index, item in enumerate(output)]
    pieces = decode(new_decoder, [sse(*events, ended())])
    last = remembered(pieces)
    results = [ToolResultMessage(call.id, call.name, "ok", False) for call in last.tool_calls]
    messages: tuple[ModelMessage, ...] = (UserMessage("hi"), last, *results, UserMessage("go on"))
    body = responses_body(ModelInput(model="gpt-5", messages=messages), NO_BLOBS)
    sent = json.loads(encode_body(body))["input"]
    returned = [item for item in sent if item.get("role") != "user" and "output" not in item]
    while output and output[-1]["type"] == "reasoning":
        output = output[:-1]  # trailing reasoning is omitted
    if has_blocks:
        assert [_essence(item) for item in returned] == [_essence(item) for item in output]
    else:
        assert sorted(map(str, _texts(returned))) == sorted(map(str, _texts([*output])))


def _essence(item: dict[str, Any]) -> Any:
    """Return the part of an item that must be sent back."""
    if item["type"] == "reasoning":
        return item
    if item["type"] == "message":
        return _words(item), item.get("phase")
    return item["name"], json.loads(item["arguments"])


def _words(message: dict[str, Any]) -> str:
    content = message["content"]
    words: str = content if isinstance(content, str) else content[0]["text"]
    return words


def _texts(items: list[dict[str, Any]]) -> list[Any]:
    """Return text and calls; without reasoning, adjacent messages are joined."""
    said = "".join(_words(item) for item in items if item["type"] == "message")
    return [said, *(_essence(item) for item in items if item["type"] == "function_call")]


# --- the end of an answer ------------------------------------------------------------------------


def test_usage_is_read_with_its_details() -> None:
    told = Usage(input=9, output=5, total=14, cache_read=3, cache_write=2, reasoning=4)
    assert finish_of(answer(ended(usage=usage(told)))).usage == told


@pytest.mark.parametrize(
    "strange", [None, 7, [], {"input_tokens": "9"}, {"input_tokens_details": None}]
)
def test_invalid_usage_is_ignored(strange: Any) -> None:
    assert finish_of(answer(ended(usage=strange))).reason == "stop"


def test_an_answer_at_the_token_limit_has_finish_reason_length() -> None:
    details = {"reason": "max_output_tokens"}
    pieces = answer(text_delta(0, "half"), ended("incomplete", incomplete_details=details))
    assert (text_of(pieces), finish_of(pieces).reason) == ("half", "length")


def test_a_call_cut_off_before_its_arguments_is_dropped() -> None:
    details = {"reason": "max_output_tokens"}
    pieces = answer(
        done(0, reasoning_item("hm", "c2lnbmVk")),
        added(1, call_item(1, "read")),
        arguments_delta(1, '{"a":'),
        added(2, call_item(2, "ls")),
        done(2, call_item(2, "ls", status="incomplete")),
        ended("incomplete", incomplete_details=details),
    )
    assert calls_of(pieces) == [("read", '{"a":')]
    assert finish_of(pieces).reason == "length"


def test_a_filtered_answer_is_a_failure() -> None:
    error = failure(
        text_delta(0, "half"), ended("incomplete", incomplete_details={"reason": "content_filter"})
    )
    assert "content filter" in str(error)
    assert not error.retryable


@pytest.mark.parametrize(
    ("code", "retryable"),
    [("server_error", True), ("rate_limit_exceeded", True), ("invalid_prompt", False)],
)
def test_a_failed_response_has_the_servers_message(code: str, retryable: bool) -> None:
    error = failure(ended("failed", error={"code": code, "message": "it broke"}))
    assert (str(error), error.retryable) == ("it broke", retryable)


def test_a_failed_response_without_a_message_is_a_failure() -> None:
    assert str(failure(ended("failed"))) == "the server reported an error"


def test_a_cancelled_response_is_a_retryable_failure() -> None:
    assert failure({"type": "response.completed", "response": response("cancelled")}).retryable


@pytest.mark.parametrize(
    "event",
    [
        fault(500, "it broke"),
        {"type": "error", "error": {"type": "server_error", "message": "it broke"}},
        {"error": {"code": "server_error", "message": "it broke"}},
    ],
)
def test_a_server_error_event_is_a_retryable_failure(event: dict[str, Any]) -> None:
    error = failure(text_delta(0, "half"), event)
    assert (str(error), error.retryable) == ("it broke", True)
    assert json.loads(error.raw) == event


@pytest.mark.parametrize("event", [fault(413, "no"), ended("failed", error=fault(413, "no"))])
def test_a_context_overflow_is_an_error_of_its_own(event: dict[str, Any]) -> None:
    assert isinstance(failure(event), ContextOverflow)


def test_an_error_body_is_a_failure() -> None:
    error = failure(data=b'{"error": {"message": "no such model", "code": "model_not_found"}}')
    assert str(error) == "no such model"


def test_a_body_that_is_not_a_response_is_a_failure() -> None:
    assert "no completion" in str(failure(data=b'{"hello": "world"}'))


def test_an_incomplete_stream_is_a_retryable_failure() -> None:
    error = failure(text_delta(0, "half"), done(0, message_item("half")))
    assert error.retryable
    assert "ended before" in str(error)


def test_an_end_marker_of_another_dialect_is_ignored() -> None:
    assert failure(text_delta(0, "half"), b"[DONE]").retryable
    assert finish_of(answer(ended(), b"[DONE]")).reason == "stop"


def test_events_after_the_end_are_ignored() -> None:
    pieces = answer(text_delta(0, "all"), ended(), text_delta(0, "more"), b"garbage")
    assert text_of(pieces) == "all"


def test_unknown_events_are_ignored() -> None:
    pieces = answer(
        {"type": "response.something.new", "output_index": 0, "delta": "x"},
        {"type": "keepalive"},
        {},
        text_delta(0, "all"),
        ended(),
    )
    assert text_of(pieces) == "all"


def test_an_event_that_is_not_an_object_is_a_failure() -> None:
    assert "no chunk" in str(failure(b"[1, 2]"))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "id", "content", "arguments"]), inner)
    ),
    max_leaves=6,
)
FIELDS = ("output_index", "item", "delta", "arguments", "summary_index", "response", "message")
TYPES = (
    "response.output_item.added",
    "response.output_item.done",
    "response.output_text.delta",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_text.delta",
    "response.function_call_arguments.delta",
    "response.completed",
    "response.failed",
)


@pytest.mark.slow
@given(
    st.lists(
        st.builds(
            lambda kind, fields: {**fields, "type": kind},
            st.sampled_from(TYPES),
            st.dictionaries(st.sampled_from(FIELDS), anything),
        ),
        max_size=6,
    )
)
def test_any_stream_gives_pieces_or_a_provider_error(
    events: list[dict[str, Any]],
) -> None:
    pieces: list[Piece] = []
    decoder = new_decoder()
    try:
        pieces += decoder.feed(sse(*events))
        pieces += decoder.end()
    except ProviderError:
        return
    assert isinstance(pieces[-1], Finished)
