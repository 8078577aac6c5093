"""Converts the events of a Messages answer into pieces. Pure.

Text and thinking are emitted at once, a signed block when it ends, and tool calls when the answer is
complete: when the server has sent a stop reason or the end of the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from nousd.errors import ContextOverflow, ProviderError
from nousd.providers.anthropic.request import Block, build_reasoning_block
from nousd.providers.encoding.provider_state import KeptSize, storable
from nousd.providers.encoding.tool_calls import CallFragment
from nousd.providers.http.answer_stream import Answer, count_in
from nousd.providers.http.lenient_json import as_text
from nousd.providers.http.server_errors import error_from_object
from nousd.providers.interface import (
    Piece,
    ReasoningDelta,
    ReasoningKept,
    TextDelta,
    UsageSoFar,
)
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.objects.entries import Usage

CUT_REASONS: Final = frozenset({"max_tokens", "model_context_window_exceeded"})
"""Stop reasons of a truncated answer."""

_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
_USAGE_KEYS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens_details",
)


class _Delta(msgspec.Struct):
    text: Any = None
    thinking: Any = None
    signature: Any = None
    partial_json: Any = None
    stop_reason: Any = None
    stop_details: Any = None


class _Block(msgspec.Struct):
    type: str = ""
    id: Any = None
    name: Any = None
    input: Any = None
    text: Any = None
    thinking: Any = None
    signature: Any = None
    data: Any = None


class _Message(msgspec.Struct):
    usage: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | str | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Any = None
    error: Any = None
    # Only in a whole message.
    content: list[_Block] | None = None
    stop_reason: Any = None
    stop_details: Any = None


class MessagesAnswer(Answer[_Event]):
    """The state of the answer so far."""

    chunks: ClassVar = json_decoder(_Event)

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__(names)
        self._calls_begun = 0
        self._text_chars = 0
        self._thoughts: dict[int, Block] = {}
        self._kept_size = KeptSize()
        self._usage: dict[str, Any] = {}
        self._explanation = ""

    def take(self, event: _Event) -> Iterator[Piece]:
        if event.type == "error" or event.error:
            raise error_from_object(msgspec.to_builtins(event))
        self._count(event.usage)
        match event.type:
            case "message_start" if isinstance(event.message, _Message):
                self._count(event.message.usage)
                if (usage := _usage(self._usage)) is not None:
                    yield UsageSoFar(usage)
            case "content_block_start" if event.content_block is not None:
                yield from self._begin(event.index, event.content_block)
            case "content_block_delta" if event.delta is not None:
                yield from self._go_on(event.index, event.delta)
            case "content_block_stop":
                yield from self._end(event.index)
            case "message_delta" if event.delta is not None:
                self._stop(event.delta.stop_reason, event.delta.stop_details)
            case "message_stop":
                yield from self.finish()

    def take_whole(self, message: _Event) -> Iterator[Piece] | None:
        if message.type != "error" and not message.error and message.content is None:
            return None
        return self._whole(message)

    def _whole(self, message: _Event) -> Iterator[Piece]:
        yield from self.take(message)
        for index, block in enumerate(message.content or ()):
            yield from self._begin(index, block)
            yield from self._end(index)
        self._stop(message.stop_reason or "end_turn", message.stop_details)

    def _begin(self, index: int, block: _Block) -> Iterator[Piece]:
        if block.type in _THOUGHTS:
            self._thoughts[index] = thought = _thought(block)
            self._kept_size.add(len(str(thought)))
            yield from self._think(as_text(block.thinking))
        elif block.type == "tool_use":
            self._calls_begun += 1
            fragment = CallFragment(
                index, as_text(block.id), as_text(block.name), block.input or None
            )
            self.calls.add(fragment)
        else:
            yield from self._say(as_text(block.text))

    def _go_on(self, index: int, delta: _Delta) -> Iterator[Piece]:
        yield from self._say(as_text(delta.text))
        if thinking := as_text(delta.thinking):
            self._kept_size.add(len(thinking))
            self._thought(index)["thinking"] += thinking
            yield from self._think(thinking)
        if signature := as_text(delta.signature):
            self._kept_size.add(len(signature))
            self._thought(index)["signature"] = signature
        if arguments := as_text(delta.partial_json):
            self.calls.add(CallFragment(index, arguments=arguments))

    def _thought(self, index: int) -> Block:
        return self._thoughts.setdefault(index, _thought(_Block("thinking")))

    def _end(self, index: int) -> Iterator[Piece]:
        yield from self._rest()
        thought = storable(self._thoughts.pop(index, {}))
        if thought:
            yield ReasoningKept(
                build_reasoning_block(
                    thought, text_before=self._text_chars, calls_before=self._calls_begun
                )
            )

    def _say(self, delta: str) -> Iterator[Piece]:
        if text := self._text.of(delta):
            self._text_chars += len(text)
            yield TextDelta(text)

    def _think(self, delta: str) -> Iterator[Piece]:
        if text := self._reasoning.of(delta):
            yield ReasoningDelta(text)

    def _rest(self) -> Iterator[Piece]:
        if rest := self._reasoning.rest():
            yield ReasoningDelta(rest)
        if rest := self._text.rest():
            self._text_chars += len(rest)
            yield TextDelta(rest)

    def _stop(self, reason: Any, details: Any) -> None:
        self._reason = as_text(reason) or self._reason
        if isinstance(details, dict):
            self._explanation = as_text(details.get("explanation"))

    def _count(self, usage: Any) -> None:
        """Record the token counts. Each is a total, so the last one counts."""
        if isinstance(usage, dict):
            self._usage |= {key: usage[key] for key in _USAGE_KEYS if usage.get(key) is not None}

    def finish(self) -> Iterator[Piece]:
        reason = self._reason or "end_turn"
        if reason == "refusal":
            message = "the model refused to answer"
            if self._explanation:
                message = f"{message}: {self._explanation}"
            raise ProviderError(message, category="content_filter")
        is_cut = reason in CUT_REASONS
        calls = list(self.calls.whole_calls(is_cut=is_cut))
        if reason == "model_context_window_exceeded" and not (calls or self._text_chars):
            raise ContextOverflow("the input leaves the model no room for an answer")
        yield from self._rest()
        yield from self._finish_answer(calls, _usage(self._usage), is_cut=is_cut)


def _thought(block: _Block) -> Block:
    """Return the block as it will be sent back, with the data known so far."""
    if block.type == "redacted_thinking":
        return {"type": block.type, "data": as_text(block.data)}
    return {
        "type": block.type,
        "thinking": as_text(block.thinking),
        "signature": as_text(block.signature),
    }


def _usage(counts: dict[str, Any]) -> Usage | None:
    if not counts:
        return None
    cache_read = count_in(counts, "cache_read_input_tokens")
    cache_write = count_in(counts, "cache_creation_input_tokens")
    input = count_in(counts, "input_tokens") + cache_read + cache_write
    output = count_in(counts, "output_tokens")
    return Usage(
        input=input,
        output=output,
        total=input + output,
        cache_read=cache_read,
        cache_write=cache_write,
        reasoning=count_in(counts.get("output_tokens_details"), "thinking_tokens"),
    )
