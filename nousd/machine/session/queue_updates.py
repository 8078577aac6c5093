"""The events that change a session's queue, each within the size limit of events.

``decisions``, ``queue_edits`` and ``appending`` decide when it changes.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.errors import CommandRejected
from nousd.machine.session import queue
from nousd.machine.session.state import SessionState
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.limits import EVENT_TEXT_BYTES_MAX, QUEUED_CHARS_MAX, QUEUED_INPUTS_MAX
from nousd.wire.objects.inputs import PendingCounts, QueuedInput

_SHOWN_TOGETHER_MAX: Final = 4 * EVENT_TEXT_BYTES_MAX
"""Maximum characters of all texts in one ``queue_update`` about removed or delivered inputs."""


def build_accepted_update(
    state: SessionState, queued: QueuedInput, *, run_id: str | None = None
) -> events.QueueUpdate:
    """Return the event that adds an input to the queue.

    Args:
        run_id: the run that receives it; by default the one that the input names.

    Raises:
        CommandRejected: ``queue_full``.
    """
    if len(state.queue) >= QUEUED_INPUTS_MAX:
        raise CommandRejected("queue_full", details={"limit": QUEUED_INPUTS_MAX})
    if state.queued_chars + queue.chars_of(queued) > QUEUED_CHARS_MAX:
        raise CommandRejected("queue_full", details={"chars_limit": QUEUED_CHARS_MAX})
    return build_accepted_update_unchecked(state, queued, or_unset(run_id) or queued.run_id)


def build_accepted_update_unchecked(
    state: SessionState, queued: QueuedInput, run_id: str | UnsetType = UNSET
) -> events.QueueUpdate:
    """Return the same event without checking the queue's bound: for inputs that leave it at once."""
    # Called thousands of times per second, so its cost must not depend on the queue.
    counts = queue.add_to_counts(state.pending_counts, queued)
    # Clients do not see messages in the queue.
    is_seen = queued.kind != "message"
    return events.QueueUpdate(
        session_id=state.session_id,
        change="accepted",
        inputs=(queued,),
        pending_counts=counts,
        run_id=run_id,
        queue_revision=state.queue_revision + is_seen,
    )


def build_promoted_update(
    state: SessionState, steer: QueuedInput, client_id: str | None = None
) -> events.QueueUpdate:
    """Return the event that turns a pending input into a steer, of the active run if there is one."""
    counts = queue.pending_counts(queue.with_each(state.queue, (steer,)))
    return _build_update(state, "promoted", steer, counts, client_id)


def build_edited_update(
    state: SessionState, queued: QueuedInput, client_id: str | None = None
) -> events.QueueUpdate:
    """Return the event that replaces a pending input with ``queued``.

    Raises:
        CommandRejected: ``queue_full``.
    """
    others = queue.without(state.queue, (queued,))
    if sum(map(queue.chars_of, (*others, queued))) > QUEUED_CHARS_MAX:
        raise CommandRejected("queue_full", details={"chars_limit": QUEUED_CHARS_MAX})
    return _build_update(state, "edited", queued, state.pending_counts, client_id)


def build_moved_update(
    state: SessionState,
    queued: QueuedInput,
    before_input_id: str | None,
    client_id: str | None = None,
) -> events.QueueUpdate:
    """Return the event that moves a pending input before another one, or behind all."""
    update = _build_update(state, "moved", queued, state.pending_counts, client_id)
    return msgspec.structs.replace(update, before_input_id=or_unset(before_input_id))


def _build_update(
    state: SessionState,
    change: Literal["promoted", "edited", "moved"],
    queued: QueuedInput,
    counts: PendingCounts,
    client_id: str | None,
) -> events.QueueUpdate:
    return events.QueueUpdate(
        session_id=state.session_id,
        change=change,
        inputs=(queued,),
        pending_counts=counts,
        run_id=UNSET if state.run is None else state.run.run_id,
        client_id=or_unset(client_id),
        queue_revision=state.queue_revision + 1,
    )


def build_removal_updates(
    state: SessionState,
    change: Literal["consumed", "cleared"],
    inputs: queue.Inputs,
    run_id: str | None,
    client_id: str | None = None,
) -> tuple[events.QueueUpdate, ...]:
    """Return the events that remove inputs from the queue, each within the size limit of events.

    Args:
        client_id: the name of the client that removes them, if one does and gave its name.
    """
    updates = []
    remaining, revision = state.queue, state.queue_revision
    for group in _group_by_size(inputs):
        remaining = queue.without(remaining, group)
        revision += any(queued.kind != "message" for queued in group)
        update = events.QueueUpdate(
            session_id=state.session_id,
            change=change,
            inputs=group,
            pending_counts=queue.pending_counts(remaining),
            run_id=or_unset(run_id),
            client_id=or_unset(client_id),
            queue_revision=revision,
        )
        updates.append(update)
    return tuple(updates)


def build_delivering_updates(
    state: SessionState, inputs: queue.Inputs, run_id: str
) -> tuple[events.QueueUpdate, ...]:
    """Return the events by which a turn takes pending inputs for delivery, each within the size limit of
    events.
    """
    return tuple(
        events.QueueUpdate(
            session_id=state.session_id,
            change="delivering",
            inputs=group,
            pending_counts=state.pending_counts,
            run_id=run_id,
            queue_revision=state.queue_revision,
        )
        for group in _group_by_size(inputs)
    )


def _group_by_size(inputs: queue.Inputs) -> list[queue.Inputs]:
    """Divide inputs so that each event about them stays small: excerpts of long texts add up."""
    groups: list[queue.Inputs] = []
    room = 0
    for queued in inputs:
        shown = min(queue.chars_of(queued), EVENT_TEXT_BYTES_MAX)
        if not groups or shown > room:
            groups.append(())
            room = _SHOWN_TOGETHER_MAX
        groups[-1] += (queued,)
        room -= shown
    return groups
