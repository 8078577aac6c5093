"""The connections to one model server, through the HTTP library.

The library is slow to import and takes much memory, and no daemon needs it before its first model call,
so ``server`` imports this module then. It does not redact keys: its errors quote the server.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import MappingProxyType
from typing import Final, NamedTuple

import httpx2
import trio

from nousd.errors import FailureCategory, ProviderError
from nousd.providers.http.answer_stream import Decoder
from nousd.providers.http.delta_coalescer import Put
from nousd.providers.http.server_errors import ERROR_BODY_BYTES_MAX, error_from_response
from nousd.providers.interface import Alive, Recorder

CONNECTIONS_MAX: Final = 256
"""Maximum concurrent calls; a further one waits at most for the connect time-out."""

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum bytes of an answer to a ``get``; the longest lists of models have some hundred KiB."""

TAIL_SECONDS: Final = 10.0
"""How long to wait for data after the end of an answer, such as its usage."""

_LEFTOVER_SECONDS: Final = 0.2
"""How long to wait, after the answer, for the end of the response."""

_KEEPALIVE_SECONDS: Final = 30.0


class _Failure(NamedTuple):
    kind: type[httpx2.HTTPError]
    message: str
    category: FailureCategory
    is_retryable: bool


_FAILURES: Final = (
    _Failure(httpx2.ConnectTimeout, "the server cannot be reached", "unreachable", True),
    _Failure(httpx2.ConnectError, "the server cannot be reached", "unreachable", True),
    _Failure(
        httpx2.PoolTimeout, f"all {CONNECTIONS_MAX} connections are in use", "overloaded", True
    ),
    # The server may still be working on the request: repeating it would double the load.
    _Failure(httpx2.TimeoutException, "the server sent nothing for too long", "timeout", False),
    _Failure(httpx2.NetworkError, "the connection broke", "unreachable", True),
    _Failure(httpx2.RemoteProtocolError, "the connection broke", "unreachable", True),
    _Failure(httpx2.HTTPError, "the call failed", "server_error", False),
)
"""How the library's errors are reported; the first match counts."""


def open_connections(
    headers: Mapping[str, str],
    wall_clock: Callable[[], float],
    *,
    idle_timeout_seconds: float,
    connect_timeout_seconds: float,
    needs_tls: bool,
    trust_env: bool,
) -> Connections:
    """Create the connections to one server; none is open yet. Takes some 30 ms if it reads the
    certificate store: call it in a thread.

    Args:
        headers: sent with every request.
        wall_clock: seconds since 1970, for a Retry-After that names a date.
        needs_tls: whether certificates may have to be checked.
        trust_env: whether the environment may name a proxy.
    """
    client = httpx2.AsyncClient(
        verify=httpx2.create_ssl_context() if needs_tls else False,
        trust_env=trust_env,
        timeout=httpx2.Timeout(
            idle_timeout_seconds, connect=connect_timeout_seconds, pool=connect_timeout_seconds
        ),
        limits=httpx2.Limits(max_connections=CONNECTIONS_MAX, keepalive_expiry=_KEEPALIVE_SECONDS),
        headers=headers,
        # Store no cookies.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
    )
    return Connections(client, wall_clock)


class Connections:
    """The connection pool of one server; created by ``open_connections``."""

    def __init__(self, client: httpx2.AsyncClient, wall_clock: Callable[[], float]) -> None:
        self._client = client
        self._wall_clock = wall_clock

    async def aclose(self) -> None:
        """Close the idle connections. Never fails."""
        await self._client.aclose()

    async def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        decoder: Decoder,
        put: Put,
        recorder: Recorder,
    ) -> None:
        """Post ``body``, decode the response as it arrives, and put its pieces.

        Raises:
            ProviderError: the server refused, broke off or was silent for too long, or the decoder
                found a failure; raised after the pieces before it.
        """
        try:
            async with self._response("POST", url, recorder, body, headers) as response:
                await _read(response, decoder, put, recorder)
        except httpx2.HTTPError as error:
            # A connection that breaks after the end of the answer loses nothing of it.
            if not decoder.complete:
                raise _failure(error) from None

    async def get(self, url: str, recorder: Recorder) -> bytes:
        """Return the body at a path, up to ``BODY_BYTES_MAX``.

        Raises:
            ProviderError: the server refused or cannot be reached.
        """
        try:
            async with self._response("GET", url, recorder) as response:
                return await _beginning_of(response, BODY_BYTES_MAX, recorder)
        except httpx2.HTTPError as error:
            raise _failure(error) from None

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        url: str,
        recorder: Recorder,
        body: bytes | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> AsyncIterator[httpx2.Response]:
        """Provide a successful response."""
        async with self._client.stream(method, url, content=body, headers=headers) as response:
            recorder.response(response.status_code, response.headers.get("content-type", ""))
            if response.status_code != httpx2.codes.OK:
                raise await self._refusal(response, recorder)
            yield response

    async def _refusal(self, response: httpx2.Response, recorder: Recorder) -> ProviderError:
        body = await _beginning_of(response, ERROR_BODY_BYTES_MAX, recorder)
        return error_from_response(
            response.status_code, response.headers, body, now=self._wall_clock()
        )


async def _read(response: httpx2.Response, decoder: Decoder, put: Put, recorder: Recorder) -> None:
    """Put the pieces of the response until the answer is finished or the input ends; after a complete
    answer, wait only a short time.
    """
    # One scope for all chunks: one for each would cost as much as reading the chunk.
    async with _chunks_of(response) as chunks:
        with trio.CancelScope() as tail_scope:
            is_in_tail, held_bytes = False, 0
            async for chunk in chunks:
                if is_in_tail:
                    tail_scope.deadline, is_in_tail = math.inf, False
                recorder.chunk(chunk)
                is_empty = True
                for piece in decoder.feed(chunk):
                    is_empty = False
                    await put(piece)
                if is_empty or decoder.held_bytes > held_bytes:
                    held_bytes = decoder.held_bytes
                    await put(Alive(held_bytes))
                if decoder.complete:
                    if decoder.finished:
                        break
                    tail_scope.deadline, is_in_tail = trio.current_time() + TAIL_SECONDS, True


async def _beginning_of(response: httpx2.Response, bytes_max: int, recorder: Recorder) -> bytes:
    """Return the body, or its first bytes up to a limit."""
    body = bytearray()
    async with _chunks_of(response) as chunks:
        async for chunk in chunks:
            recorder.chunk(chunk)
            body += chunk
            if len(body) >= bytes_max:
                break
    return bytes(body[:bytes_max])


@asynccontextmanager
async def _chunks_of(response: httpx2.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    """Provide the chunks of the body, and drain the rest on exit.

    Draining waits a moment for the end of the response, because only then can the connection serve the
    next call. After that, reading is cancelled, which closes the connection. Leaving without a read
    would not close it, because only an exception raised inside the client's generators closes them.
    """
    async with aclosing(response.aiter_bytes()) as chunks:
        try:
            yield chunks
        finally:
            with trio.move_on_after(_LEFTOVER_SECONDS), suppress(httpx2.HTTPError):
                async for _ in chunks:
                    pass


def _failure(error: httpx2.HTTPError) -> ProviderError:
    row = next(failure for failure in _FAILURES if isinstance(error, failure.kind))
    reason = str(error)
    return ProviderError(
        f"{row.message}: {reason}" if reason else row.message,
        category=row.category,
        retryable=row.is_retryable,
    )
