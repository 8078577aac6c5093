"""A run as its log holds it, and the session as it was before: everything that playing it takes.

Read from a connection that can only read, in one transaction, also from a log that an earlier version
wrote: lines are lifted, and only those columns are asked for that every schema has. What the log does
not hold any more is said here, so that nobody plays a run that cannot come out the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import apsw
import msgspec
from msgspec import UNSET

from nousd.errors import NotReplayable, StoreError
from nousd.machine import long_texts
from nousd.machine import session as machine
from nousd.machine.session import SessionState
from nousd.store.interface import Artifact
from nousd.wire import events
from nousd.wire.codec import decode_event
from nousd.wire.entries import Entry, MessageEntry, parent_of
from nousd.wire.events import EVENTS, Event
from nousd.wire.lifting import lift
from nousd.wire.responses import QueuedInput

_STATE_TYPES: Final = (
    "session_created",
    "session_updated",
    "entry_appended",
    "queue_update",
    "agent_start",
    "run_aborting",
    "agent_end",
)
"""The events that a session's state is made of, as far as a run depends on it."""

_PLAYED_RUNTIME: Final = "native"


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Args:
        version: the oldest version that wrote any of its lines.
        before: the session right before the run's first event.
        path: root -> leaf, as the log has it.
        events: of the session, from the run's first to its end; the run's own and what came from
            outside meanwhile.
        artifacts: by id, those that the events and the path refer to.
    """

    run_id: str
    version: int
    before: SessionState
    path: tuple[Entry, ...]
    events: tuple[Event, ...]
    artifacts: dict[str, Artifact]

    @property
    def session_id(self) -> str:
        return self.before.session_id

    @property
    def wholes(self) -> dict[str, bytes]:
        """Artifact id -> its bytes."""
        return {artifact.id: artifact.data for artifact in self.artifacts.values()}


def read_run(connection: apsw.Connection, run_id: str) -> RecordedRun:
    """Reads a run.

    Raises:
        NotReplayable: there is no such run, it has no end, or something that it takes is gone.
        StoreError: the log cannot be read.
    """
    try:
        connection.execute("BEGIN")
        return _read_run(connection, run_id)
    except (apsw.Error, msgspec.MsgspecError, KeyError) as error:
        raise StoreError(f"the log cannot be read: {error}") from error
    finally:
        connection.execute("ROLLBACK")


def _read_run(connection: apsw.Connection, run_id: str) -> RecordedRun:
    span = connection.execute(_SPAN, (run_id,)).get
    if span is None:
        raise NotReplayable(f"the log has no run {run_id}")
    session_id, first, last, version = span
    own = tuple(_events(connection, _OF_SESSION, (session_id, first, last)))
    _require_whole(run_id, own)
    before = SessionState(session_id=session_id)
    earlier = (session_id, first, msgspec.json.encode(_STATE_TYPES).decode())
    for event in _events(connection, _OF_STATE, earlier):
        before = machine.apply(before, event, "")
    path = tuple(_path(connection, session_id, before.leaf_id))
    return RecordedRun(
        run_id=run_id,
        version=version,
        before=before,
        path=path,
        events=own,
        artifacts=_artifacts(connection, frozenset(_needed(path, before.queue, own)), _rests(own)),
    )


_SPAN: Final = """
    SELECT session_id, min(seq), max(seq), min(schema_version) FROM events
    WHERE run_id = ? GROUP BY session_id
"""
_OF_SESSION: Final = """
    SELECT line, schema_version FROM events
    WHERE session_id = ? AND seq BETWEEN ? AND ? ORDER BY seq
"""
_OF_STATE: Final = """
    SELECT line, schema_version FROM events
    WHERE session_id = ? AND seq < ? AND type IN (SELECT value FROM json_each(?)) ORDER BY seq
"""


def _events(
    connection: apsw.Connection, query: str, values: Sequence[str | int]
) -> Iterator[Event]:
    for line, version in connection.execute(query, values):
        envelope = decode_event(lift(line, version))
        event: Event = msgspec.json.decode(envelope.payload, type=EVENTS[envelope.type])
        yield event


def _require_whole(run_id: str, own: Sequence[Event]) -> None:
    start = next((event for event in own if isinstance(event, events.AgentStart)), None)
    if start is None:
        raise NotReplayable(f"the beginning of run {run_id} is not in the log")
    if start.runtime != _PLAYED_RUNTIME:
        raise NotReplayable(f"run {run_id} was carried out by the runtime {start.runtime}")
    if not any(isinstance(event, events.AgentEnd) for event in own):
        raise NotReplayable(
            f"run {run_id} has no end: it is going on, or the next start of the daemon closes it"
        )


_ENTRY: Final = """
    SELECT entry_bodies.body FROM entries
    JOIN entry_bodies ON entry_bodies.seq = entries.seq
    WHERE entries.session_id = ? AND entries.entry_id = ?
"""


def _path(connection: apsw.Connection, session_id: str, leaf_id: str | None) -> list[Entry]:
    newest_first: list[Entry] = []
    while leaf_id is not None:
        body = connection.execute(_ENTRY, (session_id, leaf_id)).get
        if body is None:
            raise NotReplayable(f"the entry {leaf_id}, which the run goes on from, is gone")
        entry = _entry_decoder.decode(body)
        newest_first.append(entry)
        leaf_id = parent_of(entry)
    return newest_first[::-1]


_entry_decoder: Final[msgspec.json.Decoder[Entry]] = msgspec.json.Decoder(Entry)


# --- artifacts -------------------------------------------------------------------------------


def _needed(
    path: Iterable[Entry], pending: Iterable[QueuedInput], own: Iterable[Event]
) -> Iterator[str]:
    """Yields the ids of the artifacts that a model would be given, or that a tool gave."""
    holders: list[Entry | QueuedInput] = [*path, *pending]
    for event in own:
        if isinstance(event, events.EntryAppended):
            holders.append(event.entry)
            if isinstance(event.entry, MessageEntry) and event.entry.artifact_id is not UNSET:
                yield event.entry.artifact_id
        elif isinstance(event, events.QueueUpdate):
            holders.extend(event.inputs)
        elif isinstance(event, events.Error) and event.raw_ref is not UNSET:
            yield event.raw_ref
    yield from long_texts.refs_in(holders)
    for holder in holders:
        if isinstance(holder, MessageEntry | QueuedInput) and holder.attachments is not UNSET:
            yield from (attachment.artifact_id for attachment in holder.attachments)


def _rests(own: Iterable[Event]) -> Iterator[str]:
    """Yields the ids of what models were given beside the messages."""
    for event in own:
        if isinstance(event, events.ModelInput) and event.rest_ref is not UNSET:
            yield event.rest_ref


def _artifacts(
    connection: apsw.Connection, needed: frozenset[str], wished_for: Iterable[str]
) -> dict[str, Artifact]:
    found = {id: _artifact(connection, id) for id in {*needed, *wished_for}}
    for artifact_id in needed:
        if found[artifact_id] is None:
            raise NotReplayable(f"the artifact {artifact_id}, which the run refers to, is gone")
    return {id: artifact for id, artifact in found.items() if artifact is not None}


def _artifact(connection: apsw.Connection, artifact_id: str) -> Artifact | None:
    media_type = connection.execute(_MEDIA_TYPE, (artifact_id,)).get
    if media_type is None:
        return None
    # Before version 3 of the schema an artifact was one row.
    in_chunks = connection.execute(_HAS_CHUNKS).get
    query = _CHUNKS if in_chunks else "SELECT data FROM artifacts WHERE artifact_id = ?"
    data = b"".join(chunk for (chunk,) in connection.execute(query, (artifact_id,)))
    return Artifact(artifact_id, media_type, data)


_MEDIA_TYPE: Final = "SELECT media_type FROM artifacts WHERE artifact_id = ?"
_HAS_CHUNKS: Final = "SELECT count(*) FROM sqlite_schema WHERE name = 'artifact_chunks'"
_CHUNKS: Final = "SELECT data FROM artifact_chunks WHERE artifact_id = ? ORDER BY idx"
