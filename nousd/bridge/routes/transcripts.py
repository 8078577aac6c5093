"""Reading transcripts page by page, with the failures of their runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.client.client import Client
from nousd.errors import AnswerInvalid
from nousd.views.tandem.failures import Failure, engine_code, run_error
from nousd.views.tandem.messages import Message, render_messages
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.commands import GetEvents, GetMessages, GetSession
from nousd.wire.events import Error, MessageStart
from nousd.wire.limits import PAGE_ROWS_MAX
from nousd.wire.objects.entries import Entry, MessageEntry
from nousd.wire.responses import Messages
from nousd.wire.responses.runs import RunRecord
from nousd.wire.responses.sessions import SessionRecord

ENTRIES_MAX: Final = 10_000
BYTES_MAX: Final = 64 * 1024 * 1024
"""The bounds of a transcript that is read, give or take a page; only the newest part of a longer one is
read."""

FAILURES_MAX: Final = 32
"""Maximum failed runs whose error code is looked up; older ones get the general code."""

_NEWEST: Final = 32
"""Number of newest entries that are searched first."""

_NO_RUN: Final = ""
"""The run id of an entry that was appended without a run."""

_FAILED: Final = {"error": None, "interrupted": None, "timeout": "run_stale"}
"""status of a failed run -> its error code; None if the status alone does not determine it."""


class _ErrorLine(msgspec.Struct):
    payload: Error


class _StartLine(msgspec.Struct):
    payload: MessageStart


_decoder: Final = json_decoder(_ErrorLine)
_start_decoder: Final = json_decoder(_StartLine)


async def read_session(daemon: Client, session_id: str) -> tuple[SessionRecord, list[Message]]:
    """Return a session and its messages from the root to the leaf, pending appended ones included.

    Raises:
        Refused: the session does not exist.
        AnswerInvalid: the daemon is too old for this request.
    """
    now = await daemon.ask(GetSession(session_id=session_id, messages=PAGE_ROWS_MAX))
    if now.transcript is UNSET or now.failed_runs is UNSET:
        raise AnswerInvalid("session_record: the messages are missing")
    entries = [*await _read_older(daemon, now.transcript), *now.transcript.messages]
    entries = await _assign_runs(daemon, now.failed_runs, entries)
    failures = await _read_failures(daemon, now.failed_runs, entries)
    return now.session, render_messages(session_id, entries, failures)


async def _assign_runs(
    daemon: Client, failed: Iterable[RunRecord], entries: list[Entry]
) -> list[Entry]:
    """Return the entries, and give an appended entry the id of the run that was started on it, if that
    run failed before it added an entry. Without it, the failure would not appear anywhere.
    """
    run_ids = _runs_of(entries)
    silent = (
        [run.run_id for run in failed if run.run_id not in run_ids] if _NO_RUN in run_ids else []
    )
    of_run: dict[str, str] = {}
    for run_id in silent[:FAILURES_MAX]:
        page = await daemon.ask(GetEvents(run_id=run_id, types=("message_start",), limit=1))
        for line in page.events:
            # If several runs were started on one entry, the newest one comes first.
            of_run.setdefault(_start_decoder.decode(line).payload.message_id, run_id)
    return [
        msgspec.structs.replace(entry, run_id=of_run[entry.id])
        if isinstance(entry, MessageEntry) and entry.run_id == _NO_RUN and entry.id in of_run
        else entry
        for entry in entries
    ]


def _runs_of(entries: Iterable[Entry]) -> set[str]:
    return {entry.run_id for entry in entries if isinstance(entry, MessageEntry)}


async def _read_older(daemon: Client, page: Messages) -> list[Entry]:
    """Return the entries before a page, the oldest first, up to the bounds."""
    pages: list[tuple[Entry, ...]] = []
    count = size = 0
    while page.has_more and page.messages:
        count += len(page.messages)
        size += len(msgspec.json.encode(page.messages))
        if count >= ENTRIES_MAX or size >= BYTES_MAX:
            break
        page = await daemon.ask(
            GetMessages(session_id=page.session_id, before=page.messages[0].id, limit=PAGE_ROWS_MAX)
        )
        pages.append(page.messages)
    return [entry for page_entries in reversed(pages) for entry in page_entries]


async def read_message(daemon: Client, session_id: str, entry_id: str) -> Message:
    """Return one message of the user.

    Raises:
        Refused: the message no longer exists.
    """
    newest = await daemon.ask(GetMessages(session_id=session_id, limit=_NEWEST))
    found = [entry for entry in newest.messages if entry.id == entry_id]
    if not found:
        command = GetMessages(session_id=session_id, leaf_id=entry_id, limit=1)
        found = list((await daemon.ask(command)).messages)
    return render_messages(session_id, found)[-1]


async def read_prompt_text(daemon: Client, session_id: str) -> str | None:
    """Return the newest text of the user that is not a steer or follow-up; None if there is none.

    Raises:
        Refused: the session does not exist.
    """
    command = GetMessages(session_id=session_id, limit=_NEWEST)
    while True:
        page = await daemon.ask(command)
        for entry in reversed(page.messages):
            if isinstance(entry, MessageEntry) and _is_prompt(entry):
                return entry.text
        if not (page.has_more and page.messages):
            return None
        command = GetMessages(session_id=session_id, before=page.messages[0].id)


def _is_prompt(entry: MessageEntry) -> bool:
    return entry.role == "user" and entry.turn_kind == "prompt"


async def _read_failures(
    daemon: Client, failed: Iterable[RunRecord], entries: Iterable[Entry]
) -> dict[str, Failure]:
    """Return run id -> failure, for the failed runs to which one of the entries belongs."""
    run_ids = _runs_of(entries)
    return {
        run.run_id: await _read_failure(daemon, run, is_looked_up=index < FAILURES_MAX)
        for index, run in enumerate(run for run in failed if run.run_id in run_ids)
    }


async def _read_failure(daemon: Client, run: RunRecord, *, is_looked_up: bool) -> Failure:
    code = _FAILED[run.status]
    category: str | UnsetType = UNSET
    if code is None and is_looked_up:
        page = await daemon.ask(GetEvents(run_id=run.run_id, types=("error",), limit=1))
        for line in page.events:
            event = _decoder.decode(line).payload
            code, category = event.code, event.category
    error = run_error(run.status, run.error, category) or run.status
    ended_at = run.started_at if run.ended_at is UNSET else run.ended_at
    return Failure(engine_code(code, category), error, ended_at)
