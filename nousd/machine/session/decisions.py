"""Decisions on commands: the events that follow, or the reason for a refusal.

Each function reads a state and returns events; it changes nothing. Ids and times are arguments. The
caller checks beforehand whether an object (an entry, another session) exists in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.errors import CommandRejected
from nousd.machine.session import queue
from nousd.machine.session.appending import append_waiting, leaf_after
from nousd.machine.session.queue_updates import (
    build_accepted_update,
    build_delivering_updates,
    build_promoted_update,
    build_removal_updates,
)
from nousd.machine.session.state import RunInfo, SessionState, is_taken, queue_fields
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.events.base import TurnKey
from nousd.wire.objects.entries import CompactionEntry, Entry, MessageEntry
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.run_options import NOTHING_ASKED, RunRequest
from nousd.wire.objects.workers import TaskOrigin

Events = tuple[events.Event, ...]


def require_idle(state: SessionState) -> None:
    """Raise CommandRejected ``run_in_progress`` while a run holds the session."""
    if state.run is not None:
        raise CommandRejected("run_in_progress", details={"run_id": state.run.run_id})


def require_running(state: SessionState, expected_run_id: str | None = None) -> RunInfo:
    """Return the active run, if it accepts inputs.

    Raises:
        CommandRejected: ``no_active_run`` (also while it is being aborted), or ``run_mismatch`` if it
            is not the run that the client expects.
    """
    if state.run is None or state.run.phase == "aborting":
        raise CommandRejected("no_active_run")
    if expected_run_id is not None and expected_run_id != state.run.run_id:
        raise CommandRejected("run_mismatch", details={"run_id": state.run.run_id})
    return state.run


def start_run(
    state: SessionState,
    prompt: QueuedInput,
    *,
    runtime: str,
    model: str,
    leaf_id: str | None,
    runtime_version: str | UnsetType = UNSET,
    title: str | None = None,
    request: RunRequest = NOTHING_ASKED,
    in_v1_scope: bool = False,
    task: TaskOrigin | None = None,
) -> Events:
    """Accept a prompt and start its run in one step, so that neither is ever visible without the other.

    Args:
        runtime_version: the version of the agent program that executes the run, if it is known.
        title: a title for the session from the prompt, if it needs one.
        request: the options that the prompt sets for the run.
        in_v1_scope: whether the session is the active one.
        task: the ``task`` call that the run works for, if any. Such a run is addressed through its
            parent, never by a command without a target.
    """
    require_idle(state)
    assert prompt.run_id is not UNSET
    moved = None if leaf_id == state.leaf_id else leaf_id
    changed: Events = ()
    if moved is not None or title is not None:
        changed = (
            events.SessionUpdated(
                session_id=state.session_id, leaf_id=or_unset(moved), title=or_unset(title)
            ),
        )
    return (
        *changed,
        build_accepted_update(state, prompt),
        _agent_start(
            state,
            prompt.run_id,
            runtime,
            model,
            request,
            version=runtime_version,
            in_v1_scope=in_v1_scope,
            task=task,
        ),
    )


def resume_run(
    state: SessionState,
    run_id: str,
    leaf: Entry | None,
    *,
    runtime: str,
    model: str,
    runtime_version: str | UnsetType = UNSET,
    request: RunRequest = NOTHING_ASKED,
    in_v1_scope: bool = False,
) -> Events:
    """Start a run for the pending inputs, or, without any, for an unanswered leaf.

    Args:
        runtime_version: as for ``start_run``.
        request: the request of the run that left this work, reduced by ``build_resumed_request``.
        in_v1_scope: whether the session is the active one.

    Raises:
        CommandRejected: ``nothing_to_resume``.
    """
    require_idle(state)
    if not state.queue and not is_unanswered(leaf):
        raise CommandRejected("nothing_to_resume")
    start = _agent_start(
        state, run_id, runtime, model, request, version=runtime_version, in_v1_scope=in_v1_scope
    )
    return (start,)


def _agent_start(
    state: SessionState,
    run_id: str,
    runtime: str,
    model: str,
    request: RunRequest,
    *,
    version: str | UnsetType,
    in_v1_scope: bool,
    task: TaskOrigin | None = None,
) -> events.AgentStart:
    return events.AgentStart(
        session_id=state.session_id,
        run_id=run_id,
        runtime=runtime,
        runtime_version=version,
        model=model,
        v1_scope=True if in_v1_scope else UNSET,
        task=UNSET if task is None else task,
        client_id=request.client_id,
        agent_id=request.agent_id,
        agent_profile=request.agent_profile,
        correlation_id=request.correlation_id,
        options=request.options,
    )


def activate_session(state: SessionState) -> Events:
    """Make a session the active one; its run enters the v1 scope, unless it is the run of a task."""
    activated = events.SessionActivated(session_id=state.session_id)
    if state.run is None or state.run.in_v1_scope or state.run.task is not None:
        return (activated,)
    run_id = state.run.run_id
    return (activated, events.V1ScopeEntered(session_id=state.session_id, run_id=run_id))


_BEGINNINGS: Final = (
    events.SessionUpdated,
    events.SessionActivated,
    events.SessionAttached,
    events.WorkspaceOverrideGranted,
    events.QueueUpdate,
    events.EntryAppended,
    events.AgentStart,
    events.ToolCallRequested,
)
"""The events that change a session, or begin work in it."""


def require_kept(state: SessionState, decided: Sequence[events.Event] | None = None) -> None:
    """Raise CommandRejected ``deletion_scheduled`` if the session's deletion is scheduled.

    Args:
        decided: raise only if one of these events changes the session or begins work in it. Ending
            something is always possible.
    """
    if state.delete_at is None:
        return
    if decided is None or any(isinstance(event, _BEGINNINGS) for event in decided):
        raise CommandRejected("deletion_scheduled", details={"delete_at": state.delete_at})


def move_leaf(state: SessionState, leaf_id: str) -> Events:
    """Move the leaf, from which new work continues. If the user had seen the old leaf, the new one
    counts as seen.
    """
    moved = events.SessionUpdated(session_id=state.session_id, leaf_id=leaf_id)
    if state.leaf_id is None or state.leaf_id != state.seen_id:
        return (moved,)
    return (moved, events.SessionSeen(session_id=state.session_id, entry_id=leaf_id))


def find_run_to_resume(state: SessionState, leaf: Entry | None) -> str | None:
    """Return the id of the run whose work a resume continues; None if there is no such run."""
    for queued in queue.in_order(state.queue):
        return queued.run_id or None
    return None if leaf is None else leaf.run_id or None


def build_resumed_request(
    state: SessionState, earlier: RunRequest, client_id: str | None = None
) -> RunRequest:
    """Return the part of a run's request that applies to the run that continues its work.

    ``tool_choice: required`` applies only to the first answer, so it ends when the prompt was consumed.

    Args:
        client_id: the name of the client that resumes the work, which may be another one.
    """
    options = earlier.options
    if options is UNSET:
        return RunRequest(client_id=or_unset(client_id))
    if options.tool_choice == "required" and not queue.of_kind(state.queue, "prompt"):
        options = msgspec.structs.replace(options, tool_choice=UNSET)
    return RunRequest(client_id=or_unset(client_id), options=options)


def is_unanswered(leaf: Entry | None) -> bool:
    """Return whether a transcript that ends with ``leaf`` lacks a model's answer."""
    if leaf is None or isinstance(leaf, CompactionEntry):
        return False
    if leaf.role != "assistant":
        return True
    return leaf.stop_reason not in ("stop", "length")


def accept_input(
    state: SessionState, queued: QueuedInput, *, expected_run_id: str | None
) -> events.QueueUpdate:
    """Queue a steer or follow-up for the active run."""
    run = require_running(state, expected_run_id)
    return build_accepted_update(state, msgspec.structs.replace(queued, run_id=run.run_id))


def abort_run(
    state: SessionState,
    *,
    expected_run_id: str | None,
    keep_queue: bool = False,
    client_id: str | None = None,
) -> tuple[Events, queue.Inputs]:
    """Abort the run and clear the queues; return the events and the cleared inputs.

    Args:
        keep_queue: clear only inputs that the run has taken, so that an aborted prompt does not return.
    """
    run = require_running(state, expected_run_id)
    aborting = events.RunAborting(
        session_id=state.session_id,
        run_id=run.run_id,
        keep_queue=keep_queue or UNSET,
        client_id=or_unset(client_id),
    )
    cleared = tuple(
        queued
        for queued in queue.in_order(state.queue)
        if not keep_queue or is_taken(state, queued)
    )
    return (
        aborting,
        *build_removal_updates(state, "cleared", cleared, run.run_id, client_id),
    ), cleared


def defer_deletion(state: SessionState) -> Events:
    """Stop the run that prevents a session's deletion, and report the run; the queues stay as they are.
    A run that is already being stopped is also reported.
    """
    assert state.run is not None
    deferred = events.SessionDeleteDeferred(session_id=state.session_id, run_id=state.run.run_id)
    if state.run.phase == "aborting":
        return (deferred,)
    aborting, _ = abort_run(state, expected_run_id=None, keep_queue=True)
    return (deferred, *aborting)


def clear_queue(
    state: SessionState, kind: str | None, client_id: str | None = None
) -> tuple[Events, queue.Inputs]:
    """Remove pending inputs, except those that a run has taken."""
    own = None if state.run is None else state.run.run_id
    cleared = tuple(
        queued
        for queued in queue.in_order(state.queue)
        if kind in (None, queued.kind) and not is_taken(state, queued)
    )
    return build_removal_updates(state, "cleared", cleared, own, client_id), cleared


def promote(state: SessionState, input_id: str, client_id: str | None = None) -> Events:
    """Turn a pending follow-up into a steer, of the active run if there is one.

    Raises:
        CommandRejected: ``input_not_found``, ``input_not_promotable``.
    """
    for queued in state.queue:
        if queued.input_id == input_id:
            break
    else:
        raise CommandRejected("input_not_found")
    if queued.kind != "follow_up" or is_taken(state, queued):
        raise CommandRejected("input_not_promotable")
    if state.run is None:
        steer = msgspec.structs.replace(queued, kind="steer")
        return (build_promoted_update(state, steer, client_id),)
    # The accepting run stays, so that a repeated request gets its first acknowledgement.
    steer = msgspec.structs.replace(queued, kind="steer", promoted_run_id=state.run.run_id)
    return (build_promoted_update(state, steer, client_id),)


def begin_turn(
    state: SessionState,
    turn: queue.Turn,
    *,
    run_id: str,
    turn_id: str,
    message_id: str,
    created_at: str,
) -> Events:
    """Begin a turn and consume its inputs, with whole texts: turn, user message and entry are one step.

    Messages appended in the meantime come first. A turn that resumes has no user message; if the text
    was appended before, the message has the id of that entry.
    """
    appended = append_waiting(state, run_id=run_id)
    leaf_id = leaf_after(appended, state.leaf_id)
    remaining = queue.without(state.queue, queue.list_messages(state.queue))
    state = msgspec.structs.replace(state, **queue_fields(remaining))
    common: TurnKey = {
        "session_id": state.session_id,
        "run_id": run_id,
        "turn_id": turn_id,
    }
    if not turn.inputs:
        return (*appended, events.TurnStart(**common))
    delivered = _deliver_inputs(
        state, turn, turn_key=common, leaf_id=leaf_id, message_id=message_id, created_at=created_at
    )
    return (*appended, events.TurnStart(**common), *delivered)


def offer_turn(state: SessionState, turn: queue.Turn, *, run_id: str, turn_id: str) -> Events:
    """Begin a turn whose inputs are consumed when they are delivered (``deliver``). Messages appended in
    the meantime come first.
    """
    start = events.TurnStart(session_id=state.session_id, run_id=run_id, turn_id=turn_id)
    return (
        *append_waiting(state, run_id=run_id),
        start,
        *build_delivering_updates(state, turn.inputs, run_id),
    )


def take_steer(state: SessionState, steer: queue.Turn, run_id: str) -> Events:
    """Take pending steers for delivery within the running turn."""
    return build_delivering_updates(state, steer.inputs, run_id)


def deliver(
    state: SessionState, turn: queue.Turn, *, turn_key: TurnKey, message_id: str, created_at: str
) -> Events:
    """Consume delivered inputs, with whole texts: user message and entry are one step."""
    return _deliver_inputs(
        state,
        turn,
        turn_key=turn_key,
        leaf_id=state.leaf_id,
        message_id=message_id,
        created_at=created_at,
    )


def _deliver_inputs(
    state: SessionState,
    turn: queue.Turn,
    *,
    turn_key: TurnKey,
    leaf_id: str | None,
    message_id: str,
    created_at: str,
) -> Events:
    """Return the events of a turn's user message: the message, its consumed inputs and its entry.

    Args:
        leaf_id: the parent of the entry.
    """
    only = turn.inputs[0] if len(turn.inputs) == 1 else None
    message = _message_of(turn, only)
    run_id = turn_key["run_id"]
    entries: Events = ()
    if only is not None and _is_there(only, run_id, state.leaf_id):
        message_id = only.entry_id or message_id
    else:
        entry = MessageEntry(
            id=message_id,
            parent_id=or_unset(leaf_id),
            role="user",
            run_id=run_id,
            created_at=created_at,
            **message,
        )
        entries = (events.EntryAppended(session_id=state.session_id, run_id=run_id, entry=entry),)
    text = {key: message[key] for key in ("text", "text_ref", "text_bytes") if key in message}
    return (
        events.MessageStart(**turn_key, message_id=message_id, role="user", **message),
        *build_removal_updates(state, "consumed", turn.inputs, run_id),
        *entries,
        events.MessageEnd(**turn_key, message_id=message_id, **text),
    )


def _message_of(turn: queue.Turn, only: QueuedInput | None) -> dict[str, Any]:
    """Return the fields that the event and the entry of a turn's user message share.

    Args:
        only: the turn's input if it has just one.
    """
    message: dict[str, Any] = {
        "text": turn.text,
        "turn_kind": turn.kind,
        "input_ids": tuple(queued.input_id for queued in turn.inputs),
        "attachments": turn.attachments or UNSET,
        "client_id": turn.client_id,
    }
    if only is not None:
        message |= {
            "text_ref": only.text_ref,
            "text_bytes": only.text_bytes,
            "client_message_id": only.client_message_id,
        }
    return message


def _is_there(prompt: QueuedInput, run_id: str, leaf_id: str | None) -> bool:
    """Return whether a prompt's text is already an entry, which is still unanswered. For a run that
    never began, this holds while nothing was appended after it.
    """
    return prompt.entry_id is not UNSET and (
        prompt.run_id == run_id or prompt.leaf_id == (leaf_id or UNSET)
    )
