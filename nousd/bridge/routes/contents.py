"""The content of a session: its to-do list, a copy of the session, a summary of its older part."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from nousd.bridge.replies import ErrorBody, json_reply
from nousd.bridge.routes.runs import reporting_conflict
from nousd.bridge.routes.transcripts import read_session
from nousd.bridge.routing.route import Call, Routes
from nousd.views.tandem.runs import Conflict
from nousd.views.tandem.sessions import Session, TodoItem, render_session, render_todos
from nousd.wire.commands import BranchSession, CompactSession, GetTodos
from nousd.wire.limits import HTTP_PROMPT_SECONDS

routes: Final = Routes()


class Forked(Session, frozen=True, kw_only=True):
    """A copy of a session, at the top level and also under ``session``, as in the engine."""

    session: Session


class Summarized(msgspec.Struct, frozen=True):
    """A session whose older part was replaced by a summary."""

    ok: bool
    summary: str


@routes.get("/session/{id}/todo", sends=("get_todos",), replies={200: list[TodoItem]})
async def _todo(call: Call) -> Response:
    """Read the to-do list of a session."""
    now = await call.daemon.ask(GetTodos(session_id=call.path["id"]))
    return json_reply(render_todos(now.todos))


@routes.post(
    "/session/{id}/fork",
    sends=("branch_session", "get_session", "get_messages", "get_events"),
    replies={200: Forked},
)
async def _fork(call: Call) -> Response:
    """Copy a session into a new one."""
    branch = await call.daemon.ask(BranchSession(session_id=call.path["id"], activate=False))
    copy = render_session(*await read_session(call.daemon, branch.session_id))
    return json_reply(Forked(**msgspec.structs.asdict(copy) | {"ok": True}, session=copy))


@routes.post(
    "/session/{id}/summarize",
    sends=("compact_session",),
    replies={200: Summarized, 409: Conflict | ErrorBody},
)
async def _summarize(call: Call) -> Response:
    """Replace the older part of the model's context by a summary."""
    async with reporting_conflict(call):
        done = await call.daemon.ask(
            CompactSession(session_id=call.path["id"]), timeout_seconds=HTTP_PROMPT_SECONDS
        )
    return json_reply(Summarized(ok=True, summary=done.summary))
