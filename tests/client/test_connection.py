"""The client on anyio, on both event loops, in memory against a scripted daemon."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio.streams.stapled import StapledObjectStream

from nousd.client.connection import IN_FLIGHT_MAX, Connection, connect
from nousd.errors import (
    AnswerInvalid,
    AnswerTimedOut,
    ClientError,
    ConnectionLost,
    DaemonUnreachable,
    Refused,
)
from nousd.wire.commands import GetState, Ping, Prompt
from nousd.wire.responses import Accepted, Pong, State
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.fake_daemon import FakeDaemon, ok, refused

NEVER_SECONDS = 0.1
"""The timeout of a wait that is expected to time out."""


class Peer:
    """The daemon's end of a connection in memory."""

    def __init__(self, stream: anyio.abc.ObjectStream[bytes]) -> None:
        self._stream = stream

    async def heard(self) -> dict[str, Any]:
        line = await self._stream.receive()
        assert line.endswith(b"\n")
        request: dict[str, Any] = json.loads(line)
        return request

    async def say(self, line: bytes) -> None:
        await self._stream.send(line)

    async def answer(self, *ids: str) -> None:
        """Answer these requests, each with its own id as the message, in one piece."""
        lines = [ok("pong", {"message": id})({"id": id}) or b"" for id in ids]
        await self._stream.send(b"".join(lines))

    async def leave(self) -> None:
        await self._stream.aclose()


def in_memory(backend: str, play: Callable[[Connection, Peer], Awaitable[None]]) -> None:
    """Run ``play`` with both ends of a connection, for ten seconds at most."""

    async def run() -> None:
        to_daemon = anyio.create_memory_object_stream[bytes](1000)
        to_client = anyio.create_memory_object_stream[bytes](1000)
        ours = StapledObjectStream(to_daemon[0], to_client[1])
        theirs = StapledObjectStream(to_client[0], to_daemon[1])
        async with ours, theirs:
            with anyio.fail_after(WAIT_SECONDS):
                await play(Connection(ours), Peer(theirs))

    anyio.run(run, backend=backend)


async def ask(connection: Connection, results: dict[int, str], number: int) -> None:
    """Ask and note the answer's message, or the name of the error."""
    try:
        results[number] = (await connection.request("ping", {})).payload["message"]
    except ClientError as error:
        results[number] = type(error).__name__


def test_each_of_several_requests_gets_its_own_answer(backend: str) -> None:
    async def play(connection: Connection, peer: Peer) -> None:
        results: dict[int, str] = {}
        async with anyio.create_task_group() as tasks:
            for number in (1, 2, 3):
                tasks.start_soon(ask, connection, results, number)
            ids = [(await peer.heard())["id"] for _ in results or range(3)]
            await peer.answer(*ids[:1])
            await peer.answer(*ids[1:])
        assert sorted(results.values()) == sorted(ids)
        assert len(set(ids)) == 3

    in_memory(backend, play)


def test_answers_are_reassembled_from_single_bytes(backend: str) -> None:
    async def play(connection: Connection, peer: Peer) -> None:
        results: dict[int, str] = {}
        async with anyio.create_task_group() as tasks:
            for number in (1, 2):
                tasks.start_soon(ask, connection, results, number)
            for _ in (1, 2):
                await peer.heard()
            whole = b"".join(ok("pong", {"message": id})({"id": id}) or b"" for id in ("c1", "c2"))
            for byte in whole:
                await peer.say(bytes([byte]))
        assert sorted(results.values()) == ["c1", "c2"]

    in_memory(backend, play)


def test_cancelling_the_reading_request_does_not_affect_others(backend: str) -> None:
    async def play(connection: Connection, peer: Peer) -> None:
        results: dict[int, str] = {}
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                tasks.start_soon(cancel_after_both_are_heard, peer, scope)
                tasks.start_soon(ask, connection, results, 2)
                await connection.request("ping", {})
            assert scope.cancelled_caught
            await peer.answer("c1", "c2")
        assert len(results) == 1
        assert (await exchange(connection, peer)) == "c3"

    async def cancel_after_both_are_heard(peer: Peer, scope: anyio.CancelScope) -> None:
        await peer.heard()
        await peer.heard()
        scope.cancel()

    in_memory(backend, play)


async def exchange(connection: Connection, peer: Peer) -> str:
    """Make one request, answer it and return its id."""
    results: dict[int, str] = {}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, connection, results, 0)
        request = await peer.heard()
        await peer.answer(request["id"])
    return results[0]


def test_a_late_answer_is_dropped_and_the_connection_stays_usable(backend: str) -> None:
    async def play(connection: Connection, peer: Peer) -> None:
        with pytest.raises(AnswerTimedOut, match="did not answer ping within"):
            await connection.request("ping", {}, timeout_seconds=NEVER_SECONDS)
        await peer.heard()
        await peer.answer("c1")
        assert await exchange(connection, peer) == "c2"

    in_memory(backend, play)


def test_abandoned_requests_count_towards_the_in_flight_limit(backend: str) -> None:
    async def play(connection: Connection, peer: Peer) -> None:
        for _ in range(IN_FLIGHT_MAX):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(connection.request, "ping", {})
                    request = await peer.heard()
                    scope.cancel()
        with pytest.raises(AnswerTimedOut):
            await connection.request("ping", {}, timeout_seconds=NEVER_SECONDS)
        assert request["id"] == f"c{IN_FLIGHT_MAX}"
        # A request that waits also receives the answers to abandoned requests, which makes room again.
        results: dict[int, str] = {}
        await peer.answer(*(f"c{number}" for number in range(1, IN_FLIGHT_MAX + 1)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, connection, results, 0)
            await peer.answer((await peer.heard())["id"])
        assert results[0] == f"c{IN_FLIGHT_MAX + 1}"

    in_memory(backend, play)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (None, "ConnectionLost"),
        (b"garbage\n", "AnswerInvalid"),
        (b'{"id":"c99","type":"pong","payload":{},"ok":true}\n', "AnswerInvalid"),
        (b'{"id":"c1","type":"pong","payload":{}}\n', "AnswerInvalid"),
    ],
)
def test_a_broken_connection_fails_pending_and_later_requests(
    backend: str, end: bytes | None, expected: str
) -> None:
    async def play(connection: Connection, peer: Peer) -> None:
        results: dict[int, str] = {}
        async with anyio.create_task_group() as tasks:
            for number in (1, 2):
                tasks.start_soon(ask, connection, results, number)
            for _ in (1, 2):
                await peer.heard()
            await (peer.leave() if end is None else peer.say(end))
        await ask(connection, results, 3)
        assert results == {1: expected, 2: expected, 3: expected}

    in_memory(backend, play)


def test_an_error_without_an_id_answers_the_oldest_request(backend: str) -> None:
    async def play(connection: Connection, peer: Peer) -> None:
        results: dict[int, str] = {}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, connection, results, 1)
            await peer.heard()
            tasks.start_soon(ask, connection, results, 2)
            await peer.heard()
            error = b'{"id":"","ok":false,"error":{"code":"invalid_command","message":"bad"}}\n'
            await peer.say(error)
            await peer.answer("c2")
        assert results == {1: "Refused", 2: "c2"}

    in_memory(backend, play)


def test_closing_the_connection_fails_pending_and_later_requests(backend: str) -> None:
    async def play(connection: Connection, peer: Peer) -> None:
        results: dict[int, str] = {}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, connection, results, 1)
            await peer.heard()
            await connection.aclose()
        await ask(connection, results, 2)
        assert results == {1: "ConnectionLost", 2: "ConnectionLost"}

    in_memory(backend, play)


def test_a_request_abandoned_while_being_sent_ends_the_connection(backend: str) -> None:
    async def run() -> None:
        to_daemon = anyio.create_memory_object_stream[bytes](0)  # nobody takes what is sent
        to_client = anyio.create_memory_object_stream[bytes](0)
        async with StapledObjectStream(to_daemon[0], to_client[1]) as stream:
            connection = Connection(stream)
            with pytest.raises(AnswerTimedOut):
                await connection.request("ping", {}, timeout_seconds=NEVER_SECONDS)
            with pytest.raises(ConnectionLost, match="given up while it was being sent"):
                await connection.request("ping", {})
        to_daemon[1].close()
        to_client[0].close()

    anyio.run(run, backend=backend)


# --- over a socket ---------------------------------------------------------------------------


def over_socket(
    backend: str, daemon: FakeDaemon, play: Callable[[Connection], Awaitable[None]]
) -> None:
    async def run() -> None:
        with anyio.fail_after(WAIT_SECONDS):
            async with connect(daemon.socket_path) as connection:
                await play(connection)

    anyio.run(run, backend=backend)


def test_a_typed_call_returns_the_struct_of_its_answer(backend: str, daemon: FakeDaemon) -> None:
    daemon.on["prompt"] = ok("accepted", {"command": "prompt", "run_id": "run-1"})

    async def play(connection: Connection) -> None:
        assert await connection.ask(Ping(), Pong) == Pong(message="pong")
        accepted = await connection.ask(Prompt(text="hi", wait=False), Accepted)
        assert accepted.run_id == "run-1"

    over_socket(backend, daemon, play)
    prompt = daemon.heard[1]
    assert (prompt["type"], prompt["payload"]["text"]) == ("prompt", "hi")


@pytest.mark.parametrize("answer", [ok("pong", {"message": "pong"}), ok("state", {"run_id": "r"})])
def test_an_answer_of_another_type_or_shape_is_an_error(
    backend: str, daemon: FakeDaemon, answer: Callable[[dict[str, Any]], bytes]
) -> None:
    daemon.on["get_state"] = answer

    async def play(connection: Connection) -> None:
        with pytest.raises(AnswerInvalid):
            await connection.ask(GetState(), State)

    over_socket(backend, daemon, play)


def test_a_refusal_is_raised_without_an_exception_group(backend: str, daemon: FakeDaemon) -> None:
    daemon.on["prompt"] = refused("timeout", "too late", details={"run_id": "run-1"})

    async def run() -> None:
        # Around the whole connection: no group of exceptions is made of it.
        with pytest.raises(Refused) as caught:
            async with connect(daemon.socket_path) as connection:
                await connection.ask(Prompt(text="hi"), Accepted)
        assert caught.value.details == {"run_id": "run-1"}

    anyio.run(run, backend=backend)


def test_a_missing_daemon_is_reported_with_the_socket_path(backend: str, folder: Path) -> None:
    async def run() -> None:
        with pytest.raises(DaemonUnreachable, match=f"no daemon listens on {folder}/none"):
            async with connect(folder / "none"):
                raise AssertionError

    anyio.run(run, backend=backend)
