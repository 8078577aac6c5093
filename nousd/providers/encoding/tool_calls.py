"""Assembles fragments of tool calls into whole calls, whether or not the server numbers them.

The first of these that a fragment has decides to which call it belongs:

1. its ``index``; except that a new id *and* a name under a known index begin a new call (some servers
   number all parallel calls 0);
2. its ``id``;
3. neither: it continues the last call, unless it has a name and either the last call has a different
   name, or the last call already has arguments and those of the fragment are a complete object.

The first id and the first name of a call are kept: servers that repeat them repeat them unchanged.
Pure; knows nothing of JSON streams.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

import msgspec

from nousd.errors import ProviderError
from nousd.providers.interface import ToolCallPiece
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import scrub, utf8_size
from nousd.wire.limits import NAME_CHARS_MAX, TOOL_ARGUMENTS_CHARS_MAX, TOOL_CALLS_MAX


class CallFragment(msgspec.Struct):
    """The fragment of one call in one delta. ``arguments`` is a string, or a whole object."""

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: Any = None


class _OpenCall:
    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments = StringIO()


class CallAssembler:
    """Collects the fragments of one answer.

    Args:
        names: the name sent to the server -> the tool's own name.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._calls: list[_OpenCall] = []
        self._arguments_chars = 0
        self.held_bytes = 0
        """UTF-8 bytes of the arguments so far, and of ids and names that are too long to be valid."""

    def add(self, fragment: CallFragment) -> None:
        """Take one fragment.

        Raises:
            ProviderError: more calls or longer arguments than the limits allow.
        """
        arguments = _as_text(fragment.arguments)
        call = self._call_for(fragment, arguments) or self._begin(fragment.index)
        call.id = call.id or self._count_long_name(fragment.id)
        call.name = call.name or self._count_long_name(fragment.name)
        if arguments:
            call.arguments.write(arguments)
            self._arguments_chars += len(arguments)
            self.held_bytes += utf8_size(arguments)
        if self._arguments_chars > TOOL_ARGUMENTS_CHARS_MAX:
            raise ProviderError(
                "the model's tool calls have arguments of more than"
                f" {TOOL_ARGUMENTS_CHARS_MAX} characters"
            )

    def whole_calls(self, *, is_cut: bool = False) -> Iterator[ToolCallPiece]:
        """Yield the calls in the order of their indexes, those without one in order of arrival.

        Args:
            is_cut: whether the answer is cut off. A call without arguments is then left out: the model
                may not have finished it.
        """
        calls = [call for call in self._calls if call.arguments.tell() or not is_cut]
        for position, call in enumerate(sorted(calls, key=lambda call: call.index or 0)):
            yield ToolCallPiece(
                id=scrub(call.id) or f"call_{position}",
                name=self._names.get(call.name) or scrub(call.name),
                arguments=scrub(call.arguments.getvalue()),
            )

    def _count_long_name(self, name: str) -> str:
        """Return an id or a name; if it is too long, count its bytes as held."""
        self.held_bytes += utf8_size(name) if len(name) > NAME_CHARS_MAX else 0
        return name

    def _call_for(self, fragment: CallFragment, arguments: str) -> _OpenCall | None:
        """Return the call that the fragment continues; None if it begins one."""
        if fragment.index is not None:
            found = self._newest("index", fragment.index)
            if found and found.id and fragment.id and fragment.name:
                return self._newest("id", fragment.id)
            return found
        if fragment.id:
            return self._newest("id", fragment.id)
        last = self._calls[-1] if self._calls else None
        if last is None or not fragment.name:
            return last
        begins = fragment.name != last.name or (last.arguments.tell() and _is_object(arguments))
        return None if begins else last

    def _newest(self, field: str, value: object) -> _OpenCall | None:
        return next((c for c in reversed(self._calls) if getattr(c, field) == value), None)

    def _begin(self, index: int | None) -> _OpenCall:
        if len(self._calls) == TOOL_CALLS_MAX:
            raise ProviderError(
                f"the model asked for more than {TOOL_CALLS_MAX} tool calls at once"
            )
        call = _OpenCall(index)
        self._calls.append(call)
        return call


def _as_text(arguments: Any) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return json.dumps(arguments, ensure_ascii=False)


def _is_object(text: str) -> bool:
    try:
        return isinstance(decode_json(text), dict)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
