"""The rules in force for a session, and their decision on a call.

``machine.policy.permission`` makes the decision; this module collects its facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from nousd.config.settings import Settings
from nousd.daemon.workspace.workspaces import Workspaces
from nousd.errors import CommandRejected, ConfigError, RuleInvalid
from nousd.machine.policy.permission import Case, Judgement, judge
from nousd.machine.policy.rules import Rule, check_rule, rules_in
from nousd.machine.policy.session_rules import own_rules
from nousd.machine.session.state import SessionState
from nousd.tools.interface import Tool
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.tool_footprint import Access


class Permissions(Protocol):
    """Decides on calls by the rules and the mode of their session. A replay implements it, too."""

    def mode_of(self, state: SessionState) -> PermissionMode:
        """Return the mode of a session."""
        ...

    async def judge(
        self, state: SessionState, granted: Sequence[str], tool: Tool, access: Access
    ) -> Judgement:
        """Return whether a call may run.

        Args:
            granted: the rules that the user granted permanently in the session's workspace.
        """
        ...

    async def rules_of(self, state: SessionState) -> Sequence[Rule]:
        """Return the rules of the user's settings, of the project, and of the session itself."""
        ...


class RulePermissions:
    """Permissions from the rules of the settings, of projects, of the session and of the user's grants.

    Args:
        default_mode: the mode of sessions without one of their own or of a trusted project.
        rules: the rules of the user's settings.
        workspaces: finds the projects of sessions; None to ignore projects.
        is_mode_insisted_on: whether the default wins over a trusted project's mode.
    """

    def __init__(
        self,
        default_mode: PermissionMode = "auto",
        rules: Sequence[Rule] = (),
        workspaces: Workspaces | None = None,
        *,
        is_mode_insisted_on: bool = False,
    ) -> None:
        self._default_mode = default_mode
        self._rules = tuple(rules)
        self._workspaces = workspaces
        self._is_mode_insisted_on = is_mode_insisted_on

    def mode_of(self, state: SessionState) -> PermissionMode:
        """See ``Permissions.mode_of``."""
        if state.permission_mode is not None:
            return state.permission_mode
        known = None if self._workspaces is None else self._workspaces.find_in_memory(state)
        if known is None or self._is_mode_insisted_on:
            return self._default_mode
        return known.project.mode(state.session_id) or self._default_mode

    async def judge(
        self, state: SessionState, granted: Sequence[str], tool: Tool, access: Access
    ) -> Judgement:
        """See ``Permissions.judge``."""
        rules = (
            *await self._in_force(state),
            *_grants(state.granted, "this session"),
            *_grants(granted, "this workspace"),
        )
        return judge(Case(tool.name, access, self.mode_of(state), rules))

    async def rules_of(self, state: SessionState) -> Sequence[Rule]:
        """See ``Permissions.rules_of``; without the project's rules if the workspace cannot be used."""
        with suppress(CommandRejected):
            return await self._in_force(state)
        return (*self._rules, *own_rules(state.rules))

    async def _in_force(self, state: SessionState) -> Sequence[Rule]:
        session_rules = own_rules(state.rules)
        if self._workspaces is None:
            return (*self._rules, *session_rules)
        # The workspace of an active run or call is in memory, even if its directory was removed.
        workspace = self._workspaces.find_in_memory(state) or await self._workspaces.of(state)
        return (*self._rules, *await workspace.project.rules(state.session_id), *session_rules)


def _grants(texts: Sequence[str], origin: str) -> Iterator[Rule]:
    for text in texts:
        try:
            check_rule(text, "allow")
        except RuleInvalid:
            # An earlier version may have accepted a rule that is no longer valid.
            continue
        yield Rule("allow", text, origin, is_grant=True)


def rules_of_settings(settings: Settings) -> tuple[Rule, ...]:
    """Return the rules of the user's settings.

    Raises:
        ConfigError: a rule is invalid; one line names the rule and the file.
    """
    table = settings.permissions
    origin = f"file {settings.config_file}"
    try:
        return rules_in(origin, deny=table.deny, ask=table.ask, allow=table.allow)
    except RuleInvalid as error:
        raise ConfigError(f"permissions: {error}") from None
