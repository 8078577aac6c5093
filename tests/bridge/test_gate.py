"""HTTP access checks: who is admitted, and what browser pages may do."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from nousd.bridge.access.gate import LOCAL_HOSTS, AccessPolicy
from tests.bridge.raw_http import answer_in, connected, exchange, request
from tests.bridge.small_server import CREDENTIALS, TOKEN, small_server
from tests.harness.daemon import WAIT_SECONDS

PAGE = "https://app.example"


@pytest.mark.parametrize(
    ("lines", "is_in"),
    [
        ([f"authorization: Bearer {TOKEN}"], True),
        ([f"authorization: bearer {TOKEN}"], True),
        ([f"authorization: BEARER   {TOKEN} "], True),
        ([f"x-tandem-token: {TOKEN}"], True),
        ([f"X-Agent-Token: {TOKEN}"], True),
        (["x-agent-token: ", f"x-tandem-token: {TOKEN}"], True),
        (["x-agent-token: ", "x-tandem-token: ", f"authorization: Bearer {TOKEN}"], True),
        ([f"x-agent-token: {TOKEN}", "x-tandem-token: wrong"], True),
        (["x-agent-token: wrong", f"x-tandem-token: {TOKEN}"], False),
        (["x-tandem-token: wrong", f"authorization: Bearer {TOKEN}"], False),
        ([], False),
        (["x-tandem-token: "], False),
        (["authorization: Bearer"], False),
        ([f"authorization: {TOKEN}"], False),
        ([f"authorization: Basic {TOKEN}"], False),
        ([f"x-tandem-token: {TOKEN[:-1]}"], False),
        ([f"x-tandem-token: {TOKEN}x"], False),
        ([f"x-tandem-token: {TOKEN.upper()}"], False),
        (["x-tandem-token: \xe4\xf6\xfc"], False),
        ([f"cookie: token={TOKEN}"], False),
    ],
)
async def test_the_first_token_that_is_not_empty_counts(lines: list[str], is_in: bool) -> None:
    async with small_server() as small:
        answer = await small.ask("/echo", *lines, token="")
        assert answer.status == (200 if is_in else 401)
        if not is_in:
            assert answer.code == "AUTH_REQUIRED"
            assert TOKEN.encode() not in answer.body
        assert (await small.ask(f"/echo?token={TOKEN}", token="")).status == 401


@pytest.mark.parametrize("value", [TOKEN, "wrong"])
@pytest.mark.parametrize(
    "header", ["authorization: Bearer ", "x-agent-token: ", "x-tandem-token: "]
)
async def test_a_second_header_with_a_token_is_refused_whatever_both_say(
    header: str, value: str
) -> None:
    async with small_server() as small:
        for path in ("/echo", "/global/health"):
            answer = await small.ask(path, f"{header}{TOKEN}", f"{header}{value}", token="")
            assert (answer.status, answer.code) == (400, "BAD_REQUEST")
            assert TOKEN.encode() not in answer.body


@pytest.mark.behaviour("http_needs_the_token")
async def test_only_health_needs_no_token() -> None:
    async with small_server() as small:
        assert (await small.ask("/global/health", token="")).status == 200
        assert (await small.ask("/global/health", token="wrong")).status == 200
        received = await exchange(small.address, request("POST", "/global/health"))
        assert answer_in(received, "POST").status == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:39731", 200),
        ("LocalHost:1", 200),
        ("127.0.0.1:80", 200),
        ("[::1]", 200),
        ("[::1]:39731", 200),
        ("mine.example", 200),
        ("MINE.example:8080", 200),
        ("evil.example", 403),
        ("evil.example:39731", 403),
        ("localhost.evil.example", 403),
        ("evil.mine.example", 403),
        ("localhost.", 403),
        ("user@localhost", 403),
        ("localhost@evil.example", 403),
        ("localhost:80:80", 403),
        ("localhost:", 403),
        ("localhost:http", 403),
        ("localhost/", 403),
        ("localhost#", 403),
        ("localhost, evil.example", 403),
        ("127.0.0.2", 403),
        ("127.1", 403),
        ("0.0.0.0", 403),
        ("2130706433", 403),
        ("[::ffff:127.0.0.1]", 403),
        ("::1", 403),
        ("", 403),
    ],
)
async def test_only_allowed_hosts_are_served(host: str, status: int) -> None:
    safety = AccessPolicy(CREDENTIALS, LOCAL_HOSTS | {"mine.example"})
    async with small_server(safety=safety) as small:
        for path in ("/global/health", "/echo"):
            answer = await small.ask(path, host=host)
            assert answer.status == status
            assert status == 200 or answer.code == "FORBIDDEN"


async def test_forwarded_host_headers_are_ignored() -> None:
    async with small_server() as small:
        forwarded = ["x-forwarded-host: localhost", "forwarded: host=localhost"]
        assert (await small.ask("/echo", *forwarded, host="evil.example")).status == 403
        forwarded = ["x-forwarded-host: evil.example", "forwarded: host=evil.example"]
        assert (await small.ask("/echo", *forwarded)).status == 200


async def test_a_missing_or_repeated_host_header_is_refused() -> None:
    async with small_server() as small:
        for lines in ("", "host: localhost\r\nhost: localhost\r\n"):
            sent = f"GET /global/health HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode()
            assert answer_in(await exchange(small.address, sent)).status == 400
        sent = b"GET /global/health HTTP/1.0\r\n\r\n"
        assert answer_in(await exchange(small.address, sent)).status == 400


@pytest.mark.parametrize(
    ("origins", "status"),
    [
        (["http://localhost:39731"], 200),
        (["https://localhost:39731"], 200),
        ([PAGE], 200),
        (["http://localhost"], 403),
        (["http://localhost:3000"], 403),
        (["http://evil.example"], 403),
        ([f"{PAGE}.evil.example"], 403),
        ([f"{PAGE}:444"], 403),
        (["http://app.example"], 403),
        (["HTTPS://APP.EXAMPLE"], 403),
        (["ftp://localhost:39731"], 403),
        (["null"], 403),
        ([""], 403),
        ([PAGE, PAGE], 400),
        ([PAGE, "http://evil.example"], 403),
    ],
)
async def test_a_page_of_another_origin_is_refused_unless_it_is_allowed(
    origins: list[str], status: int
) -> None:
    async with small_server(safety=AccessPolicy(CREDENTIALS, origins=frozenset({PAGE}))) as small:
        lines = [f"origin: {origin}" for origin in origins]
        answer = await small.ask("/echo", *lines, host="localhost:39731")
        assert answer.status == status


def allowed_values(headers: dict[str, str], name: str) -> set[str]:
    return set(headers[f"access-control-allow-{name}"].replace(" ", "").split(","))


async def test_a_preflight_of_an_allowed_page_permits_the_methods_and_headers_of_clients() -> None:
    async with small_server(safety=AccessPolicy(CREDENTIALS, origins=frozenset({PAGE}))) as small:
        lines = [
            f"origin: {PAGE}",
            "access-control-request-method: POST",
            "access-control-request-headers: authorization, last-event-id",
            "access-control-request-private-network: true",
        ]
        answer = await small.ask("/echo", *lines, token="", method="OPTIONS")
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-private-network"] == "true"
        assert answer.headers["vary"] == "origin"
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert {"GET", "POST", "PATCH", "DELETE"} <= allowed_values(answer.headers, "methods")
        assert {
            "authorization",
            "content-type",
            "x-tandem-token",
            "x-agent-token",
            "x-tandem-client-id",
            "last-event-id",
            "idempotency-key",
        } <= allowed_values(answer.headers, "headers")
        assert small.seen == []


async def test_an_allowed_page_can_read_responses_and_refusals_and_streams() -> None:
    async with small_server(safety=AccessPolicy(CREDENTIALS, origins=frozenset({PAGE}))) as small:
        own = f"origin: {PAGE}"
        for answer, status in (
            (await small.ask("/echo", own), 200),
            (await small.ask("/echo", own, token="wrong"), 401),
            (await small.ask("/nowhere", own), 404),
            (await small.ask("/echo", own, host="evil.example"), 403),
            (await small.ask("/echo", own, "content-length: 99999999"), 413),
        ):
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == PAGE
            exposed = answer.headers["access-control-expose-headers"]
            assert set(exposed.split(", ")) == {"retry-after", "x-tandem-run-id", "mcp-session-id"}
        async with await connected(small.address) as stream:
            await stream.send_all(request("GET", "/quiet", own, token=TOKEN))
            with trio.fail_after(WAIT_SECONDS):
                head = bytes(await stream.receive_some())
            assert f"access-control-allow-origin: {PAGE}\r\n".encode() in head


async def test_other_pages_receive_no_cors_headers() -> None:
    preflight = "access-control-request-method: POST"
    async with small_server() as small:
        for origin in ("http://evil.example", PAGE, "null"):
            for lines in ([], [preflight]):
                answer = await small.ask(
                    "/echo", f"origin: {origin}", *lines, token="", method="OPTIONS"
                )
                assert (answer.status, answer.code) == (403, "FORBIDDEN")
                assert not any(name.startswith("access-control") for name in answer.headers)
        own = ["origin: http://localhost", preflight]
        answer = await small.ask("/echo", *own, method="OPTIONS")
        assert answer.status == 405, (
            "a page of the same origin needs no permission, and receives none"
        )
        assert not any(name.startswith("access-control") for name in answer.headers)


async def test_on_a_unix_socket_any_host_is_accepted_and_the_token_is_required(
    socket_path: Path,
) -> None:
    async with small_server(socket_path) as small:
        assert (await small.ask("/echo", host="whatever")).status == 200
        assert (await small.ask("/echo", host="whatever", token="")).status == 401
        assert (await small.ask("/echo", "origin: http://evil.example")).status == 403
