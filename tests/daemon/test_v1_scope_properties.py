"""What clients that name no session see and reach, in any order of what clients, models, tasks, restarts
and kills do: it must follow from the log alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from nousd.daemon.eventlog import hub as hub_module
from nousd.daemon.eventlog.hub import Hub
from nousd.daemon.eventlog.log import Log
from nousd.providers.interface import ToolCallPiece
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.records import EventFilter, StoredEvent
from nousd.wire.codec.envelope import decode_event
from nousd.wire.events import EVENTS, FROZEN_EVENTS, Event
from tests.daemon.scripted import ScriptedProvider, says, streams
from tests.harness.daemon import (
    Client,
    Daemon,
    Events,
    FakeClock,
    RequestRefused,
    memory_daemon,
)
from tests.suites import examples

READERS_MAX: Final = 4

OPERATIONS: Final = (
    *("new", "apart", "delete", "abort", "steer", "follow_up", "restart", "kill"),
    *("prompt", "prompt_in", "switch", "answer", "delegate", "listen") * 3,
)
"""Often what begins something, seldom what ends it."""

operations = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 7)), min_size=10, max_size=60
)


class Scope:
    """What the log says of the v1 scope: only from the order of activations, runs and tasks."""

    def __init__(self) -> None:
        self.active: str | None = None
        self.sessions: dict[str, str] = {}
        """The session of each run that goes on, and is not that of a task."""
        self.runs: set[str] = set()

    def note(self, type_: str, payload: dict[str, Any]) -> None:
        match type_:
            case "session_activated":
                self.active = payload["session_id"]
                self.runs |= {
                    run for run, session in self.sessions.items() if session == self.active
                }
            case "session_deleted" if payload["session_id"] == self.active:
                self.active = None
            case "agent_start" if "task" not in payload:
                self.sessions[payload["run_id"]] = payload["session_id"]
                if payload["session_id"] == self.active:
                    self.runs.add(payload["run_id"])

    def shows(self, type_: str, payload: dict[str, Any]) -> bool:
        if type_ not in FROZEN_EVENTS:
            return False
        if "run_id" in payload:
            return payload["run_id"] in self.runs
        return payload["session_id"] in ("", self.active)

    def note_end(self, type_: str, payload: dict[str, Any]) -> None:
        if type_ == "agent_end":
            self.sessions.pop(payload["run_id"], None)
            self.runs.discard(payload["run_id"])

    @property
    def reached(self) -> str | None:
        """The run that a command without a target reaches; None: it is refused."""
        of_active = [run for run in self.runs if self.sessions[run] == self.active]
        found = of_active or list(self.runs)
        return found[0] if len(found) == 1 else None


@dataclass
class Reader:
    """A bare event client: it joins after the event ``joined``, and has seen all up to ``left``."""

    joined: int
    left: int | None = None
    ids: list[str] = field(default_factory=list)

    async def read(self, bare: Events) -> None:
        """Note the ids of all events that come. The events of runs that begin meanwhile are checked
        for balance.
        """
        with suppress(trio.ClosedResourceError, trio.BrokenResourceError, EOFError):
            while True:
                event = await bare.receive()
                if self.left is None:
                    self.ids.append(event["id"])


async def logged_after(seq: int, store: Store) -> Sequence[StoredEvent]:
    return await store.events_after(seq, EventFilter(), limit=100_000, bytes_max=1 << 30)


def payload_of(event: StoredEvent) -> dict[str, Any]:
    payload: dict[str, Any] = msgspec.json.decode(decode_event(event.line).payload)
    return payload


def scope_of(log: list[StoredEvent]) -> Scope:
    scope = Scope()
    for event in log:
        payload = payload_of(event)
        scope.note(event.type, payload)
        scope.note_end(event.type, payload)
    return scope


def expected_by(reader: Reader, log: list[StoredEvent]) -> list[str]:
    """Return the ids of the events that the reader must have seen."""
    scope, expected = Scope(), []
    for event in log:
        if reader.left is not None and event.seq > reader.left:
            break
        payload = payload_of(event)
        scope.note(event.type, payload)
        if event.seq > reader.joined and scope.shows(event.type, payload):
            expected.append(f"evt-{event.seq}")
        scope.note_end(event.type, payload)
    return expected


async def write_again(history: list[StoredEvent], store: Store, clock: FakeClock) -> None:
    """Write all that happened into an empty log, one by one: what was deleted goes again."""
    log = Log(store, Hub(store), clock)
    for stored in history:
        payload = decode_event(stored.line).payload
        event: Event = msgspec.json.decode(payload, type=EVENTS[stored.type])
        await log.submit(log.encode([event])).wait_committed()
    assert store.head == (history[-1].seq if history else 0)


class Player:
    """Plays operations on a daemon with two clients, and on those that follow it on the same log."""

    def __init__(self, folder: Path, store: Store, copies: list[Store]) -> None:
        self._folder = folder
        self._copies = copies
        self._clock = FakeClock()
        self.store = store
        self.history: list[StoredEvent] = []
        """All that happened, also what is no longer in the log."""
        self.sessions: list[str] = []
        self.readers: list[Reader] = []
        self.reached = 0
        self._provider: ScriptedProvider
        self._daemon: Daemon
        self._clients: list[Client]
        self._nursery: trio.Nursery

    async def play(self, steps: list[tuple[str, int]]) -> None:
        rest = iter(steps)
        end: str | None = "restart"
        while end is not None:
            async with self._life():
                end = None
                for name, number in rest:
                    if name in ("restart", "kill"):
                        end = name
                        break
                    await self._step(name, number)
                if end is None:
                    await self._finish()
                await self._leave_readers()
                if end == "kill":
                    # What the daemon still writes while it is shut down goes to the old log.
                    self.store = self._copies.pop()
                    await write_again(self.history, self.store, self._clock)
            await self._note_history()

    @asynccontextmanager
    async def _life(self) -> AsyncIterator[None]:
        self._provider = ScriptedProvider()
        async with (
            memory_daemon(
                workdir=self._folder,
                provider=self._provider,
                store=self.store,
                clock=self._clock,
            ) as self._daemon,
            trio.open_nursery() as self._nursery,
        ):
            self._clients = [await self._daemon.connect(), await self._daemon.connect()]
            await self._note_history()  # what the start has closed
            yield
            self._nursery.cancel_scope.cancel()

    async def _step(self, name: str, number: int) -> None:
        session = self.sessions[number % len(self.sessions)] if self.sessions else None
        match name:
            case "new" | "apart":
                answer = await self._ask(number, "new_session", activate=name == "new")
                assert answer is not None
            case "switch" if session:
                await self._ask(number, "switch_session", session_id=session)
            case "delete" if session:
                await self._ask(number, "delete_session", session_id=session)
            case "prompt":
                await self._ask(number, "prompt", text="go", wait=False)
            case "prompt_in" if session:
                await self._ask(number, "prompt", text="go", wait=False, session_id=session)
            case "answer":
                await self._answer(is_delegating=False)
            case "delegate":
                await self._answer(is_delegating=True)
            case "listen" if len(self.readers) < READERS_MAX:
                reader = Reader(self._daemon.services.hub.head)
                self.readers.append(reader)
                self._nursery.start_soon(reader.read, await self._daemon.listen())
            case "steer" | "follow_up" | "abort":
                await self._reach(name, number)
        await wait_all_tasks_blocked()
        await self._note_history()

    async def _note_history(self) -> None:
        seen = self.history[-1].seq if self.history else 0
        for event in await logged_after(seen, self.store):
            self.history.append(event)
            if event.type == "session_created":
                self.sessions.append(event.session_id)  # also that of a task
            elif event.type == "session_deleted":
                self.sessions.remove(event.session_id)

    async def _reach(self, name: str, number: int) -> None:
        expected = scope_of(self.history).reached
        shown = await self._clients[number % 2].request("get_state")
        assert (shown["run_id"] or None) == expected
        text = {} if name == "abort" else {"text": "x"}
        answer = await self._ask(number, name, **text)
        assert (answer or {}).get("run_id") == expected, (name, answer)
        self.reached += expected is not None

    async def _answer(self, *, is_delegating: bool) -> None:
        if not self._provider.waiting:
            return
        args = '{"tasks": [{"prompt": "look"}, {"prompt": "see"}]}'
        call = streams(ToolCallPiece("own-1", "task", args))
        self._provider.answer(call if is_delegating else says("hel", "lo"))
        await wait_all_tasks_blocked()

    async def _finish(self) -> None:
        while self._provider.waiting:
            await self._answer(is_delegating=False)
        await self._note_history()

    async def _leave_readers(self) -> None:
        await wait_all_tasks_blocked()
        for reader in self.readers:
            if reader.left is None:
                reader.left = self._daemon.services.hub.head

    async def _ask(self, number: int, type_: str, **payload: Any) -> dict[str, Any] | None:
        try:
            return dict(await self._clients[number % 2].request(type_, **payload))
        except RequestRefused:
            return None


@settings(max_examples=examples(100))
@given(steps=operations, page_bytes=st.sampled_from((1, 400, 1 << 17)))
async def test_what_bare_clients_see_and_reach_follows_from_the_log_in_any_interleaving(
    steps: list[tuple[str, int]], page_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(hub_module, "PAGE_BYTES", page_bytes)
        async with memory.open_store() as store, trio.open_nursery():
            copies = [memory.MemoryStore(lambda: None) for _ in range(len(steps))]
            player = Player(Path(folder), store, list(copies))
            await player.play(steps)
            for reader in player.readers:
                assert reader.ids == expected_by(reader, player.history)
            for copy in copies:
                await copy.aclose()
