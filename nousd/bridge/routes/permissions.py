"""Tool calls that wait for approval, and the decisions on them."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from nousd.bridge.replies import REQUEST_NOT_FOUND, Failure, HttpError, json_reply
from nousd.bridge.routes.bodies import AskingQuery, Ok, ReasonBody, RequestBody
from nousd.bridge.routing.route import Call, Routes
from nousd.errors import Refused
from nousd.views.tandem.permissions import (
    AskedPermissions,
    NamedCall,
    parse_request_id,
    render_permissions,
    rule_id,
)
from nousd.wire.commands import (
    ConfirmTool,
    GetToolCall,
    ListPermissions,
)
from nousd.wire.objects.policy import ConfirmDecision
from nousd.wire.responses import Accepted
from nousd.wire.responses.tools import ToolCallRecord

routes: Final = Routes()

_DECISIONS: Final[dict[str, ConfirmDecision]] = {
    "once": "once",
    "always": "session",
    "allow": "session",
    "reject": "deny_session",
    "deny": "deny_session",
}
"""reply in the HTTP contract -> the decision for ``confirm_tool``. A standing rule holds for one
session."""

_REPLY_INVALID: Final = Failure(400, "APPROVAL_REPLY_INVALID")
_NOT_PENDING: Final = Failure(409, "APPROVAL_REPLY_INVALID")

_ASKED: Final = frozenset({"user", "timeout", "stop"})
"""Deciders of calls that had an approval request."""

_UNRULED: Final = frozenset({"once_only", "rule_required", "too_many_rules"})
"""Refusals to make a rule: access outside the workspace is allowed only once, no rule can describe some
calls, and the number of rules is bounded. The decision then holds for this call only, and the reply says
so.
"""

_THIS_CALL: Final[dict[ConfirmDecision, ConfirmDecision]] = {
    "session": "once",
    "deny_session": "deny",
}
"""decision with a rule -> the same decision without one."""


class ReplyBody(RequestBody, frozen=True, kw_only=True):
    """A decision; ``reply`` is once, always or allow, reject or deny."""

    reply: str
    reason: str | None = None


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """An applied reply; ``standingRuleID`` is the id of the session's new rule."""

    ok: bool
    requestID: str  # noqa: N815
    reply: str
    status: str
    persistedRule: bool  # noqa: N815
    standingRuleID: str | None  # noqa: N815


@routes.get(
    "/permission", sends=("list_permissions",), replies={200: AskedPermissions}, query=AskingQuery
)
async def _permissions(call: Call) -> Response:
    """List the tool calls that wait for approval, and the rules in force."""
    call.services.responders.note_listing()
    now = await call.daemon.ask(ListPermissions(session_id=call.query.session_id or None))
    return json_reply(render_permissions(now))


@routes.post(
    "/permission/{request_id}/reply",
    sends=("get_tool_call", "confirm_tool"),
    replies={200: Applied},
    body=ReplyBody,
)
async def _reply(call: Call) -> Response:
    """Approve or deny a pending tool call."""
    body: ReplyBody = call.body
    decision = _DECISIONS.get(body.reply)
    if decision is None:
        raise HttpError(_REPLY_INVALID, f"reply must be one of {', '.join(_DECISIONS)}")
    accepted = await _decide(call, decision, body.reason)
    effect = "deny" if decision == "deny_session" else "allow"
    rule = None if accepted.rule is UNSET else rule_id(effect, accepted.rule)
    return json_reply(
        Applied(
            ok=True,
            requestID=call.path["request_id"],
            reply=body.reply,
            status="applied",
            persistedRule=rule is not None,
            standingRuleID=rule,
        )
    )


@routes.post(
    "/sessions/{id}/tools/{request_id}/approve",
    sends=("get_tool_call", "list_permissions", "confirm_tool"),
    replies={200: Ok},
    body=ReasonBody,
)
async def _approve(call: Call) -> Response:
    """Approve a pending tool call, once."""
    await _decide(call, "once", call.body.reason)
    return json_reply(Ok(ok=True))


@routes.post(
    "/sessions/{id}/tools/{request_id}/deny",
    sends=("get_tool_call", "list_permissions", "confirm_tool"),
    replies={200: Ok},
    body=ReasonBody,
)
async def _deny(call: Call) -> Response:
    """Deny a pending tool call."""
    await _decide(call, "deny", call.body.reason)
    return json_reply(Ok(ok=True))


async def _decide(call: Call, decision: ConfirmDecision, reason: str | None) -> Accepted:
    """Decide on the tool call in the path.

    Raises:
        HttpError: the call has no approval request, or the request is no longer pending.
    """
    record = await _waiting_call(call, parse_request_id(call.path["request_id"]))
    assert isinstance(record.input_hash, str)
    command = ConfirmTool(
        tool_call_id=record.tool_call_id,
        attempt=record.attempt,
        input_hash=record.input_hash,
        decision=decision,
        reason=reason,
        client_id=call.client_name,
    )
    try:
        return await _confirm(call, command)
    except Refused as refused:
        if refused.code == "command_rejected":
            raise HttpError(_NOT_PENDING, _not_pending(refused.details.get("by"))) from None
        raise


async def _confirm(call: Call, command: ConfirmTool) -> Accepted:
    try:
        return await call.daemon.ask(command)
    except Refused as refused:
        if refused.message not in _UNRULED:
            raise
    this_call = _THIS_CALL[command.decision]
    return await call.daemon.ask(msgspec.structs.replace(command, decision=this_call))


async def _waiting_call(call: Call, named: NamedCall) -> ToolCallRecord:
    """Return the call if its request is pending. Raise the same errors as ``_decide``."""
    not_found = HttpError(REQUEST_NOT_FOUND, "there is no such request")
    try:
        now = await call.daemon.ask(
            GetToolCall(tool_call_id=named.tool_call_id, attempt=named.attempt)
        )
    except Refused as refused:
        if refused.message == "tool_call_not_found":
            raise not_found from None
        raise
    record = now.call
    if not await _is_seen_in(call, call.path.get("id", record.session_id), record):
        raise not_found
    if record.state == "waiting":
        return record
    if record.decision is UNSET or record.decision.by not in _ASKED:
        raise not_found
    raise HttpError(_NOT_PENDING, _not_pending(record.decision.by))


async def _is_seen_in(call: Call, session_id: str, record: ToolCallRecord) -> bool:
    """Return whether a call belongs to that session, or is pending in a task of it."""
    if record.session_id == session_id:
        return True
    now = await call.daemon.ask(ListPermissions(session_id=session_id))
    return any(request.tool_call_id == record.tool_call_id for request in now.pending)


def _not_pending(by: str | None) -> str:
    message = {"timeout": "it has expired", "stop": "its run was stopped"}
    return f"the request is not pending: {message.get(by or '', 'it was decided already')}"
