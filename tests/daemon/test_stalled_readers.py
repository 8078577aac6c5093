"""Measurements of memory, writes and scans for subscribers that do not read."""

from __future__ import annotations

import gc
import json
import math
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nousd.daemon.commands import reading
from nousd.daemon.eventlog import hub as hub_module
from nousd.daemon.eventlog.log import Log
from nousd.daemon.transport.feed import serve_events
from nousd.store.records import EventFilter
from nousd.wire import events
from tests.daemon.scripted import ScriptedProvider
from tests.harness.daemon import WAIT_SECONDS, Daemon, FakeClock, memory_daemon, socket_daemon

MEGABYTE = 1024 * 1024
LINE_CHARS = 5000
BATCH = 100


class Pipe(trio.abc.Stream):
    """The stream of a subscriber that sends one line.

    Args:
        reads: Number of writes that it accepts before it stalls, until ``go_on`` is set.
    """

    def __init__(self, line: bytes, *, reads: float = math.inf) -> None:
        self._lines = [line]
        self._reads = reads
        self.writes: list[bytes] = []
        self.waiting = b""
        self.stalled = trio.Event()
        self.go_on = trio.Event()
        self.written = trio.Event()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._lines:
            await trio.sleep_forever()
        return self._lines.pop()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if len(self.writes) >= self._reads:
            self.waiting = bytes(data)
            self.stalled.set()
            await self.go_on.wait()
        self.writes.append(bytes(data))
        self.written.set()
        self.written = trio.Event()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


EVERYTHING = b'{"id":"s","type":"subscribe","payload":{"after":"evt-0","types":"all"}}\n'
ERRORS = b'{"id":"s","type":"subscribe","payload":{"after":"evt-0","types":["error"]}}\n'


@pytest.fixture
async def disk_daemon(short_folder: Path) -> AsyncIterator[Daemon]:
    async with socket_daemon(short_folder, provider=ScriptedProvider()) as daemon:
        yield daemon


@pytest.fixture
async def ram_daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with memory_daemon(workdir=tmp_path, provider=ScriptedProvider()) as daemon:
        yield daemon


async def grow(daemon: Daemon, lines: int, chars: int = LINE_CHARS) -> None:
    """Add events to the log in batches, and wait until they are published."""
    services = daemon.services
    log = Log(services.store, services.hub, FakeClock())
    for begin in range(0, lines, BATCH):
        changes = [
            events.SessionUpdated(session_id="s", name="x" * chars)
            for _ in range(min(BATCH, lines - begin))
        ]
        log.submit(log.encode(changes))
        await log.wait_room()
    await services.store.flush()
    await wait_all_tasks_blocked()


async def memory(daemon: Daemon) -> int:
    await grow(daemon, 1)  # the log's writer holds its last batch until the next one
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
@pytest.mark.behaviour("stalled_readers_hold_no_growing_memory")
async def test_200_stalled_readers_hold_at_most_one_page_each_while_the_log_grows(
    disk_daemon: Daemon, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "WINDOW_BYTES_MAX", MEGABYTE)
    await grow(disk_daemon, 100)
    readers = [Pipe(EVERYTHING, reads=1) for _ in range(200)]
    for reader in readers:
        nursery.start_soon(serve_events, disk_daemon.services, reader)
    with trio.fail_after(WAIT_SECONDS):
        for reader in readers:
            await reader.stalled.wait()
    held = [len(reader.waiting) for reader in readers]
    assert 0 < max(held) <= hub_module.PAGE_BYTES
    tracemalloc.start()
    try:
        before = await memory(disk_daemon)
        await grow(disk_daemon, 2000)
        grown = await memory(disk_daemon) - before
    finally:
        tracemalloc.stop()
    assert [len(reader.waiting) for reader in readers] == held
    assert grown < 2 * MEGABYTE, "10 MB more in the log are more in memory"
    reader = readers[100]
    reader.go_on.set()
    with trio.fail_after(WAIT_SECONDS):
        while sum(page.count(b"\n") for page in reader.writes) < 1 + disk_daemon.services.hub.head:
            await reader.written.wait()
    ids = [json.loads(line)["id"] for line in b"".join(reader.writes[1:]).split(b"\n")[:-1]]
    assert ids == [f"evt-{seq}" for seq in range(1, 2103)], "it gets everything once it reads"
    nursery.cancel_scope.cancel()


async def test_the_writes_of_a_burst_are_joined(ram_daemon: Daemon, nursery: trio.Nursery) -> None:
    reader = Pipe(EVERYTHING)
    nursery.start_soon(serve_events, ram_daemon.services, reader)
    await wait_all_tasks_blocked()
    await grow(ram_daemon, 1000, chars=10)
    _answer, *pages = reader.writes
    size = sum(map(len, pages))
    assert sum(page.count(b"\n") for page in pages) == 1000
    batches = 1000 // BATCH
    assert len(pages) <= batches + size // hub_module.PAGE_BYTES + 1
    nursery.cancel_scope.cancel()


@pytest.mark.behaviour("filters_are_applied_before_writing")
@pytest.mark.parametrize("when", ["history", "live"])
async def test_events_that_a_filter_excludes_are_never_written(
    when: str, ram_daemon: Daemon, nursery: trio.Nursery
) -> None:
    reader = Pipe(ERRORS)
    if when == "history":
        await grow(ram_daemon, 500, chars=10)
    nursery.start_soon(serve_events, ram_daemon.services, reader)
    await wait_all_tasks_blocked()
    if when == "live":
        await grow(ram_daemon, 500, chars=10)
    (answer,) = reader.writes
    assert b'"type":"subscribed"' in answer
    nursery.cancel_scope.cancel()


async def test_a_long_stretch_without_a_match_is_scanned_in_pieces(
    disk_daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grow(disk_daemon, 100)
    client = await disk_daemon.connect()
    await client.request("new_session")
    head = disk_daemon.services.hub.head
    for module in (hub_module, reading):
        monkeypatch.setattr(module, "STRETCH_EVENTS", 10)
    stretches: list[int] = []
    store = disk_daemon.services.store

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def events_after(
            self, after: int, *args: object, until: int, **more: object
        ) -> object:
            stretches.append(until - after)
            return await store.events_after(after, *args, until=until, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(disk_daemon.services, "store", Watched())
    page = await client.request("get_events", types=["session_created"])
    assert [event["type"] for event in page["events"]] == ["session_created"]
    assert max(stretches) == 10
    assert len(stretches) >= 10
    disk_daemon.services.hub._window.restart(head)  # as if the window had moved on
    wanted = EventFilter(types=frozenset({"error"}))
    assert await disk_daemon.services.hub.page_after(0, wanted) == (b"", 10)
    assert await disk_daemon.services.hub.page_after(head - 3, wanted) == (b"", head)
