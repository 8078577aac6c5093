"""Many connections, slow clients, and the server's shutdown with them."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import cast

import pytest
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.bridge.access.gate import AccessPolicy, Gate
from nousd.bridge.http import server
from nousd.bridge.http.connection import Connection
from nousd.bridge.http.listen_address import HttpPlace
from nousd.errors import ConfigError
from nousd.wire.limits import (
    HTTP_BODY_SECONDS,
    HTTP_CONNECTIONS_MAX,
    HTTP_IDLE_SECONDS,
    HTTP_WRITE_SECONDS,
)
from tests.bridge.raw_http import Address, answer_in, connected, request, said
from tests.bridge.small_server import TOKEN, SmallServer, small_server
from tests.harness.daemon import WAIT_SECONDS

READERS = 1000
STOP_SECONDS = server.GRACE_SECONDS + 1
"""What a stop takes at most; the second on top is for the machine."""

OPEN = request("GET", "/global/health").replace(b"connection: close\r\n", b"")


@asynccontextmanager
async def stream_of(address: Address, path: str) -> AsyncIterator[trio.SocketStream]:
    """A client that has asked for a stream and seen its beginning."""
    async with await connected(address) as stream:
        await stream.send_all(request("GET", path, token=TOKEN))
        with trio.fail_after(WAIT_SECONDS):
            received = b""
            while b": hello\n\n" not in received:
                received += await stream.receive_some()
        yield stream


async def rest(stream: trio.SocketStream) -> bytes:
    """Return what comes until the server closes."""
    received = b""
    try:
        async for chunk in stream:
            received += chunk
    except trio.BrokenResourceError:
        pass
    return received


# --- crowds ----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_thousand_idle_readers_cost_the_next_client_nothing_and_leave_nothing() -> None:
    def descriptors() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    before = descriptors()
    async with small_server() as small:
        async with AsyncExitStack() as readers:
            for _ in range(READERS):
                await readers.enter_async_context(stream_of(small.address, "/quiet"))
            assert small.streams == READERS
            assert (await small.ask("/echo")).status == 200
        await small.until(lambda: small.streams == 0)
        assert (await small.ask("/echo")).status == 200
    assert descriptors() == before


async def test_one_connection_too_many_is_told_so_and_a_place_that_is_free_again_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "HTTP_CONNECTIONS_MAX", 2)
    async with small_server() as small:
        async with stream_of(small.address, "/quiet"), stream_of(small.address, "/quiet"):
            for sent in (OPEN, b""):
                answer = answer_in(await said(small.address, sent))
                assert (answer.status, answer.code) == (503, "TOO_MANY_CONNECTIONS")
                assert answer.headers["connection"] == "close"
        await small.until(lambda: small.streams == 0)
        assert (await small.ask("/echo")).status == 200
    assert HTTP_CONNECTIONS_MAX > READERS


async def test_want_of_descriptors_is_waited_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept = trio.SocketListener.accept
    failures = [OSError(errno.EMFILE, "Too many open files")]

    async def failing(listener: trio.SocketListener) -> trio.SocketStream:
        if failures:
            raise failures.pop()
        return await accept(listener)

    monkeypatch.setattr(trio.SocketListener, "accept", failing)
    async with small_server() as small:
        assert (await small.ask("/echo")).status == 200
    assert caplog.text.count("Too many open files") == 1


async def test_a_fault_on_one_connection_is_logged_and_harms_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fault(_connection: Connection) -> None:
        raise ExceptionGroup("of a nursery", [RuntimeError("planted")])

    async with small_server() as small, stream_of(small.address, "/quiet"):
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "run", fault)
            assert await said(small.address, OPEN) == b""
        assert "planted" in caplog.text
        assert small.streams == 1
        assert (await small.ask("/echo")).status == 200


# --- slow ones -------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"GET /global/health HTTP/1.1\r\nx-a: ", OPEN])
async def test_a_client_that_does_not_come_to_a_request_is_cut_off(
    autojump_clock: MockClock, sent: bytes
) -> None:
    """A client that sends nothing, one that sends slowly, and one that stops in mid-request."""
    async with small_server() as small, await connected(small.address) as stream:
        start = trio.current_time()
        await stream.send_all(sent)
        received = await rest(stream)
        assert trio.current_time() - start == pytest.approx(HTTP_IDLE_SECONDS)
        assert received.count(b"HTTP/1.1 200") == (sent == OPEN)


async def test_a_client_that_trickles_its_head_has_no_longer_than_one_who_is_silent(
    autojump_clock: MockClock,
) -> None:
    async with small_server() as small, await connected(small.address) as stream:
        start = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):  # noqa: PT012 - it ends where it ends
            await stream.send_all(b"GET /global/health HTTP/1.1\r\n")
            while trio.current_time() - start < 10 * HTTP_IDLE_SECONDS:
                await stream.send_all(b"a: b\r\n")
                await trio.sleep(1)
        assert trio.current_time() - start <= HTTP_IDLE_SECONDS + 3


async def test_a_body_that_does_not_come_in_time_is_no_longer_waited_for(
    autojump_clock: MockClock,
) -> None:
    """However it trickles."""
    async with small_server() as small, await connected(small.address) as stream:
        start = trio.current_time()
        await stream.send_all(request("POST", "/echo", "content-length: 99", token=TOKEN))
        for _ in range(10):
            await stream.send_all(b"x")
            await trio.sleep(1)
        answer = answer_in(await rest(stream))
        assert trio.current_time() - start == pytest.approx(HTTP_BODY_SECONDS)
        assert (answer.status, answer.code) == (408, "REQUEST_TIMEOUT")
        assert answer.headers["connection"] == "close"


async def test_a_client_that_goes_on_asking_is_not_cut_off(autojump_clock: MockClock) -> None:
    async with small_server() as small, await connected(small.address) as stream:
        for _ in range(3):
            await stream.send_all(OPEN)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
            await trio.sleep(HTTP_IDLE_SECONDS - 1)


async def test_a_request_in_the_very_moment_of_the_deadline_does_not_do_away_with_it(
    mock_clock: MockClock,
) -> None:
    """The order of the two is random: among many attempts both occur."""
    async with small_server() as small, AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(await connected(small.address)) for _ in range(24)
        ]
        await wait_all_tasks_blocked()
        for stream in streams:
            os.write(stream.socket.fileno(), OPEN)
        mock_clock.jump(HTTP_IDLE_SECONDS)
        mock_clock.autojump_threshold = 0
        for stream in streams:
            with trio.fail_after(2 * HTTP_IDLE_SECONDS):
                await rest(stream)


async def test_a_reader_that_takes_nothing_is_cut_off(autojump_clock: MockClock) -> None:
    async with small_server() as small, await connected(small.address) as stream:
        await stream.send_all(request("GET", "/flood", token=TOKEN))
        await small.until(lambda: small.streams)
        await trio.sleep(HTTP_WRITE_SECONDS - 1)
        assert small.streams == 1
        await trio.sleep(2)
        assert small.streams == 0
        assert (await small.ask("/echo")).status == 200


async def test_a_reader_that_takes_his_time_with_a_long_answer_has_all_of_it(
    autojump_clock: MockClock, socket_path: Path
) -> None:
    """On a Unix socket, where what one side takes the other can write at once."""
    long = b"x" * (12 * 1024 * 1024)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(long)(scope, receive, send)

    closing = trio.Event()
    place = HttpPlace(path=socket_path)
    async with server.open_listeners(place) as listeners, trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, app, listeners, closing)
        start = trio.current_time()
        async with await connected(socket_path) as stream:
            await stream.send_all(request())
            received = 0
            while chunk := await stream.receive_some(256 * 1024):
                received += len(chunk)
                await trio.sleep(3)
        assert received > len(long)
        assert trio.current_time() - start > 2 * HTTP_WRITE_SECONDS
        closing.set()


# --- the end ---------------------------------------------------------------------------------


async def stopped(small: SmallServer) -> float:
    """Stop the server; returns how long that took."""
    start = trio.current_time()
    small.closing.set()
    with trio.fail_after(WAIT_SECONDS):
        await small.ended.wait()
    return trio.current_time() - start


async def test_idle_connections_end_with_the_server_at_once(autojump_clock: MockClock) -> None:
    async with small_server() as small, await connected(small.address) as kept:
        await kept.send_all(OPEN)
        await kept.receive_some()
        async with await connected(small.address) as silent:
            assert await stopped(small) == 0
            assert await rest(kept) == await rest(silent) == b""


@pytest.mark.parametrize("path", ["/quiet", "/flood"])
async def test_streams_and_readers_that_stall_end_with_the_grace(
    autojump_clock: MockClock, path: str
) -> None:
    async with small_server() as small, await connected(small.address) as stream:
        await stream.send_all(request("GET", path, token=TOKEN))
        await small.until(lambda: small.streams)
        assert await stopped(small) == server.GRACE_SECONDS
        assert small.streams == 0
        with pytest.raises(OSError, match="all attempts to connect"):
            await connected(small.address)


async def test_a_server_that_is_cancelled_waits_for_nobody(autojump_clock: MockClock) -> None:
    with trio.CancelScope() as scope:
        async with small_server() as small, await connected(small.address) as stream:
            await stream.send_all(request("GET", "/flood", token=TOKEN))
            await small.until(lambda: small.streams)
            start = trio.current_time()
            scope.cancel()
    assert scope.cancelled_caught
    assert trio.current_time() == start


async def test_what_is_under_way_is_answered_within_the_grace() -> None:
    async with small_server() as small, await connected(small.address) as stream:
        head = request("POST", "/echo", "content-length: 4", token=TOKEN)
        await stream.send_all(head.replace(b"connection: close\r\n", b"") + b"ab")
        await small.until(lambda: small.seen)
        small.closing.set()
        await wait_all_tasks_blocked()
        await stream.send_all(b"cd")
        with trio.fail_after(WAIT_SECONDS):
            answer = answer_in(await rest(stream))
        assert (answer.status, answer.body) == (200, b"abcd")
        assert answer.headers["connection"] == "close"


async def test_the_same_port_can_be_had_again_at_once() -> None:
    async with small_server() as small, stream_of(small.address, "/quiet"):
        port = small.address
        assert isinstance(port, int)
        await stopped(small)
        async with server.open_listeners(HttpPlace("127.0.0.1", port)):
            pass


# --- the places ------------------------------------------------------------------------------


async def test_a_port_that_is_taken_is_one_line() -> None:
    async with small_server() as small:
        assert isinstance(small.address, int)
        with pytest.raises(ConfigError, match=f"^http: 127.0.0.1:{small.address}: "):
            async with server.open_listeners(HttpPlace("127.0.0.1", small.address)):
                pass


def mode_of(path: Path) -> int | None:
    """Return a file's mode; None if there is none."""
    return stat.S_IMODE(path.lstat().st_mode) if os.path.lexists(path) else None


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
async def test_a_unix_socket_is_ours_alone_and_goes_with_the_server(
    socket_path: Path, mask: int
) -> None:
    with umask(mask):
        async with small_server(socket_path) as small:
            assert mode_of(socket_path) == 0o600
            assert (await small.ask("/echo")).status == 200
    assert mode_of(socket_path) is None


async def test_a_dead_unix_socket_is_replaced_and_a_living_one_is_not(socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(socket_path))
    async with small_server(socket_path) as small:
        link = socket_path.with_name("link")
        os.symlink(socket_path, link)
        for path in (socket_path, link):
            with pytest.raises(ConfigError):
                async with server.open_listeners(HttpPlace(path=path)):
                    pass
        assert (await small.ask("/echo")).status == 200


async def test_a_file_in_the_place_of_a_unix_socket_is_left_alone(socket_path: Path) -> None:
    await trio.Path(socket_path).write_text("mine")
    with pytest.raises(ConfigError, match="is not a socket"):
        async with server.open_listeners(HttpPlace(path=socket_path)):
            pass
    assert await trio.Path(socket_path).read_text() == "mine"


async def test_a_peer_of_another_user_is_closed_without_a_word(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "is_own_or_root", lambda _stream: False)
    async with small_server(socket_path):
        assert await said(socket_path, OPEN) == b""


async def test_a_gate_that_fails_does_not_keep_the_place(socket_path: Path) -> None:
    """New clients are refused then, instead of waiting for a connection that never becomes free."""

    class Fault(Exception):
        pass

    class Failing:
        async def wait(self) -> None:
            raise Fault

    async with server.open_listeners(HttpPlace("127.0.0.1", 0)) as listeners:
        port = listeners[0].socket.getsockname()[1]
        gate = Gate(SmallServer(port).app(), AccessPolicy(TOKEN))
        with pytest.RaisesGroup(pytest.RaisesGroup(Fault)):
            await server.serve(gate, listeners, cast("trio.Event", Failing()))
        with pytest.raises(OSError, match="all attempts to connect"):
            await connected(port)
