"""Commands about permission modes, rules, and pending approvals."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from nousd.daemon.commands.pages import page_of
from nousd.daemon.policy import grants
from nousd.daemon.policy.approvals import WaitingCall
from nousd.daemon.policy.approvers import Audience
from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.errors import CommandRejected, InvalidPayload, RuleInvalid
from nousd.machine.policy.rules import find_covering_rule, find_permission, rules_of
from nousd.runtimes.calls.host import Answer, Question
from nousd.store.records import EventFilter
from nousd.wire import commands
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import decode_event
from nousd.wire.codec.unset import or_unset
from nousd.wire.commands.subscribe import cursor
from nousd.wire.events import PermissionRequested
from nousd.wire.limits import EXPIRED_LISTED_MAX, RULE_CHARS_MAX
from nousd.wire.responses import Accepted, Permissions
from nousd.wire.responses.tools import ExpiredRequest, RuleInForce

_REASONS: Final = {
    "once": "the user allowed it",
    "session": "the user allowed it, and {rule} for the session",
    "always": "the user allowed it, and {rule} from now on",
    "deny": "the user said no",
    "deny_session": "the user said no, and denied {rule} for the session",
}
"""decision -> the reason that the model receives."""

_DENIALS: Final = ("deny", "deny_session")


async def set_permission_mode(services: Services, command: commands.SetPermissionMode) -> Reply:
    """Set the session's mode from its next call on; other sessions keep theirs."""
    live = await services.sessions.require(command.session_id)
    handle = services.sessions.update(live, permission_mode=command.mode)
    return Deferred(handle, Accepted(command="set_permission_mode", mode=command.mode))


async def confirm_tool(services: Services, command: commands.ConfirmTool) -> Reply:
    """Decide on a pending call, and add a rule for similar calls if the client asks for one."""
    request = await _require_pending(services, command)
    session = await services.sessions.get(request.asker.audiences[-1].session_id)
    # Awaited above: another answer may have come, or an override may have expired.
    request = await _require_pending(services, command)
    if request.override is not None and not services.run_services.overrides.holds(request.override):
        request = await _require_pending(services, command)
    rule = _lasting_rule(request.question, command)
    # The rule is logged before the answer, so that no acknowledged answer can lose its rule.
    if rule is not None and command.decision == "deny_session":
        grants.forbid(services.sessions, session, rule)
    elif rule is not None and command.decision == "session":
        grants.grant(services.sessions, session, rule)
    elif rule is not None:
        grants.grant_in(services.sessions, services.workspaces.path_of(session.state), rule)
    reason = _REASONS[command.decision].format(rule=rule)
    answer = Answer(
        allows=command.decision not in _DENIALS,
        by="user",
        reason=f"{reason}: {command.reason}" if command.reason else reason,
        decision=command.decision,
        rule=or_unset(rule),
        client_id=or_unset(command.client_id),
    )
    accepted = Accepted(command="confirm_tool", decision=command.decision, rule=or_unset(rule))
    return Deferred(services.approvals.answer(request, answer), accepted)


async def _require_pending(services: Services, command: commands.ConfirmTool) -> WaitingCall:
    """Return the pending call that a command names. Nothing is awaited after the lookup.

    Raises:
        CommandRejected: ``tool_call_not_found``, ``attempt_mismatch``, ``input_hash_mismatch``,
            ``already_decided``, ``tool_call_not_pending``.
    """
    call_id, attempt = command.tool_call_id, command.attempt
    waiting = services.approvals.find(call_id, attempt, command.input_hash)
    if waiting is not None:
        return waiting
    decided = await services.approvals.requests.find_end(call_id)
    known = (
        await _in_log(services, call_id) if decided is None else (decided.attempt, decided.details)
    )
    if known is None:
        raise CommandRejected("tool_call_not_found")
    last, details = known
    if last != attempt:
        raise CommandRejected("attempt_mismatch", details={"attempt": last})
    if not details:
        raise CommandRejected("tool_call_not_pending")
    raise CommandRejected("already_decided", details=details)


async def _in_log(services: Services, tool_call_id: str) -> tuple[int, dict[str, Any]] | None:
    """Return the number of a call's last attempt and the decision on it, from the log; None for an
    unknown call.
    """
    row = await services.store.tool_call(tool_call_id, None)
    if row is None:
        return None
    if row.by is None:
        return row.attempt, {}
    decision = "denied" if row.state == "denied" else "approved"
    return row.attempt, {"decision": decision, "by": row.by}


def _lasting_rule(question: Question, command: commands.ConfirmTool) -> str | None:
    """Return the rule that an answer adds; None if it adds none.

    Raises:
        InvalidPayload: the client's own rule is malformed, or does not match this call.
        CommandRejected: ``rule_required``, ``once_only``.
    """
    if command.decision in ("once", "deny"):
        return None
    if question.access.outside and command.decision != "deny_session":
        # The rule would outlive the override, or apply outside of this path.
        raise CommandRejected("once_only", details={"outside": list(question.access.outside)})
    if command.rule is None:
        if not 0 < len(question.rule) <= RULE_CHARS_MAX:
            raise CommandRejected("rule_required")
        return question.rule
    effect = "deny" if command.decision == "deny_session" else "allow"
    try:
        is_match = _RULE_MATCHERS[effect](command.rule, question)
    except RuleInvalid as error:
        raise InvalidPayload(f"rule is none: {error}") from None
    if not is_match:
        raise InvalidPayload(f"rule does not {effect} the call that it is given for")
    return command.rule


def _allows(rule: str, question: Question) -> bool:
    rules = rules_of("allow", [rule], "the user", is_grant=True)
    return find_permission(rules, question.call["tool_name"], question.access) is not None


def _denies(rule: str, question: Question) -> bool:
    rules = rules_of("deny", [rule], "the user")
    denial = find_covering_rule(rules, question.call["tool_name"], question.access)
    return denial.rule is not None and denial.is_certain


_RULE_MATCHERS: Final = {"allow": _allows, "deny": _denies}
"""rule kind -> function that returns whether a rule has that effect on a call."""


async def list_permissions(services: Services, command: commands.ListPermissions) -> Reply:
    """List pending approvals, expired ones, and the rules in force."""
    live = await services.sessions.target(command.session_id)
    state = services.sessions.without_session() if live is None else live.committed
    expired = await _list_expired(services, command.session_id)
    rules = await services.run_services.permissions.rules_of(state)
    pending = services.approvals.requests.list_shown(command.session_id)
    shown_pending, shown_expired, shown_rules = page_of(pending), page_of(expired), page_of(rules)
    is_whole = (shown_pending, shown_expired, shown_rules) == (
        pending,
        tuple(expired),
        tuple(rules),
    )
    return Permissions(
        session_id=state.session_id,
        mode=services.run_services.permissions.mode_of(state),
        can_answer=services.approvers.can_answer([Audience(state.session_id, None)]),
        pending=shown_pending,
        expired=shown_expired,
        granted=state.granted,
        granted_everywhere=grants.list_permanent_grants(
            services.sessions.defaults, services.workspaces.path_of(state)
        ),
        rules=tuple(
            RuleInForce(decision=rule.decision, rule=rule.text, origin=rule.origin)
            for rule in shown_rules
        ),
        cursor=cursor(services.hub.head),
        truncated=UNSET if is_whole else True,
    )


async def _list_expired(services: Services, session_id: str | None) -> list[ExpiredRequest]:
    """Return the requests that expired unanswered, newest first."""
    expired = []
    for call in await services.store.list_unanswered_calls(session_id, limit=EXPIRED_LISTED_MAX):
        assert call.asked_seq is not None
        assert call.by is not None
        # Rows can be ahead of the published events.
        for stored in await services.store.events_after(
            call.asked_seq - 1, EventFilter(), limit=1, bytes_max=0, until=call.asked_seq
        ):
            request = decode_json(decode_event(stored.line).payload, type=PermissionRequested)
            expired.append(ExpiredRequest(request=request, by=call.by))
    return expired


async def revoke_permission(services: Services, command: commands.RevokePermission) -> Reply:
    """Revoke a granted rule; calls that it already allowed continue."""
    live = None if command.session_id is None else await services.sessions.get(command.session_id)
    handle = grants.revoke(services.sessions, live, command.rule)
    return Deferred(handle, Accepted(command="revoke_permission", rule=command.rule))
