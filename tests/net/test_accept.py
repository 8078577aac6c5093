from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from nousd.daemon.transport.sockets import open_listeners
from nousd.net.accept import Handler, serve_connections
from tests.harness.daemon import WAIT_SECONDS

REFUSAL = b'{"ok":false}\n'


async def echo(stream: trio.SocketStream) -> None:
    async for chunk in stream:
        await stream.send_all(chunk)


async def ask(client: trio.SocketStream) -> bytes:
    """Send a line and return the first answer."""
    with trio.fail_after(WAIT_SECONDS):
        await client.send_all(b"hello\n")
        return bytes(await client.receive_some())


async def read_to_end(client: trio.SocketStream) -> bytes:
    with trio.fail_after(WAIT_SECONDS):
        return b"".join([bytes(chunk) async for chunk in client])


class FakeListener(trio.abc.Listener[trio.SocketStream]):
    """Accepts the given streams and raises the given errors in order, then waits."""

    def __init__(self, *results: OSError | trio.SocketStream) -> None:
        self._results = list(results)

    async def accept(self) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        if not self._results:
            await trio.sleep_forever()
        result = self._results.pop(0)
        if isinstance(result, OSError):
            raise result
        return result

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def connected_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    here, there = (
        trio.SocketStream(trio.socket.from_stdlib_socket(sock)) for sock in socket.socketpair()
    )
    return here, there


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def start(
    nursery: trio.Nursery,
    listener: trio.abc.Listener[trio.SocketStream],
    handler: Handler = echo,
    connections_max: int = 10,
    admits: Callable[[trio.SocketStream], bool] = lambda stream: True,
) -> None:
    async def serve() -> None:
        await serve_connections(
            listener,
            handler,
            limiter=trio.CapacityLimiter(connections_max),
            refusal=REFUSAL,
            admits=admits,
        )

    nursery.start_soon(serve)


async def test_our_own_user_is_served_by_default(socket_path: Path, nursery: trio.Nursery) -> None:
    async with open_listeners(socket_path) as listeners:

        async def serve() -> None:
            await serve_connections(
                listeners.command, echo, limiter=trio.CapacityLimiter(1), refusal=REFUSAL
            )

        nursery.start_soon(serve)
        async with await trio.open_unix_socket(socket_path) as client:
            assert await ask(client) == b"hello\n"


async def test_a_client_over_the_limit_gets_the_refusal_and_is_disconnected(
    socket_path: Path, nursery: trio.Nursery
) -> None:
    async with open_listeners(socket_path) as listeners:
        start(nursery, listeners.command, connections_max=2)
        async with (
            await trio.open_unix_socket(socket_path) as first,
            await trio.open_unix_socket(socket_path) as second,
            await trio.open_unix_socket(socket_path) as third,
        ):
            assert await read_to_end(third) == REFUSAL
            assert await ask(first) == b"hello\n"
            assert await ask(second) == b"hello\n"


async def test_a_disconnected_client_no_longer_counts_towards_the_limit(
    socket_path: Path, nursery: trio.Nursery
) -> None:
    async with open_listeners(socket_path) as listeners:
        start(nursery, listeners.command, connections_max=1)
        for _ in range(3):
            async with await trio.open_unix_socket(socket_path) as client:
                assert await ask(client) == b"hello\n"
                await client.send_eof()
                assert await read_to_end(client) == b""


async def test_refused_clients_leak_no_descriptors(
    socket_path: Path, nursery: trio.Nursery
) -> None:
    def open_descriptors() -> int:
        return sum(1 for _ in Path("/dev/fd").iterdir())

    async with open_listeners(socket_path) as listeners:
        start(nursery, listeners.command, connections_max=1)
        async with await trio.open_unix_socket(socket_path) as served:
            assert await ask(served) == b"hello\n"
            before = open_descriptors()
            for _ in range(50):
                async with await trio.open_unix_socket(socket_path) as refused:
                    assert await read_to_end(refused) == REFUSAL
            assert open_descriptors() == before


async def test_a_refused_client_that_already_disconnected_does_not_affect_others(
    nursery: trio.Nursery,
) -> None:
    server_one, client_one = connected_pair()
    server_two, client_two = connected_pair()
    server_three, client_three = connected_pair()
    await client_two.aclose()
    start(nursery, FakeListener(server_one, server_two, server_three), connections_max=1)
    async with client_one, client_three:
        assert await ask(client_one) == b"hello\n"
        assert await read_to_end(client_three) == REFUSAL


async def test_a_peer_that_is_not_admitted_is_disconnected_without_an_answer(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(stream: trio.SocketStream) -> None:
        pytest.fail("the handler was called")

    server, client = connected_pair()
    start(nursery, FakeListener(server), handler=never, admits=lambda stream: False)
    async with client:
        assert await read_to_end(client) == b""
    assert "another user" in caplog.text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
async def test_accepting_resumes_after_an_overload_that_is_logged_once(
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    server, client = connected_pair()
    overload = [os_error(number) for _ in range(10)]
    start(nursery, FakeListener(*overload, server))
    async with client:
        await client.send_all(b"hello\n")
        assert await client.receive_some() == b"hello\n"
    assert trio.current_time() == pytest.approx(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        f"no connection can be accepted for now: {os.strerror(number)}"
    ]


async def test_each_overload_is_logged(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server, client = connected_pair()
    start(nursery, FakeListener(os_error(errno.EMFILE), server, os_error(errno.EMFILE)))
    async with client:
        await trio.sleep(10)
    assert len(caplog.records) == 2


async def test_any_other_error_of_the_listener_is_raised() -> None:
    with trio.fail_after(WAIT_SECONDS), pytest.RaisesGroup(OSError):
        await serve_connections(
            FakeListener(os_error(errno.EINVAL)),
            echo,
            limiter=trio.CapacityLimiter(1),
            refusal=REFUSAL,
        )


async def test_connected_clients_are_served_after_the_listener_is_closed(socket_path: Path) -> None:
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            async with open_listeners(socket_path) as listeners:
                start(nursery, listeners.command)
                client = await trio.open_unix_socket(socket_path)
                assert await ask(client) == b"hello\n"
            async with client:
                assert await ask(client) == b"hello\n"
        # The nursery ends because the client disconnected.


async def test_cancelling_ends_the_handlers_and_closes_their_streams(socket_path: Path) -> None:
    async with open_listeners(socket_path) as listeners, trio.open_nursery() as nursery:
        start(nursery, listeners.command)
        async with await trio.open_unix_socket(socket_path) as client:
            assert await ask(client) == b"hello\n"
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                assert await read_to_end(client) == b""


async def test_an_error_of_a_handler_is_raised_to_the_caller() -> None:
    class Fault(Exception):
        pass

    async def fail(stream: trio.SocketStream) -> None:
        raise Fault

    server, client = connected_pair()
    async with client:
        with trio.fail_after(WAIT_SECONDS), pytest.RaisesGroup(Fault):
            await serve_connections(
                FakeListener(server), fail, limiter=trio.CapacityLimiter(1), refusal=REFUSAL
            )
        assert await read_to_end(client) == b""
