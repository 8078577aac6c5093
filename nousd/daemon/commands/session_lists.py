"""Commands that read sessions: lists come from the store's rows, one session from its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import trio
from msgspec import UNSET, UnsetType

from nousd.daemon.commands.messages import get_messages
from nousd.daemon.commands.pages import page_of
from nousd.daemon.commands.reading import run_state
from nousd.daemon.replies import Reply
from nousd.daemon.services import Services
from nousd.daemon.sessions.live_session import not_found
from nousd.daemon.sessions.transcripts import NewestMessages
from nousd.errors import InvalidPayload
from nousd.machine.session.settings import SessionSettings, settings_among
from nousd.machine.session.state import SessionState
from nousd.store.rows import SessionRow
from nousd.store.session_list import EXACT_FILTERS, SessionFilter
from nousd.store.session_search import Match, SearchPlace
from nousd.wire import commands
from nousd.wire.codec.unset import or_unset
from nousd.wire.commands.subscribe import cursor
from nousd.wire.limits import CURSOR_DIGITS_MAX, PAGE_ROWS_MAX
from nousd.wire.objects.workspaces import OverrideInForce
from nousd.wire.responses import Messages, SessionMatches, SessionNow, Sessions
from nousd.wire.responses.runs import RunRecord
from nousd.wire.responses.sessions import SessionMatch, SessionRecord, SessionSummary


async def list_sessions(services: Services, command: commands.ListSessions) -> Reply:
    """List sessions, most recently used first."""
    if command.before is not None:
        await services.sessions.get(command.before)
    page = await services.store.sessions(
        await _build_filter(services, command),
        limit=command.limit + 1,
        before=command.before,
        offset=command.offset,
    )
    shown = page_of(
        [
            SessionSummary(**_facts(services, row), updated_at=row.updated_at)
            for row in page.rows[: command.limit]
        ]
    )
    return Sessions(sessions=shown, has_more=len(page.rows) > len(shown), count=page.count)


async def _build_filter(services: Services, command: commands.ListSessions) -> SessionFilter:
    workspaces = services.workspaces
    named = command.workspace
    return SessionFilter(
        children=command.children,
        workspace=None if named is None else await workspaces.normalize_path(named),
        **{name: getattr(command, name) for name in EXACT_FILTERS},
        parent_id=command.parent_id,
        to_delete=command.deletion_scheduled,
        text=command.q,
        unnamed_workspace=workspaces.default.path,
    )


_SEARCHES: Final = trio.CapacityLimiter(1)
"""Maximum searches at a time, so that database connections stay free for other reads."""


async def search_sessions(services: Services, command: commands.SearchSessions) -> Reply:
    """Search the titles and messages of sessions, most recently used first."""
    after = None if command.before is None else _place(command.before)
    if after is not None:
        await services.sessions.get(after.session_id)
    workspaces, named = services.workspaces, command.workspace
    session_filter = SessionFilter(
        children=command.children,
        workspace=None if named is None else await workspaces.normalize_path(named),
        archived=command.archived,
        to_delete=False,
        unnamed_workspace=workspaces.default.path,
    )
    async with _SEARCHES:
        page = await services.store.search(
            session_filter, command.query, limit=command.limit, after=after
        )
    return SessionMatches(
        matches=tuple(_match(services, match) for match in page.matches),
        has_more=page.place is not None,
        partial=page.is_partial,
        before=UNSET if page.place is None else _cursor_at(page.place),
    )


def _match(services: Services, match: Match) -> SessionMatch:
    row, message = match.row, match.message
    return SessionMatch(
        session=SessionSummary(**_facts(services, row), updated_at=row.updated_at),
        snippet=match.snippet,
        entry_id=UNSET if message is None else message.entry_id,
        role=UNSET if message is None else message.role,
    )


def _cursor_at(place: SearchPlace) -> str:
    return place.session_id if place.seq is None else f"{place.session_id}/{place.seq}"


def _place(before: str) -> SearchPlace:
    """Return the position that a search's ``before`` names.

    Raises:
        InvalidPayload: ``before`` is malformed.
    """
    session_id, separator, seq = before.partition("/")
    if not separator:
        return SearchPlace(session_id)
    if not (seq.isascii() and seq.isdecimal() and len(seq) <= CURSOR_DIGITS_MAX):
        raise InvalidPayload("before must be what an earlier answer had as before")
    return SearchPlace(session_id, int(seq))


async def get_session(services: Services, command: commands.GetSession) -> Reply:
    """Read one session's record, optionally with its newest messages."""
    live = await services.sessions.get(command.session_id)
    if not live.updated_at:
        raise not_found(command.session_id)
    state = live.committed
    facts = _collect_settings(state, _OF_RECORDS) | _facts(services, state)
    facts["permission_mode"] = services.run_services.permissions.mode_of(state)
    record = SessionRecord(
        **facts,
        updated_at=live.updated_at,
        override=_override(state),
    )
    if not command.messages:
        return SessionNow(session=record)
    at = cursor(services.hub.head)
    newest = services.transcripts.find(state, command.messages)
    if newest is None:
        newest = await _newest(services, state.session_id, command.messages)
        if live.committed is state:
            services.transcripts.keep(state, command.messages, newest)
    transcript = msgspec.structs.replace(newest.transcript, cursor=at)
    return SessionNow(session=record, transcript=transcript, failed_runs=newest.failed_runs)


async def _newest(services: Services, session_id: str, limit: int) -> NewestMessages:
    transcript = await get_messages(
        services, commands.GetMessages(session_id=session_id, limit=limit)
    )
    return NewestMessages(transcript, await _read_failed_runs(services, transcript))


async def _read_failed_runs(services: Services, transcript: Messages) -> tuple[RunRecord, ...]:
    """Return the newest of a session's runs that did not complete, newest first."""
    if not transcript.messages:
        return ()
    newest = await services.store.runs(transcript.session_id, limit=PAGE_ROWS_MAX, before=None)
    return page_of([run for run in newest if run.status in _FAILED])


_FAILED: Final = frozenset({"error", "interrupted", "timeout"})


def _override(state: SessionState) -> OverrideInForce | UnsetType:
    expires_at, seconds = state.override_expires_at, state.override_seconds
    if expires_at is None or seconds is None:
        return UNSET
    return OverrideInForce(ttl_seconds=seconds, expires_at=expires_at)


def _collect_settings(row: SessionSettings, names: Sequence[str]) -> dict[str, Any]:
    return {name: or_unset(getattr(row, name)) for name in names}


_OF_SUMMARIES: Final = settings_among(SessionSummary)
_OF_RECORDS: Final = settings_among(SessionRecord)


def _facts(services: Services, row: SessionRow | SessionState) -> dict[str, Any]:
    choice = services.run_services.models.choice(row.provider, row.model, None)
    shown = services.sessions.find_committed(row.session_id)
    run_id: str | UnsetType = UNSET if shown is None or shown.run is None else shown.run.run_id
    return {
        "session_id": row.session_id,
        "created_at": row.created_at,
        "active": row.session_id == services.sessions.committed_active_id,
        "run_state": run_state(shown),
        "parent_id": or_unset(row.parent_id),
        "leaf_id": or_unset(row.leaf_id),
        "run_id": run_id,
        "usage": or_unset(row.usage),
        "unread": row.leaf_id not in (None, row.seen_id),
        **_collect_settings(row, _OF_SUMMARIES),
        # Shown as the effective settings, not as they were set.
        "workspace": row.workspace or services.workspaces.default.path,
        "provider": choice.provider,
        "model": choice.model,
        "worker": UNSET if row.worker is None else row.worker.name,
        # A name replaces the title that comes from the first message.
        "title": or_unset(row.name or row.title),
    }
