"""The event socket: filters, cursors, changes of a subscription, and the end of a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.daemon.app import shut_down
from nousd.daemon.eventlog.log import Log
from nousd.daemon.transport.feed import serve_events
from nousd.wire.events import EVENTS, FROZEN_EVENTS, SessionUpdated
from tests.daemon.scripted import ScriptedProvider, ScriptedTool, asks_for_tools, gives, says
from tests.harness.daemon import (
    WAIT_SECONDS,
    Client,
    Daemon,
    Event,
    Events,
    FakeClock,
    memory_daemon,
    socket_daemon,
    types,
)


@pytest.fixture
def model() -> ScriptedProvider:
    return ScriptedProvider()


@pytest.fixture
def tool() -> ScriptedTool:
    return ScriptedTool()


@pytest.fixture(params=["memory", "sockets"])
async def daemon(
    request: pytest.FixtureRequest, short_folder: Path, model: ScriptedProvider, tool: ScriptedTool
) -> AsyncIterator[Daemon]:
    """A daemon with a scripted model and a scripted tool."""
    run = (
        memory_daemon(workdir=short_folder, provider=model, tools=[tool.tool])
        if request.param == "memory"
        else socket_daemon(short_folder, provider=model, tools=[tool.tool])
    )
    async with run as daemon:
        yield daemon


async def converse(client: Client, model: ScriptedProvider, tool: ScriptedTool) -> str:
    """Make a run with a tool call and a settings change, and return its id."""
    await client.request("set_steering_mode", mode="all")
    model.answer(asks_for_tools(1), says("hel", "lo"))
    tool.finish(gives("done"))
    run_id: str = (await client.request("prompt", text="go"))["run_id"]
    return run_id


async def everything_so_far(daemon: Daemon) -> list[Event]:
    head = daemon.services.hub.head
    events = await daemon.watch(after="evt-0", types="all")
    return [await events.next() for _ in range(head)]


async def read(events: Events, count: int) -> list[Event]:
    return [await events.next() for _ in range(count)]


# --- what a subscriber receives --------------------------------------------------------------


async def test_a_silent_subscriber_receives_new_events_of_the_frozen_types(
    daemon: Daemon, client: Client, model: ScriptedProvider, tool: ScriptedTool
) -> None:
    await converse(client, model, tool)
    head = daemon.services.hub.head
    silent = await daemon.listen()
    await converse(client, model, tool)
    everything = await everything_so_far(daemon)
    expected = [event for event in everything[head:] if event["type"] in FROZEN_EVENTS]
    assert await read(silent, len(expected)) == expected
    assert set(types(everything)) > set(types(expected)), "no event was filtered out"


@pytest.mark.parametrize("after", ["0", "middle", "head"])
async def test_a_subscription_continues_after_its_cursor(
    after: str, daemon: Daemon, client: Client, model: ScriptedProvider, tool: ScriptedTool
) -> None:
    await converse(client, model, tool)
    head = daemon.services.hub.head
    seq = {"0": 0, "middle": head // 2, "head": head}[after]
    events = Events((await daemon.listen()).stream)
    subscribed = await events.subscribe(after=f"evt-{seq}", types="all")
    assert subscribed == {"cursor": f"evt-{seq}", "head": f"evt-{head}"}
    await converse(client, model, tool)
    expected = (await everything_so_far(daemon))[seq:]
    assert await read(events, len(expected)) == expected


async def test_without_a_cursor_only_new_events_are_sent(daemon: Daemon, client: Client) -> None:
    await client.request("new_session", name="old")
    events = await daemon.watch(types="all")
    await client.request("new_session", name="new")
    assert (await events.next())["payload"]["name"] == "new"


FILTERS: list[dict[str, Any]] = [
    {},
    {"types": "v1"},
    {"types": "all"},
    {"types": ["message_update", "session_created"]},
    {"session_id": "$session"},
    {"run_id": "$run"},
    {"session_id": "$session", "types": ["agent_end"]},
    {"session_id": "$session", "run_id": "$run", "types": "all"},
]


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("template", FILTERS, ids=str)
async def test_a_filter_passes_exactly_the_requested_events(
    template: dict[str, Any],
    daemon: Daemon,
    client: Client,
    model: ScriptedProvider,
    tool: ScriptedTool,
) -> None:
    session = (await client.request("new_session"))["session_id"]
    run = await converse(client, model, tool)
    await converse(client, model, tool)
    await client.request("new_session")
    await converse(client, model, tool)
    requested = {
        key: {"$session": session, "$run": run}.get(value, value)
        if isinstance(value, str)
        else value
        for key, value in template.items()
    }
    kinds = requested.get("types", "v1")
    allowed = (
        {"v1": set(FROZEN_EVENTS), "all": set(EVENTS)}[kinds]
        if kinds in ("v1", "all")
        else set(kinds)
    )
    expected = [
        event
        for event in await everything_so_far(daemon)
        if event["type"] in allowed
        and requested.get("session_id") in (None, event["payload"]["session_id"])
        and requested.get("run_id") in (None, event["payload"].get("run_id"))
    ]
    events = await daemon.watch(after="evt-0", **requested)
    assert expected
    assert await read(events, len(expected)) == expected
    await events.send({"v": "1", "id": "next", "type": "subscribe", "payload": {}})
    assert (await events.receive())["id"] == "next", "there were more events than requested"


# --- what a subscriber sends -----------------------------------------------------------------


@pytest.mark.behaviour("subscriptions_can_be_replaced")
async def test_a_new_subscription_replaces_the_previous_one(daemon: Daemon, client: Client) -> None:
    events = await daemon.watch(types=["session_created"])
    await client.request("new_session", name="one")
    assert (await events.next())["payload"]["name"] == "one"
    await events.subscribe(types=["session_updated"], after="evt-0")
    await client.request("new_session", name="two")
    await client.request("rename_session", name="three")
    assert (await events.next())["payload"]["name"] == "three"


WRONG_CURSORS: list[Any] = [
    "evt-999",
    "evt-999999999999999999",
    "evt-" + "9" * 30,
    "abc",
    "",
    "120",
    "evt--1",
    "evt-1e3",
    120,
    9**99,
    -1,
    1.5,
    True,
    [],
    {"evt": 1},
]


@pytest.mark.slow(keep=10)
@pytest.mark.behaviour("wrong_cursors_name_the_head")
@pytest.mark.parametrize("after", WRONG_CURSORS, ids=lambda after: repr(after)[:30])
async def test_an_invalid_cursor_is_refused_with_the_head_of_the_log(
    after: Any, daemon: Daemon, client: Client
) -> None:
    events = await daemon.watch(types=["session_created"])
    await client.request("new_session", name="before")
    assert (await events.next())["payload"]["name"] == "before"
    head = {"head": f"evt-{daemon.services.hub.head}"}
    await events.send({"id": "bad", "type": "subscribe", "payload": {"after": after}})
    answer = await events.receive()
    assert (answer["id"], answer["ok"], answer["error"]["details"]) == ("bad", False, head)
    assert (await client.refusal("get_events", after=after))["details"] == head
    await client.request("new_session", name="still here")
    assert (await events.next())["payload"]["name"] == "still here"


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"types": "some"}, "invalid_payload", "types must be"),
    ({"types": ["no_such_event"]}, "invalid_payload", "types has no event type no_such_event"),
    ({"types": 1}, "invalid_payload", "types must be"),
    ({"session_id": 1}, "invalid_payload", "session_id must be"),
    ({"run_id": "x" * 300}, "invalid_payload", "run_id is too long"),
]


@pytest.mark.parametrize(("payload", "code", "message"), BAD, ids=[str(row[0])[:40] for row in BAD])
async def test_an_invalid_subscription_is_refused_and_the_old_one_stays(
    payload: dict[str, Any], code: str, message: str, daemon: Daemon, client: Client
) -> None:
    events = await daemon.watch(types=["session_created"])
    await events.send({"v": "1", "id": "bad", "type": "subscribe", "payload": payload})
    answer = await events.receive()
    assert (answer["id"], answer["ok"], answer["error"]["code"]) == ("bad", False, code)
    assert answer["error"]["message"].startswith(message)
    await client.request("new_session", name="still here")
    assert (await events.next())["payload"]["name"] == "still here"


IGNORED = [
    b"\n",
    b"hello\n",
    b"\xff\xfe\x00\n",
    b"[]\n",
    b'{"v":"1","id":"x","type":"ping"}\n',
    b'{"v":"2","id":"x","type":"subscribe"}\n',
    b'{"type":"subscribe","payload":{}}\n',
]


@pytest.mark.parametrize("noise", IGNORED, ids=lambda noise: repr(noise[:40]))
async def test_lines_that_are_not_subscriptions_are_ignored(
    noise: bytes, daemon: Daemon, client: Client
) -> None:
    events = await daemon.watch(types=["session_created"])
    await events.send(noise)
    await client.request("new_session", name="one")
    assert (await events.next())["payload"]["name"] == "one"
    await events.subscribe(types=["session_created"])


async def test_a_subscription_may_contain_json_escapes(daemon: Daemon) -> None:
    events = await daemon.listen()
    await events.send(b'{"id":"s","type":"\\u0073ubscribe","payload":{}}\n')
    assert (await events.receive())["type"] == "subscribed"


async def test_a_subscription_may_arrive_byte_by_byte(daemon: Daemon, client: Client) -> None:
    events = await daemon.listen()
    line = b'{"v":"1","id":"s","type":"subscribe","payload":{"types":["session_created"]}}'
    for index in range(len(line)):
        await events.send(line[index : index + 1])
    await events.send(b"\n")
    assert (await events.receive())["type"] == "subscribed"
    await client.request("new_session", name="one")
    assert (await events.next())["type"] == "session_created"


async def test_many_pipelined_subscriptions_are_answered_in_order(daemon: Daemon) -> None:
    events = await daemon.listen()
    lines = [
        b'{"v":"1","id":"s%d","type":"subscribe","payload":{"types":["error"]}}\n' % number
        for number in range(500)
    ]

    async def talk() -> None:
        await events.send(b"".join(lines))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk)
        answers = [await events.receive() for _ in lines]
    assert [answer["id"] for answer in answers] == [f"s{number}" for number in range(500)]


# --- ends of connections ---------------------------------------------------------------------


async def test_a_subscriber_that_closes_its_sending_side_still_receives_events(
    short_folder: Path, model: ScriptedProvider
) -> None:
    async with socket_daemon(short_folder, provider=model) as daemon:
        events = await daemon.watch(types=["session_created"])
        assert isinstance(events.stream, trio.SocketStream)
        await events.stream.send_eof()
        await wait_all_tasks_blocked()
        await (await daemon.connect()).request("new_session", name="heard")
        assert (await events.next())["payload"]["name"] == "heard"


async def test_a_final_subscription_without_a_line_feed_is_accepted(
    short_folder: Path, model: ScriptedProvider
) -> None:
    async with socket_daemon(short_folder, provider=model) as daemon:
        events = await daemon.listen()
        assert isinstance(events.stream, trio.SocketStream)
        await events.send(b'{"v":"1","id":"s","type":"subscribe","payload":{}}')
        await events.stream.send_eof()
        assert (await events.receive())["type"] == "subscribed"


async def test_a_subscriber_whose_socket_fills_while_it_waits_misses_nothing(
    tmp_path: Path, model: ScriptedProvider
) -> None:
    ours, theirs = map(trio.SocketStream, trio.socket.socketpair())
    theirs.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, 4096)
    async with ours, theirs, memory_daemon(workdir=tmp_path, provider=model) as daemon:
        services = daemon.services
        log = Log(services.store, services.hub, FakeClock())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_events, services, theirs)
            events = Events(ours)
            await events.subscribe(after="evt-0", types="all")
            await wait_all_tasks_blocked()
            for _ in range(50):
                renamed = SessionUpdated(session_id="s", name="x" * 1000)
                await log.submit(log.encode([renamed])).wait_committed()
            seen = await read(events, services.hub.head)
            nursery.cancel_scope.cancel()
    assert [event["id"] for event in seen] == [f"evt-{seq}" for seq in range(1, len(seen) + 1)]
    assert len(seen) >= 50


@pytest.mark.parametrize("half_closes_first", [False, True])
async def test_a_disconnected_subscriber_is_no_longer_served(
    half_closes_first: bool, tmp_path: Path, model: ScriptedProvider, autojump_clock: MockClock
) -> None:
    async with memory_daemon(workdir=tmp_path, provider=model) as daemon:
        ours, theirs = map(trio.SocketStream, trio.socket.socketpair())
        with trio.fail_after(WAIT_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_events, daemon.services, theirs)
                await wait_all_tasks_blocked()
                if half_closes_first:
                    await ours.send_eof()
                    await wait_all_tasks_blocked()
                    assert nursery.child_tasks
                await ours.aclose()
        await theirs.aclose()


async def test_at_shutdown_all_events_are_sent_before_the_connection_closes(
    daemon: Daemon, client: Client, model: ScriptedProvider
) -> None:
    events = await daemon.watch()
    await client.request("prompt", text="go", wait=False)
    await model.calls.wait_waiting()
    await shut_down(daemon.services)
    assert (await events.run())[-1]["payload"]["status"] == "interrupted"
    with pytest.raises(EOFError):
        await events.next()


async def test_at_shutdown_an_idle_subscriber_is_disconnected(daemon: Daemon) -> None:
    idle = await daemon.listen()
    await shut_down(daemon.services)
    with pytest.raises(EOFError):
        await idle.next()
