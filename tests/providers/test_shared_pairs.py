"""Reasoning and answer are separate texts in every dialect and share no character."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nousd.providers.anthropic.stream import MessagesAnswer
from nousd.providers.gemini.stream import GeminiAnswer
from nousd.providers.http.answer_stream import AnswerStream
from nousd.providers.openai.stream import ChatAnswer
from nousd.providers.openai_responses.stream import ResponsesAnswer
from tests.providers.decoding import pieces_of
from tests.providers.helpers import reasoning_of, text_of

Stream = tuple[Callable[[], AnswerStream[Any]], tuple[bytes, ...]]

FIRST, SECOND = rb"a\ud83d", rb"\ude00b"
"""Texts that end and begin with the halves of one surrogate pair."""

STREAMS: dict[str, Stream] = {
    "openai": (
        lambda: AnswerStream(ChatAnswer({})),
        (
            b'{"choices":[{"delta":{"reasoning_content":"%b"}}]}' % FIRST,
            b'{"choices":[{"delta":{"content":"%b"}}]}' % SECOND,
            b'{"choices":[{"delta":{},"finish_reason":"stop"}]}',
        ),
    ),
    "anthropic": (
        lambda: AnswerStream(MessagesAnswer({})),
        (
            b'{"type":"content_block_delta","index":0,"delta":{"thinking":"%b"}}' % FIRST,
            b'{"type":"content_block_delta","index":1,"delta":{"text":"%b"}}' % SECOND,
            b'{"type":"message_delta","delta":{"stop_reason":"end_turn"}}',
            b'{"type":"message_stop"}',
        ),
    ),
    "gemini": (
        lambda: AnswerStream(GeminiAnswer({})),
        (
            b'{"candidates":[{"content":{"parts":[{"thought":true,"text":"%b"}]}}]}' % FIRST,
            b'{"candidates":[{"content":{"parts":[{"text":"%b"}]}}]}' % SECOND,
            b'{"candidates":[{"finishReason":"STOP"}]}',
        ),
    ),
    "responses": (
        lambda: AnswerStream(ResponsesAnswer({})),
        (
            b'{"type":"response.reasoning_text.delta","output_index":0,"delta":"%b"}' % FIRST,
            b'{"type":"response.output_text.delta","output_index":1,"delta":"%b"}' % SECOND,
            b'{"type":"response.completed","response":{"status":"completed"}}',
        ),
    ),
}


@pytest.mark.parametrize("dialect", STREAMS)
def test_a_surrogate_pair_split_over_reasoning_and_answer_is_not_joined(dialect: str) -> None:
    new_decoder, chunks = STREAMS[dialect]
    pieces = pieces_of(new_decoder, *chunks)
    assert reasoning_of(pieces) == "a\ufffd"
    assert text_of(pieces) == "\ufffdb"
