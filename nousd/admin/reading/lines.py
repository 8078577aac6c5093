"""Decodes a row of the log into its event, or finds its fault.

It verifies everything that a daemon relies on, because any bit may have flipped.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from nousd.errors import StoreError, StoreTooNew
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.codec.envelope import decode_event
from nousd.wire.codec.upcasting import lift
from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.events import EVENTS, Event, thread_of

_payload_decoders: Final = {name: json_decoder(struct) for name, struct in EVENTS.items()}


class LoggedEvent(NamedTuple):
    """An event of the log.

    Args:
        event: the event in the current version.
        line: the line as it was written, in ``schema_version``, with its LF.
    """

    seq: int
    schema_version: int
    type: str
    event: Event
    ts: str
    line: bytes

    @property
    def columns(self) -> bytes:
        """The expected columns of the event's row; see ``StoredLine``."""
        return f"{self.type}{self.event.session_id}{self.thread or ''}".encode()

    @property
    def thread(self) -> str | None:
        """The value of the column ``run_id``: the event's run, or its client call."""
        return thread_of(self.event)

    @property
    def run_id(self) -> str | None:
        run_id = getattr(self.event, "run_id", UNSET)
        return None if run_id is UNSET else run_id

    @property
    def joined_from(self) -> int | None:
        """The number of the first event that a joined delta replaces; None for other events."""
        return _parse_joined_from(self.event)


class StoredLine(NamedTuple):
    """A row, from any source.

    Args:
        columns: type, session and run of the row, concatenated.
        line: bytes; a damaged database may return any other type.
    """

    seq: int
    schema_version: int
    columns: Any
    line: Any


STORED_LINE: Final = """
    seq, schema_version, CAST(type || session_id || coalesce(run_id, '') AS BLOB), line
"""
"""The columns of a ``StoredLine`` in SQL. Text is read as bytes, because damaged text may be invalid."""


def _parse_joined_from(event: Event) -> int | None:
    first = getattr(event, "joined_from", UNSET)
    return None if first is UNSET else cursor_seq(first)


def read_line(stored: StoredLine) -> LoggedEvent | str:
    """Return the event of a row, or a description of its fault."""
    line = stored.line
    if not isinstance(line, bytes) or not line.endswith(b"\n") or line.count(b"\n") != 1:
        return "is not one line that ends in LF"
    try:
        envelope = decode_event(lift(line, stored.schema_version))
        decoder = _payload_decoders.get(envelope.type)
        if decoder is None:
            return f"is of the unknown type {envelope.type[:40]!r}"
        event: Event = decoder.decode(envelope.payload)
        _parse_joined_from(event)
    except StoreTooNew:
        return f"is of schema version {stored.schema_version}, written by a newer nousd"
    except (msgspec.MsgspecError, StoreError, ValueError, TypeError) as error:
        return f"is not an event of v1: {error}"
    if not line.startswith(b'{"v":"1",'):
        return "is not of protocol version 1"
    if envelope.id != f"evt-{stored.seq}":
        return f"carries the id {envelope.id[:40]!r} of another row"
    logged = LoggedEvent(stored.seq, stored.schema_version, envelope.type, event, envelope.ts, line)
    if stored.columns != logged.columns:
        return "is in the row of another event"
    return logged
