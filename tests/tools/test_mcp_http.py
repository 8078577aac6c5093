"""MCP servers over HTTP: what is sent to them, and what is refused from them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from nousd.errors import ToolError, ToolServerFailed
from nousd.tools.mcp import server as server_module
from nousd.tools.mcp.http import BoundedTransport
from nousd.wire.limits import MCP_MESSAGE_BYTES_MAX, MCP_MESSAGE_VALUES_MAX
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.test_mcp_servers import Host, running_host

pytestmark = pytest.mark.filterwarnings(
    # The SDK leaves streams of events where it stops reading them; trio closes them and says so.
    "ignore:Async generator:ResourceWarning"
)

RESULT = {"content": [{"type": "text", "text": "from afar"}]}
ANSWERS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "stub", "version": "1"},
    },
    "tools/list": {
        "tools": [
            {"name": name, "inputSchema": {"type": "object"}}
            for name in (
                *("near", "too_large", "too_many", "too_many_in_a_stream", "stream"),
                *("packed", "elsewhere", "broken", "drop"),
                *("silent", "open", "resumable", "half"),
            )
        ]
    },
}


_OPEN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\n"
STAYING_OPEN = {
    "silent": b"",
    "open": _OPEN + b": it goes on\n\n",
    "resumable": _OPEN + b"id: 7\ndata:\n\n",
    "half": _OPEN.replace(b"text/event-stream", b"application/json") + b"{",
}
"""Tool -> the beginning of its response, which never ends."""


class Web:
    """A server of the protocol as bytes on sockets; it remembers the heads of requests."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.url = ""
        self.notified: list[str] = []
        self.news = trio.Event()
        """Set when a response stays open, and when the client has closed it."""

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                while (request := await self._request(stream)) is not None:
                    if request[1].get("params", {}).get("name") in STAYING_OPEN:
                        await self._stay_open(stream, request[1])
                        return
                    await stream.send_all(self._answer(*request))
                    if request[1].get("params", {}).get("name") == "drop":
                        return
            except trio.BrokenResourceError:
                return

    async def _stay_open(self, stream: trio.SocketStream, message: dict[str, Any]) -> None:
        """Begin a response that never ends; return when the client has closed the connection."""
        await stream.send_all(STAYING_OPEN[message["params"]["name"]])
        self.news.set()
        while await stream.receive_some():
            pass
        self.news.set()

    async def _request(self, stream: trio.SocketStream) -> tuple[str, dict[str, Any]] | None:
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = await stream.receive_some()
            if not chunk:
                return None
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        fields = dict(
            line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line
        )
        while len(body) < int(fields.get("content-length", 0)):
            body += await stream.receive_some()
        self.heads.append(head.decode())
        return head.decode().split()[0], json.loads(body or "{}")

    def _answer(self, method: str, message: dict[str, Any]) -> bytes:
        if method != "POST":
            return _http(b"", "405 Method Not Allowed")
        if "id" not in message:
            self.notified.append(message["method"])
            return _http(b"", "202 Accepted")
        called = message.get("params", {}).get("name")
        result = ANSWERS.get(message["method"]) or (RESULT if called else None)
        outcome = (
            {"error": {"code": -32601, "message": "no"}} if result is None else {"result": result}
        )
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}).encode()
        match called:
            case "too_large":
                return _http(b'"' + b"x" * (MCP_MESSAGE_BYTES_MAX + 1) + b'"')
            case "stream":
                return _http(b"data: " + body + b"\n\n", kind="text/event-stream")
            case "too_many":
                return _http(b"[" + b"[]," * MCP_MESSAGE_VALUES_MAX + b"[]]")
            case "too_many_in_a_stream":
                many = {**RESULT, "structuredContent": {"many": [[]] * MCP_MESSAGE_VALUES_MAX}}
                body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": many}).encode()
                half = body.index(b",", len(body) // 2)
                lines = b"data: " + body[:half] + b"\r\ndata: " + body[half:] + b"\r\n\r\n"
                return _http(lines, kind="text/event-stream")
            case "packed":
                return _http(body, more="Content-Encoding: gzip\r\n")
            case "elsewhere":
                return _http(
                    b"", "307 Temporary Redirect", more="Location: http://127.0.0.1:1/\r\n"
                )
            case "broken":
                return _http(b"{{{")
            case "drop":
                return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Le"
        return _http(body)


def _http(
    body: bytes, status: str = "200 OK", *, kind: str = "application/json", more: str = ""
) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


@asynccontextmanager
async def serving_mcp() -> AsyncIterator[Web]:
    web = Web()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, web.serve, 0, host="127.0.0.1"))
        web.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp"
        yield web
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serve_web(folder: Path, **more: Any) -> AsyncIterator[tuple[Web, Host]]:
    async with (
        serving_mcp() as web,
        running_host(folder, command=(), url=web.url, **more) as host,
    ):
        await host.until(lambda status: status.state == "ready")
        yield web, host


async def test_an_http_server_receives_the_headers_and_no_proxy_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    headers = {"Authorization": "Bearer ${TOKEN}"}
    async with serve_web(tmp_path, headers=headers, environ={"TOKEN": "s3cret"}) as (web, host):
        result = await host.call("near")
        assert (result.text, result.execution_env) == ("from afar", "remote")
        assert (await host.call("stream")).text == "from afar"
        assert all("authorization: bearer s3cret" in head.lower() for head in web.heads)
        assert host.secrets == ["s3cret"]
        assert host.server.status.protocol_version == "2025-11-25"


@pytest.mark.parametrize("tool", ["elsewhere", "broken", "too_many_in_a_stream"])
async def test_an_invalid_response_fails_only_its_call(tool: str, tmp_path: Path) -> None:
    async with serve_web(tmp_path) as (_, host):
        with pytest.raises(ToolError):
            await host.call(tool)
        assert (await host.call("near")).text == "from afar"
        assert host.server.status.restarts == 0


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("too_large", f"the answer has more than {MCP_MESSAGE_BYTES_MAX} bytes"),
        ("too_many", f"a message has more than {MCP_MESSAGE_VALUES_MAX} values"),
        ("packed", "the answer is compressed, which was not asked for"),
        ("drop", ""),
    ],
)
async def test_an_unacceptable_response_ends_the_connection_which_is_reopened(
    tool: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FIRST_PAUSE_SECONDS", 0.01)
    async with serve_web(tmp_path) as (_, host):
        with pytest.raises(ToolServerFailed, match="mcp_server_failed"):
            await host.call(tool)
        failed = await host.until(lambda status: status.state == "backoff")
        assert words in failed.error
        await host.until(lambda status: status.state == "ready" and status.restarts > 0)
        assert (await host.call("near")).text == "from afar"


@pytest.mark.parametrize("tool", STAYING_OPEN)
async def test_a_cancelled_call_leaves_no_stream_open(tool: str, tmp_path: Path) -> None:
    cancelled = trio.CancelScope()

    async def call(host: Host) -> None:
        with cancelled:
            await host.call(tool)

    async with serve_web(tmp_path) as (web, host), trio.open_nursery() as nursery:
        nursery.start_soon(call, host)
        with trio.fail_after(WAIT_SECONDS):
            await web.news.wait()
            web.news = trio.Event()
            cancelled.cancel()
            await web.news.wait()
        assert web.notified[-1] == "notifications/cancelled"
        assert (await host.call("near")).text == "from afar"
        assert [status.state for status in host.statuses].count("ready") == 1


class Answering(httpx2.AsyncBaseTransport):
    """Accept notifications, fail the request with id 0, and leave other requests waiting."""

    def __init__(self) -> None:
        self.waiting = trio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        message = json.loads(request.content)
        if message.get("id") == 0:
            raise httpx2.ConnectError("nobody is there")
        if "id" in message:
            self.waiting.set()
            await trio.sleep_forever()
        return httpx2.Response(202, stream=httpx2.ByteStream(b""))


def post(**message: Any) -> httpx2.Request:
    return httpx2.Request("POST", "http://127.0.0.1/mcp", json={"jsonrpc": "2.0", **message})


async def test_the_transport_forgets_a_failed_or_cancelled_call() -> None:
    server = Answering()
    transport = BoundedTransport(server)
    with pytest.raises(httpx2.ConnectError):
        await transport.handle_async_request(post(method="tools/call", id=0))
    assert len(transport.answers) == 0

    async def call() -> None:
        response = await transport.handle_async_request(post(method="tools/call", id=1))
        assert response.status_code == 499

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        with trio.fail_after(WAIT_SECONDS):
            await server.waiting.wait()
            assert len(transport.answers) == 1
            cancel = post(method="notifications/cancelled", params={"requestId": 1})
            await (await transport.handle_async_request(cancel)).aclose()
    assert len(transport.answers) == 0
