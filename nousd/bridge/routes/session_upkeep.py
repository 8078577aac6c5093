"""Searching sessions, marking them as seen, and restoring them before a scheduled deletion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from nousd.bridge.replies import json_reply
from nousd.bridge.routes.bodies import RequestBody
from nousd.bridge.routes.sessions import get_record, resolve_scope
from nousd.bridge.routing.route import Call, Routes
from nousd.views.tandem.sessions import Session, render_session
from nousd.views.tandem.values import Body, or_none
from nousd.wire.commands import MarkSeen, RestoreSession, SearchSessions
from nousd.wire.limits import FOUND_SESSIONS_MAX

routes: Final = Routes()


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The text to find, and where: in all sessions if ``scope`` is global, otherwise in those of
    ``workspace``, by default the daemon's own. ``before`` is the value from the previous reply.
    """

    q: str
    scope: Literal["workspace", "global"] | None = None
    workspace: str | None = None
    archived: bool | None = None
    limit: Annotated[int, Meta(ge=1, le=FOUND_SESSIONS_MAX)] = 20
    before: str | None = None


class Found(Body, frozen=True, kw_only=True):
    """A matching session, and where the text was found: its title, or the newest matching message."""

    session: Session
    snippet: str
    message_id: str | None = None
    role: str | None = None


class SearchReply(Body, frozen=True, kw_only=True):
    """The matching sessions. ``before`` continues the search; ``partial`` is true if the search stopped
    early, at its bound.
    """

    matches: Sequence[Found]
    has_more: bool
    partial: bool
    before: str | None = None


class Seen(RequestBody, frozen=True, kw_only=True):
    """The newest message that was seen; by default the last one of the session."""

    message_id: str | None = None


class Marked(msgspec.Struct, frozen=True):
    """The session is marked."""

    ok: bool


@routes.get(
    "/session/search",
    sends=("search_sessions", "get_capabilities"),
    replies={200: SearchReply},
    query=SearchQuery,
    spells={"query": "q"},
)
async def _search(call: Call) -> Response:
    """Find sessions by a text in their titles and messages, most recently used first."""
    query: SearchQuery = call.query
    found = await call.daemon.ask(
        SearchSessions(
            query=query.q,
            limit=query.limit,
            before=query.before or None,
            workspace=await resolve_scope(call.daemon, query.scope, query.workspace),
            archived=query.archived,
        )
    )
    matches = [
        Found(
            session=render_session(match.session),
            snippet=match.snippet,
            message_id=or_none(match.entry_id),
            role=or_none(match.role),
        )
        for match in found.matches
    ]
    reply = SearchReply(
        matches=matches,
        has_more=found.has_more,
        partial=found.partial,
        before=or_none(found.before),
    )
    return json_reply(reply)


@routes.post(
    "/session/{id}/seen",
    sends=("mark_seen",),
    replies={200: Marked},
    body=Seen,
    spells={"entry_id": "message_id"},
)
async def _mark_seen(call: Call) -> Response:
    """Mark a session as seen, for all clients of the user."""
    command = MarkSeen(session_id=call.path["id"], entry_id=call.body.message_id or None)
    await call.daemon.ask(command)
    return json_reply(Marked(ok=True))


@routes.post(
    "/session/{id}/restore",
    sends=("restore_session", "get_session"),
    replies={200: Session},
)
async def _restore(call: Call) -> Response:
    """Cancel the scheduled deletion of a session."""
    await call.daemon.ask(RestoreSession(session_id=call.path["id"]))
    return json_reply(render_session(await get_record(call)))
