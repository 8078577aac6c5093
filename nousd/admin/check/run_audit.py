"""Checks the events of every run of a log with the lifecycle tracker that the daemon uses.

It stores only the runs that are open.
"""

from __future__ import annotations

from collections.abc import Callable

from nousd.admin.reading.lines import LoggedEvent
from nousd.machine.session.lifecycle import LOGGED, LifecycleTracker
from nousd.wire.events import AgentEnd


class RunWalker:
    """Follows the events of all runs of a log, in order.

    Args:
        has_ended: returns whether the log has the end of a run that is not open.
    """

    def __init__(self, has_ended: Callable[[str], bool]) -> None:
        self._has_ended = has_ended
        self._open: dict[str, LifecycleTracker] = {}
        self._broken: set[str] = set()

    @property
    def open_runs(self) -> list[str]:
        """The open runs, oldest first."""
        return list(self._open)

    def tracker_of(self, run_id: str) -> LifecycleTracker | None:
        """Return the tracker of an open run; None if its state is unknown because of a fault."""
        return self._open.get(run_id)

    def follow(self, logged: LoggedEvent) -> str | None:
        """Return why the event is not allowed at this position; None after the first fault of a run."""
        run_id = logged.run_id
        if run_id is None or run_id in self._broken:
            if isinstance(logged.event, AgentEnd):
                self._broken.discard(logged.event.run_id)
            return None
        fault = self._note(run_id, logged)
        if isinstance(logged.event, AgentEnd):
            self._open.pop(run_id, None)
        elif fault is not None:
            self._open.pop(run_id, None)
            self._broken.add(run_id)
        return fault

    def _note(self, run_id: str, logged: LoggedEvent) -> str | None:
        tracker = self._open.get(run_id)
        if tracker is None:
            if self._has_ended(run_id):
                return f"has {logged.type} behind its end"
            tracker = self._open[run_id] = LifecycleTracker(logged.event.session_id, run_id, LOGGED)
        if tracker.session_id != logged.event.session_id:
            return f"has {logged.type} in another session, {logged.event.session_id}"
        phase = tracker.phase
        try:
            tracker.note(logged.event)
        except AssertionError:
            return f"has {logged.type} where it cannot stand: {phase.value}"
        return None
