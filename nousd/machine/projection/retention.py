"""Joins old deltas: which lines of the log become one, and its content.

The deltas of a finished message or tool execution contain nothing that its end does not. So once they
are old, one line of each type replaces all of them. It is the last one, with the whole text: a reader
that has seen only some of them has yet to reach its number, and a replay is still a valid run.
``joined_from`` names the first event that it replaces, so that such a reader knows where its text
begins.

The stores decide what is old, and find and write the lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.codec.envelope import decode_event, encode_event_tail, event_in, number_event
from nousd.wire.commands.subscribe import cursor

STARTS: Final = frozenset({"message_start", "tool_execution_start", "tool_call_requested"})
ENDS: Final = frozenset({"message_end", "tool_execution_end", "tool_call_completed"})
"""The events that deltas come between. In a run at most one of them is open, so all deltas of the run
between an end and the start before it belong together. A client's own call has only the last of each;
the steps of a run's call come between its start and end."""


class Line(NamedTuple):
    """An event's line as it stands in the log."""

    seq: int
    type: str
    line: bytes


class Joined(NamedTuple):
    """``line`` replaces the events from ``first`` to ``seq``; ``gone`` are removed."""

    seq: int
    first: int
    line: bytes
    gone: tuple[int, ...]


def join(newest_first: Iterable[Line]) -> tuple[Joined, ...]:
    """Join the deltas of a message or tool execution that has ended, each type by itself.

    A single delta of a type stays as it is. Of many deltas the newest can be joined first and the
    others to them later, because a joined line can be joined again.
    """
    by_type: dict[str, list[Line]] = defaultdict(list)
    for delta in newest_first:
        by_type[delta.type].append(delta)
    return tuple(_joined(deltas) for deltas in by_type.values() if len(deltas) > 1)


class _Told(msgspec.Struct, frozen=True):
    delta: str
    stream: str | UnsetType = UNSET


class _DeltaLine(msgspec.Struct, frozen=True):
    payload: _Told


_decoder: Final = msgspec.json.Decoder(_DeltaLine)


def _joined(newest_first: Sequence[Line]) -> Joined:
    last, *gone = newest_first
    # Only the last can have been joined before, so the very first is among the given ones.
    first = newest_first[-1].seq
    told = [_decoder.decode(event.line).payload for event in reversed(newest_first)]
    event = decode_event(last.line)
    whole = msgspec.structs.replace(
        event_in(event),
        delta="".join(piece.delta for piece in told),
        joined_from=cursor(first),
    )
    if len({piece.stream for piece in told}) > 1:
        # In the order in which they came, which is worth more than the stream of each.
        whole = msgspec.structs.replace(whole, stream=UNSET)
    line = number_event(last.seq, encode_event_tail(whole, event.ts))
    return Joined(last.seq, first, line, tuple(event.seq for event in gone))
