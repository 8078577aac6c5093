"""One suite for connections and subscriptions: over sockets and in memory, on asyncio and trio."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nousd.client.client import Client
from nousd.client.connection import Connection, connect
from nousd.client.dial import Where
from nousd.client.follow import follow
from nousd.client.resuming import Retry
from nousd.client.subscription import subscribe
from nousd.errors import AnswerTimedOut, ConnectionLost, Refused
from nousd.wire.commands import Ping
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.responses import Pong
from tests.client.transports import Peer, Played, in_memory, over_sockets
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.fake_daemon import event, ok, refused

TRANSPORTS = {"memory": in_memory, "sockets": over_sockets}
ALL = Subscribe(after="evt-0", types="all")
LARGE = "x" * 1_000_000
"""Larger than any buffer between client and daemon."""

NEVER_SECONDS = 0.1

Script = Callable[[Played, Where], Awaitable[None]]
Run = Callable[[Script], None]


@pytest.fixture(params=TRANSPORTS)
def run(request: pytest.FixtureRequest, backend: str, folder: Path) -> Run:
    """Run a script with a scripted daemon and its address, for 20 seconds at most."""

    async def scripted(script: Script) -> None:
        daemon = Played()
        with anyio.fail_after(WAIT_SECONDS):
            async with TRANSPORTS[request.param](daemon, folder) as where:
                await script(daemon, where)

    return lambda script: anyio.run(scripted, script, backend=backend)


def pong(request: dict[str, Any], message: str = "pong") -> bytes:
    return ok("pong", {"message": message})(request) or b""


async def pongs(peer: Peer) -> None:
    """Answer every request."""
    while True:
        await peer.say(pong(await peer.heard()))


async def outcomes_of(connection: Connection, count: int) -> list[str]:
    """Make ``count`` requests at once and return the outcome of each."""
    ends: list[str] = []

    async def ask() -> None:
        try:
            ends.append((await connection.request("ping", {})).payload["message"])
        except (ConnectionLost, Refused) as error:
            ends.append(type(error).__name__)

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(ask)
    return ends


@pytest.mark.slow(keep=2)
def test_concurrent_requests_get_their_own_answers(run: Run) -> None:
    async def echoes(peer: Peer) -> None:
        dice = random.Random(0)
        while True:
            request = await peer.heard()
            line = pong(request, request["id"])
            cut = dice.randrange(len(line))
            await peer.say(line[:cut])
            await peer.say(line[cut:])

    async def script(daemon: Played, where: Where) -> None:
        daemon.commands = echoes
        async with connect(where) as connection:
            ends = await outcomes_of(connection, 300)
        assert sorted(ends) == sorted(f"c{number}" for number in range(1, 301))

    run(script)


def test_lines_larger_than_any_buffer_pass_in_both_directions(run: Run) -> None:
    async def echo(peer: Peer) -> None:
        request = await peer.heard()
        await peer.say(pong(request, request["payload"]["text"]))

    async def script(daemon: Played, where: Where) -> None:
        daemon.commands = echo
        async with connect(where) as connection:
            answer = await connection.request("echo", {"text": LARGE})
            assert answer.payload["message"] == LARGE

    run(script)


def test_a_disconnecting_daemon_fails_pending_and_later_requests(run: Run) -> None:
    async def leaves(peer: Peer) -> None:
        for _ in range(3):
            await peer.heard()
        await peer.say(b'{"id":"c1","type":"po')

    async def script(daemon: Played, where: Where) -> None:
        daemon.commands = leaves
        async with connect(where) as connection:
            assert await outcomes_of(connection, 3) == ["ConnectionLost"] * 3
            with pytest.raises(ConnectionLost):
                await connection.ask(Ping())
            assert not connection.is_idle

    run(script)


def test_a_cancelled_request_leaves_the_connection_usable(run: Run) -> None:
    async def script(daemon: Played, where: Where) -> None:
        async def late(peer: Peer) -> None:
            first = await peer.heard()
            scope.cancel()
            second = await peer.heard()
            await peer.say(pong(first, "nobody waits for this") + pong(second))
            await peer.left()

        daemon.commands = late
        async with connect(where) as connection:
            with anyio.CancelScope() as scope:
                await connection.ask(Ping())
            assert not connection.is_idle
            assert await connection.ask(Ping()) == Pong(message="pong")
            assert connection.is_idle

    run(script)


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("seed", range(5))
def test_cancelling_at_any_moment_never_mixes_up_answers(run: Run, seed: int) -> None:
    """A caller that is not cancelled gets its own answer, or an error if the connection is over."""
    dice = random.Random(seed)
    ends: list[bool] = []

    async def echoes(peer: Peer) -> None:
        while True:
            request = await peer.heard()
            await peer.say(pong(request, request["payload"]["text"]))

    async def ask(connection: Connection, text: str, steps: int) -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_after, steps, scope)
                try:
                    answer = await connection.request("echo", {"text": text})
                    ends.append(answer.payload["message"] == text)
                except ConnectionLost:
                    ends.append(not connection.is_idle)
                tasks.cancel_scope.cancel()

    async def script(daemon: Played, where: Where) -> None:
        daemon.commands = echoes
        for _ in range(5):
            async with connect(where) as connection, anyio.create_task_group() as tasks:
                for number in range(40):
                    text = str(number) * dice.randrange(1, 40)
                    tasks.start_soon(ask, connection, text, dice.randrange(40))

    run(script)
    assert all(ends)
    assert 0 < len(ends) < 200


async def cancel_after(steps: int, scope: anyio.CancelScope) -> None:
    for _ in range(steps):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


def test_a_late_answer_is_not_taken_for_the_next_one(run: Run) -> None:
    async def late(peer: Peer) -> None:
        first = await peer.heard()
        second = await peer.heard()
        await peer.say(pong(first, "late") + pong(second))
        await peer.left()

    async def script(daemon: Played, where: Where) -> None:
        daemon.commands = late
        async with connect(where) as connection:
            with pytest.raises(AnswerTimedOut):
                await connection.ask(Ping(), timeout_seconds=NEVER_SECONDS)
            assert await connection.ask(Ping()) == Pong(message="pong")

    run(script)


def test_a_request_abandoned_while_being_sent_ends_the_connection(
    run: Run,
) -> None:
    async def does_not_read(peer: Peer) -> None:
        await anyio.sleep_forever()

    async def script(daemon: Played, where: Where) -> None:
        daemon.commands = does_not_read
        async with connect(where) as connection:
            with pytest.raises(AnswerTimedOut):
                await connection.request("echo", {"text": LARGE}, timeout_seconds=NEVER_SECONDS)
            with pytest.raises(ConnectionLost, match="given up while it was being sent"):
                await connection.ask(Ping())

    run(script)


def test_was_left_detects_a_closed_connection_before_use(run: Run) -> None:
    async def script(daemon: Played, where: Where) -> None:
        leave, left = anyio.Event(), anyio.Event()

        async def one(peer: Peer) -> None:
            await peer.say(pong(await peer.heard()))
            await leave.wait()
            left.set()

        daemon.commands = one
        async with connect(where) as connection:
            await connection.ask(Ping())
            was_left = [connection.was_left]
            leave.set()
            await left.wait()
            await anyio.wait_all_tasks_blocked()
            assert [*was_left, connection.was_left] == [False, True]

    run(script)


@pytest.mark.slow(keep=2)
def test_a_client_reconnects_whenever_the_daemon_disconnects(run: Run) -> None:
    served = 0

    async def a_few(peer: Peer) -> None:
        nonlocal served
        for _ in range(random.Random(served).randrange(1, 4)):
            await peer.say(pong(await peer.heard()))
        served += 1

    async def script(daemon: Played, where: Where) -> None:
        daemon.commands = a_few
        async with Client(where) as client:
            for _ in range(20):
                assert await client.ask(Ping()) == Pong(message="pong")
                await anyio.wait_all_tasks_blocked()  # so that a peer that is leaving has left
        assert served > 5

    run(script)


def subscribed(request: dict[str, Any]) -> bytes:
    after = request["payload"]["after"]
    return ok("subscribed", {"cursor": after, "head": "evt-9"})(request) or b""


def test_events_come_in_order_whatever_their_size(run: Run) -> None:
    lines = [event(n, "status", message="x" * (n % 7) * 50_000) for n in range(1, 30)]

    async def all_of_them(peer: Peer) -> None:
        await peer.say(subscribed(await peer.heard()))
        for line in lines:
            await peer.say(line)

    async def script(daemon: Played, where: Where) -> None:
        daemon.events = all_of_them
        got: list[bytes] = []
        async with subscribe(where, ALL) as events:
            for _ in lines:
                got.append((await anext(events)).line + b"\n")  # noqa: PERF401  they are awaited
            with pytest.raises(ConnectionLost):
                await anext(events)
        assert got == lines

    run(script)


def test_a_refused_subscription_is_an_error(run: Run) -> None:
    async def refusing(peer: Peer) -> None:
        await peer.say(refused("command_rejected", "cursor_beyond_head")(await peer.heard()))

    async def script(daemon: Played, where: Where) -> None:
        daemon.events = refusing
        with pytest.raises(Refused, match="cursor_beyond_head"):
            async with subscribe(where, ALL):
                raise AssertionError
        with pytest.raises(Refused, match="cursor_beyond_head"):
            async with follow(where, ALL):
                raise AssertionError

    run(script)


def test_a_follower_delivers_every_event_once_over_many_connections(run: Run) -> None:
    async def one_and_a_half(peer: Peer) -> None:
        request = await peer.heard()
        number = int(request["payload"]["after"].removeprefix("evt-"))
        await peer.say(subscribed(request) + event(number + 1, "status", message="x"))
        await peer.say(event(number + 2, "status", message="y")[:-1])

    async def script(daemon: Played, where: Where) -> None:
        daemon.events = one_and_a_half
        async with follow(where, ALL, retry=Retry(first=0, longest=0)) as events:
            got = [(await anext(events)).id for _ in range(50)]
            assert events.connections == 50
        assert got == [f"evt-{number}" for number in range(1, 51)]

    run(script)


@pytest.mark.parametrize("refusal", ["shutting_down", "too_many_connections"])
def test_a_temporary_refusal_is_retried(run: Run, refusal: str) -> None:
    answers = [subscribed, refused("command_rejected", refusal), refused(refusal, "x"), subscribed]

    async def script(daemon: Played, where: Where) -> None:
        async def next_answer(peer: Peer) -> None:
            answer = answers.pop(0)
            await peer.say(answer(await peer.heard()))
            if not answers:
                await peer.say(event(1, "status", message="x"))
                await peer.left()

        daemon.events = next_answer
        async with follow(where, ALL, retry=Retry(first=0, longest=0)) as events:
            assert (await anext(events)).id == "evt-1"
            assert events.connections == 2

    run(script)
