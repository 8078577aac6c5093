"""Shared by store tests: short notation for events, and an observable connection."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import apsw
import trio
from msgspec import UNSET, UnsetType

from nousd.errors import StoreError
from nousd.store.artifacts import Artifact
from nousd.store.interface import Store
from nousd.store.records import Batch, EventFilter, Record, StoredEvent
from nousd.wire import events
from nousd.wire.codec.envelope import encode_event_tail
from nousd.wire.events import EVENT_TYPES
from nousd.wire.objects.entries import MessageEntry
from nousd.wire.objects.inputs import PendingCounts, QueuedInput
from tests.harness.daemon import WAIT_SECONDS

TS = "2026-01-02T03:04:05.678Z"
EVERYTHING = EventFilter()
NO_BOUND = 2**31


def record(event: events.Event, ts: str = TS) -> Record:
    return Record(
        EVENT_TYPES[type(event)],
        event.session_id,
        events.thread_of(event),
        event,
        encode_event_tail(event, ts),
        ts,
    )


class Outcomes:
    """Collects the outcomes of batches in the order of their callbacks."""

    def __init__(self) -> None:
        self.received: list[tuple[str, tuple[StoredEvent, ...] | StoreError]] = []

    def batch(
        self,
        name: str,
        happened: Sequence[events.Event],
        *,
        artifacts: Sequence[Artifact] = (),
        then: Callable[[], None] = lambda: None,
        closes_run: bool = False,
    ) -> Batch:
        def receive(outcome: tuple[StoredEvent, ...] | StoreError) -> None:
            self.received.append((name, outcome))
            then()

        records = tuple(record(event) for event in happened)
        return Batch(records, receive, receive, tuple(artifacts), closes_run)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.received]

    @property
    def failed(self) -> list[str]:
        return [name for name, outcome in self.received if isinstance(outcome, StoreError)]

    def seqs(self, name: str) -> list[int]:
        (outcome,) = [outcome for of, outcome in self.received if of == name]
        assert not isinstance(outcome, StoreError), outcome
        return [event.seq for event in outcome]


async def append(
    store: Store, *happened: events.Event, artifacts: Sequence[Artifact] = (), ts: str = TS
) -> tuple[StoredEvent, ...]:
    """Commit events as one batch and return them as they are stored in the log."""
    outcomes: list[tuple[StoredEvent, ...] | StoreError] = []
    records = tuple(record(event, ts) for event in happened)
    store.submit(Batch(records, outcomes.append, outcomes.append, tuple(artifacts)))
    with trio.fail_after(WAIT_SECONDS):
        await store.flush()
    (outcome,) = outcomes
    if isinstance(outcome, StoreError):
        raise outcome
    return outcome


class Source:
    """Bytes to be put as an artifact; ``before_read`` is called with the offset of each part."""

    def __init__(self, data: bytes, artifact_id: str) -> None:
        self.data = data
        self.artifact_id = artifact_id
        self.size_bytes = len(data)
        self.before_read: Callable[[int], Awaitable[None]] | None = None

    async def read(self, offset: int, length: int) -> bytes:
        if self.before_read is not None:
            await self.before_read(offset)
        return self.data[offset : offset + length]


def source(data: bytes) -> Source:
    return Source(data, f"sha256:{hashlib.sha256(data).hexdigest()}")


async def whole_log(store: Store, wanted: EventFilter = EVERYTHING) -> tuple[StoredEvent, ...]:
    return await store.events_after(0, wanted, limit=NO_BOUND, bytes_max=NO_BOUND)


# --- short constructors of events ---------------------------------------------------------------------


def created(session_id: str = "s1", **fields: Any) -> events.SessionCreated:
    return events.SessionCreated(
        session_id=session_id, created_at=TS, contract_version="1", **fields
    )


def updated(session_id: str = "s1", **fields: Any) -> events.SessionUpdated:
    return events.SessionUpdated(session_id=session_id, **fields)


def deleted(session_id: str = "s1") -> events.SessionDeleted:
    return events.SessionDeleted(session_id=session_id)


def message(
    entry_id: str, parent_id: str | UnsetType = UNSET, text: str = "hello", **fields: Any
) -> MessageEntry:
    return MessageEntry(
        id=entry_id,
        parent_id=parent_id,
        role="user",
        text=text,
        run_id="r1",
        turn_kind="prompt",
        created_at=TS,
        **fields,
    )


def appended(
    entry_id: str,
    parent_id: str | UnsetType = UNSET,
    *,
    session_id: str = "s1",
    text: str = "hello",
    **fields: Any,
) -> events.EntryAppended:
    entry = message(entry_id, parent_id, text, **fields)
    return events.EntryAppended(session_id=session_id, entry=entry)


def queued(
    input_id: str, kind: Any = "follow_up", text: str = "more", **fields: Any
) -> QueuedInput:
    return QueuedInput(input_id=input_id, kind=kind, text=text, **fields)


def queue_update(
    change: Any, *inputs: QueuedInput, session_id: str = "s1", **fields: Any
) -> events.QueueUpdate:
    return events.QueueUpdate(
        session_id=session_id,
        change=change,
        inputs=inputs,
        pending_counts=PendingCounts(steer=0, follow_up=0),
        **fields,
    )


def run_started(run_id: str = "r1", session_id: str = "s1") -> events.AgentStart:
    return events.AgentStart(session_id=session_id, run_id=run_id, runtime="native", model="mock-1")


def run_ended(
    run_id: str = "r1", session_id: str = "s1", status: Any = "completed", **fields: Any
) -> events.AgentEnd:
    return events.AgentEnd(session_id=session_id, run_id=run_id, status=status, **fields)


def delta(text: str = "piece", run_id: str = "r1", session_id: str = "s1") -> events.MessageUpdate:
    return events.MessageUpdate(
        session_id=session_id, run_id=run_id, turn_id="1", message_id="m1", delta=text
    )


# --- the writing connection ----------------------------------------------------------------------


class Watch:
    """Makes the writing connection, and observes, holds and fails its transactions.

    ``commits``: how each of the writer's transactions was synced.
    ``fail_at``: the statement that begins so fails, ``fail_times`` times (None: each time), with the
    SQLite error ``error_code``, by default that of a full disk.
    ``hold``: the writer waits before its next transaction until ``release`` is called.
    """

    def __init__(self) -> None:
        self.commits: list[str] = []
        self.fail_at: str | None = None
        self.fail_times: int | None = None
        self.error_code = apsw.SQLITE_FULL
        self.threads: set[int] = set()
        self.connection: apsw.Connection | None = None
        self._writing = False
        self._reached = threading.Event()
        self._go = threading.Event()
        self._go.set()

    def connect(self, name: str) -> apsw.Connection:
        self.connection = apsw.Connection(name)
        self.connection.set_exec_trace(self._see)
        return self.connection

    def hold(self) -> None:
        self._reached.clear()
        self._go.clear()

    def release(self) -> None:
        self._go.set()

    async def wait_held(self) -> None:
        with trio.fail_after(WAIT_SECONDS):
            assert await trio.to_thread.run_sync(self._reached.wait, 10)

    def _see(self, _: object, statement: str, __: object) -> bool:
        if statement == "BEGIN IMMEDIATE":
            self._writing = True
            self.threads.add(threading.get_ident())
            self._reached.set()
            assert self._go.wait(10)
        if self.fail_at is not None and statement.lstrip().startswith(self.fail_at):
            if self.fail_times is not None:
                self.fail_times -= 1
                self.fail_at = self.fail_at if self.fail_times else None
            error = apsw.exception_for(self.error_code)
            error.args = ("database or disk is full",)
            raise error
        if statement == "COMMIT" and self._writing:
            self._writing = False
            assert self.connection is not None
            self.commits.append(SYNCHRONOUS[self.connection.pragma("synchronous")])
        return True


SYNCHRONOUS = {1: "NORMAL", 2: "FULL"}
