"""The tree of a run and the runs of its tasks, and the events that the root repeats from the runs below.

The root is the run that a user started and watches. So the requests of the runs below, and their ends,
are repeated there under the same ids, with their session and run as ``origin``; they are answered as if
the root had made them. ``tasks`` starts and ends tasks.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec
from msgspec import UNSET

from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.policy.approvers import Audience
from nousd.daemon.policy.requests import status_of
from nousd.daemon.sessions.live_session import LiveSession
from nousd.machine.session.lifecycle import LifecycleTracker, Phase
from nousd.wire import events
from nousd.wire.codec.decoding import decode_json
from nousd.wire.events import Event
from nousd.wire.events.base import TurnKey
from nousd.wire.objects.workers import Origin


class RunInTree(Protocol):
    """The interface of an active run that the tree of tasks needs."""

    run_id: str
    live: LiveSession
    tracker: LifecycleTracker
    tree: TaskTree

    @property
    def where(self) -> TurnKey:
        """The keys that the events of the open turn share."""
        ...

    def decide(self, decided: Sequence[Event]) -> CommitHandle:
        """Log events of the run."""
        ...

    def extend_idle_deadline(self, seconds: float) -> None:
        """Extend the time for which the run may show no activity."""
        ...


class TaskTree:
    """The position of one run in the tree.

    Args:
        parent: the run whose call of ``task`` this run carries out; None for a root.
    """

    def __init__(self, run: RunInTree, parent: RunInTree | None) -> None:
        self.started = 0
        """Number of tasks started by this run and by its tasks; counted at the root only."""
        # A weak reference, because the run holds this object: so an ended run is freed at once with
        # its data, without the search for cycles, which runs seldom.
        self._run_ref = weakref.ref(run)
        self._parent = parent
        self._tasks: set[RunInTree] = set()
        self._requests_at_root: set[str] = set()

    @property
    def root(self) -> RunInTree:
        """The run that a user started."""
        return self.path[-1]

    @property
    def path(self) -> tuple[RunInTree, ...]:
        """The run and those above it, up to the root."""
        ancestors = () if self._parent is None else self._parent.tree.path
        return (self._run, *ancestors)

    @property
    def _run(self) -> RunInTree:
        run = self._run_ref()
        assert run is not None
        return run

    @property
    def is_waiting(self) -> bool:
        """Return whether tasks of the run are active, each with its own time limit."""
        return bool(self._tasks)

    @property
    def audiences(self) -> tuple[Audience, ...]:
        """The subscribers that see the run's requests."""
        runs = (self._run,) if self.root is self._run else (self._run, self.root)
        return tuple(Audience(run.live.session_id, run.run_id) for run in runs)

    @contextmanager
    def track_task(self, task: RunInTree) -> Iterator[None]:
        """Suspend the run's idle deadline during the block: the task has its own."""
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)
            self._run.extend_idle_deadline(0.0)

    def tell_root(self, decided: Sequence[Event]) -> None:
        """Repeat the run's requests and their ends on the root run."""
        if self._parent is None:
            return
        root = self.root
        if root.live.lost or root.tracker.phase is Phase.ENDED:
            return
        copies: list[Event] = []
        for event in decided:
            if isinstance(event, ASKS):
                self._requests_at_root.add(id_of(event))
                copies += at_root(event, root.where)
            elif isinstance(event, ENDS) and id_of(event) in self._requests_at_root:
                self._requests_at_root.discard(id_of(event))
                copies += at_root(event, root.where)
        if copies:
            root.decide(copies)


ASKS: Final = (events.PermissionRequested, events.QuestionAsked)
ENDS: Final = (
    events.ToolCallApproved,
    events.ToolCallDenied,
    events.QuestionAnswered,
    events.QuestionRejected,
)

ApprovalEvent = (
    events.PermissionRequested
    | events.QuestionAsked
    | events.ToolCallApproved
    | events.ToolCallDenied
    | events.QuestionAnswered
    | events.QuestionRejected
)


def id_of(event: ApprovalEvent) -> str:
    """Return the id that a request shares with its end."""
    if isinstance(event, events.QuestionAsked | events.QuestionAnswered | events.QuestionRejected):
        return event.question_id
    return event.tool_call_id


def is_of_task(event: Event) -> bool:
    """Return whether an event of a run repeats a request of a task below it."""
    if isinstance(event, events.Status):
        name, _, facts = event.message.partition(": ")
        return name in _ASKING and isinstance(decode_json(facts).get("origin"), dict)
    return isinstance(event, ASKS + ENDS) and event.origin is not UNSET


_ASKING: Final = tuple(events.EVENT_TYPES[kind] for kind in ASKS)


def at_root(event: ApprovalEvent, where: TurnKey) -> list[Event]:
    """Return the events with which the root repeats an event: a copy, and a status for a request."""
    assert isinstance(event.run_id, str)
    origin = Origin(session_id=event.session_id, run_id=event.run_id)
    copy = msgspec.structs.replace(event, **where, origin=origin)
    if not isinstance(copy, ASKS):
        return [copy]
    return [copy, *status_of(events.EVENT_TYPES[type(copy)], copy)]
