"""Chat Completions streams for the tests of the decoder; ``decoding`` feeds and cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from nousd.errors import ProviderError
from nousd.providers.http.answer_stream import AnswerStream
from nousd.providers.interface import Piece
from nousd.providers.openai.stream import ChatAnswer
from tests.providers import decoding

Chunk = dict[str, Any] | bytes

DONE = b"[DONE]"
STOP: Chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def ended(reason: str) -> Chunk:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def new_decoder(names: dict[str, str] | None = None) -> AnswerStream[Any]:
    return AnswerStream(ChatAnswer(names or {}))


def decode(chunks: Sequence[bytes], names: dict[str, str] | None = None) -> list[Piece]:
    return decoding.decode(partial(new_decoder, names), chunks)


def answer(*chunks: Chunk) -> list[Piece]:
    """Return the pieces of a good stream, after checking that cutting it changes nothing."""
    return decoding.pieces_of(new_decoder, *chunks, STOP, DONE)


def failure_of(data: bytes) -> ProviderError:
    """Return the error of a bad stream, after checking that cutting it changes nothing."""
    return decoding.failure_of(new_decoder, data=data)


def function(name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}
