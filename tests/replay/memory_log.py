"""Runs of a log in memory, read like those of a file, and replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nousd.replay.play import Tuning
from nousd.replay.recorded import Span, read_run
from nousd.replay.replay import ReplayReport, replay_run
from nousd.store.artifacts import Artifact
from nousd.store.memory.rows import Rows
from nousd.wire.codec.envelope import decode_event, event_in
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION
from nousd.wire.events import Event
from nousd.wire.objects.entries import Entry


class MemoryLog:
    """See ``nousd.replay.recorded.RunLog``."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def span(self, run_id: str) -> Span | None:
        own = [event for event in self._rows.events if event.run_id == run_id]
        if not own:
            return None
        return Span(own[0].session_id, own[0].seq, own[-1].seq, EVENT_SCHEMA_VERSION)

    def events(
        self, session_id: str, first: int, last: int, types: Iterable[str] | None = None
    ) -> Iterator[Event]:
        for stored in self._rows.events:
            fits = stored.session_id in ("", session_id) and first <= stored.seq <= last
            if fits and (types is None or stored.type in types):
                yield event_in(decode_event(stored.line))

    def entry(self, session_id: str, entry_id: str) -> Entry | None:
        row = self._rows.entries[session_id].get(entry_id)
        return None if row is None else row.entry

    def artifact(self, artifact_id: str) -> Artifact | None:
        stored = self._rows.artifacts.get(artifact_id)
        if stored is None:
            return None
        return Artifact(artifact_id, stored.info.media_type, stored.data)


async def replays(rows: Rows, tuning: Tuning | None = None) -> dict[str, ReplayReport]:
    """Replay every run of a log and return the reports."""
    log = MemoryLog(rows)
    return {
        run_id: await replay_run(read_run(log, run_id), tuning or Tuning()) for run_id in rows.runs
    }
