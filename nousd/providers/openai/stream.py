"""Converts the chunks of a Chat Completions answer into pieces. Pure.

Text and reasoning are emitted at once, and tool calls when the answer is complete: when the server has
sent ``[DONE]`` or a finish reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from nousd.errors import FailureCategory, ProviderError
from nousd.providers.encoding.tool_calls import CallFragment
from nousd.providers.http.answer_stream import Answer, count_in
from nousd.providers.http.server_errors import error_from_object
from nousd.providers.interface import Piece, ReasoningDelta, TextDelta
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.objects.entries import Usage

CUT_REASONS: Final = frozenset({"length", "max_tokens", "model_length"})
"""Finish reasons of a truncated answer."""

FAILED_REASONS: Final[dict[str, tuple[str, bool, FailureCategory]]] = {
    "content_filter": ("the server's content filter cut the answer off", False, "content_filter"),
    "error": ("the server broke the answer off", True, "server_error"),
    "abort": ("the server broke the answer off", True, "server_error"),
    "insufficient_system_resource": ("the server ran out of resources", True, "overloaded"),
}
"""Finish reasons that are failures -> (message, whether a retry may help, category)."""


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
    # Only in failures.
    error: Any = None
    message: Any = None
    code: Any = None
    type: Any = None


class ChatAnswer(Answer[_Chunk]):
    """The state of the answer so far."""

    chunks: ClassVar = json_decoder(_Chunk)

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__(names)
        self._usage: Usage | None = None

    def take_whole(self, chunk: _Chunk) -> list[Piece] | None:
        if not (chunk.choices or _is_fault(chunk)):
            return None
        pieces = self.take(chunk)
        self._reason = self._reason or "stop"
        return pieces

    def take_done(self) -> Iterator[Piece]:
        return self.finish()

    def take(self, chunk: _Chunk) -> list[Piece]:
        if _is_fault(chunk):
            raise error_from_object(msgspec.structs.asdict(chunk))
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage) or self._usage
        pieces: list[Piece] = []
        # The request asks for one choice.
        if chunk.choices:
            choice = chunk.choices[0]
            delta = choice.delta or choice.message
            if delta is not None:
                self._add_pieces(delta, pieces)
            self._reason = choice.finish_reason or self._reason
            if choice.usage is not None:
                self._usage = _usage(choice.usage) or self._usage
        return pieces

    def _add_pieces(self, delta: _Delta, pieces: list[Piece]) -> None:
        # Some servers send the same reasoning under both names.
        if delta.reasoning_content or delta.reasoning:
            reasoning = _text(delta.reasoning_content) or _text(delta.reasoning)
            if valid_text := self._reasoning.of(reasoning):
                pieces.append(ReasoningDelta(valid_text))
        if delta.content or delta.refusal:
            text = _text(delta.content) or _text(delta.refusal)
            if valid_text := self._text.of(text):
                pieces.append(TextDelta(valid_text))
        for call in delta.tool_calls or ():
            self._add_call(call)
        if delta.function_call is not None:
            self._add_call(_Call(index=0, function=delta.function_call))

    def _add_call(self, call: _Call) -> None:
        function = call.function or _Function()
        self.calls.add(
            CallFragment(call.index, call.id or "", function.name or "", function.arguments)
        )

    def finish(self) -> Iterator[Piece]:
        reason = self._reason or "stop"
        if reason in FAILED_REASONS:
            message, retryable, category = FAILED_REASONS[reason]
            raise ProviderError(message, category=category, retryable=retryable)
        if rest := self._reasoning.rest():
            yield ReasoningDelta(rest)
        if rest := self._text.rest():
            yield TextDelta(rest)
        is_cut = reason in CUT_REASONS
        calls = list(self.calls.whole_calls(is_cut=is_cut))
        yield from self._finish_answer(calls, self._usage, is_cut=is_cut)


def _is_fault(chunk: _Chunk) -> bool:
    return bool(chunk.error) or (chunk.choices is None and bool(chunk.message))


def _text(value: Any) -> str:
    """Return the text of a content field: a string, or a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = (part.get("text") for part in value if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    input, output = count_in(value, "prompt_tokens"), count_in(value, "completion_tokens")
    return Usage(
        input=input,
        output=output,
        total=count_in(value, "total_tokens") or input + output,
        cache_read=count_in(value.get("prompt_tokens_details"), "cached_tokens"),
        reasoning=count_in(value.get("completion_tokens_details"), "reasoning_tokens"),
    )
