"""The events by which the queue of a session changes, each of a size that an event may have.

What changes it, and when, is decided in ``decisions`` and ``appending``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from nousd.errors import CommandRejected
from nousd.machine import queue
from nousd.machine.session import SessionState
from nousd.wire import events
from nousd.wire.inputs import QueuedInput
from nousd.wire.limits import EVENT_TEXT_BYTES_MAX, QUEUED_CHARS_MAX, QUEUED_INPUTS_MAX
from nousd.wire.optional import or_unset

_SHOWN_TOGETHER_MAX: Final = 4 * EVENT_TEXT_BYTES_MAX
"""Characters of texts in one ``queue_update`` about inputs that are gone."""


def accepted(
    state: SessionState, queued: QueuedInput, *, run_id: str | None = None
) -> events.QueueUpdate:
    """Returns the event by which an input waits from now on.

    Args:
        run_id: the run that it comes to, where the input itself does not name one.

    Raises:
        CommandRejected: ``queue_full``.
    """
    if len(state.queue) >= QUEUED_INPUTS_MAX:
        raise CommandRejected("queue_full", details={"limit": QUEUED_INPUTS_MAX})
    if state.queued_chars + queue.chars_of((queued,)) > QUEUED_CHARS_MAX:
        raise CommandRejected("queue_full", details={"chars_limit": QUEUED_CHARS_MAX})
    return update(state, "accepted", (queued,), or_unset(run_id) or queued.run_id)


def gone(
    state: SessionState, change: str, inputs: queue.Inputs, run_id: str | None
) -> tuple[events.QueueUpdate, ...]:
    """Returns the events by which inputs wait no longer, each of a size that an event may have."""
    updates = []
    for some in _told_together(inputs):
        changed = update(state, change, some, or_unset(run_id))
        state = msgspec.structs.replace(state, queue=queue.without(state.queue, some))
        updates.append(changed)
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


def update(
    state: SessionState, change: str, inputs: queue.Inputs, run_id: str | msgspec.UnsetType
) -> events.QueueUpdate:
    """Returns one change of what waits, with how much waits after it."""
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
