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
from nousd.providers.gemini.request import contents_body
from nousd.providers.gemini.stream import CUT_REASONS, FAILED_REASONS, GeminiAnswer
from nousd.providers.http.answer_stream import AnswerStream
from nousd.providers.interface import (
    NO_BLOBS,
    Finished,
    Piece,
    ReasoningDelta,
    TextDelta,
    ToolCallPiece,
    UsageSoFar,
)
from nousd.wire.objects.entries import Usage
from tests.providers.decoding import decode, failure_of, kept, pieces_of, remembered, sse
from tests.providers.dialects.gemini import call, chunk, error, text
from tests.providers.helpers import calls_of, finish_of, reasoning_of, text_of


def new_decoder(**names: str) -> AnswerStream[Any]:
    return AnswerStream(GeminiAnswer(names))


answer = partial(pieces_of, new_decoder)
failure = partial(failure_of, new_decoder)

STOP = chunk(reason="STOP")


def test_reasoning_text_and_calls_are_decoded_in_order() -> None:
    pieces = answer(
        chunk(text("hm", thought=True)),
        chunk(text("I "), text("look")),
        chunk(call("read", {"path": "ä"}), reason="STOP"),
    )
    assert pieces == [
        ReasoningDelta("hm"),
        TextDelta("I "),
        TextDelta("look"),
        ToolCallPiece("call_0", "read", '{"path": "ä"}'),
        Finished("tool_use"),
    ]


def test_the_usage_of_a_chunk_is_reported_at_once() -> None:
    told = Usage(input=7, output=0, total=7)
    assert answer(chunk(text("a"), told=told), STOP) == [
        UsageSoFar(told),
        TextDelta("a"),
        Finished("stop", told),
    ]


def test_calls_have_the_original_tool_names() -> None:
    pieces = pieces_of(partial(new_decoder, mcp_read="mcp.read"), chunk(call("mcp_read", {})), STOP)
    assert calls_of(pieces) == [("mcp.read", "{}")]


def test_a_call_keeps_the_id_given_by_the_server() -> None:
    pieces = answer(chunk(call("read", {}, "abc"), call("read", {})), STOP)
    assert [piece.id for piece in pieces if isinstance(piece, ToolCallPiece)] == ["abc", "call_1"]


@pytest.mark.parametrize("args", [None, {}])
def test_a_call_without_arguments_has_empty_arguments(args: Any) -> None:
    [(_, arguments)] = calls_of(answer(chunk(call("read", args)), STOP))
    assert json.loads(arguments or "{}") == {}


def test_a_surrogate_pair_split_over_two_parts_is_one_character() -> None:
    half = b'{"candidates":[{"content":{"parts":[{"text":"a\\ud83d"}]}}]}'
    rest = b'{"candidates":[{"content":{"parts":[{"text":"\\ude00b"}]}}]}'
    assert text_of(answer(half, rest, STOP)) == "a😀b"
    assert text_of(answer(half, STOP)) == "a\ufffd"


# --- kept data -----------------------------------------------------------------------------------


def test_an_answer_without_signatures_and_ids_keeps_nothing() -> None:
    assert kept(answer(chunk(text("said")), chunk(call("read", {})), STOP)) == []


def test_a_signature_is_kept_with_its_part() -> None:
    pieces = answer(
        chunk(text("hm", thought=True)),
        chunk(text("a")),
        chunk(text("bc")),
        chunk(call("read", {}, thoughtSignature="S1"), call("read", {}, "id-2")),
        STOP,
    )
    assert kept(pieces) == [
        {"text_chars": 3},
        {"call_id": "", "thoughtSignature": "S1"},
        {"call_id": "id-2"},
    ]


def test_a_signed_text_is_not_joined_with_its_neighbours() -> None:
    pieces = answer(
        chunk(text("ab")),
        chunk(text("cd", thoughtSignature="S")),
        chunk(text("e")),
        chunk(text("", thoughtSignature="T"), reason="STOP"),
    )
    assert text_of(pieces) == "abcde"
    assert kept(pieces) == [
        {"text_chars": 2},
        {"text_chars": 2, "thoughtSignature": "S"},
        {"text_chars": 1},
        {"text_chars": 0, "thoughtSignature": "T"},
    ]


def test_a_signed_thought_is_kept_whole() -> None:
    part = text("hm", thought=True, thoughtSignature="S")
    pieces = answer(chunk(part), chunk(text("said")), STOP)
    assert reasoning_of(pieces) == "hm"
    assert kept(pieces)[0] == {"thought": True, "text": "hm", "thoughtSignature": "S"}


def test_a_lone_surrogate_in_a_signature_is_replaced() -> None:
    part = b'{"text":"a","thoughtSignature":"\\ud83d"}'
    pieces = answer(b'{"candidates":[{"content":{"parts":[' + part + b"]}}]}", STOP)
    assert kept(pieces) == [{"text_chars": 1, "thoughtSignature": "\ufffd"}]


def test_signatures_over_the_limit_are_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_data, "UNSTREAMED_ANSWER_BYTES_MAX", 10_000)
    chunks = [chunk(text("a", thoughtSignature="x" * 500)) for _ in range(20)]
    assert "thought for more than" in str(failure(*chunks))


def signed(number: int | None) -> dict[str, Any]:
    return {} if number is None else {"thoughtSignature": f"S{number}"}


signatures = st.builds(signed, st.none() | st.integers())
words = st.text(st.characters(codec="utf-8"), max_size=6)
parts = st.lists(
    st.one_of(
        st.builds(lambda words, signature: text(words, **signature), words, signatures),
        st.builds(
            lambda server_id, signature, n: call("read", {"n": n}, server_id, **signature),
            st.sampled_from(["", "id-1", "id-2"]),
            signatures,
            st.integers(),
        ),
    ),
    max_size=8,
)


@given(parts)
def test_any_answer_is_sent_back_part_by_part(came: list[dict[str, Any]]) -> None:
    pieces = decode(new_decoder, [sse(*(chunk(part) for part in came), STOP)])
    last = remembered(pieces)
    results = [ToolResultMessage(c.id, c.name, "ok", is_error=False) for c in last.tool_calls]
    messages: tuple[ModelMessage, ...] = (UserMessage("hi"), last, *results, UserMessage("go on"))
    request = ModelInput(messages=messages, model="gemini-2.5-pro")
    contents = contents_body(request, NO_BLOBS)["contents"]
    sent = [part for content in contents if content["role"] == "model" for part in content["parts"]]
    calls = [part for part in came if "functionCall" in part]
    if kept(pieces):
        assert sent == _with_unsigned_texts_joined(came)
    else:
        assert [part for part in sent if "functionCall" in part] == calls
    answered = [
        p["functionResponse"] for c in contents for p in c["parts"] if "functionResponse" in p
    ]
    assert [result.get("id") for result in answered] == [
        part["functionCall"].get("id") for part in calls
    ]


def _with_unsigned_texts_joined(came: list[dict[str, Any]]) -> list[dict[str, Any]]:
    joined: list[dict[str, Any]] = []
    for part in came:
        if part.keys() == {"text"} and joined and joined[-1].keys() == {"text"}:
            joined[-1] = {"text": joined[-1]["text"] + part["text"]}
        else:
            joined.append(part)
    return [part for part in joined if part != {"text": ""}]


# --- the end of an answer ------------------------------------------------------------------------


def test_the_last_usage_counts_and_thoughts_are_output() -> None:
    early = {"usageMetadata": {"promptTokenCount": 10}}
    late = {
        "usageMetadata": {
            "promptTokenCount": 10,
            "toolUsePromptTokenCount": 2,
            "candidatesTokenCount": 3,
            "thoughtsTokenCount": 4,
            "cachedContentTokenCount": 5,
            "totalTokenCount": 19,
        }
    }
    pieces = answer(chunk(text("a")) | early, STOP | late)
    assert finish_of(pieces).usage == Usage(input=12, output=7, total=19, cache_read=5, reasoning=4)


@pytest.mark.parametrize("strange", [None, 7, [], {"promptTokenCount": "9"}])
def test_invalid_usage_is_ignored(strange: Any) -> None:
    assert finish_of(answer(STOP | {"usageMetadata": strange})).reason == "stop"


@pytest.mark.parametrize("reason", ["STOP", "FINISH_REASON_UNSPECIFIED", "FUNCTION_CALL"])
def test_any_other_reason_is_a_stop(reason: str) -> None:
    assert finish_of(answer(chunk(text("a"), reason=reason))).reason == "stop"


@pytest.mark.parametrize("reason", sorted(CUT_REASONS))
def test_an_answer_at_the_token_limit_has_finish_reason_length(reason: str) -> None:
    assert finish_of(answer(chunk(text("half"), reason=reason))).reason == "length"


@pytest.mark.parametrize("reason", FAILED_REASONS)
def test_an_error_finish_reason_is_a_failure_that_names_it(reason: str) -> None:
    raised = failure(chunk(text("half"), reason=reason))
    assert reason in str(raised)
    assert raised.retryable == (reason in RETRYABLE)


RETRYABLE = {"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"}


def test_a_failure_has_the_servers_message() -> None:
    last = {"candidates": [{"finishReason": "SAFETY", "finishMessage": "not nice"}]}
    assert str(failure(last)).endswith(": not nice")


def test_a_blocked_prompt_is_a_failure() -> None:
    raised = failure({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})
    assert "PROHIBITED_CONTENT" in str(raised)
    assert not raised.retryable
    said = {"blockReason": "OTHER", "blockReasonMessage": "not nice"}
    assert "not nice" in str(failure({"promptFeedback": said}))


def test_prompt_feedback_without_a_block_is_ignored() -> None:
    assert text_of(answer(chunk(text("a")) | {"promptFeedback": {}}, STOP)) == "a"


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (429, True), (503, True)])
def test_an_error_in_mid_stream_is_a_failure(status: int, retryable: bool) -> None:
    raised = failure(chunk(text("half")), error(status, "it broke"))
    assert (str(raised), raised.status, raised.retryable) == ("it broke", status, retryable)


def test_an_error_has_the_retry_delay_of_the_server() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    other = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []}
    fault = error(429, "quota")
    fault["error"]["details"] = [other, info]
    assert failure(fault).retry_after_seconds == 34.5


def test_a_context_overflow_is_an_error_of_its_own() -> None:
    words = (
        "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576)."
    )
    assert isinstance(failure(error(400, words)), ContextOverflow)


def test_an_incomplete_stream_is_a_retryable_failure() -> None:
    raised = failure(chunk(text("half")))
    assert raised.retryable
    assert "ended before" in str(raised)


def test_an_answer_that_is_not_streamed_is_decoded() -> None:
    body = json.dumps(chunk(text("said"), call("read", {}))).encode()
    pieces = decode(new_decoder, [body])
    assert (text_of(pieces), finish_of(pieces).reason) == ("said", "tool_use")
    assert "no completion" in str(failure(data=b'{"hello": "world"}'))


def test_unknown_parts_are_ignored() -> None:
    strange: list[dict[str, Any]] = [
        {"executableCode": {}},
        {"text": None},
        {"functionCall": None},
        {},
    ]
    pieces = answer(chunk(*strange, text("all")), {"candidates": []}, {"new": 1}, STOP)
    assert text_of(pieces) == "all"
    assert len(pieces) == 2


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["content", "parts", "text", "thought", "functionCall", "finishReason"]
            ),
            inner,
        )
    ),
    max_leaves=8,
)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["candidates", "usageMetadata", "promptFeedback", "error"]), anything
        ),
        max_size=6,
    )
)
def test_any_stream_gives_pieces_or_a_provider_error(
    chunks: list[dict[str, Any]],
) -> None:
    pieces: list[Piece] = []
    decoder = new_decoder()
    try:
        pieces += decoder.feed(sse(*chunks))
        pieces += decoder.end()
    except ProviderError:
        return
    assert isinstance(pieces[-1], Finished)
