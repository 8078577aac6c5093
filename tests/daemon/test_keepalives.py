"""Keep-alives on the event socket: only on request, with the reader's position."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair

from nousd.daemon.app import shut_down
from nousd.daemon.transport.feed import serve_events
from tests.daemon.scripted import ScriptedProvider
from tests.harness.daemon import Daemon, Wire, decoded, memory_daemon


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with memory_daemon(workdir=tmp_path, provider=ScriptedProvider()) as daemon:
        yield daemon


class Reader(Wire):
    """A subscriber that can note the time of each line."""

    async def subscribe(self, request_id: str = "s", **payload: Any) -> dict[str, Any]:
        await self.send({"v": "1", "id": request_id, "type": "subscribe", "payload": payload})
        return await self.receive()

    async def lines_within(self, seconds: float) -> list[tuple[float, dict[str, Any]]]:
        """Return the lines of the next seconds, each with the time since now."""
        begin = trio.current_time()
        found: list[tuple[float, dict[str, Any]]] = []
        while (left := begin + seconds - trio.current_time()) > 0:
            with trio.move_on_after(left):
                line = decoded(await self.receive_line(seconds=left))
                found.append((trio.current_time() - begin, line))
        return found


async def serve(daemon: Daemon, stream: trio.abc.Stream) -> None:
    async with stream:
        await serve_events(daemon.services, stream)


@pytest.fixture
async def reader(daemon: Daemon) -> AsyncIterator[Reader]:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, daemon, theirs)
        yield Reader(ours)
        nursery.cancel_scope.cancel()


def keepalive(cursor: int, head: int, request_id: str = "s") -> dict[str, Any]:
    return {
        "v": "1",
        "id": request_id,
        "type": "keepalive",
        "payload": {"cursor": f"evt-{cursor}", "head": f"evt-{head}"},
        "ok": True,
    }


def id_or_type(line: dict[str, Any]) -> str:
    return str(line["id"] if line["type"] == "keepalive" else line["type"])


@pytest.mark.behaviour("keepalives_only_if_asked_for")
@pytest.mark.parametrize("payload", [None, {}, {"keepalive_seconds": None}], ids=str)
async def test_a_subscriber_without_keepalive_seconds_receives_no_keepalives(
    payload: dict[str, Any] | None, reader: Reader, autojump_clock: MockClock
) -> None:
    if payload is not None:
        await reader.subscribe(**payload)
    assert await reader.lines_within(100_000) == []


@pytest.mark.behaviour("keepalives_only_if_asked_for")
@pytest.mark.parametrize("seconds", [1, 2.5, 3600])
async def test_a_keepalive_follows_each_interval_without_a_line(
    seconds: float, reader: Reader, autojump_clock: MockClock
) -> None:
    await reader.subscribe(keepalive_seconds=seconds)
    lines = await reader.lines_within(3.5 * seconds)
    assert [when for when, _ in lines] == pytest.approx([seconds, 2 * seconds, 3 * seconds])
    assert [line for _, line in lines] == [keepalive(0, 0)] * 3


async def test_an_event_postpones_the_next_keepalive(
    reader: Reader, daemon: Daemon, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    client = await daemon.connect()
    await reader.subscribe(keepalive_seconds=10, types=["session_created"])

    async def act() -> None:
        await trio.sleep(7)
        await client.request("new_session")

    nursery.start_soon(act)
    lines = await reader.lines_within(30)
    assert [(round(when), line["type"]) for when, line in lines] == [
        (7, "session_created"),
        (17, "keepalive"),
        (27, "keepalive"),
    ]


@pytest.mark.behaviour("keepalives_tell_how_far_the_reader_has_come")
async def test_a_keepalives_cursor_is_past_filtered_events_and_can_be_resumed_from(
    reader: Reader, daemon: Daemon, autojump_clock: MockClock
) -> None:
    client = await daemon.connect()
    for name in ("one", "two"):
        await client.request("new_session", name=name)
    await reader.subscribe(after="evt-0", types=["session_deleted"], keepalive_seconds=5)
    head = daemon.services.hub.head
    ((_, line),) = await reader.lines_within(7)
    assert line == keepalive(head, head)
    await client.request("rename_session", name="three")
    await reader.subscribe(after=line["payload"]["cursor"], types="all")
    ((_, event),) = await reader.lines_within(1)
    assert event["payload"]["name"] == "three"


async def test_filtered_events_do_not_postpone_keepalives(
    reader: Reader, daemon: Daemon, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    client = await daemon.connect()
    await reader.subscribe(types=["error"], keepalive_seconds=10)

    async def act() -> None:
        while True:
            await trio.sleep(3)
            await client.request("new_session")

    nursery.start_soon(act)
    lines = await reader.lines_within(35)
    assert [round(when) for when, _ in lines] == [10, 20, 30]
    cursors = [int(line["payload"]["cursor"].removeprefix("evt-")) for _, line in lines]
    assert cursors == sorted(set(cursors)), "the cursor does not advance"
    nursery.cancel_scope.cancel()


async def test_a_second_subscription_replaces_the_keepalives_of_the_first(
    reader: Reader, autojump_clock: MockClock
) -> None:
    await reader.subscribe("first", keepalive_seconds=10)
    await reader.subscribe("second", keepalive_seconds=30)
    assert [id_or_type(line) for _, line in await reader.lines_within(65)] == ["second", "second"]
    await reader.subscribe("third")
    assert await reader.lines_within(10_000) == []


async def test_a_refused_subscription_keeps_the_keepalives_of_the_old_one(
    reader: Reader, autojump_clock: MockClock
) -> None:
    await reader.subscribe("first", keepalive_seconds=10)
    refused = await reader.subscribe("second", keepalive_seconds=0.5)
    assert refused["error"]["message"] == "keepalive_seconds must be at least 1"
    assert [id_or_type(line) for _, line in await reader.lines_within(25)] == ["first", "first"]


async def test_keepalives_do_not_pile_up_for_a_stalled_reader(
    daemon: Daemon, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    ours, theirs = lockstep_stream_pair()  # a write ends when it has been read
    nursery.start_soon(serve, daemon, theirs)
    reader = Reader(ours)
    await reader.subscribe(keepalive_seconds=10)
    await trio.sleep(50_000)
    lines = await reader.lines_within(25)
    assert [round(when) for when, _ in lines] == [0, 10, 20]
    nursery.cancel_scope.cancel()


async def test_a_shutdown_does_not_wait_for_a_keepalive(
    reader: Reader, daemon: Daemon, autojump_clock: MockClock
) -> None:
    await reader.subscribe(keepalive_seconds=3600)
    begin = trio.current_time()
    await shut_down(daemon.services)
    with pytest.raises(EOFError):
        await reader.receive()
    assert trio.current_time() - begin < 1


async def test_a_keepalive_is_one_line_with_the_subscriptions_id(
    reader: Reader, autojump_clock: MockClock
) -> None:
    request_id = 'a "quoted"\nid'
    await reader.subscribe(request_id, keepalive_seconds=1)
    line = await reader.receive_line()
    assert line.count(b"\n") == 1
    assert json.loads(line)["id"] == request_id
