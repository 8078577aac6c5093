"""Turns the bytes of an answer into pieces: the part common to all dialects. Pure: fed with chunks.

Theory of operation. The first byte that is not white space shows how the server answers: ``{`` begins a
whole answer as JSON, anything else is an event stream. ``AnswerStream`` finds the JSON objects in
either and passes them to the ``Answer`` of a dialect, which interprets them. An answer that breaks off
is an error, because the missing text may matter most.

Decoding is lenient: unknown fields are skipped, null counts as absent, and a field of an unexpected
type is ignored unless the answer cannot be understood without it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import msgspec

from nousd.errors import ProviderError
from nousd.providers.encoding.tool_calls import CallAssembler
from nousd.providers.http.sse import SseParser
from nousd.providers.interface import Finished, Piece
from nousd.wire.codec.decoding import convert
from nousd.wire.codec.envelope import scrub
from nousd.wire.limits import UNSTREAMED_ANSWER_BYTES_MAX
from nousd.wire.objects.entries import Usage

_SAMPLE_BYTES: Final = 4000
"""Maximum bytes that an error quotes of an answer that is not a model stream."""

_STREAM_BEGINNINGS: Final = (b":", b"data", b"event", b"id", b"retry")

_DONE: Final = b"[DONE]"


class Decoder(Protocol):
    """Decodes one answer, chunk by chunk."""

    @property
    def finished(self) -> bool:
        """True once ``Finished`` was yielded; later data is ignored."""
        ...

    @property
    def complete(self) -> bool:
        """True once the server has reported how the answer ended, so that no more input is needed; also
        true if ``finished``.
        """
        ...

    @property
    def held_bytes(self) -> int:
        """See ``Alive.held_bytes``."""
        ...

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """Yield the pieces that ``chunk`` completes, in order. The caller must exhaust the iterator.

        Raises:
            ProviderError: the server reported a failure or sent something other than an answer; raised
                after the pieces before it.
        """
        ...

    def end(self) -> Iterator[Piece]:
        """Yield the remaining pieces at the end of the input; none if already ``finished``.

        Raises:
            ProviderError: the input ended before the answer was complete.
        """
        ...


Chunk = TypeVar("Chunk")


class Answer(ABC, Generic[Chunk]):
    """The state of one answer in a dialect. The methods raise ProviderError for a failure that the
    server reports.

    Args:
        names: the name sent to the server -> the tool's own name.
    """

    chunks: ClassVar[msgspec.json.Decoder[Any]]
    """Decodes the payload of one event, or a whole answer."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.calls: Final = CallAssembler(names)
        self._text, self._reasoning = WholeText(), WholeText()
        self._reason: str | None = None
        self.finished = False
        """See ``Decoder.finished``."""

    @property
    def complete(self) -> bool:
        """See ``Decoder.complete``."""
        return self.finished or self._reason is not None

    @abstractmethod
    def take(self, chunk: Chunk) -> Iterable[Piece]:
        """Take one event of a stream."""

    @abstractmethod
    def take_whole(self, chunk: Chunk) -> Iterable[Piece] | None:
        """Take an answer that is not streamed; return None if ``chunk`` is not an answer."""

    def take_done(self) -> Iterable[Piece]:
        """Take the end marker ``[DONE]``. Gateways also add it in dialects that do not have it."""
        return ()

    def finish(self) -> Iterable[Piece]:
        """Return the last pieces of a ``complete`` answer at the end of its input, with ``Finished``."""
        return ()

    def _finish_answer(
        self, calls: Sequence[Piece], usage: Usage | None, *, is_cut: bool
    ) -> Iterator[Piece]:
        """Yield the tool calls and ``Finished``.

        The finish reason follows from the content, because the server's may be wrong.

        Args:
            is_cut: whether the server reports that the answer is cut off.
        """
        yield from calls
        self.finished = True
        yield Finished("length" if is_cut else "tool_use" if calls else "stop", usage)


class AnswerStream(Generic[Chunk]):
    """Decodes one answer for a dialect; a ``Decoder``."""

    def __init__(self, answer: Answer[Chunk]) -> None:
        self._answer = answer
        self._events: SseParser | None = None
        self._body: bytearray | None = None
        self._sample = b""
        self._has_chunks = False
        self.held_bytes = 0

    @property
    def finished(self) -> bool:
        return self._answer.finished

    @property
    def complete(self) -> bool:
        return self._answer.complete

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        if self._body is None and self._events is None:
            chunk = self._begin(chunk)
        if len(self._sample) < _SAMPLE_BYTES:
            self._sample += chunk[:_SAMPLE_BYTES]
        if self._events is not None:
            yield from self._take_all(self._events.feed(chunk))
            self.held_bytes = self._answer.calls.held_bytes
        elif self._body is not None:
            self._body += chunk
            if len(self._body) > UNSTREAMED_ANSWER_BYTES_MAX:
                raise ProviderError(
                    f"the server's answer is longer than {UNSTREAMED_ANSWER_BYTES_MAX} bytes"
                )

    def end(self) -> Iterator[Piece]:
        if self._body is not None:
            yield from self._take_whole(bytes(self._body))
        elif self._events is not None:
            # The end of the input may have cut off the last event.
            yield from self._take_all(filter(self._is_whole, self._events.end()))
        if not self.finished:
            yield from self._finish()

    def _begin(self, chunk: bytes) -> bytes:
        chunk = chunk.lstrip()
        if chunk.startswith(b"{"):
            self._body = bytearray()
        elif chunk:
            self._events = SseParser()
        return chunk

    def _take_all(self, payloads: Iterable[bytes]) -> Iterator[Piece]:
        for payload in payloads:
            content = payload.strip()
            if self._answer.finished or not content:
                continue
            try:
                if content == _DONE:
                    yield from self._answer.take_done()
                    continue
                chunk = self._decode(content)
                if chunk is None:
                    raise ProviderError(
                        f"the server sent an event that is no chunk: {_excerpt(content)}"
                    )
                self._has_chunks = True
                yield from self._answer.take(chunk)
            except ProviderError as error:
                error.raw = payload
                raise

    def _take_whole(self, body: bytes) -> Iterator[Piece]:
        chunk = self._decode(body)
        try:
            pieces = None if chunk is None else self._answer.take_whole(chunk)
            if pieces is None:
                raise ProviderError(f"the server's answer is no completion: {_excerpt(body)}")
            yield from pieces
        except ProviderError as error:
            error.raw = body
            raise

    def _finish(self) -> Iterable[Piece]:
        if self.complete:
            return self._answer.finish()
        sample = self._sample
        if not self._has_chunks and sample and not sample.startswith(_STREAM_BEGINNINGS):
            message = f"the server's answer is no model stream: {_excerpt(sample)}"
            raise ProviderError(message, raw=sample)
        raise ProviderError("the stream ended before the answer was complete", retryable=True)

    def _is_whole(self, payload: bytes) -> bool:
        return payload.strip() == _DONE or self._decode(payload) is not None

    def _decode(self, payload: bytes) -> Chunk | None:
        """Return the chunk, or None if the payload is not one. Invalid UTF-8 becomes U+FFFD."""
        decoder: msgspec.json.Decoder[Chunk] = self._answer.chunks
        try:
            return decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
        try:
            # The standard library accepts lone surrogates; ``WholeText`` replaces them.
            value = json.loads(payload.decode("utf-8", "replace"))
            return convert(value, decoder.type)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            return None


class WholeText:
    """Replaces lone surrogates in the deltas of one text, and holds back the first half of a pair that
    spans two deltas. The text and the reasoning of an answer each need one.
    """

    def __init__(self) -> None:
        self._half_pair = ""

    def of(self, delta: str) -> str:
        """Return the text that can be passed on; empty if there is none yet."""
        if not self._half_pair and delta.isascii():
            return delta
        text = self._half_pair + delta
        self._half_pair = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return scrub(text.removesuffix(self._half_pair) if self._half_pair else text)

    def rest(self) -> str:
        """Return the text that was held back, at the end of the text."""
        rest, self._half_pair = scrub(self._half_pair), ""
        return rest


def count_in(values: Any, key: str) -> int:
    """Return the number of tokens under ``key``; 0 if there is no plausible one."""
    value = values.get(key) if isinstance(values, dict) else None
    return int(value) if isinstance(value, int | float) and 0 < value < 2**53 else 0


def _excerpt(data: bytes) -> str:
    return " ".join(data[:_SAMPLE_BYTES].decode("utf-8", "replace").split())
