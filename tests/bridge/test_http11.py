"""Invalid and ambiguous HTTP requests."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime

import pytest
import trio
from starlette.types import Receive, Scope, Send

from nousd.bridge.http import server
from nousd.bridge.http.listen_address import HttpPlace
from nousd.wire.limits import HTTP_BODY_BYTES_MAX, HTTP_HEADERS_BYTES_MAX
from tests.bridge.raw_http import Answer, answer_in, answers_in, connected, exchange, request
from tests.bridge.small_server import TOKEN, SmallServer, small_server
from tests.harness.daemon import WAIT_SECONDS

OK = b"GET /global/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@pytest.fixture
async def small() -> AsyncIterator[SmallServer]:
    async with small_server() as small:
        yield small


def post(*lines: bytes, version: bytes = b"1.1") -> bytes:
    """Return the head of a ``POST /echo`` with these header lines, as they are."""
    own = (b"host: localhost", b"authorization: Bearer " + TOKEN.encode())
    return b"\r\n".join([b"POST /echo HTTP/" + version, *own, *lines, b"", b""])


SMUGGLED = b"GET /a/smuggled HTTP/1.1\r\nhost: localhost\r\nx-tandem-token: " + TOKEN.encode()

REFUSED = {
    "a length and a coding": (
        post(b"content-length: 5", b"transfer-encoding: chunked") + b"0\r\n\r\n",
        400,
    ),
    "a coding and a length": (
        post(b"transfer-encoding: chunked", b"content-length: 5") + b"0\r\n\r\n",
        400,
    ),
    "two lengths": (post(b"content-length: 5", b"content-length: 6") + b"hello!", 400),
    "two lengths in one": (post(b"content-length: 5, 6") + b"hello!", 400),
    "a length with a sign": (post(b"content-length: +5") + b"hello", 400),
    "a length below zero": (post(b"content-length: -5") + b"hello", 400),
    "a length in hex": (post(b"content-length: 0x5") + b"hello", 400),
    "a length of too many digits": (post(b"content-length: " + b"9" * 30) + b"hello", 400),
    "an unknown coding": (post(b"transfer-encoding: xchunked") + b"0\r\n\r\n", 501),
    "two codings in one": (post(b"transfer-encoding: gzip, chunked") + b"0\r\n\r\n", 501),
    "two codings": (
        post(b"transfer-encoding: chunked", b"transfer-encoding: identity") + b"0\r\n\r\n",
        501,
    ),
    "a coding in quotes": (post(b'transfer-encoding: "chunked"') + b"0\r\n\r\n", 501),
    "a space before the colon": (post(b"transfer-encoding : chunked") + b"0\r\n\r\n", 400),
    "a vertical tab before a value": (post(b"transfer-encoding: \x0bchunked") + b"0\r\n\r\n", 400),
    "a coding in HTTP/1.0": (
        post(b"transfer-encoding: chunked", version=b"1.0") + b"0\r\n\r\n",
        400,
    ),
    "a first line that is folded": (
        b"GET / HTTP/1.1\r\n folded: yes\r\nhost: localhost\r\n\r\n",
        400,
    ),
    "a NUL in a value": (post(b"x-a: b\x00c"), 400),
    "a NUL in a name": (post(b"x-\x00a: b"), 400),
    "a CR in a value": (post(b"x-a: b\rc: d"), 400),
    "a name that is not ASCII": (post("x-ä: b".encode()), 400),
    "a line without a colon": (post(b"x-a"), 400),
    "no name": (post(b": b"), 400),
    "a NUL in the target": (b"GET /a\x00b HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
    "a target that is not ASCII": (b"GET /\xc3\xa4 HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
    "a space in the target": (b"GET /a b HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
    "no version": (b"GET /global/health\r\n\r\n", 400),
    "a version to come": (b"GET / HTTP/3.0\r\nhost: localhost\r\n\r\n", 505),
    "the beginning of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "the beginning of TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "a command of ours": (b'{"id":"1","type":"ping"}\n\n', 400),
    "a whole URL": (b"GET http://evil.example/a/b HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
    "a tunnel": (b"CONNECT evil.example:443 HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
    "an asterisk": (b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
    "lines that end in LF alone": (OK.replace(b"\r\n", b"\n"), 400),
    "one line that ends in LF alone": (post(b"x-a: b\nx-c: d"), 400),
    "a folded value": (post(b"transfer-encoding:\r\n chunked") + b"0\r\n\r\n", 400),
    "a value folded with a tab": (post(b"x-a: b\r\n\tc"), 400),
    "a chunk's line that ends in LF alone": (
        post(b"transfer-encoding: chunked") + b"2\nab\r\n0\r\n\r\n",
        None,
    ),
    "a trailer that ends in LF alone": (
        post(b"transfer-encoding: chunked") + b"2\r\nab\r\n0\r\nx-a: b\n\r\n",
        None,
    ),
    "a last line of LF alone": (post(b"transfer-encoding: chunked") + b"0\r\n\n", None),
    "a folded trailer": (
        post(b"transfer-encoding: chunked") + b"0\r\nx-a: b\r\n c\r\n\r\n",
        None,
    ),
    "a chunk size that is none": (post(b"transfer-encoding: chunked") + b"zz\r\n\r\n", None),
    "a chunk that is longer": (post(b"transfer-encoding: chunked") + b"2\r\nabcd\r\n", None),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_an_invalid_or_ambiguous_request_is_refused_and_smuggles_no_other(
    name: str, small: SmallServer
) -> None:
    """``None``: the head is valid, so the application may receive the beginning of the body."""
    sent, status = REFUSED[name]
    received = await exchange(small.address, sent + SMUGGLED + b"\r\n\r\n", half_close=True)
    if status is not None:
        answer = answer_in(received)
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert answer.code
    assert "/a/smuggled" not in small.seen
    assert status is None or small.seen == []
    assert (await small.ask("/global/health")).status == 200


async def test_a_chunked_body_and_its_trailers_are_one_body(small: SmallServer) -> None:
    lines = (b"transfer-encoding: chunked", b"trailer: x-a", b"connection: close")
    chunks = b"2;of=mine\r\nab\r\n3\r\ncde\r\n0\r\nx-tandem-token: other\r\nx-a: b\r\n\r\n"
    answer = answer_in(await exchange(small.address, post(*lines) + chunks))
    assert (answer.status, answer.body) == (200, b"abcde")


async def test_every_response_has_a_date(small: SmallServer) -> None:
    for sent in (OK, b"GET / HTTP/3.0\r\nhost: localhost\r\n\r\n"):
        date = answer_in(await exchange(small.address, sent)).headers["date"]
        assert abs(parsedate_to_datetime(date).timestamp() - time.time()) < 60


async def test_a_peer_that_ends_within_its_body_receives_no_response(
    small: SmallServer,
) -> None:
    sent = post(b"content-length: 9") + b"four"
    assert await exchange(small.address, sent, half_close=True) == b""


async def test_a_small_unread_body_does_not_end_the_connection(
    small: SmallServer,
) -> None:
    unread = post(b"content-length: 4").replace(b"/echo", b"/deaf") + b"four"
    chunked = post(b"transfer-encoding: chunked").replace(b"/echo", b"/deaf")
    received = await exchange(small.address, unread + chunked + b"2\r\nab\r\n0\r\n\r\n" + OK)
    assert [answer.status for answer in answers_in(received)] == [200, 200, 200]


async def test_two_equal_lengths_count_as_one(small: SmallServer) -> None:
    twice = post(b"content-length: 2", b"content-length: 2", b"connection: close") + b"ab"
    assert answer_in(await exchange(small.address, twice)).body == b"ab"


async def test_one_empty_line_before_a_request_is_ignored_and_two_are_not(
    small: SmallServer,
) -> None:
    assert answer_in(await exchange(small.address, b"\r\n" + OK)).status == 200
    assert answer_in(await exchange(small.address, b"\r\n\r\n" + OK)).status == 400


async def test_pipelined_requests_are_answered_in_order(
    small: SmallServer,
) -> None:
    first = post(b"content-length: 3") + b"one"
    second = post(b"content-length: 3") + b"two"
    received = await exchange(small.address, first + second + OK)
    assert [answer.body for answer in answers_in(received)] == [b"one", b"two", b"well"]


UPGRADES = {
    "HTTP/2": "connection: upgrade, http2-settings|upgrade: h2c|http2-settings: AAMAAABkAAQAAP__",
    "WebSocket": "connection: Upgrade|upgrade: websocket|sec-websocket-version: 13"
    "|sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    "TLS": "connection: upgrade|upgrade: TLS/1.0",
}


@pytest.mark.parametrize("protocol", UPGRADES)
async def test_requests_to_upgrade_the_protocol_are_ignored(
    small: SmallServer, protocol: str
) -> None:
    """The request is answered as plain HTTP/1.1, and the connection stays usable."""
    lines = UPGRADES[protocol].split("|")
    asked = request("GET", "/a/b", *lines, token=TOKEN).replace(b"connection: close\r\n", b"", 1)
    received = await exchange(small.address, asked + OK)
    assert [answer.status for answer in answers_in(received)] == [200, 200]
    assert b" 101 " not in received


async def test_a_100_continue_is_sent_only_for_an_accepted_request(small: SmallServer) -> None:
    wait = b"expect: 100-continue"
    wanted = post(wait, b"content-length: 2", b"connection: close")
    received = await exchange(small.address, wanted, then=b"ab")
    assert received.startswith(b"HTTP/1.1 100 ")
    assert answer_in(received).body == b"ab"
    refused = wanted.replace(TOKEN.encode(), b"wrong-token-of-somebody")
    assert (await exchange(small.address, refused)).startswith(b"HTTP/1.1 401 ")
    large = post(wait, b"content-length: %d" % (HTTP_BODY_BYTES_MAX + 1))
    assert (await exchange(small.address, large)).startswith(b"HTTP/1.1 413 ")


async def test_a_response_sent_before_the_body_was_read_arrives_before_the_close(
    small: SmallServer,
) -> None:
    """The body is larger than the buffer between the server and its application."""
    long = b"x" * 4_000_000
    for sent, status in (
        (post(b"content-length: %d" % len(long)).replace(b"/echo", b"/deaf") + long, 200),
        (post(b"content-length: %d" % len(long)).replace(b"Bearer a", b"Bearer b") + long, 401),
    ):
        answer = answer_in(await exchange(small.address, sent))
        assert (answer.status, answer.headers["connection"]) == (status, "close")


@pytest.mark.parametrize("offset", [0, 1])
async def test_a_chunked_body_has_the_same_limit(small: SmallServer, offset: int) -> None:
    size = HTTP_BODY_BYTES_MAX + offset
    body = b"%x\r\n" % size + b"x" * size + b"\r\n0\r\n\r\n"
    head = post(b"transfer-encoding: chunked", b"connection: close")
    answer = answer_in(await exchange(small.address, head + body))
    assert answer.status == (413 if offset else 200)
    assert answer.headers["connection"] == "close"


async def test_an_unread_body_beyond_the_limit_ends_the_response_stream(
    small: SmallServer,
) -> None:
    size = HTTP_BODY_BYTES_MAX + 1
    head = post(b"transfer-encoding: chunked").replace(b"POST /echo", b"GET /quiet")
    received = await exchange(small.address, head + b"%x\r\n" % size + b"x" * size + b"\r\n")
    assert received.startswith(b"HTTP/1.1 200 ")
    assert small.streams == 0


async def test_a_head_that_is_too_long_is_refused(small: SmallServer) -> None:
    for sent in (
        request("GET", "/" + "a" * HTTP_HEADERS_BYTES_MAX),
        request("GET", "/global/health", "x-a: " + "b" * 100_000),
        request("GET", "/global/health", *["a: b"] * 20_000),
        b"GET /" + b"a" * 200_000,
        post(b"transfer-encoding: chunked") + b"0\r\n" + b"x-a: b\r\n" * 20_000,
    ):
        answer = answer_in(await exchange(small.address, sent))
        assert (answer.status, answer.headers["connection"]) == (431, "close")
        assert answer.code == "HEADERS_TOO_LARGE"


PATHS = {
    "/a/%2e%2e": "/a/..",
    "/a/..": "/a/..",
    "/%61/b": "/a/b",
    "/global%2fhealth": "/global/health",
    "/a/%00": "/a/\0",
    "/a/%ff%fe": "/a/\ufffd\ufffd",
}


@pytest.mark.parametrize("path", PATHS)
async def test_the_path_that_is_checked_is_the_path_that_is_served(
    small: SmallServer, path: str
) -> None:
    assert (await small.ask(path)).status == 200
    assert small.seen == [PATHS[path]]
    is_public = PATHS[path] == "/global/health"
    assert (await small.ask(path, token="")).status == (200 if is_public else 401)


async def test_dots_and_slashes_do_not_lead_to_a_public_path(small: SmallServer) -> None:
    for path in ("//global/health", "/a/../global/health", "/global/health/", "/global/health/x"):
        assert (await small.ask(path, token="")).status == 401, path
    assert small.seen == []


async def test_an_error_of_the_application_is_logged_and_affects_one_response(
    small: SmallServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await small.ask("/fault")).status == 500
    assert (await small.ask("/echo")).status == 200
    assert "planted" in caplog.text


async def test_head_is_answered_without_a_body(small: SmallServer) -> None:
    received = await exchange(small.address, request("HEAD", "/global/health"))
    answer = answer_in(received, "HEAD")
    assert (answer.status, answer.body) == (200, b"")
    received = await exchange(small.address, request("HEAD", "/a/b"))
    assert answer_in(received, "HEAD").status == 401
    head = request("HEAD", "/global/health", *["a: b"] * 20_000)
    assert (await exchange(small.address, head)).startswith(b"HTTP/1.1 431 ")


KEPT = OK.replace(b"connection: close\r\n", b"")


@pytest.mark.parametrize(
    "part", [b"", b"GET", OK[:-2], KEPT, post(b"content-length: 9") + b"four"], ids=range(5)
)
async def test_a_peer_that_leaves_frees_its_connection(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HTTP_CONNECTIONS_MAX", 1)
    async with small_server() as small:
        async with await connected(small.address) as stream:
            await stream.send_all(part)
            if part == KEPT:
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        with trio.fail_after(WAIT_SECONDS):
            while (await small.ask("/global/health")).status != 200:
                pass


async def test_a_reader_that_leaves_with_a_pipelined_request_frees_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "HTTP_CONNECTIONS_MAX", 1)
    async with small_server() as small:
        async with await connected(small.address) as stream:
            flood = request("GET", "/flood", token=TOKEN).replace(b"connection: close\r\n", b"")
            await stream.send_all(flood + OK)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        with trio.fail_after(WAIT_SECONDS):
            while (await small.ask("/global/health")).status != 200:
                pass


async def test_a_request_after_the_last_one_is_refused_and_does_not_delay_others(
    small: SmallServer,
) -> None:
    async with await connected(small.address) as stream:
        await stream.send_all(request("GET", "/flood", token=TOKEN) + OK)
        with trio.fail_after(WAIT_SECONDS):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 400 ")
            assert (await small.ask("/global/health")).status == 200


@pytest.mark.parametrize("method", ["get", "head", "Post"])
async def test_methods_are_case_sensitive(small: SmallServer, method: str) -> None:
    sent = request(method, "/echo", token=TOKEN)
    answer = answer_in(await exchange(small.address, sent), method)
    assert answer.status == 405
    assert answer.body
    assert not small.seen


async def test_a_write_is_completed_although_its_task_is_cancelled() -> None:
    long = b"x" * 4_000_000

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with trio.CancelScope() as scope:
            scope.cancel()
            await send({"type": "http.response.body", "body": long, "more_body": True})
        await send({"type": "http.response.body", "body": b"the end"})

    closing = trio.Event()
    place = HttpPlace("127.0.0.1", 0)
    async with server.open_listeners(place) as listeners, trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, app, listeners, closing)
        received = await exchange(listeners[0].socket.getsockname()[1], OK)
        closing.set()
    assert answer_in(received).body == long + b"the end"


class Spawned(trio.abc.Instrument):
    """Counts the tasks that are started."""

    def __init__(self) -> None:
        self.count = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_a_request_starts_no_task(small: SmallServer) -> None:
    spawned = Spawned()
    async with await connected(small.address) as stream:
        for asked in (KEPT, KEPT.replace(b"\r\n\r\n", b"\r\ncontent-length: 0\r\n\r\n")):
            await stream.send_all(asked)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
            trio.lowlevel.add_instrument(spawned)
            for _ in range(5):
                await stream.send_all(asked)
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
            trio.lowlevel.remove_instrument(spawned)
    assert spawned.count == 0


def test_answers_in_returns_each_response() -> None:
    two = b"HTTP/1.1 200 \r\ncontent-length: 1\r\n\r\na" * 2
    assert answers_in(two) == [Answer(200, {"content-length": "1"}, b"a")] * 2
