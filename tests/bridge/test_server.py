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
from tests.bridge.raw_http import Address, answer_in, connected, exchange, request
from tests.bridge.small_server import CREDENTIALS, TOKEN, SmallServer, small_server
from tests.harness.daemon import WAIT_SECONDS

READERS = 1000

OPEN = request("GET", "/global/health").replace(b"connection: close\r\n", b"")


@asynccontextmanager
async def stream_of(address: Address, path: str) -> AsyncIterator[trio.SocketStream]:
    """Open a stream and read its beginning."""
    async with await connected(address) as stream:
        await stream.send_all(request("GET", path, token=TOKEN))
        with trio.fail_after(WAIT_SECONDS):
            received = b""
            while b": hello\n\n" not in received:
                received += await stream.receive_some()
        yield stream


async def rest(stream: trio.SocketStream) -> bytes:
    """Return all bytes until the server closes the connection."""
    received = b""
    try:
        async for chunk in stream:
            received += chunk
    except trio.BrokenResourceError:
        pass
    return received


# --- many connections ------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_client_is_served_beside_a_thousand_idle_readers_which_leave_no_descriptor() -> (
    None
):
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


async def test_a_connection_beyond_the_limit_is_refused_until_another_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "HTTP_CONNECTIONS_MAX", 2)
    async with small_server() as small:
        async with stream_of(small.address, "/quiet"), stream_of(small.address, "/quiet"):
            for sent in (OPEN, b""):
                answer = answer_in(await exchange(small.address, sent))
                assert (answer.status, answer.code) == (503, "TOO_MANY_CONNECTIONS")
                assert answer.headers["connection"] == "close"
        await small.until(lambda: small.streams == 0)
        assert (await small.ask("/echo")).status == 200
    assert HTTP_CONNECTIONS_MAX > READERS


@pytest.mark.parametrize(
    "said", [b"", b"GET / HT", OPEN, request("POST", "/auth/login", "content-length: 9")]
)
async def test_connections_without_a_token_keep_nobody_out_and_cut_nobody_off(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HTTP_CONNECTIONS_MAX", 30)
    async with small_server() as small, AsyncExitStack() as opened:
        reader = await opened.enter_async_context(stream_of(small.address, "/flood"))
        strangers = []
        for _ in range(100):
            stranger = await opened.enter_async_context(await connected(small.address))
            await stranger.send_all(said)
            strangers.append(stranger)
            assert (await small.ask("/global/health")).status == 200
        await opened.enter_async_context(stream_of(small.address, "/quiet"))
        assert small.streams == 2
        assert await reader.receive_some()
        with trio.fail_after(WAIT_SECONDS):
            await rest(strangers[0])


async def test_the_oldest_connection_without_a_token_makes_way_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "HTTP_STRANGERS_MAX", 2)
    async with small_server() as small, AsyncExitStack() as opened:
        await opened.enter_async_context(stream_of(small.address, "/quiet"))
        strangers = [
            await opened.enter_async_context(await connected(small.address)) for _ in range(2)
        ]
        for stranger in strangers:
            await stranger.send_all(OPEN)
            assert (await stranger.receive_some()).startswith(b"HTTP/1.1 200 ")
        await opened.enter_async_context(await connected(small.address))
        with trio.fail_after(WAIT_SECONDS):
            assert await rest(strangers[0]) == b""
        await strangers[1].send_all(OPEN)
        assert (await strangers[1].receive_some()).startswith(b"HTTP/1.1 200 ")
        assert small.streams == 1


async def test_the_server_waits_for_free_descriptors(
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


async def test_an_error_on_one_connection_is_logged_and_affects_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fault(_connection: Connection) -> None:
        raise ExceptionGroup("of a nursery", [RuntimeError("planted")])

    async with small_server() as small, stream_of(small.address, "/quiet"):
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "run", fault)
            assert await exchange(small.address, OPEN) == b""
        assert "planted" in caplog.text
        assert small.streams == 1
        assert (await small.ask("/echo")).status == 200


# --- slow clients ----------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"GET /global/health HTTP/1.1\r\nx-a: ", OPEN])
async def test_a_client_that_completes_no_further_request_is_cut_off(
    autojump_clock: MockClock, sent: bytes
) -> None:
    """A client that sends nothing, one that sends slowly, and one that stops in mid-request."""
    async with small_server() as small, await connected(small.address) as stream:
        start = trio.current_time()
        await stream.send_all(sent)
        received = await rest(stream)
        assert trio.current_time() - start == pytest.approx(HTTP_IDLE_SECONDS)
        assert received.count(b"HTTP/1.1 200") == (sent == OPEN)


async def test_a_client_that_trickles_its_head_is_cut_off_like_a_silent_one(
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


async def test_a_body_that_does_not_arrive_in_time_is_refused(
    autojump_clock: MockClock,
) -> None:
    """Also if it trickles."""
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


async def test_a_client_that_keeps_sending_requests_is_not_cut_off(
    autojump_clock: MockClock,
) -> None:
    async with small_server() as small, await connected(small.address) as stream:
        for _ in range(3):
            await stream.send_all(OPEN)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
            await trio.sleep(HTTP_IDLE_SECONDS - 1)


async def test_a_request_at_the_moment_of_the_deadline_does_not_remove_the_deadline(
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


async def test_a_reader_that_reads_nothing_is_cut_off(autojump_clock: MockClock) -> None:
    async with small_server() as small, await connected(small.address) as stream:
        await stream.send_all(request("GET", "/flood", token=TOKEN))
        await small.until(lambda: small.streams)
        await trio.sleep(HTTP_WRITE_SECONDS - 1)
        assert small.streams == 1
        await trio.sleep(2)
        assert small.streams == 0
        assert (await small.ask("/echo")).status == 200


async def test_a_slow_reader_receives_the_whole_of_a_long_response(
    autojump_clock: MockClock, socket_path: Path
) -> None:
    """On a Unix socket each read makes room for a write at once."""
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


# --- shutdown --------------------------------------------------------------------------------


async def stop(small: SmallServer) -> float:
    """Stop the server, and return how long that took."""
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
            assert await stop(small) == 0
            assert await rest(kept) == await rest(silent) == b""


@pytest.mark.parametrize("path", ["/quiet", "/flood"])
async def test_streams_and_stalled_readers_end_with_the_grace_period(
    autojump_clock: MockClock, path: str
) -> None:
    async with small_server() as small, await connected(small.address) as stream:
        await stream.send_all(request("GET", path, token=TOKEN))
        await small.until(lambda: small.streams)
        assert await stop(small) == server.GRACE_SECONDS
        assert small.streams == 0
        with pytest.raises(OSError, match="all attempts to connect"):
            await connected(small.address)


async def test_a_cancelled_server_ends_at_once(autojump_clock: MockClock) -> None:
    with trio.CancelScope() as scope:
        async with small_server() as small, await connected(small.address) as stream:
            await stream.send_all(request("GET", "/flood", token=TOKEN))
            await small.until(lambda: small.streams)
            start = trio.current_time()
            scope.cancel()
    assert scope.cancelled_caught
    assert trio.current_time() == start


async def test_a_request_in_progress_is_answered_within_the_grace_period() -> None:
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


@pytest.mark.slow
async def test_the_port_of_a_stopped_server_can_be_used_at_once() -> None:
    async with small_server() as small, stream_of(small.address, "/quiet"):
        port = small.address
        assert isinstance(port, int)
        await stop(small)
        async with server.open_listeners(HttpPlace("127.0.0.1", port)):
            pass


# --- addresses -------------------------------------------------------------------------------


async def test_a_port_in_use_is_a_config_error_with_the_address() -> None:
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
async def test_a_unix_socket_is_private_and_removed_with_the_server(
    socket_path: Path, mask: int
) -> None:
    with umask(mask):
        async with small_server(socket_path) as small:
            assert mode_of(socket_path) == 0o600
            assert (await small.ask("/echo")).status == 200
    assert mode_of(socket_path) is None


async def test_a_dead_unix_socket_is_replaced_and_a_live_one_is_not(socket_path: Path) -> None:
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


async def test_a_file_at_the_path_of_a_unix_socket_is_not_replaced(socket_path: Path) -> None:
    await trio.Path(socket_path).write_text("mine")
    with pytest.raises(ConfigError, match="is not a socket"):
        async with server.open_listeners(HttpPlace(path=socket_path)):
            pass
    assert await trio.Path(socket_path).read_text() == "mine"


async def test_the_connection_of_another_user_is_closed_without_a_response(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "is_own_or_root", lambda _stream: False)
    async with small_server(socket_path):
        assert await exchange(socket_path, OPEN) == b""


async def test_a_server_that_fails_closes_its_port(socket_path: Path) -> None:
    """New clients are then refused instead of waiting forever."""

    class Fault(Exception):
        pass

    class Failing:
        async def wait(self) -> None:
            raise Fault

    async with server.open_listeners(HttpPlace("127.0.0.1", 0)) as listeners:
        port = listeners[0].socket.getsockname()[1]
        gate = Gate(SmallServer(port).app(), AccessPolicy(CREDENTIALS))
        with pytest.RaisesGroup(pytest.RaisesGroup(Fault)):
            await server.serve(gate, listeners, cast("trio.Event", Failing()))
        with pytest.raises(OSError, match="all attempts to connect"):
            await connected(port)
