"""Which rules are in force for a session, and what they say of a call.

The decision itself is the machine's (``machine.permission``); here is only where its facts come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nousd.machine.permission import Case, Judgement, judge
from nousd.machine.rules import Rule, rules_of
from nousd.machine.session import SessionState
from nousd.tools.interface import Tool
from nousd.wire.access import Access
from nousd.wire.entries import PermissionMode


class Permissions(Protocol):
    """Says of a call what the rules and the mode of its session say. A replay has one of its own."""

    def mode_of(self, state: SessionState) -> PermissionMode:
        """Returns the mode of a session."""
        ...

    async def judge(
        self, state: SessionState, granted: Sequence[str], tool: Tool, access: Access
    ) -> Judgement:
        """Returns whether a call may run.

        Args:
            granted: the rules by which the user allows calls in every session.
        """
        ...


class RulePermissions:
    """The rules of the settings, and what the user has granted since.

    Args:
        default_mode: of sessions that have none of their own.
        rules: of the user's and the project's settings.
    """

    def __init__(self, default_mode: PermissionMode = "auto", rules: Sequence[Rule] = ()) -> None:
        self._default_mode = default_mode
        self._rules = tuple(rules)

    def mode_of(self, state: SessionState) -> PermissionMode:
        """See ``Permissions.mode_of``."""
        return state.permission_mode or self._default_mode

    async def judge(
        self, state: SessionState, granted: Sequence[str], tool: Tool, access: Access
    ) -> Judgement:
        """See ``Permissions.judge``."""
        rules = (
            *self._rules,
            *rules_of("allow", state.granted, "this session"),
            *rules_of("allow", granted, "every session"),
        )
        return judge(Case(tool.name, access, self.mode_of(state), rules))
