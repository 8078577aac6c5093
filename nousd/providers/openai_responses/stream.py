"""Converts the events of a Responses answer into pieces. Pure.

An answer is a list of output items: reasoning, messages, calls. Each is announced, sent in deltas and
sent whole when it is done. Servers omit some of these, so a whole item supplies only the content for
which no deltas came. The last event repeats the whole list, which is the only source if nothing was
streamed.

If the server needs any item back, one ``ReasoningKept`` per item is emitted, in order, so that
``request`` can restore the order of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from nousd.errors import ProviderError
from nousd.providers.encoding.provider_state import KeptSize, storable
from nousd.providers.encoding.tool_calls import CallFragment
from nousd.providers.http.answer_stream import Answer, count_in
from nousd.providers.http.lenient_json import as_list, as_object, as_text
from nousd.providers.http.server_errors import error_from_object
from nousd.providers.interface import Piece, ReasoningDelta, ReasoningKept, TextDelta
from nousd.providers.openai_responses.request import DIALECT
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.objects.entries import ReasoningBlock, Usage

_SUMMARY_SEPARATOR: Final = "\n\n"


class ResponsesEvent(msgspec.Struct):
    """One event, a whole response or a failure; they differ in their keys."""

    type: str | None = None
    output_index: Any = None
    item: Any = None
    delta: Any = None
    arguments: Any = None
    response: Any = None
    # Only in a response that is not streamed.
    status: Any = None
    output: Any = None
    usage: Any = None
    incomplete_details: Any = None
    # Only in failures.
    error: Any = None
    message: Any = None
    code: Any = None


class _Item:
    """An output item so far; ``complete_data`` is set once it is done."""

    def __init__(self) -> None:
        self.kind = ""
        self.text_chars = 0
        self.has_reasoning = False
        self.has_name = False
        self.has_arguments = False
        self.complete_data: dict[str, Any] | None = None

    @property
    def is_kept(self) -> bool:
        """True if the server needs more of the item back than its text or its call."""
        data = self.complete_data or {}
        if self.kind == "reasoning":
            # A server that stores nothing recognises such an item only by its content.
            return bool(data.get("encrypted_content") or data.get("content"))
        return self.kind == "message" and bool(data.get("phase"))

    def place(self) -> dict[str, Any]:
        """Return the stored data that restores the item in its place in the answer."""
        if self.kind == "reasoning":
            return self.complete_data or {}
        place: dict[str, Any] = {"type": self.kind}
        if self.kind == "message":
            place["text_chars"] = self.text_chars
            # Only a message keeps its id: the reasoning before it belongs to exactly this message.
            data = self.complete_data or {}
            place |= {key: data[key] for key in ("id", "phase") if data.get(key)}
        return place


class ResponsesAnswer(Answer[ResponsesEvent]):
    """The state of the answer so far."""

    chunks: ClassVar = json_decoder(ResponsesEvent)

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__(names)
        self._items: dict[int, _Item] = {}
        self._kept_size = KeptSize()

    def take(self, chunk: ResponsesEvent) -> list[Piece]:
        if chunk.error or chunk.type == "error":
            raise error_from_object(msgspec.structs.asdict(chunk))
        handler = self._HANDLERS.get(chunk.type or "")
        return [] if handler is None else list(handler(self, chunk))

    def take_whole(self, chunk: ResponsesEvent) -> list[Piece] | None:
        if chunk.error or chunk.type == "error":
            raise error_from_object(msgspec.structs.asdict(chunk))
        if not isinstance(chunk.output, list):
            return None
        return list(self._end(msgspec.structs.asdict(chunk)))

    def _take_added(self, event: ResponsesEvent) -> Iterable[Piece]:
        item = as_object(event.item)
        position = self._position(event, begins=True)
        self._item(position, as_text(item.get("type")))
        self._name_call(position, item)
        return ()

    def _take_text(self, event: ResponsesEvent) -> Iterable[Piece]:
        return self._tell_text(self._item(self._position(event), "message"), event.delta)

    def _take_reasoning(self, event: ResponsesEvent) -> Iterable[Piece]:
        return self._tell_reasoning(self._item(self._position(event), "reasoning"), event.delta)

    def _take_summary_part(self, event: ResponsesEvent) -> Iterable[Piece]:
        item = self._item(self._position(event), "reasoning")
        return self._tell_reasoning(item, _SUMMARY_SEPARATOR) if item.has_reasoning else ()

    def _take_arguments(self, event: ResponsesEvent) -> Iterable[Piece]:
        position = self._position(event)
        self._item(position, "function_call").has_arguments = True
        self.calls.add(CallFragment(position, arguments=event.delta))
        return ()

    def _take_item(self, event: ResponsesEvent) -> Iterable[Piece]:
        return self._end_item(self._position(event), as_object(event.item))

    def _take_end(self, event: ResponsesEvent) -> Iterable[Piece]:
        return self._end(as_object(event.response))

    _HANDLERS: ClassVar[
        Mapping[str, Callable[[ResponsesAnswer, ResponsesEvent], Iterable[Piece]]]
    ] = {
        "response.output_item.added": _take_added,
        "response.output_text.delta": _take_text,
        "response.refusal.delta": _take_text,
        "response.reasoning_summary_part.added": _take_summary_part,
        "response.reasoning_summary_text.delta": _take_reasoning,
        "response.reasoning_text.delta": _take_reasoning,
        "response.function_call_arguments.delta": _take_arguments,
        "response.output_item.done": _take_item,
        "response.completed": _take_end,
        "response.incomplete": _take_end,
        "response.failed": _take_end,
    }
    """type -> its handler. All other events only repeat the content of these."""

    def _position(self, event: ResponsesEvent, *, begins: bool = False) -> int:
        """Return the index of the event's item; without one, the event belongs to the last open item."""
        if isinstance(event.output_index, int):
            return event.output_index
        last = max(self._items, default=-1)
        begins = begins or last == -1 or self._items[last].complete_data is not None
        return last + 1 if begins else last

    def _item(self, position: int, kind: str) -> _Item:
        item = self._items.get(position)
        if item is None:
            self._kept_size.add()
            item = self._items[position] = _Item()
        item.kind = item.kind or kind
        return item

    def _tell_text(self, item: _Item, text: Any) -> Iterator[Piece]:
        if valid_text := self._text.of(as_text(text)):
            item.text_chars += len(valid_text)
            yield TextDelta(valid_text)

    def _tell_reasoning(self, item: _Item, text: Any) -> Iterator[Piece]:
        if valid_text := self._reasoning.of(as_text(text)):
            item.has_reasoning = True
            yield ReasoningDelta(valid_text)

    def _name_call(self, position: int, call: Mapping[str, Any]) -> None:
        item = self._items[position]
        if item.kind == "function_call" and not item.has_name:
            item.has_name = True
            id, name = as_text(call.get("call_id")), as_text(call.get("name"))
            self.calls.add(CallFragment(position, id=id, name=name))

    def _end_item(self, position: int, data: dict[str, Any]) -> Iterator[Piece]:
        """Take a whole item and emit the content that its deltas did not contain."""
        item = self._item(position, as_text(data.get("type")))
        if item.complete_data is not None:
            return
        if item.kind == "message" and not item.text_chars:
            yield from self._tell_text(item, _texts_in(data.get("content")))
        if item.kind == "reasoning" and not item.has_reasoning:
            text = _texts_in(data.get("summary"), _SUMMARY_SEPARATOR)
            yield from self._tell_reasoning(item, text or _texts_in(data.get("content")))
        self._name_call(position, data)
        if item.kind == "function_call" and not item.has_arguments:
            self.calls.add(CallFragment(position, arguments=data.get("arguments")))
        yield from self._rest_of(item)
        item.complete_data = self._extract_kept(data)

    def _rest_of(self, item: _Item) -> Iterator[Piece]:
        if item.kind == "reasoning":
            if rest := self._reasoning.rest():
                yield ReasoningDelta(rest)
        elif rest := self._text.rest():
            item.text_chars += len(rest)
            yield TextDelta(rest)

    def _extract_kept(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the parts of a whole item that may have to be sent back."""
        if data.get("type") != "reasoning":
            data = {key: text for key in ("id", "phase") if (text := as_text(data.get(key)))}
        kept = storable(data) or {}
        self._kept_size.add(len(str(kept)))
        return kept

    def _end(self, response: dict[str, Any]) -> Iterator[Piece]:
        """Take the final response, complete or failed."""
        is_cut = _is_cut(response)
        if not self._items:
            for position, data in enumerate(as_list(response.get("output"))):
                yield from self._end_item(position, as_object(data))
        for position in sorted(self._items):
            yield from self._end_item(position, {})
        yield from self._keep_reasoning()
        calls = list(self.calls.whole_calls(is_cut=is_cut))
        yield from self._finish_answer(calls, _usage(response.get("usage")), is_cut=is_cut)

    def _keep_reasoning(self) -> Iterator[Piece]:
        items = [self._items[position] for position in sorted(self._items)]
        if any(item.is_kept for item in items):
            for item in items:
                if item.is_kept or item.kind in ("message", "function_call"):
                    yield ReasoningKept(ReasoningBlock(dialect=DIALECT, data=item.place()))


def _is_cut(response: Mapping[str, Any]) -> bool:
    """Return whether a finished response is truncated.

    Raises:
        ProviderError: the response failed.
    """
    status = response.get("status")
    if response.get("error") or status == "failed":
        raise error_from_object(response)
    if status == "cancelled":
        raise ProviderError("the server broke the answer off", retryable=True)
    if status != "incomplete":
        return False
    if as_object(response.get("incomplete_details")).get("reason") == "content_filter":
        raise ProviderError(
            "the server's content filter cut the answer off", category="content_filter"
        )
    return True


def _texts_in(parts: Any, separator: str = "") -> str:
    """Return the texts of content or summary parts; a refusal counts as text."""
    texts = (
        as_object(part).get("text") or as_object(part).get("refusal") for part in as_list(parts)
    )
    return separator.join(text for text in texts if isinstance(text, str))


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    input, output = count_in(value, "input_tokens"), count_in(value, "output_tokens")
    details = value.get("input_tokens_details")
    return Usage(
        input=input,
        output=output,
        total=count_in(value, "total_tokens") or input + output,
        cache_read=count_in(details, "cached_tokens"),
        cache_write=count_in(details, "cache_write_tokens"),
        reasoning=count_in(value.get("output_tokens_details"), "reasoning_tokens"),
    )
