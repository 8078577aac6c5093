"""Reads tool calls from the log: attempts, results, and the facts that the next attempt needs.

A row has the state of an attempt and the range of its events; all other facts are read from the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET

from nousd.daemon.eventlog.log_walk import event_of, for_each_event
from nousd.daemon.sessions.history import wholes_of
from nousd.errors import CommandRejected
from nousd.machine.session.client_calls import CallLifecycle
from nousd.machine.session.closing_events import attempt_of, message_of
from nousd.runtimes.calls.attempts import EarlierAttempts, StoredResult
from nousd.store.interface import Store
from nousd.store.records import EventFilter, StoredEvent
from nousd.store.rows import ToolCallRow
from nousd.wire import events
from nousd.wire.codec.envelope import EventLine, decode_event, event_in
from nousd.wire.commands.subscribe import cursor
from nousd.wire.events import EVENTS, Event
from nousd.wire.events.tools import ToolCallEvent
from nousd.wire.objects.entries import Entry, MessageEntry, ToolCall
from nousd.wire.responses.tools import CallDecision, ToolCallRecord

_STEPS: Final = frozenset(
    name
    for name, struct in EVENTS.items()
    if issubclass(struct, ToolCallEvent) and name not in events.DELTA_EVENTS
) | {"tool_execution_end"}


_TREE_PAGE: Final = 1000
"""Maximum entries to read at a time."""


class CallRecords:
    """Reads the records of tool calls."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def record(self, tool_call_id: str, attempt: int | None) -> ToolCallRecord:
        """Return the record of an attempt; None means the last one.

        Raises:
            CommandRejected: ``tool_call_not_found``.
        """
        row = await self._store.tool_call(tool_call_id, attempt)
        if row is None:
            raise CommandRejected("tool_call_not_found")
        facts: dict[str, Any] = {}
        for line in await self._steps(row):
            note = _FACTS.get(EVENTS[line.type])
            if note is not None:
                facts |= note(event_in(line), line.ts, facts)
        return ToolCallRecord(
            tool_call_id=row.tool_call_id,
            attempt=row.attempt,
            session_id=row.session_id,
            tool_name=row.tool_name,
            state=row.state,
            executed=row.started,
            event=cursor(row.seq),
            **facts,
        )

    async def earlier(self, session_id: str, call: ToolCall) -> EarlierAttempts:
        """Return the facts about earlier attempts at a model's call."""
        # The last events of a run that was just stopped may still be pending.
        await self._store.flush()
        last = await self._store.tool_call(call.tool_call_id, None)
        if last is None:
            return await self._reconstruct_earlier(session_id, call)
        attempts = [last]
        for attempt in range(last.attempt - 1, 0, -1):
            row = await self._store.tool_call(call.tool_call_id, attempt)
            if row is not None:
                attempts.append(row)
        result = await self._last_result(attempts)
        may_have_run = any(row.started for row in attempts)
        if result is None:
            return EarlierAttempts(last.attempt, may_have_run)
        return EarlierAttempts(last.attempt, may_have_run, *result)

    async def find_earlier_attempt(
        self, context: Sequence[Entry], call: ToolCall, *, runtime: str, run_id: str
    ) -> ToolCall | None:
        """Return the call that this one attempts again; see ``AgentHost.find_earlier_call``.

        Args:
            run_id: the run of the new attempt.
        """
        if not call.runtime_tool_call_id:
            return None
        cut_off = ""
        for entry in reversed(context):
            if not isinstance(entry, MessageEntry) or entry.run_id in (UNSET, run_id):
                continue
            if entry.run_id != cut_off:
                run = await self._store.run(entry.run_id)
                if run is None or run.status == "completed":
                    return None
                if run.runtime != runtime:
                    return None
                cut_off = entry.run_id
            for known in entry.tool_calls or ():
                if (known.runtime_tool_call_id, known.name, known.args) == (
                    call.runtime_tool_call_id,
                    call.name,
                    call.args,
                ):
                    return known
        return None

    async def _reconstruct_earlier(self, session_id: str, call: ToolCall) -> EarlierAttempts:
        """Return the facts about a call that has no row.

        Its run may have been deleted with its session, while a branch still has the call; and the first
        version of the log had no ``tool_call_requested`` events.
        """
        entry = await self._store.entry(session_id, message_of(call.tool_call_id))
        assert isinstance(entry, MessageEntry)
        attempts = await self._find_last_attempt(session_id, call)
        if await self._store.run(entry.run_id) is None:
            return EarlierAttempts(attempts, may_have_run=True)
        event_filter = EventFilter(run_id=entry.run_id, types=frozenset({"tool_call_started"}))
        started: list[Any] = []
        await for_each_event(
            self._store, event_filter, lambda stored: started.append(event_of(stored))
        )
        may_have_run = any(event.tool_call_id == call.tool_call_id for event in started)
        return EarlierAttempts(attempts, may_have_run)

    async def _find_last_attempt(self, session_id: str, call: ToolCall) -> int:
        """Return the last attempt whose result is in the session; 0 for none. The result of the next
        attempt must not have the same entry id.
        """
        last, after = 0, message_of(call.tool_call_id)
        while nodes := await self._store.tree(session_id, after=after, limit=_TREE_PAGE):
            last = max(last, *[attempt_of(node.id, call.tool_call_id) for node in nodes])
            after = nodes[-1].id
        return last

    async def _last_result(
        self, newest_first: list[ToolCallRow]
    ) -> tuple[str | None, StoredResult] | None:
        for row in newest_first:
            if row.started and row.state == "completed":
                steps = [event_in(line) for line in await self._steps(row)]
                end = next((e for e in steps if isinstance(e, events.ToolExecutionEnd)), None)
                if end is not None and not any(_was_cut_off(step) for step in steps):
                    return row.input_hash, await self._whole(end)
        return None

    async def _whole(self, end: events.ToolExecutionEnd) -> StoredResult:
        text = end.result
        if end.text_ref is not UNSET:
            data = (await wholes_of(self._store, {end.text_ref: end.text_bytes or 0}))[end.text_ref]
            text = text if data is None else data.decode()
        return StoredResult(text, end.is_error, end.artifact_id)

    async def _steps(self, row: ToolCallRow) -> list[EventLine]:
        """Return the events of an attempt, in order."""
        event_filter = EventFilter(run_id=row.run_id or row.tool_call_id, types=_STEPS)
        lines: list[EventLine] = []

        def take(stored: StoredEvent) -> None:
            line = decode_event(stored.line)
            # Calls of a run may overlap.
            if getattr(event_in(line), "tool_call_id", None) == row.tool_call_id:
                lines.append(line)

        await for_each_event(self._store, event_filter, take, after=row.seq - 1, until=row.last_seq)
        return lines


async def tracker_of(store: Store, tool_call_id: str) -> CallLifecycle:
    """Return the lifecycle of a client's own call, from its events."""
    tracker = CallLifecycle()
    events = EventFilter(run_id=tool_call_id)
    await for_each_event(store, events, lambda stored: tracker.note(event_of(stored)))
    return tracker


def _was_cut_off(step: Event) -> bool:
    return isinstance(step, events.ToolCallCompleted) and step.stop_reason is not UNSET


Facts = dict[str, Any]


def _on_requested(event: events.ToolCallRequested, ts: str, _: Facts) -> Facts:
    names = (
        *("run_id", "turn_id", "input_hash", "runtime_tool_call_id", "client_call_id"),
        *("client_id", "args", "args_ref", "args_bytes"),
    )
    return {"requested_at": ts, **{name: getattr(event, name) for name in names}}


def _on_evaluated(event: events.ToolCallPolicyEvaluated, _: str, facts: Facts) -> Facts:
    return {"sources": (*facts.get("sources", ()), event.said), "input_hash": event.input_hash}


def _on_approved(event: events.ToolCallApproved, ts: str, _: Facts) -> Facts:
    return {} if event.origin else {"decision": _decision(event, ts)}


def _on_denied(event: events.ToolCallDenied, ts: str, _: Facts) -> Facts:
    if event.origin:
        return {}
    ended = {} if event.run_id else {"ended_at": ts, "is_error": True}
    return {"decision": _decision(event, ts), **ended}


def _decision(event: events.ToolCallApproved | events.ToolCallDenied, ts: str) -> CallDecision:
    return CallDecision(
        approved=isinstance(event, events.ToolCallApproved),
        by=event.by,
        reason=event.reason,
        decided_at=ts,
        client_id=event.client_id,
    )


def _on_started(event: events.ToolCallStarted, ts: str, _: Facts) -> Facts:
    names = ("executed_by", "permission_mode")
    return {"started_at": ts, **{name: getattr(event, name) for name in names}}


def _on_completed(event: events.ToolCallCompleted, ts: str, _: Facts) -> Facts:
    names = (
        *("is_error", "duration_ms", "stop_reason", "artifact_id", "executed_by", "execution_env"),
        *("sandbox", "changed_by", "result", "text_ref", "text_bytes"),
    )
    snapshot = event.policy_snapshot
    mode = UNSET if snapshot is UNSET else snapshot.permission_mode
    facts = {name: getattr(event, name) for name in names}
    return {"ended_at": ts, "permission_mode": mode, **facts}


def _on_execution_ended(event: events.ToolExecutionEnd, ts: str, facts: Facts) -> Facts:
    names = ("is_error", "artifact_id", "changed_by", "result", "text_ref", "text_bytes")
    # The bracket may have ended later than the call.
    return {"ended_at": facts.get("ended_at", ts), **{name: getattr(event, name) for name in names}}


_FACTS: Final[dict[type[Event], Any]] = {
    events.ToolCallRequested: _on_requested,
    events.ToolCallPolicyEvaluated: _on_evaluated,
    events.ToolCallApproved: _on_approved,
    events.ToolCallDenied: _on_denied,
    events.ToolCallStarted: _on_started,
    events.ToolCallCompleted: _on_completed,
    events.ToolExecutionEnd: _on_execution_ended,
}
"""event -> the facts that it adds to the record of its call."""
