"""Sessions: create, read, change, delete and list them.

Rules about tool calls are translated from the HTTP contract's form to the form of v1. The engine ignores
a rule that it does not understand; because the rule may be a denial, the bridge refuses it. In the
engine, a pattern matches the name of the tool. A pattern that only repeats the name adds nothing; any
other pattern is passed on as the pattern of a v1 rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta
from starlette.responses import Response

from nousd.bridge.replies import UNPROCESSABLE, HttpError, json_reply
from nousd.bridge.routes.bodies import ModelBody, RequestBody, SamplingBody
from nousd.bridge.routes.transcripts import read_session
from nousd.bridge.routing.route import Call, Routes
from nousd.client.client import Client
from nousd.views.tandem.runs import DEFERRED, RunFacts, render_run
from nousd.views.tandem.sessions import (
    DEFAULT_TITLE,
    ChangedSession,
    Session,
    render_changed_session,
    render_session,
)
from nousd.views.tandem.tools import is_same_tool, list_ruled_tools
from nousd.views.tandem.values import milliseconds_or_none
from nousd.wire.codec.unset import or_unset
from nousd.wire.commands import (
    DeleteSession,
    GetCapabilities,
    GetSession,
    ListSessions,
    NewSession,
    UpdateSession,
)
from nousd.wire.limits import PAGE_ROWS_MAX, UNDO_SECONDS_MAX
from nousd.wire.objects.session_values import SessionRules
from nousd.wire.responses.sessions import SessionRecord, SessionSummary

routes: Final = Routes()

SPELLS: Final[Mapping[str, str]] = {
    "name": "title",
    "workspace": "workspace_root (or directory)",
    "rules": "permission",
    "sampling": "",
    "source": "source_kind",
}
"""field of a command -> its name in the HTTP contract."""

_OWN: Final = (None, "", ".")
"""Values that denote the daemon's own workspace."""


class CreateSession(SamplingBody, frozen=True, kw_only=True):
    """A new session; every field is optional.

    Its workspace is ``workspace_root``, else ``directory``, else the daemon's own, also called ".". It
    must be in a workspace that the user allowed. An invalid rule is refused, not ignored. ``project_id``
    and ``pinned_workspace_id`` are accepted and ignored: the project follows from the workspace.
    """

    title: str | None = None
    parent_id: str | None = None
    directory: str | None = None
    workspace_root: str | None = None
    project_id: str | None = None
    pinned_workspace_id: str | None = None
    model: ModelBody | None = None
    provider: str | None = None
    source_kind: str | None = None
    source_metadata: dict[str, Any] | None = None
    permission: list[RuleBody] = []  # noqa: RUF012  msgspec copies it


class PatchSession(RequestBody, frozen=True, kw_only=True):
    """Changes to a session. ``permission`` replaces its rules."""

    title: str | None = None
    archived: bool | None = None
    permission: list[RuleBody] | None = None


class DeleteQuery(msgspec.Struct, frozen=True, kw_only=True):
    """For how many seconds ``restore`` can undo the deletion; with 0, the session is deleted at once."""

    undo_seconds: Annotated[int, Meta(ge=0, le=UNDO_SECONDS_MAX)] = 0


class Deleted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a deletion: the session is deleted, its deletion is scheduled, or its run was asked
    to stop first.
    """

    deleted: bool
    deleteAtMs: int | None = None  # noqa: N815
    cancelRequested: bool = False  # noqa: N815
    activeRun: RunFacts | None = None  # noqa: N815
    reason: str | None = None


async def get_record(call: Call) -> SessionRecord:
    """Return the session in the path.

    Raises:
        Refused: the session does not exist.
    """
    return (await call.daemon.ask(GetSession(session_id=call.path["id"]))).session


@routes.post(
    "/session",
    sends=("new_session", "get_session"),
    replies={200: Session},
    body=CreateSession,
    spells=SPELLS,
)
async def _create(call: Call) -> Response:
    """Create a session."""
    body: CreateSession = call.body
    model = body.model or ModelBody()
    command = NewSession(
        name=_name(body.title),
        parent_id=body.parent_id or None,
        workspace=_choose_workspace(body),
        activate=False,
        source=body.source_kind or None,
        source_metadata=body.source_metadata,
        model=model.model,
        provider=model.provider or body.provider or None,
        sampling=body.sampling,
        rules=parse_rules(body.permission) if body.permission else None,
    )
    created = await call.daemon.ask(command)
    record = await call.daemon.ask(GetSession(session_id=created.session_id))
    return json_reply(render_session(record.session))


def _name(title: str | None) -> str | None:
    """Return the name for a title; None if the title is blank or the default."""
    return None if title is None or title.strip() in ("", DEFAULT_TITLE) else title


def _choose_workspace(body: CreateSession) -> str | None:
    """Return the requested workspace; None for the daemon's own."""
    return next((path for path in (body.workspace_root, body.directory) if path not in _OWN), None)


@routes.get(
    "/session/{id}", sends=("get_session", "get_messages", "get_events"), replies={200: Session}
)
async def _get(call: Call) -> Response:
    """Read a session with its messages."""
    return json_reply(render_session(*await read_session(call.daemon, call.path["id"])))


@routes.patch(
    "/session/{id}",
    sends=("update_session", "get_session"),
    replies={200: ChangedSession},
    body=PatchSession,
    spells=SPELLS,
)
async def _patch(call: Call) -> Response:
    """Rename or archive a session, or set its rules."""
    body: PatchSession = call.body
    if body.title is not None and not body.title.strip():
        raise HttpError(UNPROCESSABLE, "body: title is blank")
    await call.daemon.ask(
        UpdateSession(
            session_id=call.path["id"],
            name=or_unset(body.title),
            archived=or_unset(body.archived),
            rules=UNSET if body.permission is None else parse_rules(body.permission),
        )
    )
    return json_reply(render_changed_session(await get_record(call)))


@routes.delete(
    "/session/{id}", sends=("delete_session",), replies={200: Deleted}, query=DeleteQuery
)
async def _delete(call: Call) -> Response:
    """Delete a session; if it has an active run, stop the run instead."""
    query: DeleteQuery = call.query
    command = DeleteSession(session_id=call.path["id"], abort=True, undo_seconds=query.undo_seconds)
    answer = await call.daemon.ask(command)
    if answer.run is UNSET:
        at_ms = milliseconds_or_none(answer.delete_at)
        return json_reply(Deleted(deleted=answer.deleted, deleteAtMs=at_ms))
    stopping = Deleted(
        deleted=False, cancelRequested=True, activeRun=render_run(answer.run), reason=DEFERRED
    )
    return json_reply(stopping)


# --- lists ----------------------------------------------------------------------------------


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions to list: all if ``scope`` is global, otherwise those of ``workspace``, by default the
    daemon's own.
    """

    scope: Literal["workspace", "global"] | None = None
    workspace: str | None = None
    q: str | None = None
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    page_size: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)] = 20
    archived: bool | None = None
    source: str | None = None


@routes.get(
    "/session",
    sends=("list_sessions", "get_capabilities"),
    replies={200: list[Session]},
    query=ListQuery,
)
async def _list(call: Call) -> Response:
    """List sessions, most recently used first, without their messages."""
    query: ListQuery = call.query
    command = ListSessions(
        limit=query.page_size,
        offset=(query.page - 1) * query.page_size,
        workspace=await resolve_scope(call.daemon, query.scope, query.workspace),
        q=query.q or None,
        archived=query.archived,
        source=query.source or None,
    )
    return json_reply([render_session(row) for row in await _rows(call.daemon, command)])


async def resolve_scope(daemon: Client, scope: str | None, named: str | None) -> str | None:
    """Return the workspace to which a query is limited; None for all workspaces."""
    if scope == "global":
        return None
    if named and named != ".":
        return named
    return (await daemon.ask(GetCapabilities())).workdir


async def _rows(daemon: Client, command: ListSessions) -> list[SessionSummary]:
    """Return a page of the requested length, joined from several answers if necessary."""
    rows: list[SessionSummary] = []
    while True:
        rest = msgspec.structs.replace(
            command, limit=command.limit - len(rows), offset=command.offset + len(rows)
        )
        page = await daemon.ask(rest)
        rows += page.sessions
        if not (page.has_more and page.sessions and len(rows) < command.limit):
            return rows


@routes.get(
    "/session/{id}/children", sends=("get_session", "list_sessions"), replies={200: list[Session]}
)
async def _children(call: Call) -> Response:
    """List the branches, children and tasks of a session."""
    record = await get_record(call)
    command = ListSessions(parent_id=record.session_id, children=True, limit=PAGE_ROWS_MAX)
    return json_reply([render_session(row) for row in await _rows(call.daemon, command)])


_DECISIONS: Final[dict[str, Literal["allow", "ask", "deny"]]] = {
    "allow": "allow",
    "always": "allow",
    "ask": "ask",
    "once": "ask",
    "deny": "deny",
    "reject": "deny",
}

_ANY: Final = ("", "*", "**")
"""Patterns that match everything."""


class RuleBody(RequestBody, frozen=True, kw_only=True):
    """A rule about tool calls; ``action`` is allow or always, ask or once, deny or reject."""

    permission: str
    action: str
    pattern: str | None = None


def parse_rules(bodies: Sequence[RuleBody]) -> SessionRules:
    """Return the rules in the form of v1.

    Raises:
        HttpError: an action is unknown.
    """
    rules: dict[str, list[str]] = {"allow": [], "ask": [], "deny": []}
    for index, rule in enumerate(bodies):
        decision = _DECISIONS.get(rule.action.lower())
        if decision is None:
            message = f"body: permission[{index}].action must be one of {', '.join(_DECISIONS)}"
            raise HttpError(UNPROCESSABLE, message)
        rules[decision] += _rule_texts(rule)
    # Several tools of the engine may correspond to the same tool of nousd.
    return SessionRules(
        **{decision: tuple(dict.fromkeys(each)) for decision, each in rules.items()}
    )


def _rule_texts(rule: RuleBody) -> list[str]:
    """Return a rule for each tool of nousd that the rule covers; the rule itself if it covers none."""
    pattern = rule.pattern
    matches_all = pattern is None or pattern in _ANY or is_same_tool(pattern, rule.permission)
    rest = "" if matches_all else f"({pattern})"
    return [f"{tool}{rest}" for tool in list_ruled_tools(rule.permission) or (rule.permission,)]
