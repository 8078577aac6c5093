"""Transcripts, read page by page, and what the runs in them failed with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import UNSET

from nousd.client.client import Client
from nousd.views.tandem.failures import Failure, engine_code
from nousd.views.tandem.messages import Message, messages
from nousd.wire.commands import GetEvents, GetMessages, ListRuns
from nousd.wire.entries import Entry, MessageEntry
from nousd.wire.events import Error
from nousd.wire.limits import PAGE_ROWS_MAX
from nousd.wire.run_responses import RunRecord

ENTRIES_MAX: Final = 10_000
BYTES_MAX: Final = 64 * 1024 * 1024
"""What is told of one transcript; of a longer one the newest, to the page."""

FAILURES_MAX: Final = 32
"""Failed runs whose error is looked up; of older ones the code is the general one."""

_NEWEST: Final = 32
"""Entries among which one that was just appended is looked for first."""

_FAILED: Final = {"error": None, "interrupted": None, "timeout": "run_stale"}
"""status of a run that failed -> the code of its error, where that follows from it."""


class _ErrorLine(msgspec.Struct):
    payload: Error


_decoder: Final = msgspec.json.Decoder(_ErrorLine)


async def transcript(daemon: Client, session_id: str) -> list[Message]:
    """Returns the messages from the root to the leaf of a session, and what waits to join it.

    Raises:
        Refused: there is no such session.
    """
    pages: list[tuple[Entry, ...]] = []
    count = size = 0
    before: str | None = None
    while count < ENTRIES_MAX and size < BYTES_MAX:
        wanted = GetMessages(session_id=session_id, before=before, limit=PAGE_ROWS_MAX)
        page = await daemon.ask(wanted)
        pages.append(page.messages)
        count += len(page.messages)
        size += len(msgspec.json.encode(page.messages))
        if not page.has_more or not page.messages:
            break
        before = page.messages[0].id
    entries = [entry for page_entries in reversed(pages) for entry in page_entries]
    return messages(session_id, entries, await _failures(daemon, session_id, entries))


async def message_of(daemon: Client, session_id: str, entry_id: str) -> Message:
    """Returns one message of the user's.

    Raises:
        Refused: it is not there any more.
    """
    newest = await daemon.ask(GetMessages(session_id=session_id, limit=_NEWEST))
    found = [entry for entry in newest.messages if entry.id == entry_id]
    if not found:
        wanted = GetMessages(session_id=session_id, leaf_id=entry_id, limit=1)
        found = list((await daemon.ask(wanted)).messages)
    return messages(session_id, found)[-1]


async def _failures(
    daemon: Client, session_id: str, entries: Iterable[Entry]
) -> dict[str, Failure]:
    """Returns what runs have failed with that entries are of."""
    told = {entry.run_id for entry in entries if isinstance(entry, MessageEntry)} - {""}
    if not told:
        return {}
    runs = await daemon.ask(ListRuns(session_id=session_id, limit=PAGE_ROWS_MAX))
    failed = [run for run in runs.runs if run.status in _FAILED and run.run_id in told]
    return {
        run.run_id: await _failure(daemon, run, is_looked_up=index < FAILURES_MAX)
        for index, run in enumerate(failed)
    }


async def _failure(daemon: Client, run: RunRecord, *, is_looked_up: bool) -> Failure:
    code = _FAILED[run.status]
    if code is None and is_looked_up:
        page = await daemon.ask(GetEvents(run_id=run.run_id, types=("error",), limit=1))
        code = _decoder.decode(page.events[0]).payload.code if page.events else None
    error = run.status if run.error is UNSET else run.error
    ended_at = run.started_at if run.ended_at is UNSET else run.ended_at
    return Failure(engine_code(code), error, ended_at)
