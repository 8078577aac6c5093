"""Decides on the calls of tasks: by the permissions of their parents, and by the limits of each worker.

A task's session names the session whose call created it, and so on up to the user's own session. The
permissions of these sessions at the moment of a call apply to the task as well: a narrowed mode, a
granted rule. If a parent no longer exists, the narrowest mode applies.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from nousd.daemon.policy.permissions import Permissions
from nousd.daemon.sessions.registry import Sessions
from nousd.errors import SessionNotFound
from nousd.machine.policy.permission import Judgement
from nousd.machine.policy.rules import Rule
from nousd.machine.policy.session_rules import merge_rules
from nousd.machine.policy.workers import WorkersCase, apply_worker_limits, narrowest
from nousd.machine.session.state import SessionState
from nousd.tools.interface import Tool
from nousd.wire.limits import TASK_DEPTH_MAX
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.tool_footprint import Access


class CutPermissions:
    """Implements ``Permissions`` by wrapping an implementation that does not know tasks.

    Args:
        sessions: provides the states of parents.
    """

    def __init__(self, permissions: Permissions, sessions: Sessions) -> None:
        self._permissions = permissions
        self._sessions = sessions

    def mode_of(self, state: SessionState) -> PermissionMode:
        """See ``Permissions.mode_of``; for a task, the narrowest of its own and its parents' modes."""
        lineage, is_complete = self._line(state)
        mode = self._mode_of_top(lineage[0], state.workspace, is_complete=is_complete)
        return narrowest([mode, *(each.permission_mode or mode for each in lineage)])

    async def judge(
        self, state: SessionState, granted: Sequence[str], tool: Tool, access: Access
    ) -> Judgement:
        """See ``Permissions.judge``."""
        if state.worker is None:
            return await self._permissions.judge(state, granted, tool, access)
        await self._bring_parents(state)
        lineage, is_complete = self._line(state)
        mode = self._mode_of_top(lineage[0], state.workspace, is_complete=is_complete)
        in_sessions = tuple(rule for each in lineage for rule in each.granted)
        # Paths are relative to the workspace of the call's session, even if a parent has moved since.
        root = replace(
            lineage[0],
            permission_mode=mode,
            granted=in_sessions,
            rules=merge_rules(each.rules for each in lineage),
            workspace=state.workspace,
        )
        judgement = await self._permissions.judge(root, granted, tool, access)
        for child in lineage:
            if child.worker is None:
                continue
            own_mode = narrowest((mode, child.permission_mode or mode))
            case = WorkersCase(
                child.worker,
                tool.name,
                access,
                own_mode,
                is_narrower=own_mode != mode,
                granted=(*in_sessions, *granted),
            )
            judgement, mode = apply_worker_limits(judgement, case), own_mode
        return judgement

    async def rules_of(self, state: SessionState) -> Sequence[Rule]:
        """See ``Permissions.rules_of``; for a task, those of its parents too."""
        await self._bring_parents(state)
        lineage, _ = self._line(state)
        rules = merge_rules(each.rules for each in lineage)
        root = replace(lineage[0], rules=rules, workspace=state.workspace)
        return await self._permissions.rules_of(root)

    def _mode_of_top(
        self, root: SessionState, workspace: str | None, *, is_complete: bool
    ) -> PermissionMode:
        return (
            self._permissions.mode_of(replace(root, workspace=workspace)) if is_complete else "ask"
        )

    async def _bring_parents(self, state: SessionState) -> None:
        """Read the states of the parents that are not in memory."""
        try:
            for _ in range(TASK_DEPTH_MAX):
                if state.origin is None:
                    return
                state = (await self._sessions.get(state.origin.session_id)).state
        except SessionNotFound:
            return

    def _line(self, state: SessionState) -> tuple[list[SessionState], bool]:
        """Return the states from the root to ``state``, and whether the root is a user's session."""
        lineage = [state]
        while lineage[0].origin is not None:
            parent = self._sessions.in_memory(lineage[0].origin.session_id)
            if parent is None or len(lineage) > TASK_DEPTH_MAX:
                return lineage, False
            lineage.insert(0, parent)
        return lineage, True
