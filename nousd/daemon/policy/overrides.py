"""Overrides: which sessions may request paths outside their workspace, and until when.

An override and its end are in the log. It expires by the first of two clocks: the wall clock at
``expires_at``, which survives a restart, or the time that this process has counted since the grant, so
that setting the wall clock back extends nothing. The session of a task has the override of the user's
session above it.
"""

from __future__ import annotations

import logging
import math
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import trio

from nousd.daemon.clock import Clock, later
from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.policy.approvals import Approvals, OverrideInUse
from nousd.daemon.sessions.live_session import LiveSession
from nousd.daemon.sessions.registry import Sessions
from nousd.errors import CommandRejected, SessionNotFound, StoreError
from nousd.machine.session.state import SessionState
from nousd.store.interface import Store
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.wire import events
from nousd.wire.limits import OVERRIDES_MAX, TASK_DEPTH_MAX
from nousd.wire.objects.workspaces import OverrideEnd, OverrideInForce

_LOOK_SECONDS: Final = 10.0
"""Interval between looks at the wall clock while an override is in force: that clock can be set, and
advances while the machine sleeps."""

_ENDED: Final[dict[OverrideEnd, str]] = {
    "expired": "the override of the workspace has expired",
    "ended": "the override of the workspace was ended",
    "attached": "the session was attached to another workspace",
}
"""Why a request under an ended override is denied."""

OVER: Final = "the override of the workspace is over"

_log = logging.getLogger(__name__)


class _Term(NamedTuple):
    """The end of an override: on the wall clock, and the latest possible time on trio's clock."""

    expires_at: str
    deadline: float


class Overrides:
    """The overrides of all sessions.

    Args:
        approvals: the pending requests that an override's end denies.
    """

    def __init__(
        self, store: Store, sessions: Sessions, clock: Clock, approvals: Approvals
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._clock = clock
        self._approvals = approvals
        self._terms: dict[str, _Term] = {}
        self._changed = trio.Event()

    # --- overrides in force --------------------------------------------------------------------

    def under(self, state: SessionState) -> OverrideInUse | None:
        """Return the override in force for a session's calls; None if there is none."""
        root = self._root(state)
        if (
            root is None
            or root.override_expires_at is None
            or self._compute_seconds_left(root) <= 0
        ):
            return None
        return OverrideInUse(root.session_id, root.override_expires_at)

    def within(self, state: SessionState, path_sandbox: PathSandbox) -> PathSandbox:
        """Return the path sandbox of a session's call; under an override it lets the call request paths
        outside the workspace.
        """
        return path_sandbox if self.under(state) is None else path_sandbox.asking()

    def holds(self, override: OverrideInUse) -> bool:
        """Return whether a request under an override may still be allowed; if not, deny it now."""
        state = self._sessions.in_memory(override.session_id)
        if state is not None and self.under(state) is not None:
            return True
        self._approvals.deny_under(override.session_id, _ENDED["expired"])
        return False

    def find_in_force(self, state: SessionState) -> OverrideInForce | None:
        """Return a session's own override in the form that clients see."""
        expires_at, seconds = state.override_expires_at, state.override_seconds
        if expires_at is None or seconds is None:
            return None
        term = self._terms.get(state.session_id)
        # Clients see committed state; the term may belong to the next override already.
        if term is None or term.expires_at != expires_at:
            term = _Term(expires_at, math.inf)
        if self._compute_term_left(term) <= 0:
            return None
        return OverrideInForce(ttl_seconds=seconds, expires_at=expires_at)

    def _root(self, state: SessionState) -> SessionState | None:
        """Return the user's session above a task, or the session itself; None if it is not in memory."""
        for _ in range(TASK_DEPTH_MAX + 1):
            if state.origin is None:
                return state
            parent = self._sessions.in_memory(state.origin.session_id)
            if parent is None:
                return None
            state = parent
        return None

    def _compute_seconds_left(self, state: SessionState) -> float:
        """Return the remaining seconds of a session's override."""
        assert state.override_expires_at is not None
        term = self._terms.get(state.session_id)
        if term is None or term.expires_at != state.override_expires_at:
            term = self._begin(state.session_id, state.override_expires_at, state.override_seconds)
        return self._compute_term_left(term)

    def _compute_term_left(self, term: _Term) -> float:
        return min(self._until(term.expires_at), term.deadline - trio.current_time())

    def _until(self, expires_at: str) -> float:
        now = datetime.fromisoformat(self._clock.now())
        return (datetime.fromisoformat(expires_at) - now).total_seconds()

    def _begin(self, session_id: str, expires_at: str, seconds: int | None) -> _Term:
        """Start tracking an override that was just granted, or found in the log."""
        left = min(self._until(expires_at), seconds or 0)
        term = _Term(expires_at, trio.current_time() + left)
        self._terms[session_id] = term
        self._changed.set()
        return term

    # --- changes -------------------------------------------------------------------------------

    def grant(self, live: LiveSession, seconds: int) -> CommitHandle:
        """Give a session an override for a number of seconds from now, replacing an earlier one.

        Raises:
            CommandRejected: ``too_many_overrides``.
        """
        if live.state.override_expires_at is None and len(self._terms) >= OVERRIDES_MAX:
            raise CommandRejected("too_many_overrides", details={"limit": OVERRIDES_MAX})
        expires_at = later(self._clock.now(), timedelta(seconds=seconds))
        granted = events.WorkspaceOverrideGranted(
            session_id=live.session_id, ttl_seconds=seconds, expires_at=expires_at
        )
        before = self.build_end_events(live.state, "replaced")
        handle = live.decide((*before, granted))
        if before and before[0].reason == "expired":
            self._approvals.deny_under(live.session_id, _ENDED["expired"])
        self._begin(live.session_id, expires_at, seconds)
        return handle

    def end(self, live: LiveSession, reason: OverrideEnd) -> CommitHandle | None:
        """End a session's override and deny the requests under it; return None if it had none."""
        decided = self.build_end_events(live.state, reason)
        if not decided:
            return None
        handle = live.decide(decided)
        self.forget(live.session_id, reason, handle)
        return handle

    def build_end_events(
        self, state: SessionState, reason: OverrideEnd
    ) -> tuple[events.WorkspaceOverrideExpired, ...]:
        """Return the event that ends a session's override, for callers that commit it with others
        and then call ``forget``.
        """
        if state.override_expires_at is None:
            return ()
        if self._compute_seconds_left(state) <= 0:
            reason = "expired"
        return (events.WorkspaceOverrideExpired(session_id=state.session_id, reason=reason),)

    def forget(self, session_id: str, reason: OverrideEnd, end_commit: CommitHandle) -> None:
        """Stop tracking an ended override and deny the requests under it.

        Args:
            end_commit: the commit of the end; if it fails, tracking resumes.
        """
        term = self._terms.pop(session_id, None)
        self._approvals.deny_under(session_id, _ENDED[reason])

        def on_resolved(handle: CommitHandle) -> None:
            if handle.failure is not None and term is not None:
                # In the log it is still in force, so its end must be tried again.
                self._terms.setdefault(session_id, term)
                self._changed.set()

        end_commit.when_resolved(on_resolved)

    def forget_deleted(self, session_id: str) -> None:
        """Stop tracking a deleted session and its override."""
        self._terms.pop(session_id, None)

    # --- expiry --------------------------------------------------------------------------------

    async def watch(self) -> None:
        """End every expired override, first those that expired before the start; run until cancelled."""
        await self._resume()
        while True:
            self._changed = trio.Event()
            await self._end_expired()
            waits = (self._compute_term_left(term) for term in self._terms.values())
            # An expired override is still tracked if its end could not be written: try again later.
            wait = min((left if left > 0 else _LOOK_SECONDS for left in waits), default=math.inf)
            longest = _LOOK_SECONDS if self._terms else math.inf
            with trio.move_on_after(min(wait, longest)):
                await self._changed.wait()

    async def _resume(self) -> None:
        try:
            for session_id in await self._store.list_overridden_sessions():
                row = await self._store.session(session_id)
                if row is not None and row.override_expires_at is not None:
                    self._begin(session_id, row.override_expires_at, row.override_seconds)
        except StoreError as failure:
            # The rest are looked at when their session is next used.
            _log.error("which workspaces are overridden could not be read: %s", failure)

    async def _end_expired(self) -> None:
        for session_id, term in list(self._terms.items()):
            if self._compute_term_left(term) > 0:
                continue
            try:
                live = await self._sessions.get(session_id)
                if live.state.override_expires_at == term.expires_at:
                    self.end(live, "expired")
                else:
                    self._terms.pop(session_id, None)
            except SessionNotFound:
                self._terms.pop(session_id, None)
            except StoreError as failure:
                # It has expired all the same; the log gets its end when it can be written.
                _log.error("the end of the override of %s was not written: %s", session_id, failure)
                self._approvals.deny_under(session_id, _ENDED["expired"])
