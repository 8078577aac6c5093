"""Streams of Chat Completions for the tests of the decoder: building, decoding, cutting them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from nousd.errors import ProviderError
from nousd.providers.answer_stream import AnswerStream
from nousd.providers.interface import Piece
from nousd.providers.openai_stream import ChatAnswer
from tests.providers.helpers import cuts

Chunk = dict[str, Any] | bytes

DONE = b"[DONE]"
STOP: Chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def ended(reason: str) -> Chunk:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def sse(*chunks: Chunk) -> bytes:
    payloads = (c if isinstance(c, bytes) else json.dumps(c).encode() for c in chunks)
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads)


def decode(chunks: Sequence[bytes], names: dict[str, str] | None = None) -> list[Piece]:
    stream = AnswerStream(ChatAnswer(names or {}))
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


def function(name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}
