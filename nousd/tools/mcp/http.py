"""The connection to a server at a URL: streamable HTTP, with bounds on its responses.

Proxies and password files of the environment are ignored: requests go to the URL that the user wrote.
The SDK follows redirects only within the URL's origin.

A cancelled call is announced by a notification, and the server may keep its response stream open
forever. So once the notification is sent, the client stops waiting for that response and closes its
connection.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, TypeVar

import httpx2
import msgspec
import trio
from mcp.client.streamable_http import streamable_http_client

from nousd.tools.mcp.spec import ServerSpec
from nousd.tools.process.message_limits import Pace, ValuesOfLines
from nousd.wire.codec.decoding import decode_json
from nousd.wire.limits import MCP_MESSAGE_BYTES_MAX, MCP_MESSAGE_VALUES_MAX

_CONNECT_SECONDS: Final = 30.0

_CLIENT_CLOSED_REQUEST: Final = 499
"""The status with which web servers log a request that its client has abandoned."""


@asynccontextmanager
async def http_streams(
    spec: ServerSpec, *, headers: Mapping[str, str]
) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams for a session of the SDK."""
    is_secure = spec.url.startswith("https:")
    verify = await trio.to_thread.run_sync(httpx2.create_ssl_context) if is_secure else False
    async with (
        httpx2.AsyncClient(
            transport=BoundedTransport(httpx2.AsyncHTTPTransport(verify=verify)),
            headers={**headers, "accept-encoding": "identity"},
            # A call has its own time-out, and a stream of notifications may be silent forever.
            timeout=httpx2.Timeout(_CONNECT_SECONDS, read=None),
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        ) as client,
        # The session is not terminated by a request, because a server may never answer it.
        streamable_http_client(
            spec.url,
            http_client=client,
            max_sse_event_size=MCP_MESSAGE_BYTES_MAX,
            terminate_on_close=False,
        ) as streams,
    ):
        yield streams


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Limits the length of each answer of a server, and the number of requests and events per second,
    with the same bounds as for messages of a server on stdio.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self.answers = Answers()
        self._inner = inner
        self._pace = Pace()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await self._pace.take(0)
        with ExitStack() as cleanup:
            awaited = cleanup.enter_context(self.answers.expect_answer(request))
            try:
                response = await awaited.wait(self._inner.handle_async_request(request))
            except httpx2.SSEError:
                # An exception would end the connection, which is still usable.
                return httpx2.Response(_CLIENT_CLOSED_REQUEST)
            # If the request was a cancellation, the server has received it only now.
            self.answers.give_up(awaited.cancels)
            if response.headers.get("content-encoding", "identity") != "identity":
                await response.aclose()
                raise httpx2.DecodingError("the answer is compressed, which was not asked for")
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
            response.stream = _BoundedStream(
                response.stream, self._pace, awaited, cleanup.pop_all(), is_stream=is_stream
            )
            return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of an answer, which is awaited until it is closed.

    Args:
        cleanup: closed with the body.
        is_stream: whether the body is a stream of bounded events rather than one message.
    """

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        pace: Pace,
        awaited: AwaitedAnswer,
        cleanup: ExitStack,
        *,
        is_stream: bool,
    ) -> None:
        self._inner = inner
        self._pace = pace
        self._awaited = awaited
        self._cleanup = cleanup
        self._is_stream = is_stream
        # The SDK bounds the size of each event of a stream.
        self._bytes_max = math.inf if is_stream else MCP_MESSAGE_BYTES_MAX
        self._lines = ValuesOfLines(is_stream=is_stream)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        chunks = aiter(self._inner)
        while (chunk := await self._next(chunks)) is not None:
            size += len(chunk)
            if size > self._bytes_max:
                raise httpx2.ReadError(f"the answer has more than {self._bytes_max} bytes")
            values = self._check_values(self._lines.feed(chunk))
            await self._pace.take(len(chunk), messages=chunk.count(b"data:"), values=values)
            yield chunk
        await self._pace.take(0, messages=0, values=self._check_values(self._lines.finish()))

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        try:
            return await self._awaited.wait(anext(chunks, None))
        except httpx2.SSEError:
            if self._is_stream:
                raise
            # The SDK treats this as the end of the answer, not of the connection.
            raise httpx2.StreamClosed from None

    def _check_values(self, values: int) -> int:
        if self._lines.largest > MCP_MESSAGE_VALUES_MAX:
            raise httpx2.ReadError(f"a message has more than {MCP_MESSAGE_VALUES_MAX} values")
        return values

    async def aclose(self) -> None:
        self._cleanup.close()
        await self._inner.aclose()


_CANCELLED: Final = "notifications/cancelled"

_T = TypeVar("_T")

_Id = int | str


class AwaitedAnswer:
    """One awaited answer, from the moment at which its request is sent.

    Args:
        cancels: the id of the other request that its request cancels; None if it cancels none.
    """

    def __init__(self, cancels: _Id | None = None) -> None:
        self.cancels = cancels
        self._is_given_up = False
        self._wait_scope = trio.CancelScope()

    async def wait(self, awaitable: Awaitable[_T]) -> _T:
        """Return the result of ``awaitable``, a part of the answer.

        Raises:
            SSEError: the answer was given up.
        """
        with trio.CancelScope() as self._wait_scope:
            if self._is_given_up:
                self._wait_scope.cancel()
            return await awaitable
        raise httpx2.SSEError("the call was cancelled")

    def give_up(self) -> None:
        """End every wait for the answer, including later ones."""
        self._is_given_up = True
        self._wait_scope.cancel()


class _Params(msgspec.Struct, rename="camel"):
    request_id: _Id | None = None


class _Message(msgspec.Struct):
    """The fields of a client's message that this module needs."""

    method: str = ""
    id: _Id | None = None
    params: _Params | None = None


class Answers:
    """The awaited answers, by the ids of their requests."""

    def __init__(self) -> None:
        self._awaited: dict[_Id, AwaitedAnswer] = {}

    def __len__(self) -> int:
        return len(self._awaited)

    @contextmanager
    def expect_answer(self, request: httpx2.Request) -> Iterator[AwaitedAnswer]:
        """Yield the answer to a request; it counts as awaited for the duration of the block."""
        message = _message_of(request)
        params = message.params if message.method == _CANCELLED else None
        awaited = AwaitedAnswer(None if params is None else params.request_id)
        if not message.method or message.id is None:
            yield awaited
            return
        self._awaited[message.id] = awaited
        try:
            yield awaited
        finally:
            del self._awaited[message.id]

    def give_up(self, request_id: _Id | None) -> None:
        """Stop waiting for the answer to a request, if it is awaited."""
        if request_id in self._awaited:
            self._awaited[request_id].give_up()


def _message_of(request: httpx2.Request) -> _Message:
    try:
        return decode_json(request.content, type=_Message)
    except (httpx2.RequestNotRead, msgspec.MsgspecError):
        return _Message()
