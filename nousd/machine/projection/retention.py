"""Joins old deltas: chooses the lines of the log that become one, and builds that line.

The deltas of a finished message or tool execution contain nothing that its end event does not. So once
they are old, one line of each type replaces all of them. It is the last one, with the whole text: a
reader that has received only some of the deltas has not reached its number yet, and a replay is still a
valid run. ``joined_from`` names the first event that the line replaces, so that such a reader knows
where the text begins.

The stores decide which deltas are old, and find and write the lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.codec.decoding import decode_json, json_decoder
from nousd.wire.codec.envelope import decode_event, encode_event_tail, event_in, number_event
from nousd.wire.commands.subscribe import cursor

_DELTAS: Final = {
    "message_end": ("message_start", "message_update", "reasoning_update"),
    "tool_execution_end": ("tool_execution_start", "tool_execution_update"),
    "tool_call_completed": ("tool_call_requested", "tool_call_output"),
}
"""end -> the start and the deltas of the same message or call. Events of other messages and calls of the
run may come between them."""

ENDS: Final = frozenset(_DELTAS)
STARTS: Final = frozenset(start for start, *_ in _DELTAS.values())


class Line(NamedTuple):
    """The line of an event in the log."""

    seq: int
    type: str
    line: bytes


class _Owner(msgspec.Struct, frozen=True):
    message_id: str = ""
    tool_call_id: str = ""
    result: str | UnsetType = UNSET


def owner_of(line: Line) -> str:
    """Return the id of the message or tool call of a start, delta or end."""
    owner = _owner(line)
    return owner.tool_call_id or owner.message_id


def _owner(line: Line) -> _Owner:
    return decode_json(decode_event(line.line).payload, type=_Owner)


def has_deltas(end: Line) -> bool:
    """Return whether deltas may belong to an end. A ``tool_call_completed`` has deltas only if it has
    the result: then ``tool_call_output`` reported the call's output, otherwise its bracket did.
    """
    return end.type != "tool_call_completed" or _owner(end).result is not UNSET


def deltas_of(end: Line, newest_first: Iterable[Line]) -> Iterator[Line]:
    """Yield the deltas of a message or call that has ended, newest first.

    Args:
        newest_first: the starts and deltas of its run before the end.
    """
    owner = owner_of(end)
    start, *deltas = _DELTAS[end.type]
    for line in newest_first:
        if line.type == start and owner_of(line) == owner:
            return
        if line.type in deltas and owner_of(line) == owner:
            yield line


class JoinedDeltas(NamedTuple):
    """``line`` replaces the events from ``first`` to ``seq``; ``removed`` are deleted."""

    seq: int
    first: int
    line: bytes
    removed: tuple[int, ...]


def join(newest_first: Iterable[Line]) -> tuple[JoinedDeltas, ...]:
    """Join the deltas of a message or tool execution that has ended, each type separately.

    A single delta of a type stays as it is. Of many deltas, the newest can be joined first and the
    others later, because a joined line can be joined again.
    """
    by_type: dict[str, list[Line]] = defaultdict(list)
    for delta in newest_first:
        by_type[delta.type].append(delta)
    return tuple(_join_deltas(deltas) for deltas in by_type.values() if len(deltas) > 1)


class _StreamDelta(msgspec.Struct, frozen=True):
    delta: str
    stream: str | UnsetType = UNSET


class _DeltaLine(msgspec.Struct, frozen=True):
    payload: _StreamDelta


_decoder: Final = json_decoder(_DeltaLine)


def _join_deltas(newest_first: Sequence[Line]) -> JoinedDeltas:
    last, *removed = newest_first
    # Only the newest line can be a joined one, so the oldest line has the first number.
    first = newest_first[-1].seq
    deltas = [_decoder.decode(event.line).payload for event in reversed(newest_first)]
    event = decode_event(last.line)
    joined = msgspec.structs.replace(
        event_in(event),
        delta="".join(delta.delta for delta in deltas),
        joined_from=cursor(first),
    )
    if len({delta.stream for delta in deltas}) > 1:
        # Joined in the order of arrival, which matters more than the stream of each delta.
        joined = msgspec.structs.replace(joined, stream=UNSET)
    line = number_event(last.seq, encode_event_tail(joined, event.ts))
    return JoinedDeltas(last.seq, first, line, tuple(event.seq for event in removed))
