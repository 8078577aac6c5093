"""What a command does to a session: the events it leads to, or the reason it is refused.

Each function looks at a state and returns events; it changes nothing. Ids and times are arguments.
Whether something exists in the store (an entry, another session) is looked up before, by the caller.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from nousd.errors import CommandRejected
from nousd.machine import queue
from nousd.machine.session import RunInfo, SessionState
from nousd.wire import events
from nousd.wire.entries import CompactionEntry, Entry, MessageEntry
from nousd.wire.limits import EVENT_TEXT_BYTES_MAX, QUEUED_CHARS_MAX, QUEUED_INPUTS_MAX
from nousd.wire.optional import or_unset
from nousd.wire.responses import QueuedInput

Events = tuple[events.Event, ...]

_SHOWN_TOGETHER_MAX: Final = 4 * EVENT_TEXT_BYTES_MAX
"""Characters of texts in one ``queue_update`` about inputs that are gone."""


def require_idle(state: SessionState) -> None:
    """Raises CommandRejected ``run_in_progress`` while a run holds the session."""
    if state.run is not None:
        raise CommandRejected("run_in_progress", details={"run_id": state.run.run_id})


def require_running(state: SessionState, expected_run_id: str | None = None) -> RunInfo:
    """Returns the run that takes inputs.

    Raises:
        CommandRejected: ``no_active_run`` (also while it is being aborted), or ``run_mismatch`` if
            it is not the run that the client has in mind.
    """
    if state.run is None or state.run.phase == "aborting":
        raise CommandRejected("no_active_run")
    if expected_run_id is not None and expected_run_id != state.run.run_id:
        raise CommandRejected("run_mismatch", details={"run_id": state.run.run_id})
    return state.run


def start_run(
    state: SessionState, prompt: QueuedInput, *, runtime: str, model: str, leaf_id: str | None
) -> Events:
    """Accepts a prompt and starts its run, in one step so that neither is ever seen alone."""
    require_idle(state)
    assert prompt.run_id is not UNSET
    moved: Events = ()
    if leaf_id is not None and leaf_id != state.leaf_id:
        moved = (events.SessionUpdated(session_id=state.session_id, leaf_id=leaf_id),)
    return (
        *moved,
        _accepted(state, prompt),
        events.AgentStart(
            session_id=state.session_id, run_id=prompt.run_id, runtime=runtime, model=model
        ),
    )


def resume_run(
    state: SessionState, run_id: str, leaf: Entry | None, *, runtime: str, model: str
) -> Events:
    """Starts a run on what is pending, or else on an unanswered leaf.

    Raises:
        CommandRejected: ``nothing_to_resume``.
    """
    require_idle(state)
    if not state.queue and not is_unanswered(leaf):
        raise CommandRejected("nothing_to_resume")
    return (
        events.AgentStart(session_id=state.session_id, run_id=run_id, runtime=runtime, model=model),
    )


def is_unanswered(leaf: Entry | None) -> bool:
    """Whether a model still owes something to a transcript that ends with ``leaf``."""
    if leaf is None or isinstance(leaf, CompactionEntry):
        return False
    if leaf.role != "assistant":
        return True
    return leaf.stop_reason not in ("stop", "length")


def accept_input(
    state: SessionState, queued: QueuedInput, *, expected_run_id: str | None
) -> events.QueueUpdate:
    """Queues a steer or follow-up for the running run."""
    run = require_running(state, expected_run_id)
    return _accepted(state, msgspec.structs.replace(queued, run_id=run.run_id))


def abort_run(state: SessionState, *, expected_run_id: str | None) -> tuple[Events, queue.Inputs]:
    """Stops the run and empties the queues; returns the events and what was taken out."""
    run = require_running(state, expected_run_id)
    aborting = events.RunAborting(session_id=state.session_id, run_id=run.run_id)
    cleared = queue.in_order(state.queue)
    return (aborting, *_gone(state, "cleared", cleared, run.run_id)), cleared


def clear_queue(state: SessionState, kind: str | None) -> tuple[Events, queue.Inputs]:
    """Takes back pending inputs, but not the prompt that a run is just about to begin with."""
    own = None if state.run is None else state.run.run_id
    cleared = tuple(
        queued
        for queued in queue.in_order(state.queue)
        if kind in (None, queued.kind) and not (queued.kind == "prompt" and queued.run_id == own)
    )
    return _gone(state, "cleared", cleared, own), cleared


def promote(state: SessionState, input_id: str) -> Events:
    """Turns a pending follow-up into a steer of the run that is going on, if one is.

    Raises:
        CommandRejected: ``input_not_found``, ``input_not_promotable``.
    """
    for queued in state.queue:
        if queued.input_id == input_id:
            break
    else:
        raise CommandRejected("input_not_found")
    if queued.kind != "follow_up":
        raise CommandRejected("input_not_promotable")
    if state.run is None:
        steer = msgspec.structs.replace(queued, kind="steer")
        return (_update(state, "promoted", (steer,), UNSET),)
    # Which run accepted it stays: whoever sends it again gets its first acknowledgement.
    steer = msgspec.structs.replace(queued, kind="steer", promoted_run_id=state.run.run_id)
    return (_update(state, "promoted", (steer,), state.run.run_id),)


def begin_turn(
    state: SessionState,
    turn: queue.Turn,
    *,
    run_id: str,
    turn_id: str,
    message_id: str,
    created_at: str,
) -> Events:
    """Consumes the turn's inputs, whose texts are whole: turn, user message and entry begin in one step.

    A turn that resumes has no user message.
    """
    common: events.TurnKey = {
        "session_id": state.session_id,
        "run_id": run_id,
        "turn_id": turn_id,
    }
    if not turn.inputs:
        return (events.TurnStart(**common),)
    input_ids = tuple(queued.input_id for queued in turn.inputs)
    only = turn.inputs[0] if len(turn.inputs) == 1 else None
    text: dict[str, Any] = {"text": turn.text}
    if only is not None:
        text |= {"text_ref": only.text_ref, "text_bytes": only.text_bytes}
    message: dict[str, Any] = text | {
        "turn_kind": turn.kind,
        "input_ids": input_ids,
        "client_message_id": UNSET if only is None else only.client_message_id,
        "attachments": turn.attachments or UNSET,
    }
    entry = MessageEntry(
        id=message_id,
        parent_id=or_unset(state.leaf_id),
        role="user",
        run_id=run_id,
        created_at=created_at,
        **message,
    )
    return (
        events.TurnStart(**common),
        events.MessageStart(**common, message_id=message_id, role="user", **message),
        *_gone(state, "consumed", turn.inputs, run_id),
        events.EntryAppended(session_id=state.session_id, run_id=run_id, entry=entry),
        events.MessageEnd(**common, message_id=message_id, **text),
    )


def _accepted(state: SessionState, queued: QueuedInput) -> events.QueueUpdate:
    if len(state.queue) >= QUEUED_INPUTS_MAX:
        raise CommandRejected("queue_full", details={"limit": QUEUED_INPUTS_MAX})
    if state.queued_chars + queue.chars_of((queued,)) > QUEUED_CHARS_MAX:
        raise CommandRejected("queue_full", details={"chars_limit": QUEUED_CHARS_MAX})
    return _update(state, "accepted", (queued,), queued.run_id)


def _gone(
    state: SessionState, change: str, inputs: queue.Inputs, run_id: str | None
) -> tuple[events.QueueUpdate, ...]:
    updates = []
    for some in _told_together(inputs):
        update = _update(state, change, some, or_unset(run_id))
        state = msgspec.structs.replace(state, queue=queue.without(state.queue, some))
        updates.append(update)
    return tuple(updates)


def _told_together(inputs: queue.Inputs) -> list[queue.Inputs]:
    """Divides inputs so that each event about them stays small: what shows of long texts adds up."""
    groups: list[queue.Inputs] = []
    room = 0
    for queued in inputs:
        shown = min(queue.chars_of((queued,)), EVENT_TEXT_BYTES_MAX)
        if not groups or shown > room:
            groups.append(())
            room = _SHOWN_TOGETHER_MAX
        groups[-1] += (queued,)
        room -= shown
    return groups


def _update(
    state: SessionState, change: str, inputs: queue.Inputs, run_id: str | msgspec.UnsetType
) -> events.QueueUpdate:
    left = state.queue if change == "accepted" else queue.without(state.queue, inputs)
    if change in ("accepted", "promoted"):
        left += inputs
    return events.QueueUpdate(
        session_id=state.session_id,
        change=change,  # type: ignore[arg-type]
        inputs=inputs,
        pending_counts=queue.pending_counts(left),
        run_id=run_id,
    )
