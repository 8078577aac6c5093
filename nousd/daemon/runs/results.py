"""The ``result`` of a waited-for run, put together from its events.

After the run's deltas were pruned, the result has the same texts with fewer event ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.daemon.eventlog.log_walk import for_each_event
from nousd.store.interface import Store
from nousd.store.records import EventFilter, StoredEvent
from nousd.wire import events
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import decode_event, encode_json
from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.events import DELTA_EVENTS, FROZEN_EVENTS
from nousd.wire.limits import RESULT_EVENTS_BYTES_MAX, RESULT_EVENTS_MAX
from nousd.wire.responses import Accepted, Result
from nousd.wire.responses.runs import FlatEvent

_FLAT_FIELDS: Final = frozenset(FlatEvent.__struct_fields__) - {"type", "id", "ts", "turn"}


ReadEvents = Callable[[EventFilter, Callable[[StoredEvent], object]], Awaitable[None]]
"""Calls its second argument with every event that the first one selects, in order."""


async def read_run_result(read_events: ReadEvents, accepted: Accepted) -> Result:
    """Return the result of a run, or of its work so far while it is active.

    Args:
        read_events: reads at least the events of the run.

    Raises:
        StoreError: the log could not be read.
    """
    assert isinstance(accepted.run_id, str)
    assert isinstance(accepted.session_id, str)
    run_id, prompt_id = accepted.run_id, accepted.input_id
    while (summary := await _summarise_run(read_events, run_id, prompt_id)) is None:
        pass  # no run is pruned more often than it has deltas
    return Result(
        output=summary.output,
        events=tuple(summary.events),
        session_id=accepted.session_id,
        run_id=accepted.run_id,
        status=summary.status,
        leaf_id=accepted.leaf_id,
        events_truncated=summary.truncated or UNSET,
    )


async def error_of(store: Store, run_id: str) -> events.Error | None:
    """Return the last ``error`` event of a run; None if it has none."""
    found: list[StoredEvent] = []
    event_filter = EventFilter(run_id=run_id, types=frozenset({"error"}))
    await for_each_event(store, event_filter, found.append)
    if not found:
        return None
    return decode_json(decode_event(found[-1].line).payload, type=events.Error)


async def _summarise_run(
    read_events: ReadEvents, run_id: str, prompt_id: str | UnsetType
) -> _Summary | None:
    """Read a run. Return None if a text came twice because the run was pruned meanwhile."""
    summary = _Summary(run_id, prompt_id)
    event_filter = EventFilter(run_id=run_id, types=frozenset(FROZEN_EVENTS) | {"queue_update"})
    await read_events(event_filter, summary.add)
    summary.join_deltas()
    return None if summary.repeats else summary


class _Summary:
    """Collects a run's events, with neighbouring deltas joined, up to the bound.

    ``output`` is the last answer to the prompt, or to the last steer that this run accepted. Answers to
    follow-ups, and to inputs that were pending before the run, do not count.

    Args:
        prompt_id: the id of the prompt's input.
    """

    def __init__(self, run_id: str, prompt_id: str | UnsetType) -> None:
        self._run_id = run_id
        self._prompt_id = prompt_id
        self._is_answering = False
        self.events: list[FlatEvent] = []
        self.output = ""
        self.status: Any = "running"
        self.truncated = False
        self._room = RESULT_EVENTS_BYTES_MAX
        self.repeats = False
        self._last_deltas: dict[tuple[str, Any], int] = {}
        self._assistants: set[str] = set()
        self._deltas: list[str] = []

    def add(self, stored: StoredEvent) -> None:
        event = decode_event(stored.line)
        payload = decode_json(event.payload)
        self._look_for_outcome(event.type, payload)
        if event.type not in FROZEN_EVENTS:
            return
        self._look_for_repetition(stored, payload)
        if self.truncated:
            return
        flat = _flatten_event(event.type, event.id, event.ts, payload)
        is_continuation = bool(self.events) and _continues(self.events[-1], flat)
        self._room -= (
            len(encode_json(flat.delta)) - len('""') if is_continuation else len(encode_json(flat))
        )
        if self._room < 0 or (len(self.events) == RESULT_EVENTS_MAX and not is_continuation):
            self.truncated = True
        elif is_continuation:
            self._deltas.append(str(flat.delta))
        else:
            self.join_deltas()
            self.events.append(flat)

    def join_deltas(self) -> None:
        """Append the collected deltas to their event, all in one step."""
        if self._deltas:
            last = self.events[-1]
            delta = "".join([str(last.delta), *self._deltas])
            self.events[-1] = msgspec.structs.replace(last, delta=delta)
            self._deltas.clear()

    def _look_for_repetition(self, stored: StoredEvent, payload: dict[str, Any]) -> None:
        if stored.type not in DELTA_EVENTS:
            return
        key = (stored.type, payload.get("message_id", payload.get("tool_call_id")))
        if "joined_from" in payload:
            first = cursor_seq(payload["joined_from"])
            self.repeats |= first <= self._last_deltas.get(key, -1)
        self._last_deltas[key] = stored.seq

    def _look_for_outcome(self, type_: str, payload: dict[str, Any]) -> None:
        if type_ == "message_start" and payload["role"] == "assistant":
            self._assistants.add(payload["message_id"])
        elif type_ == "message_end" and payload["message_id"] in self._assistants:
            if self._is_answering:
                self.output = payload["text"]
        elif type_ == "turn_start":
            self._is_answering = False
        elif type_ == "queue_update" and payload["change"] == "consumed":
            self._is_answering = any(map(self._counts, payload["inputs"]))
            if self._is_answering:
                self.output = ""
        elif type_ == "agent_end":
            self.status = payload["status"]

    def _counts(self, queued: dict[str, Any]) -> bool:
        is_own_steer = queued["kind"] == "steer" and self._run_id in (
            queued.get("run_id"),
            queued.get("promoted_run_id"),
        )
        return is_own_steer or queued["input_id"] == self._prompt_id


def _flatten_event(type_: str, event_id: str, ts: str, payload: dict[str, Any]) -> FlatEvent:
    fields = {key: value for key, value in payload.items() if key in _FLAT_FIELDS}
    turn = int(payload["turn_id"]) if "turn_id" in payload else UNSET
    return FlatEvent(type=type_, id=event_id, ts=ts, turn=turn, **fields)


def _continues(first: FlatEvent, second: FlatEvent) -> bool:
    return (
        first.type == second.type
        and first.delta is not UNSET
        and first.message_id == second.message_id
        and first.tool_call_id == second.tool_call_id
        and first.stream == second.stream
    )
