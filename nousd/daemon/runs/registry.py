"""The registry of active runs: one task for each; starts, finds and stops them.

``run_loop`` carries out a run, and ``services`` has the services that runs share. The modules that carry
out runs are imported for the first run, or shortly after the daemon's start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from msgspec import UNSET, UnsetType

from nousd.daemon import error_boundary
from nousd.daemon.runs.recordings import current_run
from nousd.daemon.runs.services import RunServices
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import RunFailed
from nousd.runtimes.interface import Runtime
from nousd.store.artifacts import Artifact
from nousd.wire.events import AgentEnd, Event
from nousd.wire.events.base import EndStatus

if TYPE_CHECKING:
    from nousd.daemon.runs.run_host import RunHost
    from nousd.daemon.runs.tasks import TaskRun

_log = logging.getLogger(__name__)

_TELLING_SECONDS: Final = 1.0
"""Maximum time that the daemon waits at its stop for extensions to handle the ends of runs."""


class Runs:
    """All active runs.

    Args:
        nursery: runs their tasks.
        services: the services that runs share.
    """

    def __init__(self, nursery: trio.Nursery, services: RunServices) -> None:
        self._nursery = nursery
        self._services = services
        self._active: dict[str, RunHost] = {}
        self._end_hooks_done: dict[str, trio.Event] = {}

    def last_activity_at(self, run_id: str, started_at: str) -> str | UnsetType:
        """Return the time of a run's last activity, in the clock's format; UNSET for an ended run."""
        run = self._active.get(run_id)
        if run is None:
            return UNSET
        return max(started_at, run.last_activity_at)

    def start(
        self,
        live: LiveSession,
        run_id: str,
        decided: Sequence[Event],
        *,
        runtime: Runtime,
        own_prompt: str | None,
        artifacts: Sequence[Artifact] = (),
        parent: TaskRun | None = None,
    ) -> RunHost:
        """Start the task of a run, and submit the events that begin it (``last_handle``).

        Args:
            runtime: the runtime that ``decided`` names.
            parent: the run whose call of ``task`` this run carries out.
        """
        from nousd.daemon.runs.run_host import RunHost

        run = RunHost(live, run_id, self._services, self, runtime=runtime, parent=parent)
        run.begin(decided, artifacts)
        self._active[run_id] = run
        _log.debug("run %s started in session %s", run_id, live.session_id)
        self._nursery.start_soon(self._carry_out, run, own_prompt)
        return run

    async def _carry_out(self, run: RunHost, own_prompt: str | None) -> None:
        from nousd.daemon.runs.run_loop import RunLoop

        current_run.set(run.run_id)
        # Only ``stop`` ends a run early, so its ends are written even if the daemon is cancelled.
        with trio.CancelScope(shield=True):
            await RunLoop(run, self._services, own_prompt=own_prompt).drive()
            if run.live.lost:
                _log.error("run %s lost its session, which is read again", run.run_id)
                await error_boundary.run_contained(
                    partial(self._end_in_log, run), "closing a lost run"
                )
        _log.debug("run %s is over", run.run_id)
        del self._active[run.run_id]
        run.ended.set()
        if run.end is not None and self._services.hooks.has("run_end"):
            await self._tell_end(run.run_id, run.end)

    async def _tell_end(self, run_id: str, end: AgentEnd) -> None:
        """Call the end hooks of extensions. The daemon's stop waits a bounded time for them."""
        from nousd.daemon.runs.run_hooks import tell_end

        done = self._end_hooks_done[run_id] = trio.Event()
        try:
            await tell_end(self._services.hooks, end)
        finally:
            del self._end_hooks_done[run_id]
            done.set()

    async def _end_in_log(self, run: RunHost) -> None:
        """Let recovery write the end of a run that could not write it itself."""
        from nousd.daemon.runs.run_loop import CLOSING_SECONDS

        with trio.move_on_after(CLOSING_SECONDS):
            await self._services.store.flush()
            await self._services.sessions.get(run.live.session_id)

    def require_alone(self, run: TaskRun, message_id: str) -> None:
        """Raise if another run carries out the calls of a message: a branch has its parent's calls, and
        both runs would find that a call has not run.

        Raises:
            RunFailed: ``calls_in_progress``.
        """
        for other in self._active.values():
            if other is not run and other.calls_of == message_id:
                raise RunFailed(
                    "calls_in_progress",
                    "another run carries out the same tool calls",
                    other.run_id,
                    hint="resume when that run is over",
                )

    def find(self, run_id: str) -> RunHost | None:
        """Return an active run."""
        return self._active.get(run_id)

    def active(self) -> list[RunHost]:
        """Return the active runs, oldest first."""
        return list(self._active.values())

    async def stop_stale_runs(self) -> None:
        """End every run without activity for too long; run until cancelled."""
        while True:
            now = trio.current_time()
            # A run that begins meanwhile is not stale before this.
            next_look = now + self._services.stale_seconds
            for run in self.active():
                if run.stale_at <= now:
                    run.stop("timeout")
                else:
                    next_look = min(next_look, run.stale_at)
            await trio.sleep_until(next_look)

    async def stop_all(self, status: EndStatus) -> None:
        """End every run early and wait until all are over."""
        runs = self.active()
        for run in runs:
            run.stop(status)
        for run in runs:
            await run.ended.wait()
        with trio.move_on_after(_TELLING_SECONDS):
            for done in list(self._end_hooks_done.values()):
                await done.wait()
