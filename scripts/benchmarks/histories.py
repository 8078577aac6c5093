"""Logs to start from, written through the log's own interface before a daemon opens them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import UNSET

from nousd.daemon.clock import SystemClock
from nousd.daemon.eventlog.hub import Hub
from nousd.daemon.eventlog.log import Log
from nousd.runtime_paths.locations import database_file
from nousd.store.sqlite.store import open_store
from nousd.wire import events
from nousd.wire.objects.entries import MessageEntry

_BATCH_EVENTS: Final = 1_000
_DELTAS_PER_RUN: Final = 990
_RUNS_PER_SESSION: Final = 10
_EVENTS_PER_SESSION: Final = _RUNS_PER_SESSION * _DELTAS_PER_RUN
"""At least."""

_TIME: Final = "2026-01-01T00:00:00.000000Z"
_TEXT: Final = "What is in the folder, and what has to change for the test to pass? " * 3


async def write_sessions(place: Path, sizes: Sequence[int]) -> list[str]:
    """Write a session of each of the sizes, in entries; returns their ids."""
    async with _log(place) as log:
        for size in sizes:
            await _write(log, _session(f"sess-{size}", size))
    return [f"sess-{size}" for size in sizes]


async def write_long_sessions(place: Path, count: int, messages: int, chars: int) -> list[str]:
    """Write equal sessions of so many messages, each with a text of so many characters; returns their
    ids.
    """
    text = ("word " * (chars // 5 + 1))[:chars]
    ids = [f"sess-{number}" for number in range(count)]
    async with _log(place) as log:
        for session_id in ids:
            await _write(log, _session(session_id, messages, text))
    return ids


async def write_events(place: Path, count: int) -> None:
    """Write a log of at least so many events: sessions of ten runs each, most events being deltas."""
    async with _log(place) as log:
        for number in range(count // _EVENTS_PER_SESSION + 1):
            await _write(log, _session_of_runs(f"sess-{number}"))


@asynccontextmanager
async def _log(place: Path) -> AsyncIterator[Log]:
    state_dir = place / "state"
    state_dir.mkdir(mode=0o700)
    async with open_store(database_file(state_dir)) as store:
        yield Log(store, Hub(store), SystemClock())


async def _write(log: Log, history: Iterator[events.Event]) -> None:
    while batch := tuple(islice(history, _BATCH_EVENTS)):
        await log.submit(log.encode(batch)).wait_committed()


def _session(session_id: str, size: int, text: str = _TEXT) -> Iterator[events.Event]:
    """Yield the events of a session whose transcript is one long path."""
    yield events.SessionCreated(session_id=session_id, created_at=_TIME, contract_version="1")
    for number in range(size):
        role: Literal["user", "assistant"] = "assistant" if number % 2 else "user"
        yield _entry(session_id, "run-0", number, role, text)


def _session_of_runs(session_id: str) -> Iterator[events.Event]:
    yield events.SessionCreated(session_id=session_id, created_at=_TIME, contract_version="1")
    for number in range(_RUNS_PER_SESSION):
        yield from _run(session_id, number)


def _run(session_id: str, number: int) -> Iterator[events.Event]:
    """Yield the events of a run that answers one prompt."""
    run_id = f"run-{session_id}-{number}"
    asked, answered = f"msg-{2 * number}", f"msg-{2 * number + 1}"
    run = partial(dict[str, Any], session_id=session_id, run_id=run_id)
    turn = partial(run, turn_id="1")
    yield events.AgentStart(**run(runtime="native", model="m"))
    yield events.TurnStart(**turn())
    yield events.MessageStart(**turn(message_id=asked, role="user", text=_TEXT))
    yield _entry(session_id, run_id, 2 * number, "user")
    yield events.MessageEnd(**turn(message_id=asked, text=_TEXT))
    yield events.MessageStart(**turn(message_id=answered, role="assistant"))
    for _ in range(_DELTAS_PER_RUN):
        yield events.MessageUpdate(**turn(message_id=answered, delta="word "))
    yield events.MessageEnd(**turn(message_id=answered, text="word " * _DELTAS_PER_RUN))
    yield _entry(session_id, run_id, 2 * number + 1, "assistant")
    yield events.TurnEnd(**turn())
    yield events.AgentEnd(**run(status="completed"))


def _entry(
    session_id: str,
    run_id: str,
    number: int,
    role: Literal["user", "assistant"],
    text: str = _TEXT,
) -> events.EntryAppended:
    """Return the entry ``msg-NUMBER``, behind the one before it."""
    entry = MessageEntry(
        id=f"msg-{number}",
        parent_id=f"msg-{number - 1}" if number else UNSET,
        role=role,
        text=text,
        run_id=run_id,
        turn_kind="prompt",
        created_at=_TIME,
    )
    return events.EntryAppended(session_id=session_id, run_id=run_id, entry=entry)
