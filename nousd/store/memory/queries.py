"""Queries of the store in memory, as plain functions of its rows; twins of those of ``sqlite``."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from nousd.store.memory.rows import EntryRow, Rows
from nousd.store.records import EventFilter, StoredEvent
from nousd.store.rows import Defaults, InputRow, Path, SessionRow, ToolCallRow
from nousd.store.session_list import EVERY_SESSION, SessionFilter, SessionPage, is_wanted
from nousd.store.session_search import SEARCHED_ROLES, SearchedMessage, SearchPage, SearchPlace
from nousd.store.session_search import search as _search
from nousd.wire.limits import PENDING_COUNTED_MAX
from nousd.wire.objects.entries import Entry, MessageEntry
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.metrics import PendingInputs
from nousd.wire.responses.runs import RunRecord
from nousd.wire.responses.transcripts import TreeNode


def events_after(
    rows: Rows, after: int, event_filter: EventFilter, *, head: int, limit: int, bytes_max: int
) -> tuple[StoredEvent, ...]:
    page: list[StoredEvent] = []
    size = 0
    for event in islice(rows.events, bisect_right(rows.events, after, key=_seq), None):
        if event.seq > head:
            break
        if not _matches(event, event_filter):
            continue
        size += len(event.line)
        if len(page) == limit or (page and size > bytes_max):
            break
        page.append(event)
    return tuple(page)


def is_pruned(rows: Rows, cursor: int, event_filter: EventFilter) -> bool:
    later_events = islice(rows.events, bisect_right(rows.events, cursor, key=_seq), None)
    return any(
        rows.joined_from.get(event.seq, event.seq) <= cursor and _matches(event, event_filter)
        for event in later_events
    )


def defaults(rows: Rows) -> Defaults:
    return rows.defaults


def session(rows: Rows, session_id: str) -> SessionRow | None:
    return rows.sessions.get(session_id)


def entry(rows: Rows, session_id: str, entry_id: str) -> Entry | None:
    row = rows.entries[session_id].get(entry_id)
    return None if row is None else row.entry


def path(rows: Rows, session_id: str, leaf_id: str, *, limit: int, bytes_max: int) -> Path:
    entries = rows.entries[session_id]
    newest_first: list[Entry] = []
    size = 0
    row = entries.get(leaf_id)
    while row is not None:
        size += row.size
        if len(newest_first) == limit or (newest_first and size > bytes_max):
            break
        newest_first.append(row.entry)
        row = None if row.parent_id is None else entries.get(row.parent_id)
    return Path(tuple(reversed(newest_first)), row is not None)


def tree(rows: Rows, session_id: str, *, after: str | None, limit: int) -> tuple[TreeNode, ...]:
    entries = sorted(rows.entries[session_id].values(), key=lambda row: row.seq)
    start = _place_behind(after, [row.entry.id for row in entries])
    return tuple(row.node for row in entries[start : start + limit])


def pending_inputs(rows: Rows, session_id: str) -> tuple[QueuedInput, ...]:
    inputs = rows.inputs[session_id].values()
    return tuple(row.input for row in inputs if row.state == "pending")


def pending_counts(rows: Rows) -> PendingInputs:
    pending = (
        row.input.kind
        for inputs in rows.inputs.values()
        for row in inputs.values()
        if row.state == "pending"
    )
    counts: Counter[str] = Counter(islice(pending, PENDING_COUNTED_MAX + 1))
    return PendingInputs.of(counts, truncated=counts.total() > PENDING_COUNTED_MAX)


def input(rows: Rows, session_id: str, input_id: str) -> InputRow | None:
    return rows.inputs[session_id].get(input_id)


def input_by_client_id(rows: Rows, session_id: str, client_message_id: str) -> InputRow | None:
    inputs = rows.inputs[session_id].values()
    return next((row for row in inputs if row.input.client_message_id == client_message_id), None)


def run(rows: Rows, run_id: str) -> RunRecord | None:
    return rows.runs.get(run_id)


def runs(
    rows: Rows, session_id: str | None, *, limit: int, before: str | None
) -> tuple[RunRecord, ...]:
    newest_first = list(reversed(rows.runs.values()))
    start = _place_behind(before, [run.run_id for run in newest_first])
    matching = (run for run in newest_first[start:] if session_id in (None, run.session_id))
    return tuple(islice(matching, limit))


def open_runs(rows: Rows) -> tuple[RunRecord, ...]:
    return tuple(run for run in rows.runs.values() if run.status == "running")


def tool_call(rows: Rows, tool_call_id: str, attempt: int | None) -> ToolCallRow | None:
    found = [
        call
        for (id, number), call in rows.tool_calls.items()
        if id == tool_call_id and attempt in (None, number)
    ]
    return max(found, key=lambda call: call.attempt, default=None)


def tool_call_by_client_id(rows: Rows, session_id: str, client_call_id: str) -> ToolCallRow | None:
    key = (session_id, client_call_id)
    calls = rows.tool_calls.values()
    return next((c for c in calls if (c.session_id, c.client_call_id) == key), None)


def tool_calls(
    rows: Rows, session_id: str | None, run_id: str | None, *, limit: int, before: int
) -> tuple[ToolCallRow, ...]:
    matching = (
        call
        for call in reversed(rows.tool_calls.values())
        if call.seq < before
        and session_id in (None, call.session_id)
        and run_id in (None, call.run_id)
    )
    return tuple(islice(matching, limit))


def list_unanswered_calls(
    rows: Rows, session_id: str | None, *, limit: int
) -> tuple[ToolCallRow, ...]:
    unanswered = [
        (call.asked_seq, call)
        for call in rows.tool_calls.values()
        if call.asked_seq is not None
        and call.state == "denied"
        and call.by != "user"
        and session_id in (None, call.session_id)
    ]
    unanswered.sort(key=lambda each: each[0], reverse=True)
    return tuple(call for _, call in unanswered[:limit])


def open_client_calls(rows: Rows) -> tuple[ToolCallRow, ...]:
    calls = rows.tool_calls.values()
    return tuple(call for call in calls if call.run_id is None and call.ended_at is None)


def sessions(
    rows: Rows,
    session_filter: SessionFilter = EVERY_SESSION,
    *,
    limit: int,
    before: str | None,
    offset: int = 0,
) -> SessionPage:
    touched = rows.touched
    bound = None if before is None else touched.get(before, 0)
    newest_first = sorted(
        (row for row in rows.sessions.values() if is_wanted(row, session_filter)),
        key=lambda row: touched[row.session_id],
        reverse=True,
    )
    older = (row for row in newest_first if bound is None or touched[row.session_id] < bound)
    return SessionPage(tuple(islice(older, offset, offset + limit)), len(newest_first))


def search(
    rows: Rows, session_filter: SessionFilter, text: str, *, limit: int, after: SearchPlace | None
) -> SearchPage:
    touched = rows.touched
    newest_first = sorted(
        (row for row in rows.sessions.values() if is_wanted(row, session_filter)),
        key=lambda row: touched[row.session_id],
        reverse=True,
    )
    if after is not None:
        bound = touched.get(after.session_id, 0) + (after.seq is not None)
        newest_first = [row for row in newest_first if touched[row.session_id] < bound]

    def messages(session_id: str, below: int | None) -> Iterator[SearchedMessage]:
        for entry in sorted(rows.entries[session_id].values(), key=_seq_of_entry, reverse=True):
            role = entry.node.role
            if role in SEARCHED_ROLES and (below is None or entry.seq < below):
                assert isinstance(entry.entry, MessageEntry)
                yield SearchedMessage(entry.seq, entry.entry.id, role, entry.entry.text)

    return _search(newest_first, messages, text, limit=limit, after=after)


def children(rows: Rows, session_id: str) -> tuple[str, ...]:
    return tuple(
        row.session_id
        for row in rows.sessions.values()
        if row.origin is not None and row.origin.session_id == session_id
    )


def list_overridden_sessions(rows: Rows) -> tuple[str, ...]:
    overridden = (row for row in rows.sessions.values() if row.override_expires_at is not None)
    return tuple(sorted(row.session_id for row in overridden))


def next_deletion(rows: Rows) -> tuple[str, str] | None:
    scheduled = (
        (row.delete_at, row.session_id)
        for row in rows.sessions.values()
        if row.delete_at is not None
    )
    first = min(scheduled, default=None)
    return None if first is None else (first[1], first[0])


def _place_behind(last: str | None, ids: list[str]) -> int:
    """Return the index of the page after ``last``: the end, if that is not in the list."""
    if last is None:
        return 0
    return ids.index(last) + 1 if last in ids else len(ids)


def _seq_of_entry(row: EntryRow) -> int:
    return row.seq


def _seq(event: StoredEvent) -> int:
    return event.seq


def _matches(event: StoredEvent, event_filter: EventFilter) -> bool:
    return (
        (event_filter.types is None or event.type in event_filter.types)
        and (event_filter.session_id is None or event.session_id == event_filter.session_id)
        and (event_filter.run_id is None or event.run_id == event_filter.run_id)
    )
