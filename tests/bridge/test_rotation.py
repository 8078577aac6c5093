"""``nousd http rotate-token``: the old token is void at once, and what it opened ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from nousd.bridge.access.credentials import WATCH_SECONDS
from nousd.bridge.access.gate import AccessPolicy
from tests.bridge.harness import Frame, frame_of
from tests.bridge.raw_http import answer_in, connected, request
from tests.bridge.small_server import TOKEN, SmallServer, credentials_of, small_server
from tests.bridge.test_processes import (
    UnixConnection,
    ask,
    ask_until,
    running,
    token_of,
)
from tests.harness.daemon import WAIT_SECONDS

NEW = "another-token-that-only-tests-know"


@pytest.fixture
def folder(short_folder: Path) -> Path:
    (short_folder / "state").mkdir(mode=0o700)
    return short_folder


def rotate(folder: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nousd", "http", "rotate-token", "--state-dir", folder / "state"],
        env={**os.environ, "NOUSD_CONFIG": "", "XDG_CONFIG_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        **more,
    )


# --- a running daemon or bridge ----------------------------------------------------------------


class Client:
    """A client on a Unix socket that keeps its connection."""

    def __init__(self, path: Path, token: str) -> None:
        self._token = token
        self._connection = UnixConnection(path)

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> int:
        """Send a request and return the status."""
        headers = {"x-tandem-token": self._token, "content-type": "application/json"} | headers
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, headers)
        self.reply = self._connection.getresponse()
        return self.reply.status

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of the response until it ends or is cut."""
        lines: list[bytes] = []
        try:
            while line := self.reply.readline():
                lines.append(line)
                if line == b"\n":
                    if frame := frame_of(b"".join(lines).strip()):
                        yield frame
                    lines.clear()
        except (http.client.IncompleteRead, ConnectionError):
            pass

    def until(self, type: str) -> list[Frame]:
        """Return the frames up to the first one of that type."""
        frames = []
        for frame in self.frames():
            frames.append(frame)
            if frame.type == type:
                return frames
        raise AssertionError(f"the stream ended without {type}")

    def is_open(self) -> bool:
        """Wait for the server to close the connection; return False once it did."""
        return self._connection.sock.recv(1) != b""

    def close(self) -> None:
        self._connection.close()


def prompt(path: Path, token: str, session: str) -> None:
    client = Client(path, token)
    body = {"parts": [{"type": "text", "text": "hello"}]}
    assert client.send("POST", f"/session/{session}/prompt_sync", body) == 200
    client.reply.read()
    client.close()


def ids(frames: list[Frame]) -> list[str]:
    return [frame.id for frame in frames if frame.id]


@pytest.mark.slow
@pytest.mark.behaviour("http_ends_what_an_old_token_opened")
@pytest.mark.parametrize("verb", ["serve", "bridge"])
def test_after_a_rotation_open_streams_end_and_resume_with_the_new_token_only(
    verb: str, folder: Path
) -> None:
    place = folder / "http"
    with ExitStack() as stack:
        server = stack.enter_context(running(folder, verb, f"unix:{place}"))
        if verb == "bridge":
            stack.enter_context(running(folder, "serve", f"unix:{folder / 'other'}"))
        assert ask(place, "/global/health")[0] == 200
        old = token_of(folder)
        ask_until(200, place, "/session", old)
        session = ask(place, "/session", old, "POST")[1]["id"]
        stream, idle = Client(place, old), Client(place, old)
        for client in (stream, idle):
            stack.callback(client.close)
        assert stream.send("GET", f"/event?sessionID={session}") == 200
        assert idle.send("GET", "/session") == 200
        idle.reply.read()
        prompt(place, old, session)
        seen = stream.until("session.run.finished")

        done = rotate(folder)
        assert (done.returncode, done.stderr) == (0, "")
        new = token_of(folder)
        assert new != old
        assert ask(place, "/session", old)[0] == 401
        assert list(stream.frames()) == []
        assert not idle.is_open()

        prompt(place, new, session)  # while the client is away
        last = {"last-event-id": seen[-1].id}
        again = Client(place, old)
        stack.callback(again.close)
        assert again.send("GET", f"/event?sessionID={session}", **last) == 401
        resumed, whole = Client(place, new), Client(place, new)
        for client in (resumed, whole):
            stack.callback(client.close)
        assert resumed.send("GET", f"/event?sessionID={session}", **last) == 200
        missed = resumed.until("session.run.finished")
        assert whole.send("GET", f"/event?sessionID={session}&after={ids(seen)[0]}") == 200
        both = [*whole.until("session.run.finished"), *whole.until("session.run.finished")]
        assert ids(seen)[1:] + ids(missed) == ids(both)
        assert server.stop() == 0
    shown = done.stdout + server.log.read_text()
    for secret in (old, new, "Traceback", "Warning"):
        assert secret not in shown


# --- the command -------------------------------------------------------------------------------


def test_without_a_daemon_a_rotation_replaces_the_token(folder: Path) -> None:
    assert rotate(folder).returncode == 0
    first = token_of(folder)
    done = rotate(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert str(folder / "state" / "http-token") in done.stdout
    assert "Give the new token to every client" in done.stdout
    assert token_of(folder) != first
    assert stat.S_IMODE((folder / "state" / "http-token").stat().st_mode) == 0o600
    assert [path.name for path in (folder / "state").iterdir()] == ["http-token"]


def test_without_a_state_folder_there_is_nothing_to_rotate(folder: Path) -> None:
    (folder / "state").rmdir()
    done = rotate(folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"there is no folder {folder / 'state'}" in done.stderr
    assert not (folder / "state").exists()


@pytest.mark.slow
def test_a_rotation_that_cannot_write_leaves_the_old_token_valid_and_says_so(
    folder: Path,
) -> None:
    rotate(folder)
    old = token_of(folder)

    def fill_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    done = rotate(folder, preexec_fn=fill_disk)
    assert done.returncode == 2
    assert re.fullmatch(
        r"nousd: http: .*http-token: File too large; the token was not changed\n", done.stderr
    )
    assert token_of(folder) == old
    assert [path.name for path in (folder / "state").iterdir()] == ["http-token"]


# --- the server --------------------------------------------------------------------------------


class Switch:
    """The token of a server, which a test replaces."""

    def __init__(self) -> None:
        self.token: str | None = TOKEN


@asynccontextmanager
async def switched(switch: Switch) -> AsyncIterator[SmallServer]:
    credentials = credentials_of(lambda: switch.token)
    async with (
        trio.open_nursery() as nursery,
        small_server(safety=AccessPolicy(credentials)) as small,
    ):
        nursery.start_soon(credentials.watch)
        with trio.fail_after(WAIT_SECONDS):
            yield small
        nursery.cancel_scope.cancel()


class FakeConnection:
    """Notes when it was told to end, and when it was cut."""

    def __init__(self) -> None:
        self.ended: list[float] = []
        self.cuts: list[float] = []

    def end(self) -> None:
        self.ended.append(trio.current_time())

    def keep(self) -> None:
        pass

    def cut(self) -> None:
        self.cuts.append(trio.current_time())


async def test_a_connection_of_a_void_token_may_answer_before_it_is_cut(
    autojump_clock: MockClock,
) -> None:
    switch = Switch()
    credentials = credentials_of(lambda: switch.token)
    void, renewed, idle = FakeConnection(), FakeConnection(), FakeConnection()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(credentials.watch)
        for connection in (void, renewed):
            assert credentials.admits(TOKEN, connection)
        assert not credentials.admits(NEW, idle)
        await trio.sleep(10.5)
        assert not void.ended
        switch.token, rotated = NEW, trio.current_time()
        assert not credentials.admits(TOKEN, idle)
        assert credentials.admits(NEW, renewed)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert len(void.ended) == 1
    assert rotated < void.ended[0] <= rotated + WATCH_SECONDS
    assert void.cuts == [void.ended[0] + WATCH_SECONDS]
    for kept in (renewed, idle):
        assert not kept.ended + kept.cuts


async def test_without_any_token_nobody_is_admitted() -> None:
    switch = Switch()
    async with switched(switch) as small:
        assert (await small.ask("/echo")).status == 200
        switch.token = None
        assert (await small.ask("/echo")).status == 401
        assert (await small.ask("/echo", token="")).status == 401
        assert (await small.ask("/global/health", token="")).status == 200
        switch.token = TOKEN
        assert (await small.ask("/echo")).status == 200


@pytest.mark.parametrize("path", ["/quiet", "/flood"])
@pytest.mark.slow
async def test_a_void_token_ends_streams_whether_or_not_they_are_read(path: str) -> None:
    switch = Switch()
    async with switched(switch) as small, await connected(small.address) as stream:
        await stream.send_all(request("GET", path, token=TOKEN))
        await small.until(lambda: small.streams == 1)
        switch.token = NEW
        await small.stream_ended.wait()


async def test_a_request_that_a_void_token_began_is_answered() -> None:
    switch = Switch()
    async with switched(switch) as small, await connected(small.address) as stream:
        await stream.send_all(request("POST", "/echo", "content-length: 4", token=TOKEN))
        await small.until(lambda: "/echo" in small.seen)
        switch.token = NEW
        await stream.send_all(b"well")
        received = bytearray()
        while chunk := await stream.receive_some():
            received += chunk
    assert answer_in(bytes(received), "POST").status == 200


@pytest.mark.slow
async def test_a_connection_whose_client_has_the_new_token_goes_on() -> None:
    switch = Switch()

    async def ask(stream: trio.SocketStream, token: str) -> bytes:
        sent = request("GET", "/echo", token=token).replace(b"connection: close\r\n", b"")
        await stream.send_all(sent)
        return bytes(await stream.receive_some())

    async with (
        switched(switch) as small,
        await connected(small.address) as other,
        await connected(small.address) as stream,
    ):
        assert (await ask(other, TOKEN)).startswith(b"HTTP/1.1 200")
        assert (await ask(stream, TOKEN)).startswith(b"HTTP/1.1 200")
        switch.token = NEW
        assert (await ask(stream, NEW)).startswith(b"HTTP/1.1 200")
        assert await other.receive_some() == b"", "the void one ends"
        assert (await ask(stream, NEW)).startswith(b"HTTP/1.1 200")
