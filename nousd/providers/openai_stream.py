"""The bytes of a Chat Completions answer -> pieces. Pure: fed with chunks, no I/O.

Theory of operation. The first byte that is no white space tells how the server answers: ``{`` begins
a whole completion as JSON, anything else is an event stream. In a stream each payload is a chunk; text
and reasoning are given back at once, tool calls when the answer is complete. Complete means that the
server said so, by ``[DONE]`` or by a finish reason: a stream that just stops is an error, because its
text may lack the half that matters.

Servers are taken as they are: unknown fields are skipped, null is absent, and a field of a strange
type is passed over unless the answer cannot be understood without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from nousd.errors import ProviderError
from nousd.providers.interface import (
    Finished,
    FinishReason,
    Piece,
    ReasoningDelta,
    TextDelta,
)
from nousd.providers.openai_calls import CallAssembler, CallFragment
from nousd.providers.server_errors import error_from_fault, read_fault
from nousd.providers.sse import SseParser
from nousd.wire.codec import scrub
from nousd.wire.entries import Usage
from nousd.wire.limits import ANSWER_BYTES_MAX

_SAMPLE_BYTES: Final = 4000
"""How much of an answer that is no model stream goes into the error."""

_STREAM_BEGINNINGS: Final = (b":", b"data", b"event", b"id", b"retry")

FINISH_REASONS: Final[dict[str, FinishReason]] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
}
"""The server's word -> ours. Any other (``stop``, ``eos``, ``end_turn``...) is a ``stop``."""

FAILED_REASONS: Final[dict[str, tuple[str, bool]]] = {
    "content_filter": ("the server's content filter cut the answer off", False),
    "error": ("the server broke the answer off", True),
    "abort": ("the server broke the answer off", True),
    "insufficient_system_resource": ("the server ran out of resources", True),
}
"""Finish reasons that are failures -> (what is said about them, whether trying again may help)."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    usage: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    # Of failures only.
    error: Any = None
    message: Any = None
    code: Any = None
    type: Any = None


_chunk_decoder: Final = msgspec.json.Decoder(_Chunk)


class ChatStream:
    """Decodes one answer.

    Args:
        names: the name the server was told -> the tool's own name.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._events: SseParser | None = None
        self._body: bytearray | None = None
        self._sample = b""
        self._answer = _Answer(names or {})

    @property
    def finished(self) -> bool:
        """Whether ``Finished`` was given back; whatever follows is ignored."""
        return self._answer.finished

    @property
    def complete(self) -> bool:
        """Whether the server has said how the answer ended, so that no input after it is missed."""
        return self._answer.complete

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """Yields the pieces that ``chunk`` completes, in order; must be run to its end.

        Raises:
            ProviderError: the server reported a failure, or sent what is no answer; after the pieces
                that stood before the fault.
        """
        if self._body is None and self._events is None:
            chunk = self._begin(chunk)
        if len(self._sample) < _SAMPLE_BYTES:
            self._sample += chunk[:_SAMPLE_BYTES]
        if self._events is not None:
            for payload in self._events.feed(chunk):
                yield from self._answer.take(payload)
        elif self._body is not None:
            self._body += chunk
            if len(self._body) > ANSWER_BYTES_MAX:
                raise ProviderError(f"the server's answer is longer than {ANSWER_BYTES_MAX} bytes")

    def end(self) -> Iterator[Piece]:
        """Yields the pieces owed at the end of the input; none if ``finished`` already.

        Raises:
            ProviderError: the input ended before the answer was complete.
        """
        if self._body is not None:
            yield from self._answer.take_whole(bytes(self._body))
        elif self._events is not None:
            for payload in self._events.end():
                yield from self._answer.take_last(payload)
        if not self.finished:
            yield from self._answer.finish(self._sample)

    def _begin(self, chunk: bytes) -> bytes:
        chunk = chunk.lstrip()
        if chunk.startswith(b"{"):
            self._body = bytearray()
        elif chunk:
            self._events = SseParser()
        return chunk


class _Answer:
    """What is known of the answer so far."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._calls = CallAssembler(names)
        self._usage: Usage | None = None
        self._reason: str | None = None
        self._seen_chunk = False
        self._half_pair = ""
        self.finished = False

    @property
    def complete(self) -> bool:
        return self.finished or self._reason is not None

    def take(self, payload: bytes) -> list[Piece]:
        """Takes one payload of a stream."""
        payload = payload.strip()
        if self.finished or not payload:
            return []
        if payload == b"[DONE]":
            return self._finish()
        chunk = _decode_chunk(payload)
        if chunk is None:
            raise ProviderError(f"the server sent an event that is no chunk: {_shown(payload)}")
        return self._take_chunk(chunk)

    def take_last(self, payload: bytes) -> list[Piece]:
        """Takes the payload of an event that the end of the input may have cut."""
        if payload.strip() != b"[DONE]" and _decode_chunk(payload) is None:
            return []
        return self.take(payload)

    def take_whole(self, body: bytes) -> list[Piece]:
        """Takes a whole completion."""
        chunk = _decode_chunk(body)
        if chunk is None or not (chunk.choices or _is_fault(chunk)):
            raise ProviderError(f"the server's answer is no completion: {_shown(body)}")
        pieces = self._take_chunk(chunk)
        self._reason = self._reason or "stop"
        return pieces

    def finish(self, sample: bytes) -> list[Piece]:
        """Returns the last pieces once the input has ended."""
        if self._reason is not None:
            return self._finish()
        if not self._seen_chunk and sample and not sample.startswith(_STREAM_BEGINNINGS):
            raise ProviderError(f"the server's answer is no model stream: {_shown(sample)}")
        raise ProviderError("the stream ended before the answer was complete", retryable=True)

    def _take_chunk(self, chunk: _Chunk) -> list[Piece]:
        if _is_fault(chunk):
            raise error_from_fault(read_fault(msgspec.structs.asdict(chunk)))
        self._seen_chunk = True
        self._usage = _usage(chunk.usage) or self._usage
        pieces: list[Piece] = []
        # Only one choice was asked for.
        for choice in (chunk.choices or ())[:1]:
            delta = choice.delta or choice.message
            if delta is not None:
                pieces += self._pieces_of(delta)
            self._reason = choice.finish_reason or self._reason
            self._usage = _usage(choice.usage) or self._usage
        return pieces

    def _pieces_of(self, delta: _Delta) -> Iterator[Piece]:
        # Some servers send the same reasoning under both names.
        reasoning = _text(delta.reasoning_content) or _text(delta.reasoning)
        if reasoning and (whole := self._whole(reasoning)):
            yield ReasoningDelta(whole)
        text = _text(delta.content) or _text(delta.refusal)
        if text and (whole := self._whole(text)):
            yield TextDelta(whole)
        for call in delta.tool_calls or ():
            self._add_call(call)
        if delta.function_call is not None:
            self._add_call(_Call(index=0, function=delta.function_call))

    def _add_call(self, call: _Call) -> None:
        function = call.function or _Function()
        self._calls.add(
            CallFragment(call.index, call.id or "", function.name or "", function.arguments)
        )

    def _whole(self, text: str) -> str:
        """Scrubs surrogates, holding back the first half of a pair that two deltas share."""
        text = self._half_pair + text
        self._half_pair = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        return scrub(text.removesuffix(self._half_pair) if self._half_pair else text)

    def _finish(self) -> list[Piece]:
        reason = self._reason or "stop"
        if reason in FAILED_REASONS:
            words, retryable = FAILED_REASONS[reason]
            raise ProviderError(words, retryable=retryable)
        pieces: list[Piece] = [TextDelta(scrub(self._half_pair))] if self._half_pair else []
        calls = list(self._calls.whole_calls())
        pieces += calls
        pieces.append(Finished(_finish_reason(reason, with_calls=bool(calls)), self._usage))
        self.finished = True
        return pieces


def _finish_reason(reason: str, *, with_calls: bool) -> FinishReason:
    """What the answer holds counts more than the word, which servers get wrong."""
    mapped = FINISH_REASONS.get(reason, "stop")
    if mapped == "length":
        return mapped
    return "tool_use" if with_calls else "stop"


def _decode_chunk(payload: bytes) -> _Chunk | None:
    """Returns the chunk, or None if the payload is none. Invalid UTF-8 becomes U+FFFD."""
    try:
        return _chunk_decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        # The standard library takes lone surrogates; ``_whole`` sees to them.
        return msgspec.convert(json.loads(payload.decode("utf-8", "replace")), _Chunk)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


def _is_fault(chunk: _Chunk) -> bool:
    return bool(chunk.error) or (chunk.choices is None and bool(chunk.message))


def _text(value: Any) -> str:
    """Returns the text of a content field: a string, or a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = (part.get("text") for part in value if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    input, output = _count(value, "prompt_tokens"), _count(value, "completion_tokens")
    return Usage(
        input=input,
        output=output,
        total=_count(value, "total_tokens") or input + output,
        cache_read=_count(value.get("prompt_tokens_details"), "cached_tokens"),
        reasoning=_count(value.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(values: Any, key: str) -> int:
    value = values.get(key) if isinstance(values, dict) else None
    return int(value) if isinstance(value, int | float) and 0 < value < 2**53 else 0


def _shown(data: bytes) -> str:
    return " ".join(data[:_SAMPLE_BYTES].decode("utf-8", "replace").split())
