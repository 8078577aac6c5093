from __future__ import annotations

import json
from typing import Any

import pytest

from nousd.errors import ContextOverflow, ProviderError
from nousd.providers.http.answer_stream import AnswerStream
from nousd.providers.interface import Finished, Piece, ReasoningDelta, TextDelta, ToolCallPiece
from nousd.providers.openai.stream import ChatAnswer
from nousd.wire.limits import UNSTREAMED_ANSWER_BYTES_MAX
from nousd.wire.objects.entries import Usage
from tests.harness.stub_model import delta
from tests.providers.decoding import sse
from tests.providers.helpers import cuts, finish_of, reasoning_of, text_of
from tests.providers.streams import (
    DONE,
    STOP,
    Chunk,
    answer,
    decode,
    ended,
    failure_of,
    function,
)

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


def test_an_empty_answer_is_only_finished() -> None:
    assert answer() == [Finished("stop")]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_separate_from_the_text(field: str) -> None:
    pieces = answer(delta(**{field: "hm, "}), delta(**{field: "so", "content": "Yes"}))
    assert pieces[:-1] == [ReasoningDelta("hm, "), ReasoningDelta("so"), TextDelta("Yes")]


def test_reasoning_sent_under_both_names_counts_once() -> None:
    assert reasoning_of(answer(delta(reasoning_content="hm", reasoning="hm"))) == "hm"


def test_a_refusal_of_the_model_is_the_text() -> None:
    assert text_of(answer(delta(content=None, refusal="I cannot."))) == "I cannot."


def test_content_in_parts_is_decoded() -> None:
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


def test_usage_is_read_from_any_chunk_and_the_last_one_counts() -> None:
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


def test_a_filtered_answer_is_an_error_after_its_text() -> None:
    stream = AnswerStream(ChatAnswer({}))
    fed = stream.feed(sse(delta(content="a"), ended("content_filter"), DONE))
    assert next(fed) == TextDelta("a")
    with pytest.raises(ProviderError, match="content filter") as caught:
        next(fed)
    assert not caught.value.retryable


@pytest.mark.parametrize("word", ["error", "abort", "insufficient_system_resource"])
def test_an_answer_aborted_by_the_server_is_a_retryable_error(word: str) -> None:
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
    stream = AnswerStream(ChatAnswer({}))
    states = [(stream.complete, stream.finished)]
    assert list(stream.feed(sse(STOP))) == []
    states.append((stream.complete, stream.finished))
    assert list(stream.feed(sse(DONE, delta(content="late"), b"{"))) == [Finished("stop")]
    states.append((stream.complete, stream.finished))
    assert states == [(False, False), (True, False), (True, True)]
    assert list(stream.feed(sse(delta(content="later")))) == []
    assert list(stream.end()) == []


# --- invalid chunks --------------------------------------------------------------------------


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
def test_chunks_without_content_are_ignored(chunk: Chunk) -> None:
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
def test_split_surrogate_pairs_are_joined_and_lone_ones_replaced(
    halves: list[str], text: str
) -> None:
    chunks = [b'{"choices":[{"delta":{"content":"%b"}}]}' % half.encode() for half in halves]
    assert text_of(answer(*chunks)) == text


@pytest.mark.parametrize(
    "payload",
    [b"nonsense", b"{", b"[1]", b'"text"', b'{"choices":7}', b"[" * 100_000, b'{"choices":[7]}'],
)
def test_an_event_that_is_not_a_chunk_is_an_error_that_shows_it(payload: bytes) -> None:
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
def test_an_incomplete_stream_is_a_retryable_error(data: bytes) -> None:
    error = failure_of(data)
    assert str(error) == "the stream ended before the answer was complete"
    assert error.retryable


def test_a_body_that_is_not_a_stream_is_an_error_that_shows_it() -> None:
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
def test_an_error_in_the_stream_has_the_servers_message(
    chunk: Chunk, words: str, status: int | None, retryable: bool
) -> None:
    error = failure_of(sse(delta(content="a"), chunk, DONE))
    assert (str(error), error.status, error.retryable) == (words, status, retryable)


def test_pieces_before_an_error_in_the_same_chunk_are_returned() -> None:
    stream = AnswerStream(ChatAnswer({}))
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
def test_a_complete_completion_is_decoded_like_a_stream(padding: bytes) -> None:
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
def test_a_complete_completion_may_be_empty_or_lack_its_finish_reason(
    body: bytes, pieces: list[Piece]
) -> None:
    assert decode([body]) == pieces


def test_an_error_body_has_the_servers_message() -> None:
    assert str(failure_of(b'{"error":{"message":"boom"}}')) == "boom"


@pytest.mark.parametrize("body", [b"{}", b'{"choices":[]}', b'{"choices":[{"mess', b'{"hello":1}'])
def test_a_body_that_is_not_a_completion_is_an_error(body: bytes) -> None:
    assert "is no completion" in str(failure_of(body))


def test_a_body_over_the_limit_is_an_error() -> None:
    stream = AnswerStream(ChatAnswer({}))
    assert list(stream.feed(b"{" + b" " * (UNSTREAMED_ANSWER_BYTES_MAX - 1))) == []
    with pytest.raises(ProviderError, match=str(UNSTREAMED_ANSWER_BYTES_MAX)):
        list(stream.feed(b" "))
