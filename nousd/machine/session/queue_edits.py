"""Decisions on commands that change one pending input: edit, move or remove it.

As in ``decisions``, each function reads a state and returns events; it changes nothing.
"""

from __future__ import annotations

from nousd.errors import CommandRejected
from nousd.machine.session import queue
from nousd.machine.session.queue_updates import (
    build_edited_update,
    build_moved_update,
    build_removal_updates,
)
from nousd.machine.session.state import SessionState, is_taken
from nousd.wire import events
from nousd.wire.objects.inputs import QueuedInput


def require_waiting(
    state: SessionState, input_id: str, queue_revision: int | None = None
) -> QueuedInput:
    """Return a pending input that can still be changed.

    Args:
        queue_revision: the revision that the client saw, if it gave one.

    Raises:
        CommandRejected: ``input_not_found``, ``input_delivered``, ``queue_changed``.
    """
    for queued in state.queue:
        if queued.input_id == input_id and queued.kind != "message":
            break
    else:
        raise CommandRejected("input_not_found")
    if is_taken(state, queued):
        raise build_delivered_error()
    if queue_revision not in (None, state.queue_revision):
        raise CommandRejected(
            "queue_changed",
            cause="the queue is another one than the client saw: read get_queue and decide again",
            details={"queue_revision": state.queue_revision},
        )
    return queued


def build_delivered_error() -> CommandRejected:
    """Return the error for a change to an input that a turn has taken."""
    return CommandRejected(
        "input_delivered",
        cause="a turn has taken the input: correct it with a steer, or stop the run with abort",
    )


def edit_queued(
    state: SessionState, new: QueuedInput, *, client_id: str | None = None
) -> events.QueueUpdate:
    """Replace a pending input with another one of the same id, kind and position.

    Raises:
        CommandRejected: ``queue_full``, and as ``require_waiting``.
    """
    require_waiting(state, new.input_id)
    return build_edited_update(state, new, client_id)


def move_queued(
    state: SessionState,
    input_id: str,
    before_input_id: str | None,
    *,
    client_id: str | None = None,
) -> events.QueueUpdate:
    """Move a pending input before another one of its kind, or behind all of them.

    Raises:
        CommandRejected: ``input_not_movable``, and as ``require_waiting``.
    """
    queued = require_waiting(state, input_id)
    peers = queue.without(queue.of_kind(state.queue, queued.kind), (queued,))
    if before_input_id is not None and before_input_id not in [peer.input_id for peer in peers]:
        raise CommandRejected(
            "input_not_movable",
            cause="before_input_id must name another pending input of the same kind",
            details={"kind": queued.kind},
        )
    return build_moved_update(state, queued, before_input_id, client_id)


def remove_queued(
    state: SessionState,
    input_id: str,
    *,
    client_id: str | None = None,
) -> tuple[tuple[events.QueueUpdate, ...], queue.Inputs]:
    """Remove one pending input.

    Raises:
        CommandRejected: as ``require_waiting``.
    """
    removed = (require_waiting(state, input_id),)
    run_id = None if state.run is None else state.run.run_id
    return build_removal_updates(state, "cleared", removed, run_id, client_id), removed
