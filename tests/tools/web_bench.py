"""A web server on this machine, and the tool that fetches its pages."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

import pytest
import trio

from nousd.errors import ToolError
from nousd.tools.builtin.web_fetch import web_fetch_tool
from nousd.tools.interface import ToolResult
from nousd.tools.web import request as web_request
from nousd.tools.web.addresses import Address, WebAllow
from nousd.tools.web.request import Reach, Resolve
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import Bench

Answer = Callable[[trio.SocketStream, str], Awaitable[None]]
"""Respond to one request; the text is its head."""


class Web:
    """A server on this machine, and host names that resolve to it.

    ``names``: what each name resolves to, one answer after another; the last one stays.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[str] = []
        self.asked: list[str] = []
        self.names: dict[str, list[list[str]]] = {}

    async def resolve(self, host: str, port: int) -> Sequence[Address]:
        await trio.lowlevel.checkpoint()
        self.asked.append(host)
        answers = self.names.get(host)
        if answers is None:
            raise OSError(-2, "Name or service not known")
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(each) for each in found]

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


NO_CERTIFICATES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody."""


@asynccontextmanager
async def web(answer: Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Web]:
    async def serve(plain: trio.SocketStream) -> None:
        stream: Any = plain if tls is None else trio.SSLStream(plain, tls, server_side=True)
        head = b""
        try:
            while b"\r\n\r\n" not in head:
                chunk = await stream.receive_some()
                if not chunk:
                    return
                head += chunk
            server.requests.append(head.decode())
            await answer(stream, head.decode())
        except trio.BrokenResourceError:
            pass  # the client has had enough
        finally:
            await stream.aclose()

    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            server = Web(listeners[0].socket.getsockname()[1])
            yield server
            nursery.cancel_scope.cancel()


def page(
    body: bytes | str, kind: str = "text/plain", status: str = "200 OK", **headers: str
) -> Answer:
    """Return an answer that sends one page."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}"]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]

    async def answer(stream: trio.SocketStream, _head: str) -> None:
        await stream.send_all("\r\n".join([*lines, "", ""]).encode() + data)

    return answer


async def fetch(
    bench: Bench,
    url: str,
    *,
    allow: Sequence[str] = ("127.0.0.0/8",),
    resolve: Resolve | None = None,
    **args: object,
) -> ToolResult:
    reach = Reach(
        WebAllow(allow),
        resolve=resolve or web_request.system_resolve,
        # Reading the system's takes longer than a fetch.
        tls=None if url.startswith("https:") else NO_CERTIFICATES,
    )
    tool = web_fetch_tool(reach)
    with trio.fail_after(WAIT_SECONDS):
        return await tool.run(tool.validate({"url": url, **args}), bench.context)


async def refusal(bench: Bench, url: str, **args: object) -> str:
    with pytest.raises(ToolError) as caught:
        await fetch(bench, url, **args)  # type: ignore[arg-type]
    return str(caught.value)


def redirecting(places: dict[str, str], body: str = "there") -> Answer:
    async def answer(stream: trio.SocketStream, head: str) -> None:
        location = places.get(head.split()[1])
        if location is None:
            await page(body)(stream, head)
        else:
            await page("", status="301 Moved", Location=location)(stream, head)

    return answer


async def never(_host: str, _port: int) -> Sequence[Address]:
    raise AssertionError("nothing may be asked for")
