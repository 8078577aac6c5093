"""Approval requests, the decisions on them, and the rules in force, in the form of the contract."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from nousd.views.tandem.runs import TENANT
from nousd.views.tandem.values import Body, milliseconds, milliseconds_or_none
from nousd.wire.events import PermissionRequested, ToolCallApproved, ToolCallDenied
from nousd.wire.events.tools import ToolCallEvent
from nousd.wire.objects.policy import ConfirmDecision
from nousd.wire.responses import Permissions
from nousd.wire.responses.tools import RuleInForce

_ATTEMPT_SEPARATOR: Final = "-"

_ATTEMPT_DIGITS_MAX: Final = 9

_SESSION_GRANT: Final = "granted for the session"
_WORKSPACE_GRANT: Final = "granted for this workspace"


class AskedPermission(Body, frozen=True, kw_only=True):
    """A tool call that waits for approval; ``status`` is always pending, since only these are listed."""

    id: str
    session_id: str
    tenant_context: dict[str, str] = msgspec.field(default_factory=lambda: TENANT)
    permission: str
    pattern: str
    tool: str
    args: dict[str, Any]
    args_source: Literal["model"] = msgspec.field(default_factory=lambda: "model")
    args_integrity: Literal["verified"] = msgspec.field(default_factory=lambda: "verified")
    query: str
    status: Literal["pending"] = msgspec.field(default_factory=lambda: "pending")
    requested_at_ms: int | None = None
    expires_at_ms: int
    action_digest: str


class StandingRule(Body, frozen=True, kw_only=True):
    """A rule in force. Its id contains the whole rule; ``origin`` describes its source for people."""

    id: str
    permission: str
    pattern: str
    action: Literal["allow", "ask", "deny"]
    origin: str


class AskedPermissions(msgspec.Struct, frozen=True, kw_only=True):
    """Pending requests, and the rules in force. ``decisions`` is always empty: past decisions are in the
    log.
    """

    requests: list[AskedPermission]
    rules: list[StandingRule]
    decisions: list[dict[str, Any]]


def request_id(event: ToolCallEvent) -> str:
    """Return the contract's id of a request: the id of the call, and the number of the attempt."""
    return f"{event.tool_call_id}{_ATTEMPT_SEPARATOR}{event.attempt}"


class NamedCall(NamedTuple):
    """An attempt at a tool call; the last one if ``attempt`` is None."""

    tool_call_id: str
    attempt: int | None


def parse_request_id(request: str) -> NamedCall:
    """Return the call of a request id. The id of a call is also accepted, because the parts of a message
    have only that id.
    """
    tool_call_id, _, attempt = request.rpartition(_ATTEMPT_SEPARATOR)
    is_number = attempt.isascii() and attempt.isdecimal() and len(attempt) <= _ATTEMPT_DIGITS_MAX
    if tool_call_id and is_number and int(attempt):
        return NamedCall(tool_call_id, int(attempt))
    return NamedCall(request, None)


def rule_id(decision: str, rule: str) -> str:
    """Return the id of a rule in force."""
    return f"{decision}:{rule}"


_REPLIES: Final[dict[ConfirmDecision, str]] = {
    "once": "once",
    "session": "always",
    "always": "always",
    "deny": "deny",
    "deny_session": "reject",
}
"""decision in v1 -> reply in the contract."""

Decision = ToolCallApproved | ToolCallDenied


def user_reply(event: Decision) -> str:
    """Return the user's reply. Logs of earlier versions do not record whether the reply made a rule."""
    if event.decision is UNSET:
        return "once" if isinstance(event, ToolCallApproved) else "deny"
    return _REPLIES[event.decision]


def find_decided_rule(event: Decision) -> str | None:
    """Return the id of the rule that a reply made; None if it made none."""
    if event.rule is UNSET:
        return None
    return rule_id("allow" if isinstance(event, ToolCallApproved) else "deny", event.rule)


def render_permissions(now: Permissions) -> AskedPermissions:
    """Return the pending requests, and each rule once, even if several sources have it."""
    granted = [
        RuleInForce(decision="allow", rule=rule, origin=origin)
        for rules, origin in (
            (now.granted, _SESSION_GRANT),
            (now.granted_everywhere, _WORKSPACE_GRANT),
        )
        for rule in rules
    ]
    in_force = [_render_rule(rule) for rule in (*granted, *now.rules)]
    return AskedPermissions(
        requests=[render_permission(request) for request in now.pending],
        rules=list({rule.id: rule for rule in reversed(in_force)}.values())[::-1],
        decisions=[],
    )


def _render_rule(rule: RuleInForce) -> StandingRule:
    return StandingRule(
        id=rule_id(rule.decision, rule.rule),
        permission=rule.rule.partition("(")[0],
        pattern=_pattern(rule.rule),
        action=rule.decision,
        origin=rule.origin,
    )


def render_permission(request: PermissionRequested) -> AskedPermission:
    """Return one pending request."""
    return AskedPermission(
        id=request_id(request),
        session_id=request.session_id,
        permission=request.tool_name,
        pattern="*" if request.rule is UNSET else _pattern(request.rule),
        tool=request.tool_name,
        args=request.args,
        query=request.reason,
        # Earlier versions of the daemon do not send it.
        requested_at_ms=milliseconds_or_none(request.requested_at),
        expires_at_ms=milliseconds(request.expires_at),
        action_digest=request.input_hash,
    )


def _pattern(rule: str) -> str:
    _, bracket, rest = rule.partition("(")
    return rest.removesuffix(")") if bracket else "*"
