"""Finds changed and missing events by their checksums (``store.sqlite.checksums``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from zlib import crc32

import apsw

from nousd.admin.check.findings import Finding
from nousd.admin.reading.deletions import EVENT_IS_KEPT

_SINCE: Final = 7
"""The version of the schema that introduced checksums."""

_DURABLE: Final = f"""
    SELECT seq, session_id, line, line_crc, previous_crc, type = 'session_deleted' FROM log.events
    WHERE line_crc IS NOT NULL AND {EVENT_IS_KEPT} ORDER BY seq
"""  # noqa: S608  the names are ours


def faults(connection: apsw.Connection) -> Iterator[Finding]:
    """Yield the faults in the database that is attached as ``log``.

    Raises:
        apsw.Error: the table cannot be read.
    """
    if connection.pragma("user_version", schema="log") < _SINCE:
        return
    newest: dict[str, int] = {}
    for seq, session_id, line, checksum, previous, is_tombstone in connection.execute(_DURABLE):
        if not isinstance(line, bytes) or crc32(line) != checksum:
            yield Finding("is not the line that was written", f"evt-{seq}")
        # The events before a tombstone were deleted with their session.
        if previous is not None and previous != newest.get(session_id) and not is_tombstone:
            yield Finding(f"of {session_id} comes behind an event that is missing", f"evt-{seq}")
        newest[session_id] = checksum
