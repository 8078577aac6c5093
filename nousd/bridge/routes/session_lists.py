"""Lists of sessions: those of a workspace or of all, and the children of one. No transcript is read."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from nousd.bridge.replies import json_reply
from nousd.bridge.routes.sessions import record_of
from nousd.bridge.routing.route import Call, Row
from nousd.client.client import Client
from nousd.views.tandem.sessions import Session, session
from nousd.wire.commands import GetCapabilities, ListSessions
from nousd.wire.limits import PAGE_ROWS_MAX
from nousd.wire.responses.sessions import SessionSummary


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions. Without ``scope``, or with that of a workspace: those of the folder that is named,
    else of the daemon's own.
    """

    scope: Literal["workspace", "global"] | None = None
    workspace: str | None = None
    q: str | None = None
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    page_size: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)] = 20
    archived: bool | None = None
    source: str | None = None


async def _list(call: Call) -> Response:
    query: ListQuery = call.query
    wanted = ListSessions(
        limit=query.page_size,
        offset=(query.page - 1) * query.page_size,
        workspace=await _workspace(call.daemon, query),
        q=query.q or None,
        archived=query.archived,
        source=query.source or None,
    )
    return json_reply([session(row) for row in await _rows(call.daemon, wanted)])


async def _workspace(daemon: Client, query: ListQuery) -> str | None:
    """Returns the folder whose sessions are wanted; None for those of all."""
    if query.scope == "global":
        return None
    if query.workspace and query.workspace != ".":
        return query.workspace
    return (await daemon.ask(GetCapabilities())).workdir


async def _rows(daemon: Client, wanted: ListSessions) -> list[SessionSummary]:
    """Returns a page that is as long as it was asked for, if need be from several answers."""
    rows: list[SessionSummary] = []
    while True:
        left = msgspec.structs.replace(
            wanted, limit=wanted.limit - len(rows), offset=wanted.offset + len(rows)
        )
        found = await daemon.ask(left)
        rows += found.sessions
        if not (found.has_more and found.sessions and len(rows) < wanted.limit):
            return rows


async def _children(call: Call) -> Response:
    record = await record_of(call)
    wanted = ListSessions(parent_id=record.session_id, children=True, limit=PAGE_ROWS_MAX)
    return json_reply([session(row) for row in await _rows(call.daemon, wanted)])


ROWS: Final = (
    Row(
        method="GET",
        path="/session",
        handler=_list,
        summary="Lists sessions, most recently used first, without their messages.",
        sends=("list_sessions", "get_capabilities"),
        replies={200: list[Session]},
        query=ListQuery,
        aliases=("/api/session",),
    ),
    Row(
        method="GET",
        path="/session/{id}/children",
        handler=_children,
        summary="Lists the branches of a session, what was made as its child, and its tasks.",
        sends=("get_session", "list_sessions"),
        replies={200: list[Session]},
        aliases=("/api/session/{id}/children",),
    ),
)
