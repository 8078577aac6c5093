"""Feeds a decoder of any dialect: at once, byte by byte, and cut at every position."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from nousd.errors import ProviderError
from nousd.machine.context.model_input import AssistantMessage, ModelToolCall
from nousd.providers.http.answer_stream import Decoder
from nousd.providers.interface import Piece, ReasoningKept, TextDelta, ToolCallPiece
from tests.providers.helpers import cuts, text_of

Make = Callable[[], Decoder]
"""Returns a decoder for one answer."""

EVERY_CUT_BYTES_MAX = 3000
"""The length of a stream up to which every cut is tried."""


def sse(*events: dict[str, Any] | bytes) -> bytes:
    """Return the events as a stream; bytes are payloads as they are."""
    payloads = (
        event if isinstance(event, bytes) else json.dumps(event).encode() for event in events
    )
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads)


def decode(make: Make, chunks: Sequence[bytes]) -> list[Piece]:
    decoder = make()
    pieces = [piece for chunk in chunks for piece in decoder.feed(chunk)]
    return [*pieces, *decoder.end()]


def pieces_of(make: Make, *events: dict[str, Any] | bytes) -> list[Piece]:
    """Return the pieces of a good stream, after checking that cutting it changes nothing."""
    data = sse(*events)
    expected = decode(make, [data])
    for cut in _all_cuts(data):
        assert decode(make, cut) == expected
    return expected


def failure_of(make: Make, *events: dict[str, Any] | bytes, data: bytes = b"") -> ProviderError:
    """Return the error of a bad stream, or of ``data``, after checking that cuts change nothing."""
    errors = []
    for cut in _all_cuts(data or sse(*events)):
        with pytest.raises(ProviderError) as caught:
            decode(make, cut)
        errors.append(caught.value)
    assert len({(type(error), str(error), error.retryable, error.status) for error in errors}) == 1
    return errors[0]


def _all_cuts(data: bytes) -> Iterator[list[bytes]]:
    yield from cuts(data)
    if len(data) <= EVERY_CUT_BYTES_MAX:
        yield from ([data[:place], data[place:]] for place in range(1, len(data)))


def kept(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """Return the reasoning data to be sent back."""
    return [piece.block.data for piece in pieces if isinstance(piece, ReasoningKept)]


def shown(pieces: Sequence[Piece]) -> list[str]:
    return [piece.text for piece in pieces if isinstance(piece, TextDelta)]


def remembered(pieces: Sequence[Piece]) -> AssistantMessage:
    """Return the answer as it is sent to the model with the next call."""
    calls = [piece for piece in pieces if isinstance(piece, ToolCallPiece)]
    return AssistantMessage(
        text_of(pieces),
        tuple(
            ModelToolCall(f"tool-{index}", call.name, json.loads(call.arguments or "{}"))
            for index, call in enumerate(calls)
        ),
        tuple(piece.block for piece in pieces if isinstance(piece, ReasoningKept)),
    )
