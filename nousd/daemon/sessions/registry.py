"""The registry of sessions: those in memory, the active one, and the reading of others from the log.

A session that is not in memory has no run in this process. So a run without an end in its log is closed
before anything else is decided. While the disk does not allow that, the session can only be read.
``live_session`` makes the decisions in a session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec
import trio

from nousd.daemon.clock import Clock
from nousd.daemon.eventlog.log import CommitHandle, Log
from nousd.daemon.sessions.live_session import LiveSession, not_found
from nousd.errors import CommandRejected, InvalidPayload, SessionNotFound, StoreError
from nousd.machine.session import decisions
from nousd.machine.session.settings import (
    INHERITED,
    LASTING,
    SHARED,
    extract_changed_defaults,
)
from nousd.machine.session.state import SessionState, queue_fields
from nousd.store.interface import Store
from nousd.store.rows import Defaults, SessionRow
from nousd.wire import events
from nousd.wire.events import sessions as session_events
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.workers import TaskOrigin, WorkerSpec

_IDLE_SESSIONS_MAX: Final = 512
"""Idle sessions kept in memory; others are read from the log when needed."""

_STOPPING_SECONDS: Final = 5.0
"""Maximum time to wait for the end of a run whose session was lost by a failed commit."""


class Recover(Protocol):
    """Closes the runs and calls that have no end in a session's log, or raises StoreError."""

    async def __call__(self, *, session_id: str) -> int: ...


class Sessions:
    """All sessions of the daemon, some of them in memory, and the active one.

    Args:
        recover: called for a session before it is read from the log.
        workdir: the directory of sessions that name none.
    """

    def __init__(
        self,
        store: Store,
        log: Log,
        clock: Clock,
        defaults: Defaults,
        *,
        recover: Recover,
        workdir: str,
    ) -> None:
        self.active_id = defaults.active_session_id
        self.committed_active_id = defaults.active_session_id
        self.defaults = defaults
        self._committed_defaults = defaults
        self._store = store
        self._log = log
        self._clock = clock
        self._live: OrderedDict[str, LiveSession] = OrderedDict()
        self._recover = recover
        self._workdir = workdir
        self._loading = trio.Lock()

    # --- lookups -----------------------------------------------------------------------------

    async def get(self, session_id: str) -> LiveSession:
        """Return the session with that id.

        Raises:
            SessionNotFound: the session does not exist, or was deleted.
        """
        known = self._find_live(session_id)
        if known is not None and not known.lost:
            return known
        if known is not None and known.run is not None:
            # Its run is being stopped and closed; the caller must not see a half-closed session.
            with trio.move_on_after(_STOPPING_SECONDS):
                await known.run.ended.wait()
            known = self._find_live(session_id)
        if known is not None:
            return known
        async with self._loading:
            known = self._find_live(session_id)
            if known is not None:
                return known
            failure = await self._close_run(session_id)
            self._live.pop(session_id, None)
            row = await self._store.session(session_id)
            if row is None:
                raise not_found(session_id)
            pending = await self._store.pending_inputs(session_id)
            live = LiveSession(_state_of(row, pending), self._log, updated_at=row.updated_at)
            live.lost, live.failure = failure is not None, failure
            self._keep(live)
        if row.origin is not None:
            # The permissions of a task depend on its parents, so they are loaded too.
            with suppress(SessionNotFound):
                await self.get(row.origin.session_id)
        return live

    async def _close_run(self, session_id: str) -> StoreError | None:
        """Close the open runs and calls in a session's log; return the error if that failed."""
        try:
            await self._recover(session_id=session_id)
        except StoreError as failure:
            return failure
        return None

    def _find_live(self, session_id: str) -> LiveSession | None:
        live = self._live.get(session_id)
        if live is None:
            return None
        if live.lost and live.is_idle:
            return None
        if live.state.deleted:
            raise not_found(session_id)
        self._live.move_to_end(session_id)
        return live

    def _keep(self, live: LiveSession) -> LiveSession:
        self._live[live.session_id] = live
        if len(self._live) > _IDLE_SESSIONS_MAX:
            for session_id, candidate in list(self._live.items()):
                if candidate.is_idle and candidate is not live:
                    del self._live[session_id]
                if len(self._live) <= _IDLE_SESSIONS_MAX:
                    break
        return live

    async def active(self) -> LiveSession | None:
        """Return the active session, if there is one."""
        return None if self.active_id is None else await self.get(self.active_id)

    async def target(self, session_id: str | None) -> LiveSession | None:
        """Return the named session, else the active one, else None."""
        return await self.active() if session_id is None else await self.get(session_id)

    async def require(self, session_id: str | None) -> LiveSession:
        """Like ``target``, for a command that needs a session.

        Raises:
            InvalidPayload: no session is named and none is active.
        """
        live = await self.target(session_id)
        if live is None:
            raise InvalidPayload("session_id is required")
        return live

    async def below(self, live: LiveSession) -> list[LiveSession]:
        """Return the sessions of a session's tasks, the deepest first."""
        below: list[LiveSession] = []
        for session_id in await self._store.children(live.session_id):
            child = await self.get(session_id)
            below += [*await self.below(child), child]
        return below

    @property
    def count(self) -> int:
        """Return the number of sessions in memory."""
        return len(self._live)

    def list_running(self) -> list[LiveSession]:
        """Return the sessions with a run that accepts commands, oldest run first."""
        running = [live for live in self._live.values() if live.state.run is not None]
        return sorted(running, key=attrgetter("state.run.started_at"))

    def list_committed_running(self) -> list[SessionState]:
        """Return the committed states with an active run, oldest run first."""
        states = [live.committed for live in self._live.values() if live.committed.run is not None]
        return sorted(states, key=attrgetter("run.started_at"))

    def find_committed(self, session_id: str) -> SessionState | None:
        """Return the committed state of a session if it is in memory."""
        live = self._live.get(session_id)
        return None if live is None else live.committed

    def in_memory(self, session_id: str) -> SessionState | None:
        """Return the decided state of a session if it is in memory."""
        live = self._live.get(session_id)
        return None if live is None else live.state

    def without_session(self) -> SessionState:
        """Return the state that clients see while no session is active: that of a new session."""
        defaults = self.defaults
        return SessionState(
            session_id="",
            **{name: value for name in LASTING if (value := getattr(defaults, name)) is not None},
        )

    async def find_run_target(
        self, session_id: str | None, expected_run_id: str | None
    ) -> LiveSession:
        """Return the session of the run that a steer, follow-up or abort is for.

        Raises:
            CommandRejected: ``no_active_run``, ``run_mismatch`` or ``ambiguous_run``.
        """
        if session_id is not None:
            return await self.get(session_id)
        if expected_run_id is not None:
            running = self.list_running()
            for live in running:
                if live.state.run is not None and live.state.run.run_id == expected_run_id:
                    return live
            raise CommandRejected("run_mismatch" if running else "no_active_run")
        states = [live.state for live in self._live.values()]
        found = _list_without_target(states, self.active_id)
        if len(found) > 1:
            found.sort(key=attrgetter("run.started_at"))
            runs = [state.run.run_id for state in found if state.run is not None]
            raise CommandRejected("ambiguous_run", details={"run_ids": runs})
        if not found:
            raise CommandRejected("no_active_run")
        return self._live[found[0].session_id]

    def find_committed_target(self) -> SessionState | None:
        """Return the committed state of the run that a steer without a target would reach; None if
        there is none, or more than one.
        """
        found = _list_without_target(self.list_committed_running(), self.committed_active_id)
        return found[0] if len(found) == 1 else None

    @property
    def shown_defaults(self) -> Defaults:
        """Return the committed ``defaults``."""
        return self._committed_defaults

    # --- changes -----------------------------------------------------------------------------

    def create(
        self,
        *,
        parent: LiveSession | None = None,
        session_id: str | None = None,
        activate: bool = True,
        **chosen: Any,
    ) -> tuple[LiveSession, CommitHandle]:
        """Create a session, a branch if it has a parent.

        Args:
            session_id: the id of the new session; None to make one.
            activate: whether the new session becomes the active one.
            chosen: settings that replace the parent's, or the defaults of new sessions; None keeps
                these.
        """
        shared = {name: value for name in SHARED if (value := chosen.pop(name, None)) is not None}
        created = self._build_created(session_id or self._clock.new_id("sess"), parent, chosen)
        live = self._keep(LiveSession(SessionState(session_id=created.session_id), self._log))
        decided = (created, *_own_settings(live.session_id, shared))
        if not activate:
            return live, live.decide(decided)
        handle = live.decide((*decided, *decisions.activate_session(live.state)))
        self._now_active(live.session_id, handle)
        return live, handle

    def create_for_task(
        self, parent: LiveSession, origin: TaskOrigin, worker: WorkerSpec, **chosen: Any
    ) -> LiveSession:
        """Create the session of a task, with its parent's settings where none are chosen. The active
        session does not change.
        """
        settings = {name: getattr(parent.state, name) for name in LASTING} | chosen
        if "model" not in chosen:
            settings["sampling"] = parent.state.sampling
        settings["workspace"] = parent.state.workspace or self._workdir
        created = events.SessionCreated(
            session_id=self._clock.new_id("sess"),
            created_at=self._clock.now(),
            contract_version=session_events.CONTRACT_VERSION,
            origin=origin,
            worker=worker,
            **{name: value for name, value in settings.items() if value is not None},
        )
        live = self._keep(LiveSession(SessionState(session_id=created.session_id), self._log))
        # The parent's shared settings apply, so that a task has no tool that its parent lacks.
        own = {name: getattr(parent.state, name) for name in SHARED}
        live.decide((created, *_own_settings(live.session_id, own)))
        return live

    def activate(self, live: LiveSession) -> CommitHandle:
        """Make a session the active one."""
        handle = live.decide(decisions.activate_session(live.state))
        self._now_active(live.session_id, handle)
        return handle

    def delete(self, live: LiveSession) -> CommitHandle:
        """Delete a session's content; if it is the active one, no session is active afterwards."""
        handle = live.decide((events.SessionDeleted(session_id=live.session_id),))
        if self.active_id == live.session_id:
            self._now_active(None, handle)
        return handle

    def schedule_deletion(self, live: LiveSession, delete_at: str) -> CommitHandle:
        """Schedule a session's deletion; if it is the active one, no session is active afterwards."""
        event = events.SessionDeletionScheduled(session_id=live.session_id, delete_at=delete_at)
        handle = live.decide((event,))
        if self.active_id == live.session_id:
            self._now_active(None, handle)
        return handle

    def note(self, live: LiveSession | None, event: events.Event) -> CommitHandle:
        """Decide an event for a session, or submit one that belongs to no session."""
        if live is not None:
            return live.decide((event,))
        return self._log.submit(self._log.encode((event,)))

    def update(self, live: LiveSession | None, **settings: Any) -> CommitHandle:
        """Change settings of a session, and the defaults of new sessions where these follow it; without
        a session, the daemon's own settings.
        """
        session_id = "" if live is None else live.session_id
        event = events.SessionUpdated(session_id=session_id, **settings)
        return self._apply_update(event, self.note(live, event))

    def update_shared(self, active: LiveSession | None, **settings: Any) -> CommitHandle:
        """Change shared settings for all sessions. The same commit removes the active session's own
        values, so that the change applies there as well.
        """
        event = events.SessionUpdated(session_id="", **settings)
        own: dict[str, Any] = {
            name: None for name in settings if active and getattr(active.state, name) is not None
        }
        if active is None or not own:
            return self._apply_update(event, self.note(None, event))
        removed = events.SessionUpdated(session_id=active.session_id, **own)
        return self._apply_update(event, active.decide((event, removed)))

    def _apply_update(self, event: events.SessionUpdated, handle: CommitHandle) -> CommitHandle:
        known = extract_changed_defaults(event)
        self.defaults = msgspec.structs.replace(self.defaults, **known)

        def on_resolved(handle: CommitHandle) -> None:
            if handle.failure is None:
                committed = msgspec.structs.replace(self._committed_defaults, **known)
                self._committed_defaults = committed
            else:
                self.defaults = self._committed_defaults

        handle.when_resolved(on_resolved)
        return handle

    def _build_created(
        self, session_id: str, parent: LiveSession | None, chosen: Mapping[str, Any]
    ) -> events.SessionCreated:
        if parent is None:
            settings = {name: getattr(self.defaults, name) for name in LASTING}
        else:
            settings = {name: getattr(parent.state, name) for name in INHERITED}
            settings["parent_id"] = parent.session_id
            settings["leaf_id"] = parent.state.leaf_id
            # An empty list is left out of the event.
            settings["todos"] = parent.state.todos or None
        settings |= {name: value for name, value in chosen.items() if value is not None}
        settings["workspace"] = settings.get("workspace") or self._workdir
        return events.SessionCreated(
            session_id=session_id,
            created_at=self._clock.now(),
            contract_version=session_events.CONTRACT_VERSION,
            **{name: value for name, value in settings.items() if value is not None},
        )

    def _now_active(self, session_id: str | None, handle: CommitHandle) -> None:
        self.active_id = session_id

        def on_resolved(handle: CommitHandle) -> None:
            if handle.failure is None:
                self.committed_active_id = session_id
            elif self.active_id == session_id:
                self.active_id = self.committed_active_id

        handle.when_resolved(on_resolved)


def _own_settings(session_id: str, own: Mapping[str, Any]) -> Sequence[events.Event]:
    """Return the event that gives a new session its own shared settings; none if it has none."""
    settings = {name: value for name, value in own.items() if value is not None}
    return (events.SessionUpdated(session_id=session_id, **settings),) if settings else ()


def _list_without_target(
    states: Sequence[SessionState], active_id: str | None
) -> list[SessionState]:
    """Return the sessions whose runs a command without a target may refer to: of the sessions with a run
    in the v1 scope the active one, else all.
    """
    scope = [state for state in states if state.run is not None and state.run.in_v1_scope]
    return [state for state in scope if state.session_id == active_id] or scope


def _state_of(row: SessionRow, pending: Sequence[QueuedInput]) -> SessionState:
    """Return the state that a session's row describes. No run survives a restart."""
    known = {name: getattr(row, name) for name in _OF_ROWS}
    return SessionState(**known, **queue_fields(tuple(pending)))


_OF_ROWS: Final = tuple(name for name in SessionRow.__struct_fields__ if name != "updated_at")
"""The fields that a row and a state share."""
