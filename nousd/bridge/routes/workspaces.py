"""The workspace of a session: move it, or temporarily allow requests for paths outside."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta
from starlette.responses import Response

from nousd.bridge.replies import INTERNAL, NOT_FOUND, ErrorBody, HttpError, json_reply
from nousd.bridge.routes.bodies import RequestBody
from nousd.bridge.routes.runs import reporting_conflict
from nousd.bridge.routes.transcripts import read_session
from nousd.bridge.routing.route import Call, Routes
from nousd.views.tandem.runs import Conflict
from nousd.views.tandem.sessions import Session, render_session
from nousd.views.tandem.values import Body, milliseconds
from nousd.wire.commands import AttachSession, OverrideWorkspace
from nousd.wire.limits import OVERRIDE_SECONDS_MAX, OVERRIDE_SECONDS_MIN

routes: Final = Routes()


class Attach(RequestBody, frozen=True, kw_only=True):
    """The new workspace, and the reason."""

    target_workspace: str
    reason_tag: str = "manual_attach"


class Override(RequestBody, frozen=True, kw_only=True):
    """The duration in seconds; a value out of bounds is replaced by the nearest bound."""

    ttl_seconds: Annotated[int, Meta(ge=-(2**53), le=2**53)] = 900


class Granted(Body, frozen=True, kw_only=True):
    """The override in effect."""

    ok: bool = msgspec.field(default_factory=lambda: True)
    ttl_seconds: int
    expires_at_ms: int


@routes.post(
    "/session/{id}/attach",
    sends=("attach_session", "get_session", "get_messages", "get_events"),
    replies={200: Session, 409: Conflict | ErrorBody},
    body=Attach,
    spells={"workspace": "target_workspace", "reason": "reason_tag"},
)
async def _attach(call: Call) -> Response:
    """Move a session to another workspace, unless it has an active run."""
    body: Attach = call.body
    target = body.target_workspace.strip()
    if not target:
        raise HttpError(NOT_FOUND, "target_workspace: is blank")
    session_id = call.path["id"]
    attach = AttachSession(
        session_id=session_id, workspace=target, reason=body.reason_tag.strip() or None
    )
    async with reporting_conflict(call):
        await call.daemon.ask(attach)
    return json_reply(render_session(*await read_session(call.daemon, session_id), ok=True))


@routes.post(
    "/session/{id}/workspace/override",
    sends=("override_workspace",),
    replies={200: Granted},
    body=Override,
)
async def _override(call: Call) -> Response:
    """Temporarily allow approval requests for paths outside the workspace."""
    seconds = min(max(call.body.ttl_seconds, OVERRIDE_SECONDS_MIN), OVERRIDE_SECONDS_MAX)
    answer = await call.daemon.ask(
        OverrideWorkspace(session_id=call.path["id"], ttl_seconds=seconds)
    )
    if answer.override is UNSET:
        raise HttpError(INTERNAL, "no override took effect")
    granted = Granted(
        ttl_seconds=answer.override.ttl_seconds,
        expires_at_ms=milliseconds(answer.override.expires_at),
    )
    return json_reply(granted)
