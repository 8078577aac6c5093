"""Caches the messages of conversations in a dialect's encoding from one request to the next.

A request usually has the messages of the previous one and some new ones. Only the new messages are
encoded; the others reuse the cached bytes. The newest items are not cached, because a dialect joins
neighbours and marks the last ones.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelMessage,
    ToolResultMessage,
    begins_with,
)
from nousd.providers.encoding.request_body import encode_items

KEPT_CONVERSATIONS_MAX: Final = 32
KEPT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum bytes of all cached conversations; about the size of the cached contexts."""

_OPEN_ITEMS: Final = 8

_ENCODED_TOGETHER: Final = 64
"""Items that are encoded in one step, in which no other thread runs: all of a long conversation would
take longer than a command of another session."""

Item = dict[str, Any] | msgspec.Raw
"""A part of a request's list of messages: one message, or several that are already encoded."""


class Before(NamedTuple):
    """The numbers of messages, and of tool calls in them, before a position in a conversation."""

    messages: int = 0
    calls: int = 0


Write = Callable[[Sequence[ModelMessage], Before], Iterable[tuple[int, dict[str, Any]]]]
"""Encodes messages as items, each with the index of the first message in it. An item may depend on
earlier messages only through ``Before``, except that a result may depend on its call.
"""


class _KeptConversation(NamedTuple):
    key: Hashable
    messages: Sequence[ModelMessage]
    before: Before
    items: list[msgspec.Raw]
    size: int


_EMPTY: Final = _KeptConversation(None, (), Before(), [], 0)


class Conversations:
    """The conversations that were sent last. The methods may be called from several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _KeptConversation] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def new_messages(self, messages: Sequence[ModelMessage]) -> int:
        """Return the approximate number of messages to encode."""
        return len(messages) - len(self._find(messages).messages)

    def items(self, messages: Sequence[ModelMessage], key: Hashable, write: Write) -> list[Item]:
        """Return the messages encoded in the dialect.

        Args:
            key: everything other than the messages that the encoding depends on.
        """
        cached = self._find(messages)
        if cached.key != key:
            cached = _EMPTY
        tail = messages[cached.before.messages :]
        written = list(write(tail, cached.before))
        if end := _count_settled(tail, written):
            cached = _extend_kept(cached, key, tail, written[:end], written[end][0])
            written = written[end:]
        if cached.items:
            self._keep(messages, cached)
        return [*cached.items, *(item for _, item in written)]

    def _find(self, messages: Sequence[ModelMessage]) -> _KeptConversation:
        kept = self._kept.get(id(messages[0]), _EMPTY) if messages else _EMPTY
        # The cache keeps the first message alive, so no other object has its id.
        return kept if begins_with(messages, kept.messages) else _EMPTY

    def _keep(self, messages: Sequence[ModelMessage], conversation: _KeptConversation) -> None:
        with self._lock:
            replaced = self._kept.pop(id(messages[0]), _EMPTY)
            self._kept[id(messages[0])] = conversation
            self._bytes += conversation.size - replaced.size
            while len(self._kept) > KEPT_CONVERSATIONS_MAX or self._bytes > KEPT_BYTES_MAX:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.size


def _count_settled(tail: Sequence[ModelMessage], written: Sequence[tuple[int, Any]]) -> int:
    """Return how many items later messages cannot change. The item after them begins a new message that
    is not a tool result.
    """
    for end in range(len(written) - _OPEN_ITEMS, 0, -1):
        begin = written[end][0]
        if begin != written[end - 1][0] and not isinstance(tail[begin], ToolResultMessage):
            return end
    return 0


def _extend_kept(
    cached: _KeptConversation,
    key: Hashable,
    tail: Sequence[ModelMessage],
    settled: Sequence[tuple[int, dict[str, Any]]],
    count: int,
) -> _KeptConversation:
    """Return the cached conversation with the settled items of the next ``count`` messages added."""
    new = tail[:count]
    items = [item for _, item in settled]
    encoded = [
        encode_items(items[start : start + _ENCODED_TOGETHER])
        for start in range(0, len(items), _ENCODED_TOGETHER)
    ]
    calls = sum(len(message.tool_calls) for message in new if type(message) is AssistantMessage)
    return _KeptConversation(
        key,
        (*cached.messages, *new),
        Before(cached.before.messages + count, cached.before.calls + calls),
        [*cached.items, *map(msgspec.Raw, encoded)],
        cached.size + sum(map(len, encoded)),
    )
