"""The command that reads a transcript: the path to the leaf, and pending messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import trio
from msgspec import UNSET

from nousd.daemon.commands.accepting import require_entry
from nousd.daemon.services import Services
from nousd.daemon.sessions.history import let_go, whole_inputs, whole_path
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import CommandRejected
from nousd.machine.context import text_offload
from nousd.machine.session import queue
from nousd.machine.session.appending import build_appended_entry
from nousd.store.rows import Path
from nousd.wire import commands
from nousd.wire.codec.envelope import encode_json
from nousd.wire.codec.unset import or_unset
from nousd.wire.commands.subscribe import cursor
from nousd.wire.limits import ENTRY_BYTES_MAX, PAGE_BYTES_MAX
from nousd.wire.objects.entries import Entry, parent_of
from nousd.wire.responses import Messages


async def get_messages(services: Services, command: commands.GetMessages) -> Messages:
    """Read a page of the path from the root to the leaf, or of the context: the newest page, or the one
    before the entry ``before``.

    Messages that were appended during a run are not in the tree yet. They follow the leaf, so that a
    client finds its own message at once.
    """
    live = await services.sessions.target(command.session_id)
    at = cursor(services.hub.head)
    if live is None:
        return Messages(session_id="", messages=(), cursor=at, has_more=False)
    leaf_id = live.committed.leaf_id
    waiting = queue.list_messages(live.committed.queue)
    if command.leaf_id is not None:
        await require_entry(services, live, command.leaf_id)
        leaf_id, waiting = command.leaf_id, ()
    pending = [
        msgspec.structs.replace(build_appended_entry(message, None), pending=True)
        for message in await whole_inputs(services.store, waiting)
    ]
    if command.compacted:
        page = await _newest_in_context(services, live, leaf_id, pending, command.before)
        return _page(live, leaf_id, at, page)
    end = leaf_id
    if command.before is not None:
        ids = [entry.id for entry in pending]
        if command.before in ids:
            pending = pending[: ids.index(command.before)]
        else:
            end, pending = await _parent(services, live, command.before), []
    page = await _newest(services, live, end, pending, command.limit)
    return _page(live, leaf_id, at, page)


async def _newest(
    services: Services, live: LiveSession, end: str | None, pending: Sequence[Entry], limit: int
) -> Path:
    """Return the newest entries of a path and the pending messages, up to one page."""
    newest: tuple[Entry, ...] = ()
    room = PAGE_BYTES_MAX
    for entry in reversed(pending):
        room -= len(encode_json(entry))
        if len(newest) == limit or (newest and room < 0):
            return Path(newest, has_more=True)
        newest = (entry, *newest)
    if end is None:
        return Path(newest, has_more=False)
    if len(newest) == limit or (newest and room <= 0):
        return Path(newest, has_more=True)
    path = await whole_path(
        services.store, live.session_id, end, limit=limit - len(newest), bytes_max=room
    )
    if newest and len(path.entries) == 1 and len(encode_json(path.entries[0])) > room:
        return Path(newest, has_more=True)
    return Path((*path.entries, *newest), path.has_more)


async def _newest_in_context(
    services: Services,
    live: LiveSession,
    leaf_id: str | None,
    pending: Sequence[Entry],
    before: str | None,
) -> Path:
    """Return the newest entries of a context and the pending messages, up to one page."""
    # Extend the list in place: even copying the references to 100,000 entries takes milliseconds.
    entries = await services.contexts.read_entries(live.session_id, leaf_id)
    entries += pending
    page = await trio.to_thread.run_sync(_newest_of, entries, before)
    await let_go(entries)
    return page


def _newest_of(entries: Sequence[Entry], before: str | None) -> Path:
    """Return the newest of these entries, or those before one of them, up to one page.

    Raises:
        CommandRejected: ``entry_not_found``.
    """
    end = len(entries)
    if before is not None:
        end = next((place for place, entry in enumerate(entries) if entry.id == before), -1)
    if end < 0:
        raise CommandRejected("entry_not_found")
    start, room = end, PAGE_BYTES_MAX
    while start > 0:
        room -= len(encode_json(entries[start - 1]))
        if room < 0 and start < end:
            break
        start -= 1
    return Path(tuple(entries[start:end]), has_more=start > 0)


async def _parent(services: Services, live: LiveSession, entry_id: str) -> str | None:
    entry = await services.store.entry(live.session_id, entry_id)
    if entry is None:
        raise CommandRejected("entry_not_found")
    return parent_of(entry)


def _page(live: LiveSession, leaf_id: str | None, at: str, page: Path) -> Messages:
    entries = page.entries
    # An entry that is longer than a page is alone on its page.
    if len(entries) == 1 and len(encode_json(entries[0])) > ENTRY_BYTES_MAX:
        entries = (text_offload.short_entry(entries[0]),)
    return Messages(
        session_id=live.session_id,
        messages=entries,
        cursor=at,
        has_more=page.has_more,
        leaf_id=or_unset(leaf_id),
        before=page.entries[0].id if page.has_more else UNSET,
    )
