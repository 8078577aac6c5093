"""One session in memory: the decided state, the committed state, and the step from one to the other.

A decision is made in one step of the event loop on ``state``, folded into it at once, and submitted to
the log. When it is committed, the same value becomes ``committed``, the state that clients see. So any
number of decisions can be pending together (they share one fsync), each sees those before it, and no
client sees one that is not durable. If a commit fails, everything decided after it is void and the
session is read from the log again. ``registry`` knows which sessions are in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

import trio

from nousd.config.agents import Catalogue
from nousd.daemon.eventlog.log import CommitHandle, Log
from nousd.daemon.replies import Deferred
from nousd.errors import SessionNotFound, StoreError, StoreFull, WriteFailed
from nousd.machine.session import decisions
from nousd.machine.session import state as machine
from nousd.machine.session.state import SessionState
from nousd.store.artifacts import Artifact
from nousd.wire import events
from nousd.wire.events.base import CutOff, EndStatus
from nousd.wire.objects.entries import ToolCall
from nousd.wire.responses import Accepted

_REMEMBERED_INPUTS: Final = 1024
"""Client message ids remembered per session, at least as many as can wait for a commit at once."""


Follow = Callable[[Sequence[events.Event], Sequence[events.Event]], None]
"""Receives events as they were decided, and as they are logged."""


class SessionRun(Protocol):
    """The interface of an active run that its session and the commands need."""

    run_id: str
    ended: trio.Event

    def stop(self, status: EndStatus) -> None:
        """End the run early; the first stop counts."""
        ...

    def tell_steer(self) -> None:
        """Wake the run if it waits for a steer."""
        ...

    def tell_conflict(self, client_id: str | None) -> None:
        """Record that another run was refused because of this one."""
        ...


class SessionCall(Protocol):
    """A tool call that a client makes in a session."""

    call: ToolCall

    def stop(self, reason: CutOff) -> None:
        """End the call early; the first stop counts."""
        ...


class Acknowledgement(NamedTuple):
    """The acknowledgement of an input, and the hash of its request."""

    reply: Deferred | Accepted
    request_hash: str


class LiveSession:
    """One session in memory.

    Invariants: ``committed`` is an earlier value of ``state``, and equal to it when ``in_flight``
    is 0. ``updated_at`` is the value in the session's row: the time of the newest committed event
    that counts as a use of it, or "" before the first. ``run`` is set from the decision to start a
    run until its end is committed. ``calls`` are the active calls of clients. ``agents`` are the
    agents that existed when the session first read them. While ``lost``, nothing can be
    decided; ``failure`` is the failed commit that caused it, if one did.
    """

    def __init__(self, state: SessionState, log: Log, updated_at: str = "") -> None:
        self.session_id: Final = state.session_id
        self.state = state
        self.committed = state
        self.updated_at = updated_at
        self.run: SessionRun | None = None
        self.calls: set[SessionCall] = set()
        self.in_flight = 0
        self.lost = False
        self.failure: StoreError | None = None
        self.accepted: OrderedDict[str, Acknowledgement] = OrderedDict()
        self.agents: Catalogue | None = None
        self._lookups = 0
        self._log = log

    def decide(
        self,
        decided: Sequence[events.Event],
        *,
        artifacts: Sequence[Artifact] = (),
        follow: Follow | None = None,
    ) -> CommitHandle:
        """Decide events for this session. Return at once, with a handle to wait for the commit.

        If this raises, nothing has happened.

        Args:
            artifacts: artifacts to which the events refer, in addition to those that the log makes from
                their long texts.
            follow: called when the events are certain to be submitted; if it raises, they are not.

        Raises:
            StoreFull, WriteFailed: an earlier commit failed, so that the events were decided on a state
                that is void.
            SessionNotFound: the session was deleted meanwhile.
            CommandRejected: ``deletion_scheduled``.
        """
        if self.lost:
            raise _error_after_failed_commit(self.failure)
        if self.state.deleted:
            raise not_found(self.session_id)
        if self.state.delete_at is not None:
            decisions.require_kept(self.state, decided)
        encoded = self._log.encode(decided)
        after = self.state
        updated_at = None
        for record in encoded.records:
            after = machine.apply(after, record.event, record.ts)
            if record.type not in events.UNUSING_EVENTS:
                updated_at = record.ts
        if follow is not None:
            follow(decided, [record.event for record in encoded.records])
        handle = self._log.submit(encoded, artifacts=artifacts)
        self.state = after
        self.in_flight += 1

        def on_resolved(handle: CommitHandle) -> None:
            self.in_flight -= 1
            if handle.failure is None:
                self.committed = after
                self.updated_at = updated_at or self.updated_at
            else:
                self._lose(handle.failure)

        handle.when_resolved(on_resolved)
        return handle

    def _lose(self, failure: StoreError) -> None:
        """Mark the session as lost: nothing can be decided, so its run and calls are stopped."""
        self.lost = True
        self.failure = failure
        if self.run is not None:
            self.run.stop("interrupted")
        for call in self.calls:
            call.stop("interrupted")

    def remember(
        self, client_message_id: str, acknowledgement: Deferred, request_hash: str
    ) -> None:
        """Remember the acknowledgement of an input, in case the client sends it again.

        Lookups that begin after its commit find it in the log.
        """
        accepted = acknowledgement.payload
        assert isinstance(accepted, Accepted)
        self.accepted[client_message_id] = Acknowledgement(acknowledgement, request_hash)

        def on_resolved(handle: CommitHandle) -> None:
            if handle.failure is None and client_message_id in self.accepted:
                self.accepted[client_message_id] = Acknowledgement(accepted, request_hash)
                self._forget_committed()

        acknowledgement.handle.when_resolved(on_resolved)
        while len(self.accepted) > _REMEMBERED_INPUTS:
            self.accepted.popitem(last=False)

    @contextmanager
    def retain_accepted(self) -> Iterator[None]:
        """Keep in ``accepted``, during the block, every input that may have reached the log since the
        block began.
        """
        self._lookups += 1
        try:
            yield
        finally:
            self._lookups -= 1
            self._forget_committed()

    def _forget_committed(self) -> None:
        if self._lookups:
            return
        for client_message_id, known in list(self.accepted.items()):
            if isinstance(known.reply, Accepted):
                del self.accepted[client_message_id]

    @property
    def is_idle(self) -> bool:
        """Return whether nothing pending refers to this object."""
        return self.run is None and not self.calls and self.in_flight == 0


def _error_after_failed_commit(failure: StoreError | None) -> WriteFailed:
    """Return the error of a decision that follows a failed commit."""
    kind = StoreFull if isinstance(failure, StoreFull) else WriteFailed
    return kind(f"an earlier commit of the session failed: {failure}")


def not_found(session_id: str) -> SessionNotFound:
    """Return the error for an unknown session id."""
    return SessionNotFound(f"no session has the id {session_id}")
