"""Converts the chunks of a ``generateContent`` answer into pieces. Pure.

Each chunk has the parts since the chunk before, and calls come whole. There is no end marker: the chunk
with the finish reason is the last, and the end of the input confirms it.

If the model signed a part or gave a call an id, the layout of the answer is emitted as one
``ReasoningKept`` per part, in order, so that ``request`` can return every signature to its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from nousd.errors import FailureCategory, ProviderError
from nousd.providers.encoding.provider_state import KeptSize
from nousd.providers.encoding.tool_calls import CallFragment
from nousd.providers.gemini.request import DIALECT
from nousd.providers.http.answer_stream import Answer, count_in
from nousd.providers.http.lenient_json import as_list, as_object, as_text
from nousd.providers.http.server_errors import error_from_object
from nousd.providers.interface import (
    Piece,
    ReasoningDelta,
    ReasoningKept,
    TextDelta,
    UsageSoFar,
)
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.codec.envelope import scrub
from nousd.wire.objects.entries import ReasoningBlock, Usage

_FailedReason = tuple[str, bool, FailureCategory]

_FILTERED: Final[_FailedReason] = (
    "the server's content filter cut the answer off",
    False,
    "content_filter",
)
_BROKEN_CALL: Final[_FailedReason] = (
    "the model's tool call could not be read",
    True,
    "server_error",
)

FAILED_REASONS: Final[dict[str, _FailedReason]] = {
    "BLOCKLIST": _FILTERED,
    "ESCALATION": _FILTERED,
    "IMAGE_PROHIBITED_CONTENT": _FILTERED,
    "IMAGE_RECITATION": _FILTERED,
    "IMAGE_SAFETY": _FILTERED,
    "LANGUAGE": ("the model does not speak the language", False, "invalid_request"),
    "MALFORMED_FUNCTION_CALL": _BROKEN_CALL,
    "MALFORMED_RESPONSE": ("the model's answer could not be read", True, "server_error"),
    "MISSING_THOUGHT_SIGNATURE": (
        "the server misses a thought signature",
        False,
        "invalid_request",
    ),
    "MODEL_ARMOR": _FILTERED,
    "OTHER": ("the server broke the answer off", False, "server_error"),
    "PROHIBITED_CONTENT": _FILTERED,
    "PUP_LIMITED_DISABLED": (
        "the server has limited or disabled the account",
        False,
        "permission_denied",
    ),
    "RECITATION": _FILTERED,
    "SAFETY": _FILTERED,
    "SPII": _FILTERED,
    "TOO_MANY_TOOL_CALLS": ("the model made too many tool calls", False, "server_error"),
    "UNEXPECTED_TOOL_CALL": _BROKEN_CALL,
}
"""Finish reasons that are failures -> (message, whether a retry may help, category)."""

CUT_REASONS: Final = frozenset({"CONTINUATION", "MAX_TOKENS"})
"""Finish reasons of a truncated answer."""


class GeminiChunk(msgspec.Struct, rename="camel"):
    """One chunk of an answer, or a failure."""

    candidates: Any = None
    prompt_feedback: Any = None
    usage_metadata: Any = None
    error: Any = None


class GeminiAnswer(Answer[GeminiChunk]):
    """The state of the answer so far."""

    chunks: ClassVar = json_decoder(GeminiChunk)

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__(names)
        self._calls_count = 0
        self._places: list[dict[str, Any]] = []
        self._kept_size = KeptSize()
        self._usage: Usage | None = None
        self._reason_message = ""

    def take(self, chunk: GeminiChunk) -> list[Piece]:
        if chunk.error:
            raise error_from_object({"error": chunk.error})
        usage = _usage(chunk.usage_metadata)
        self._usage = usage or self._usage
        candidate = as_object(next(iter(as_list(chunk.candidates)), None))
        if not candidate:
            _check_feedback(as_object(chunk.prompt_feedback))
        pieces: list[Piece] = [] if usage is None else [UsageSoFar(usage)]
        pieces += [
            piece
            for part in as_list(as_object(candidate.get("content")).get("parts"))
            for piece in self._pieces_of(as_object(part))
        ]
        if reason := as_text(candidate.get("finishReason")):
            self._reason = reason
            self._reason_message = as_text(candidate.get("finishMessage"))
        return pieces

    def take_whole(self, chunk: GeminiChunk) -> list[Piece] | None:
        if not (chunk.candidates or chunk.prompt_feedback or chunk.error):
            return None
        pieces = self.take(chunk)
        self._reason = self._reason or "STOP"
        return pieces

    def finish(self) -> Iterator[Piece]:
        reason = self._reason or "STOP"
        if reason in FAILED_REASONS:
            message, retryable, category = FAILED_REASONS[reason]
            detail = self._reason_message or reason
            raise ProviderError(f"{message}: {detail}", category=category, retryable=retryable)
        if rest := self._reasoning.rest():
            yield ReasoningDelta(rest)
        if rest := self._text.rest():
            yield TextDelta(rest)
            self._place_text(len(rest), {})
        yield from self._keep_reasoning()
        calls = list(self.calls.whole_calls())
        yield from self._finish_answer(calls, self._usage, is_cut=reason in CUT_REASONS)

    def _pieces_of(self, part: dict[str, Any]) -> Iterator[Piece]:
        signature = scrub(as_text(part.get("thoughtSignature")))
        signed = {"thoughtSignature": signature} if signature else {}
        if isinstance(part.get("functionCall"), dict):
            self._add_call(part["functionCall"], signed)
            return
        text = part.get("text")
        if not isinstance(text, str):
            return
        if part.get("thought"):
            valid_text = self._reasoning.of(text)
            if signed:
                self._place({"thought": True, "text": valid_text, **signed})
            if valid_text:
                yield ReasoningDelta(valid_text)
            return
        valid_text = self._text.of(text)
        self._place_text(len(valid_text), signed)
        if valid_text:
            yield TextDelta(valid_text)

    def _place_text(self, chars: int, signed: Mapping[str, str]) -> None:
        """Record the place of a text part. Unsigned neighbours are joined; a signed part is separate."""
        last = self._places[-1] if self._places else {}
        if not signed and "text_chars" in last and "thoughtSignature" not in last:
            last["text_chars"] += chars
        else:
            self._place({"text_chars": chars, **signed})

    def _place(self, place: dict[str, Any]) -> None:
        self._kept_size.add(len(str(place)))
        self._places.append(place)

    def _add_call(self, call: dict[str, Any], signed: Mapping[str, str]) -> None:
        id, name = scrub(as_text(call.get("id"))), as_text(call.get("name"))
        self._place({"call_id": id, **signed})
        self.calls.add(CallFragment(self._calls_count, id, name, call.get("args")))
        self._calls_count += 1

    def _keep_reasoning(self) -> Iterator[Piece]:
        if any(place.get("thoughtSignature") or place.get("call_id") for place in self._places):
            for place in self._places:
                yield ReasoningKept(ReasoningBlock(dialect=DIALECT, data=place))


def _check_feedback(feedback: Mapping[str, Any]) -> None:
    """Raise ProviderError if the server blocked the prompt."""
    if reason := as_text(feedback.get("blockReason")):
        detail = as_text(feedback.get("blockReasonMessage")) or reason
        raise ProviderError(
            f"the server's content filter refused the prompt: {detail}", category="content_filter"
        )


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    thoughts = count_in(value, "thoughtsTokenCount")
    input = count_in(value, "promptTokenCount") + count_in(value, "toolUsePromptTokenCount")
    output = count_in(value, "candidatesTokenCount") + thoughts
    return Usage(
        input=input,
        output=output,
        total=count_in(value, "totalTokenCount") or input + output,
        cache_read=count_in(value, "cachedContentTokenCount"),
        reasoning=thoughts,
    )
