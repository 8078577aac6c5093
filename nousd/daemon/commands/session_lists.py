"""Commands that read what is known of sessions, their transcripts left out: all of it from rows."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from nousd.daemon.commands.reading import run_state
from nousd.daemon.core import Core, Reply
from nousd.daemon.live_session import not_found
from nousd.daemon.requests import page_of
from nousd.store.rows import SessionRow
from nousd.store.session_list import SessionFilter
from nousd.wire import commands
from nousd.wire.optional import or_unset
from nousd.wire.responses import SessionNow, Sessions
from nousd.wire.session_responses import SessionRecord, SessionSummary
from nousd.wire.workspaces import OverrideInForce


async def list_sessions(core: Core, command: commands.ListSessions) -> Reply:
    """Lists sessions, most recently used first."""
    if command.before is not None:
        await core.sessions.get(command.before)
    page = await core.store.sessions(
        await _wanted(core, command),
        limit=command.limit + 1,
        before=command.before,
        offset=command.offset,
    )
    shown = page_of([SessionSummary(**_facts(core, row)) for row in page.rows[: command.limit]])
    return Sessions(sessions=shown, has_more=len(page.rows) > len(shown), count=page.count)


async def _wanted(core: Core, command: commands.ListSessions) -> SessionFilter:
    workspaces = core.workspaces
    named = command.workspace
    return SessionFilter(
        children=command.children,
        workspace=None if named is None else await workspaces.normalized(named),
        source=command.source,
        archived=command.archived,
        parent_id=command.parent_id,
        text=command.q,
        unnamed_workspace=workspaces.default.path,
    )


async def get_session(core: Core, command: commands.GetSession) -> Reply:
    """Reads one session's row."""
    row = await core.store.session(command.session_id)
    if row is None:
        raise not_found(command.session_id)
    # What a task may do is cut by its parents, which come with it.
    live = await core.sessions.get(command.session_id)
    record = SessionRecord(
        **_facts(core, row),
        permission_mode=core.runs.permissions.mode_of(live.committed),
        sampling=or_unset(row.sampling),
        rules=or_unset(row.rules),
        origin_workspace=or_unset(row.origin_workspace),
        attached_from=or_unset(row.attached_from),
        attached_at=or_unset(row.attached_at),
        attach_reason=or_unset(row.attach_reason),
        override=_override(row),
    )
    return SessionNow(session=record)


def _override(row: SessionRow) -> OverrideInForce | UnsetType:
    expires_at, seconds = row.override_expires_at, row.override_seconds
    if expires_at is None or seconds is None:
        return UNSET
    return OverrideInForce(ttl_seconds=seconds, expires_at=expires_at)


def _facts(core: Core, row: SessionRow) -> dict[str, Any]:
    choice = core.runs.models.choice(row.provider, row.model, None)
    shown = core.sessions.shown(row.session_id)
    run_id: str | UnsetType = UNSET if shown is None or shown.run is None else shown.run.run_id
    return {
        "session_id": row.session_id,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "active": row.session_id == core.sessions.committed_active_id,
        "run_state": run_state(shown),
        "workspace": row.workspace or core.workspaces.default.path,
        "archived": row.archived,
        "provider": choice.provider,
        "model": choice.model,
        "name": or_unset(row.name),
        "parent_id": or_unset(row.parent_id),
        "leaf_id": or_unset(row.leaf_id),
        "run_id": run_id,
        "source": or_unset(row.source),
        "source_metadata": or_unset(row.source_metadata),
        "usage": or_unset(row.usage),
        "origin": or_unset(row.origin),
        "worker": UNSET if row.worker is None else row.worker.name,
    }
