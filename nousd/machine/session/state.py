"""The state of one session as a fold over its events.

``apply`` is the only way to change a session's state. The daemon folds an event when it decides it, so
that the next decision sees it, and shows the result to clients once the event is committed; both are the
same value, because the state is immutable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from nousd.machine.session import queue
from nousd.machine.session.settings import CHANGED_BY, SessionSettings, extract_changed_settings
from nousd.machine.session.usage import with_call
from nousd.wire import events
from nousd.wire.objects.entries import UsageTotals
from nousd.wire.objects.inputs import PendingCounts, QueuedInput
from nousd.wire.objects.run_options import NOTHING_ASKED, RunOptions, RunRequest
from nousd.wire.objects.workers import TaskOrigin


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The run that holds the session's run lock.

    ``in_v1_scope``: whether commands without a session reach it, and their clients receive its events.
    ``task``: the ``task`` call that it works for, if any.
    """

    run_id: str
    phase: Literal["running", "aborting"]
    started_at: str
    request: RunRequest = NOTHING_ASKED
    in_v1_scope: bool = False
    task: TaskOrigin | None = None


class SessionState(SessionSettings, frozen=True, kw_only=True):
    """The state that decisions on a session depend on: settings, queue, run, leaf.

    ``leaf_id`` None means an empty tree. ``queued_chars`` is the size of ``queue`` for its bound,
    ``pending_counts`` counts the inputs that clients see (``queue_fields``). ``queue_revision`` counts
    the queue changes that clients see, since the version that logs it. ``delivering`` are the ids of
    pending inputs that the turn has taken and not delivered yet. ``usage`` None means that no model was
    called.
    """

    session_id: str
    created_at: str = ""
    parent_id: str | None = None
    leaf_id: str | None = None
    queue_revision: int = 0
    queue: tuple[QueuedInput, ...] = ()
    queued_chars: int = 0
    pending_counts: PendingCounts = PendingCounts(steer=0, follow_up=0)
    delivering: tuple[str, ...] = ()
    usage: UsageTotals | None = None
    run: RunInfo | None = None
    deleted: bool = False


def apply(state: SessionState, event: events.Event, ts: str) -> SessionState:
    """Return the state after ``event``, which is logged at ``ts``."""
    change = _CHANGES.get(type(event))
    changed = None if change is None else change(state, event, ts)
    return msgspec.structs.replace(state, **changed) if changed else state


def is_taken(state: SessionState, queued: QueuedInput) -> bool:
    """Return whether the run has taken an input that is still pending: the prompt with which it is about
    to begin, or an input that is being delivered.
    """
    run_id = None if state.run is None else state.run.run_id
    return queue.is_own_prompt(queued, run_id) or queued.input_id in state.delivering


def queue_fields(inputs: queue.Inputs) -> dict[str, Any]:
    """Return the fields of a state that depend on its queue."""
    return {
        "queue": inputs,
        "queued_chars": sum(map(queue.chars_of, inputs)),
        "pending_counts": queue.pending_counts(inputs),
    }


def _apply_session_created(
    _: SessionState, event: events.SessionCreated, ts: str
) -> dict[str, Any]:
    parent = None if event.parent_id is UNSET else event.parent_id
    created = {"created_at": event.created_at, "parent_id": parent}
    return extract_changed_settings(event, ts) | created | _extract_leaf(event)


def _apply_session_updated(
    state: SessionState, event: events.SessionUpdated, ts: str
) -> dict[str, Any]:
    if event.session_id != state.session_id:
        return {}  # a change of the daemon's settings, decided together with one of the session
    return extract_changed_settings(event, ts) | _extract_leaf(event)


def _extract_leaf(event: events.SessionCreated | events.SessionUpdated) -> dict[str, Any]:
    return {} if event.leaf_id is UNSET else {"leaf_id": event.leaf_id}


def _apply_settings(_: SessionState, event: events.Event, ts: str) -> dict[str, Any]:
    return extract_changed_settings(event, ts)


def _apply_session_deleted(_: SessionState, __: events.SessionDeleted, ___: str) -> dict[str, Any]:
    return {"deleted": True, "leaf_id": None, **queue_fields(())}


def _apply_entry_appended(_: SessionState, event: events.EntryAppended, __: str) -> dict[str, Any]:
    return {"leaf_id": event.entry.id}


def _apply_queue_update(state: SessionState, event: events.QueueUpdate, _: str) -> dict[str, Any]:
    # Earlier versions logged no revision.
    revision = state.queue_revision if event.queue_revision is UNSET else event.queue_revision
    if event.change == "accepted":
        # The only change that comes thousands of times per second, so its cost must not depend on the
        # queue.
        return {
            "queue": state.queue + event.inputs,
            "queued_chars": state.queued_chars + sum(map(queue.chars_of, event.inputs)),
            "pending_counts": event.pending_counts,
            "queue_revision": revision,
        }
    if event.change == "delivering":
        ids = [queued.input_id for queued in event.inputs]
        return {"delivering": (*state.delivering, *ids)}
    return {**queue_fields(_change_queue(state.queue, event)), "queue_revision": revision}


def _change_queue(before: queue.Inputs, event: events.QueueUpdate) -> queue.Inputs:
    match event.change:
        case "edited":
            return queue.with_edited(before, event.inputs)
        case "moved" if event.before_input_id is not UNSET:
            return queue.with_moved(before, event.inputs, event.before_input_id)
        case "promoted" | "moved":
            return queue.with_each(before, event.inputs)
        case _:
            return queue.without(before, event.inputs)


def _apply_agent_start(_: SessionState, event: events.AgentStart, ts: str) -> dict[str, Any]:
    run = RunInfo(
        run_id=event.run_id,
        phase="running",
        started_at=ts,
        request=request_of(event),
        in_v1_scope=event.v1_scope is True,
        task=None if event.task is UNSET else event.task,
    )
    return {"run": run}


def _apply_turn_end(state: SessionState, _: events.TurnEnd, __: str) -> dict[str, Any]:
    return {"delivering": ()} if state.delivering else {}


def options_of(state: SessionState) -> RunOptions:
    """Return the options of the active run; the defaults if there is none."""
    options = UNSET if state.run is None else state.run.request.options
    return _NO_OPTIONS if options is UNSET else options


_NO_OPTIONS: Final = RunOptions()


def request_of(start: events.AgentStart) -> RunRequest:
    """Return the request of a run, from its start."""
    return RunRequest(
        client_id=start.client_id,
        agent_id=start.agent_id,
        agent_profile=start.agent_profile,
        correlation_id=start.correlation_id,
        options=start.options,
    )


def _apply_run_aborting(state: SessionState, event: events.RunAborting, _: str) -> dict[str, Any]:
    assert state.run is not None
    assert state.run.run_id == event.run_id
    return {"run": msgspec.structs.replace(state.run, phase="aborting")}


def _apply_v1_scope_entered(
    state: SessionState, event: events.V1ScopeEntered, _: str
) -> dict[str, Any]:
    assert state.run is not None
    assert state.run.run_id == event.run_id
    return {"run": msgspec.structs.replace(state.run, in_v1_scope=True)}


def _apply_usage_reported(
    state: SessionState, event: events.UsageReported, _: str
) -> dict[str, Any]:
    return {"usage": with_call(state.usage, event)}


def _apply_agent_end(_: SessionState, __: events.AgentEnd, ___: str) -> dict[str, Any]:
    return {"run": None}


_CHANGES: Final[dict[type[events.Event], Callable[[SessionState, Any, str], dict[str, Any]]]] = {
    **dict.fromkeys(CHANGED_BY, _apply_settings),
    events.SessionCreated: _apply_session_created,
    events.SessionUpdated: _apply_session_updated,
    events.SessionDeleted: _apply_session_deleted,
    events.EntryAppended: _apply_entry_appended,
    events.QueueUpdate: _apply_queue_update,
    events.AgentStart: _apply_agent_start,
    events.TurnEnd: _apply_turn_end,
    events.RunAborting: _apply_run_aborting,
    events.V1ScopeEntered: _apply_v1_scope_entered,
    events.AgentEnd: _apply_agent_end,
    events.UsageReported: _apply_usage_reported,
}
"""event -> the fields it changes; other events change none."""
