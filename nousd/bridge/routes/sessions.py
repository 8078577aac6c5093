"""Sessions: make, list, read, change, delete, and what hangs on one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta
from starlette.responses import Response

from nousd.bridge.replies import BAD_REQUEST, HttpError, json_reply
from nousd.bridge.routes.bodies import Given, ModelGiven, RuleGiven
from nousd.bridge.routes.runs import active_run
from nousd.bridge.routes.transcripts import transcript
from nousd.bridge.table import Call, Row
from nousd.errors import Refused
from nousd.views.tandem.asking import TodoItem, todo_items
from nousd.views.tandem.runs import RunFacts, run_facts
from nousd.views.tandem.sessions import Session, session
from nousd.wire.commands import (
    Abort,
    BranchSession,
    CompactSession,
    DeleteSession,
    GetSession,
    GetTodos,
    ListSessions,
    NewSession,
    UpdateSession,
)
from nousd.wire.entries import Sampling
from nousd.wire.optional import or_unset
from nousd.wire.responses import SessionDeleted
from nousd.wire.session_responses import SessionRecord
from nousd.wire.session_settings import SessionRules

_PAGE_SIZE_MAX: Final = 1000

_ALLOW: Final = frozenset({"allow", "always"})
_ASK: Final = frozenset({"ask", "once"})
_DENY: Final = frozenset({"deny", "reject"})


class CreateSession(Given, frozen=True, kw_only=True):
    """A new session; everything may be left out.

    Its folder is ``workspace_root``, else ``directory``, else the daemon's own; it has to lie in one
    that the user allowed.
    """

    title: str | None = None
    parent_id: str | None = None
    directory: str | None = None
    workspace_root: str | None = None
    model: ModelGiven | None = None
    provider: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    topP: float | None = None  # noqa: N815
    max_tokens: int | None = None
    maxTokens: int | None = None  # noqa: N815
    source_kind: str | None = None
    sourceKind: str | None = None  # noqa: N815
    source_metadata: dict[str, Any] | None = None
    sourceMetadata: dict[str, Any] | None = None  # noqa: N815
    permission: list[RuleGiven] = []  # noqa: RUF012  msgspec copies it


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions. Without a scope: those of the workspace that is named, else of the daemon's."""

    scope: Literal["workspace", "global"] | None = None
    workspace: str | None = None
    q: str | None = None
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    page_size: Annotated[int, Meta(ge=1, le=_PAGE_SIZE_MAX)] = 20
    archived: bool | None = None
    source: str | None = None


class PatchSession(Given, frozen=True, kw_only=True):
    """What is to change."""

    title: str | None = None
    archived: bool | None = None
    permission: list[RuleGiven] | None = None


class Deleted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a session: gone, or its run was asked to stop first."""

    deleted: bool
    cancelRequested: bool = False  # noqa: N815
    activeRun: RunFacts | None = None  # noqa: N815
    reason: str | None = None


class Forked(Session, frozen=True, kw_only=True):
    """A copy of a session: as itself, and once more under ``session``, where the engine puts it."""

    session: Session


class Summarized(msgspec.Struct, frozen=True):
    """A session whose older part was replaced by a summary."""

    ok: bool
    summary: str


async def record_of(call: Call) -> SessionRecord:
    """Returns the session that the path names.

    Raises:
        Refused: there is none.
    """
    return (await call.daemon.ask(GetSession(session_id=call.path["id"]))).session


async def _create(call: Call) -> Response:
    body: CreateSession = call.body
    model = body.model or ModelGiven()
    wanted = NewSession(
        name=body.title or None,
        workspace=await _folder(call),
        activate=False,
        source=body.source_kind or body.sourceKind,
        source_metadata=body.source_metadata or body.sourceMetadata,
        model=model.model,
        provider=model.provider or body.provider,
        sampling=_sampling(body),
        rules=_rules(body.permission) if body.permission else None,
    )
    made = await call.daemon.ask(wanted)
    record = await call.daemon.ask(GetSession(session_id=made.session_id))
    return json_reply(session(record.session))


async def _folder(call: Call) -> str | None:
    """Returns the folder that is asked for; "." and a missing one are the daemon's own."""
    for given in (call.body.workspace_root, call.body.directory):
        if given and given != ".":
            return str(given)
    return None


def _sampling(body: CreateSession) -> Sampling | None:
    top_p = body.topP if body.top_p is None else body.top_p
    max_tokens = body.maxTokens if body.max_tokens is None else body.max_tokens
    if body.temperature is None and top_p is None and max_tokens is None:
        return None
    return Sampling(
        temperature=or_unset(body.temperature),
        top_p=or_unset(top_p),
        max_tokens=or_unset(max_tokens),
    )


def _rules(given: Iterable[RuleGiven]) -> SessionRules:
    """Returns rules of ours; one whose action nobody knows is passed over, as the engine does."""
    told = [(rule.action.lower(), _rule_text(rule)) for rule in given]
    return SessionRules(
        allow=tuple(text for action, text in told if action in _ALLOW),
        ask=tuple(text for action, text in told if action in _ASK),
        deny=tuple(text for action, text in told if action in _DENY),
    )


def _rule_text(rule: RuleGiven) -> str:
    if rule.pattern in (None, "", "*"):
        return rule.permission
    return f"{rule.permission}({rule.pattern})"


async def _list(call: Call) -> Response:
    query: ListQuery = call.query
    wanted = ListSessions(
        limit=query.page_size,
        offset=(query.page - 1) * query.page_size,
        workspace=None if query.scope == "global" else query.workspace or None,
        q=query.q or None,
        archived=query.archived,
        source=query.source or None,
    )
    found = await call.daemon.ask(wanted)
    return json_reply([session(summary) for summary in found.sessions])


async def _get(call: Call) -> Response:
    record = await record_of(call)
    return json_reply(session(record, await transcript(call.daemon, record.session_id)))


async def _patch(call: Call) -> Response:
    body: PatchSession = call.body
    if body.title is not None and not body.title.strip():
        raise HttpError(BAD_REQUEST, "title: is blank")
    await call.daemon.ask(
        UpdateSession(
            session_id=call.path["id"],
            name=or_unset(body.title),
            archived=or_unset(body.archived),
            rules=UNSET if body.permission is None else _rules(body.permission),
        )
    )
    return json_reply(session(await record_of(call)))


async def _delete(call: Call) -> Response:
    session_id = call.path["id"]
    try:
        await call.daemon.ask(DeleteSession(session_id=session_id), SessionDeleted)
    except Refused as refused:
        if refused.message != "run_in_progress":
            raise
        run = await active_run(call.daemon, session_id)
        await call.daemon.ask(Abort(session_id=session_id, keep_queue=True))
        facts = None if run is None else run_facts(run)
        return json_reply(
            Deleted(deleted=False, cancelRequested=True, activeRun=facts, reason="active_run")
        )
    return json_reply(Deleted(deleted=True))


async def _todo(call: Call) -> Response:
    now = await call.daemon.ask(GetTodos(session_id=call.path["id"]))
    return json_reply(todo_items(now.todos))


async def _fork(call: Call) -> Response:
    made = await call.daemon.ask(BranchSession(session_id=call.path["id"]))
    record = (await call.daemon.ask(GetSession(session_id=made.session_id))).session
    copy = session(record, await transcript(call.daemon, record.session_id))
    return json_reply(Forked(**msgspec.structs.asdict(copy) | {"ok": True}, session=copy))


async def _children(call: Call) -> Response:
    wanted = ListSessions(parent_id=call.path["id"], children=True, limit=_PAGE_SIZE_MAX)
    found = await call.daemon.ask(wanted)
    return json_reply([session(summary) for summary in found.sessions])


async def _summarize(call: Call) -> Response:
    done = await call.daemon.ask(CompactSession(session_id=call.path["id"]))
    return json_reply(Summarized(ok=True, summary=done.summary))


ROWS: Final = (
    Row(
        method="POST",
        path="/session",
        handler=_create,
        summary="Makes a session.",
        sends=("new_session", "get_session"),
        replies={200: Session},
        body=CreateSession,
        is_body_optional=True,
        aliases=("/api/session",),
    ),
    Row(
        method="GET",
        path="/session",
        handler=_list,
        summary="Lists sessions, most recently used first, without their messages.",
        sends=("list_sessions",),
        replies={200: list[Session]},
        query=ListQuery,
        aliases=("/api/session",),
    ),
    Row(
        method="GET",
        path="/session/{id}",
        handler=_get,
        summary="Reads a session with its messages.",
        sends=("get_session", "get_messages"),
        replies={200: Session},
        aliases=("/api/session/{id}",),
    ),
    Row(
        method="PATCH",
        path="/session/{id}",
        handler=_patch,
        summary="Renames or archives a session, or sets its rules.",
        sends=("update_session", "get_session"),
        replies={200: Session},
        body=PatchSession,
        aliases=("/api/session/{id}",),
    ),
    Row(
        method="DELETE",
        path="/session/{id}",
        handler=_delete,
        summary="Deletes a session; one with a run is asked to stop it instead.",
        sends=("delete_session", "get_state", "abort"),
        replies={200: Deleted},
        aliases=("/api/session/{id}",),
    ),
    Row(
        method="GET",
        path="/session/{id}/todo",
        handler=_todo,
        summary="Reads what the session's model means to do.",
        sends=("get_todos",),
        replies={200: list[TodoItem]},
        aliases=("/api/session/{id}/todo",),
    ),
    Row(
        method="POST",
        path="/session/{id}/fork",
        handler=_fork,
        summary="Copies what a session holds now into a new one.",
        sends=("branch_session", "get_session", "get_messages"),
        replies={200: Forked},
        aliases=("/api/session/{id}/fork",),
    ),
    Row(
        method="GET",
        path="/session/{id}/children",
        handler=_children,
        summary="Lists the branches of a session and the sessions of its tasks.",
        sends=("list_sessions",),
        replies={200: list[Session]},
        aliases=("/api/session/{id}/children",),
    ),
    Row(
        method="POST",
        path="/session/{id}/summarize",
        handler=_summarize,
        summary="Replaces the older part of what models see by a summary.",
        sends=("compact_session",),
        replies={200: Summarized},
        aliases=("/api/session/{id}/summarize",),
    ),
)
