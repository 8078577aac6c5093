"""A client outlives its connections, on both event loops."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import AnyByteStream

from nousd.client.client import Client
from nousd.client.memory import MemoryStream, memory_streams
from nousd.errors import AnswerInvalid, AnswerTimedOut, ConnectionLost, DaemonUnreachable, Refused
from nousd.wire.codec.framing import LineSplitter
from nousd.wire.commands import GetState, Ping, Prompt, Steer
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.responses import Accepted, Pong
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.fake_daemon import FakeDaemon, event, ok, refused

NEVER_SECONDS = 0.1


class ScriptedDaemon:
    """A daemon in memory whose answers the test scripts.

    Args:
        unreachable: number of connection attempts that fail first.
    """

    def __init__(self) -> None:
        self.streams: list[MemoryStream] = []
        self.unreachable = 0
        self.dialed = 0

    def __str__(self) -> str:
        return "the script"

    async def commands(self) -> AnyByteStream:
        self.dialed += 1
        if self.unreachable:
            self.unreachable -= 1
            raise DaemonUnreachable("nobody listens in the script")
        ours, theirs = memory_streams()
        self.streams.append(theirs)
        return ours

    async def events(self) -> AnyByteStream:
        raise NotImplementedError

    async def heard(self, connection: int) -> dict[str, Any]:
        """Wait for the next request on a connection and return it."""
        with anyio.fail_after(WAIT_SECONDS):
            while len(self.streams) <= connection:
                await anyio.lowlevel.checkpoint()
        splitter = LineSplitter()
        while not (lines := splitter.feed(await self.streams[connection].receive())):
            pass
        assert isinstance(lines[0], bytes)
        request: dict[str, Any] = json.loads(lines[0])
        return request

    async def answer(self, connection: int, type_: str = "pong", **payload: Any) -> None:
        request = await self.heard(connection)
        answer = ok(type_, payload or {"message": "pong"})(request)
        await self.streams[connection].send(answer or b"")

    async def leave(self, connection: int) -> None:
        await self.streams[connection].aclose()


def play(
    backend: str, script: Callable[[Client, ScriptedDaemon], Awaitable[None]], **options: Any
) -> None:
    """Run ``script`` with a client of a scripted daemon, for ten seconds at most."""

    async def run() -> None:
        daemon = ScriptedDaemon()
        with anyio.fail_after(WAIT_SECONDS):
            async with Client(daemon, **options) as client:
                await script(client, daemon)
        for stream in daemon.streams:
            await stream.aclose()

    anyio.run(run, backend=backend)


class PendingRequest:
    """A request that runs in a task of its own; ``outcome`` waits for its result or error."""

    def __init__(self, tasks: anyio.abc.TaskGroup, send: Callable[[], Awaitable[Any]]) -> None:
        self.scope = anyio.CancelScope()
        self.result: Any = None
        self._done = anyio.Event()
        tasks.start_soon(self._run, send)

    async def _run(self, send: Callable[[], Awaitable[Any]]) -> None:
        with self.scope:
            try:
                self.result = await send()
            except (ConnectionLost, DaemonUnreachable, AnswerTimedOut, Refused) as error:
                self.result = error
        self._done.set()

    async def outcome(self) -> Any:
        await self._done.wait()
        return self.result


def test_a_client_connects_on_its_first_request_and_reuses_the_connection(backend: str) -> None:
    async def script(client: Client, daemon: ScriptedDaemon) -> None:
        assert daemon.dialed == 0
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(daemon.answer, 0)
                assert await client.ask(Ping()) == Pong(message="pong")
        assert daemon.dialed == 1

    play(backend, script)


def test_a_slow_request_does_not_block_other_requests(backend: str) -> None:
    async def script(client: Client, daemon: ScriptedDaemon) -> None:
        async with anyio.create_task_group() as tasks:
            long = PendingRequest(tasks, lambda: client.ask(Ping()))
            request = await daemon.heard(0)
            tasks.start_soon(daemon.answer, 1)
            assert await client.ask(Ping()) == Pong(message="pong")
            await daemon.streams[0].send(ok("pong", {"message": "pong"})(request) or b"")
            assert await long.outcome() == Pong(message="pong")

    play(backend, script)


def test_requests_over_the_connection_limit_wait_and_their_timeout_says_so(backend: str) -> None:
    async def script(client: Client, daemon: ScriptedDaemon) -> None:
        async with anyio.create_task_group() as tasks:
            held = [PendingRequest(tasks, lambda: client.ask(Ping())) for _ in range(2)]
            for connection in (0, 1):
                await daemon.heard(connection)
            with pytest.raises(AnswerTimedOut, match="not sent: 2 other requests are under way"):
                await client.ask(Ping(), timeout_seconds=NEVER_SECONDS)
            waiting = PendingRequest(tasks, lambda: client.ask(Ping()))
            await daemon.leave(0)
            await daemon.answer(2)
            assert await waiting.outcome() == Pong(message="pong")
            assert [type(asked.result) for asked in held].count(ConnectionLost) == 1
            tasks.cancel_scope.cancel()

    play(backend, script, connections_max=2)


def test_a_connection_lost_while_idle_is_replaced_without_an_error(backend: str) -> None:
    async def script(client: Client, daemon: ScriptedDaemon) -> None:
        for connection in (0, 1):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(daemon.answer, connection)
                await client.ask(Ping())
            await daemon.leave(connection)
        assert daemon.dialed == 2

    play(backend, script)


def test_a_request_with_an_unknown_outcome_is_not_resent_and_the_next_one_succeeds(
    backend: str,
) -> None:
    async def script(client: Client, daemon: ScriptedDaemon) -> None:
        async with anyio.create_task_group() as tasks:
            lost = PendingRequest(tasks, lambda: client.ask(Steer(text="left")))
            await daemon.heard(0)
            await daemon.leave(0)
            assert isinstance(await lost.outcome(), ConnectionLost)
            assert daemon.dialed == 1
            tasks.start_soon(daemon.answer, 1)
            assert await client.ask(Ping()) == Pong(message="pong")

    play(backend, script, patience_seconds=5)


@pytest.mark.parametrize("unreachable", [0, 3])
def test_an_input_with_a_client_message_id_is_resent(backend: str, unreachable: int) -> None:
    async def script(client: Client, daemon: ScriptedDaemon) -> None:
        text = Prompt(text="hi", wait=False, client_message_id="m1")
        async with anyio.create_task_group() as tasks:
            asked = PendingRequest(tasks, lambda: client.ask(text, Accepted))
            first = await daemon.heard(0)
            daemon.unreachable = unreachable
            await daemon.leave(0)
            second = await daemon.heard(1)
            assert first["payload"] == second["payload"]
            answer = ok("accepted", {"command": "prompt", "run_id": "r"})(second)
            await daemon.streams[1].send(answer or b"")
            assert await asked.outcome() == Accepted(command="prompt", run_id="r")
        assert daemon.dialed == 2 + unreachable

    play(backend, script)


def test_an_input_that_cannot_be_resent_in_time_raises_connection_lost(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DaemonUnreachable would claim that nothing was sent."""
    monkeypatch.setattr("nousd.client.client.RESEND_SECONDS", 0.01)

    async def script(client: Client, daemon: ScriptedDaemon) -> None:
        async with anyio.create_task_group() as tasks:
            text = Prompt(text="hi", wait=False, client_message_id="m1")
            asked = PendingRequest(tasks, lambda: client.ask(text, Accepted))
            await daemon.heard(0)
            daemon.unreachable = 1000
            await daemon.leave(0)
            assert isinstance(await asked.outcome(), ConnectionLost)

    play(backend, script)


def test_a_missing_daemon_is_an_error_at_once_unless_patience_is_set(backend: str) -> None:
    async def impatient(client: Client, daemon: ScriptedDaemon) -> None:
        daemon.unreachable = 1
        with pytest.raises(DaemonUnreachable):
            await client.ask(Ping())
        assert daemon.dialed == 1

    async def patient(client: Client, daemon: ScriptedDaemon) -> None:
        daemon.unreachable = 3
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(daemon.answer, 0)
            assert await client.ask(Ping()) == Pong(message="pong")

    play(backend, impatient)
    play(backend, patient, patience_seconds=5)


def test_patience_ends_at_the_request_timeout(backend: str) -> None:
    async def script(client: Client, daemon: ScriptedDaemon) -> None:
        daemon.unreachable = 1_000_000
        with pytest.raises(AnswerTimedOut):
            await client.ask(Ping(), timeout_seconds=NEVER_SECONDS)

    play(backend, script, patience_seconds=60)


@pytest.mark.parametrize("how", ["cancelled", "late"])
def test_a_cancelled_or_timed_out_request_closes_only_its_connection(
    backend: str, how: str
) -> None:
    async def script(client: Client, daemon: ScriptedDaemon) -> None:
        async with anyio.create_task_group() as tasks:
            seconds = NEVER_SECONDS if how == "late" else None
            given_up = PendingRequest(tasks, lambda: client.ask(Ping(), timeout_seconds=seconds))
            await daemon.heard(0)
            if how == "cancelled":
                given_up.scope.cancel()
            await given_up.outcome()
            with pytest.raises(anyio.EndOfStream):
                await daemon.streams[0].receive()
            tasks.start_soon(daemon.answer, 1)
            assert await client.ask(Ping()) == Pong(message="pong")

    play(backend, script)


def test_closing_the_client_fails_pending_and_later_requests(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.client.client.RESEND_SECONDS", 1000)

    async def script(client: Client, daemon: ScriptedDaemon) -> None:
        async with anyio.create_task_group() as tasks:
            text = Prompt(text="hi", wait=False, client_message_id="m1")
            asked = PendingRequest(tasks, lambda: client.ask(text, Accepted))
            await daemon.heard(0)
            await client.aclose()
            assert isinstance(await asked.outcome(), ConnectionLost)
            with pytest.raises(ConnectionLost, match="closed: nothing was sent"):
                await client.ask(Ping())
        assert daemon.dialed == 1

    play(backend, script)


def test_an_invalid_answer_makes_the_client_reconnect(backend: str) -> None:
    async def script(client: Client, daemon: ScriptedDaemon) -> None:
        async def nonsense() -> None:
            await daemon.heard(0)
            await daemon.streams[0].send(b"nonsense\n")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(nonsense)
            with pytest.raises(AnswerInvalid):
                await client.ask(Ping())
            tasks.start_soon(daemon.answer, 1)
            assert await client.ask(Ping()) == Pong(message="pong")

    play(backend, script)


# --- over sockets ----------------------------------------------------------------------------


def test_requests_reach_a_restarted_daemon_over_new_sockets(backend: str, folder: Path) -> None:
    async def run() -> None:
        with anyio.fail_after(WAIT_SECONDS):
            async with Client(folder / "nousd.sock") as client:
                with FakeDaemon(folder) as daemon:
                    await client.ask(Ping())
                    daemon.on["get_state"] = refused("session_error", "no")
                    with pytest.raises(Refused):
                        await client.ask(GetState())
                    assert len(client._open) == 1
                    for connection in client._open:
                        # A daemon that ends closes its connections; the fake daemon leaves them open.
                        await connection.aclose()
                    client._free.clear()
                (folder / "nousd.sock").unlink()
                (folder / "nousd.sock.events").unlink()
                with pytest.raises(DaemonUnreachable):
                    await client.ask(Ping())
                with FakeDaemon(folder):
                    assert await client.ask(Ping()) == Pong(message="pong")

    anyio.run(run, backend=backend)


def test_a_socket_closed_while_idle_is_detected_before_use(backend: str, folder: Path) -> None:
    async def run() -> None:
        with anyio.fail_after(WAIT_SECONDS), FakeDaemon(folder) as daemon:
            async with Client(folder / "nousd.sock") as client:
                await client.ask(Ping())
                (connection,) = client._free
                daemon.on["leave"] = lambda _: None
                # The fake daemon hangs up on this line, and no request is waiting for an answer.
                await connection._stream.send(b'{"id":"x","type":"leave"}\n')
                while not connection.was_left:
                    await anyio.lowlevel.checkpoint()
                assert await client.ask(Ping()) == Pong(message="pong")
                assert client._free != [connection]

    anyio.run(run, backend=backend)


def test_a_client_subscribes_and_follows_beside_its_requests(
    backend: str, daemon: FakeDaemon
) -> None:
    async def run() -> None:
        with anyio.fail_after(WAIT_SECONDS):
            async with Client(daemon.socket_path) as client:
                daemon.publish(event(1, "status", message="x"))
                async with client.subscribe(Subscribe()) as events:
                    assert (await anext(events)).id == "evt-1"
                async with client.follow(Subscribe()) as events:
                    assert (await anext(events)).id == "evt-1"

    anyio.run(run, backend=backend)
