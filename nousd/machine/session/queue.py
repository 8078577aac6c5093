"""The rules of the input queue: the inputs of the next turn, and whether a steer is pending.

A session has one queue in the order of acceptance. Its three kinds are views of it: steers come before
a prompt whose run never began, and both before follow-ups (protocol/semantics/runs-and-queues.md).

Messages that were appended during a run also wait in the queue, for their position in the tree. They are
not inputs: no turn consumes them, and no command removes them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import Attachment, TurnKind
from nousd.wire.objects.field_types import QueueMode
from nousd.wire.objects.inputs import PendingCounts, QueuedInput

Inputs = tuple[QueuedInput, ...]
Kind = Literal["prompt", "steer", "follow_up"]

ORDER: Final[tuple[Kind, ...]] = ("steer", "prompt", "follow_up")
"""The kinds in the order of consumption."""


class Turn(msgspec.Struct, frozen=True):
    """The inputs of the next turn; ``inputs`` is empty only for a turn that resumes."""

    kind: TurnKind
    inputs: Inputs

    @property
    def text(self) -> str:
        """The text of the user's message: the texts of the inputs, joined if a mode takes several."""
        return "\n".join(queued.text for queued in self.inputs)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The attachments of all inputs, in order."""
        return tuple(
            attachment
            for queued in self.inputs
            if queued.attachments is not UNSET
            for attachment in queued.attachments
        )

    @property
    def client_id(self) -> str | UnsetType:
        """The name of the client that sent the inputs; unset if several did, or one gave no name."""
        names = {queued.client_id for queued in self.inputs}
        return names.pop() if len(names) == 1 else UNSET


def of_kind(queue: Inputs, kind: str) -> Inputs:
    """Return the inputs of one kind, in order."""
    return tuple(queued for queued in queue if queued.kind == kind)


def in_order(queue: Inputs) -> Inputs:
    """Return the queue in the order in which turns consume it."""
    return tuple(queued for kind in ORDER for queued in of_kind(queue, kind))


def list_messages(queue: Inputs) -> Inputs:
    """Return the messages that wait for their position in the tree, in order."""
    return of_kind(queue, "message")


def chars_of(queued: QueuedInput) -> int:
    """Return the size of an input as counted for ``queued_chars_max``; an artifact counts its bytes."""
    return len(queued.text) if queued.text_bytes is UNSET else queued.text_bytes


def pending_counts(queue: Inputs) -> PendingCounts:
    """Count the pending inputs that clients see; a prompt that is about to begin is not counted."""
    kinds = [queued.kind for queued in queue]
    return PendingCounts(steer=kinds.count("steer"), follow_up=kinds.count("follow_up"))


def add_to_counts(counts: PendingCounts, queued: QueuedInput) -> PendingCounts:
    """Return the ``pending_counts`` after one more input is queued."""
    steer = counts.steer + (queued.kind == "steer")
    return PendingCounts(steer=steer, follow_up=counts.follow_up + (queued.kind == "follow_up"))


def is_own_prompt(queued: QueuedInput, run_id: str | None) -> bool:
    """Return whether an input is the prompt with which a run is about to begin."""
    return queued.kind == "prompt" and queued.run_id == run_id


def has_pending_steer(queue: Inputs, run_id: str, delivering: Collection[str] = ()) -> bool:
    """Return whether a steer of this run is pending: accepted by it, or promoted during it.

    A steer of an earlier run only waits: its sender did not see the current run.

    Args:
        delivering: the ids of inputs that are being delivered, which no longer count.
    """
    return any(
        queued.kind == "steer"
        and run_id in (queued.run_id, queued.promoted_run_id)
        and queued.input_id not in delivering
        for queued in queue
    )


def next_steer(
    queue: Inputs, run_id: str, *, delivering: Collection[str], steering: QueueMode
) -> Turn | None:
    """Return the steers to deliver next within the running turn; None if none of this run is pending."""
    if not has_pending_steer(queue, run_id, delivering):
        return None
    waiting = [queued for queued in of_kind(queue, "steer") if queued.input_id not in delivering]
    return Turn("steer", tuple(waiting if steering == "all" else waiting[:1]))


def next_turn(
    queue: Inputs, *, own_prompt: str | None, steering: QueueMode, follow_up: QueueMode
) -> Turn | None:
    """Return the run's next turn, or None if nothing is pending.

    Args:
        own_prompt: the id of the prompt that started the run, while it is pending. It comes first,
            before inputs left by earlier runs.
    """
    for queued in queue:
        if queued.input_id == own_prompt:
            return Turn("prompt", (queued,))
    modes: dict[Kind, QueueMode] = {
        "steer": steering,
        "prompt": "one-at-a-time",
        "follow_up": follow_up,
    }
    for kind in ORDER:
        waiting = of_kind(queue, kind)
        if waiting:
            return Turn(kind, waiting if modes[kind] == "all" else waiting[:1])
    return None


def without(queue: Inputs, removed: Inputs) -> Inputs:
    """Return the queue without the given inputs."""
    ids = {queued.input_id for queued in removed}
    return tuple(queued for queued in queue if queued.input_id not in ids)


def with_edited(queue: Inputs, edited: Inputs) -> Inputs:
    """Return the queue with the given inputs in place of their previous versions."""
    by_id = {queued.input_id: queued for queued in edited}
    return tuple(by_id.get(queued.input_id, queued) for queued in queue)


def with_moved(queue: Inputs, moved: Inputs, before: str) -> Inputs:
    """Return the queue with the given inputs directly before the one with the id ``before``."""
    others = without(queue, moved)
    places = (at for at, queued in enumerate(others) if queued.input_id == before)
    place = next(places, len(others))
    return (*others[:place], *moved, *others[place:])


def with_each(queue: Inputs, changed: Inputs) -> Inputs:
    """Return the queue with the given inputs at its end, removed from their former positions."""
    return without(queue, changed) + changed
