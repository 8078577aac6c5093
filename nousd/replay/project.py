"""The project that a run had, as the log holds it.

What its rules and its mode made of calls is played as it was (``judged``); what its settings said that
did not count is told once more as it was told.
"""

from __future__ import annotations

from nousd.daemon.workspace.project import Project
from nousd.replay.recorded import RecordedRun
from nousd.wire import events


class RecordedProject(Project):
    """A project that remarks what was remarked in a run, and says nothing else."""

    def __init__(self, run: RecordedRun) -> None:
        super().__init__()
        warnings = (event for event in run.events if isinstance(event, events.Warning))
        remarks = (each.message for each in warnings if each.code == "project_config_ignored")
        self._remark = next(remarks, None)

    async def remark(self, session_id: str) -> str | None:  # noqa: ARG002
        """See ``Project.remark``."""
        return self._remark
