"""One model server over HTTP: where it is, its key, its connections, its refusals.

Knows no dialect: it is told the headers that carry a key, sends bodies and feeds what comes back to a
decoder. A stream may last as long as it likes; only silence is limited. Redirects are not followed,
because the key would go with them.

The key is in one header and nowhere else: every error passes ``_without_keys``, which takes it out of
what the server said, and the keys of others as well.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final
from urllib.parse import SplitResult, urlsplit

import httpx2
import trio

from nousd.errors import ConfigError, ProviderError
from nousd.providers.answer_stream import Decoder
from nousd.providers.delivery import Put
from nousd.providers.interface import Alive, Record, Recorder
from nousd.providers.server_errors import error_from_response
from nousd.redaction import Redactor
from nousd.wire.codec import scrub

CONNECTIONS_MAX: Final = 256
"""Calls under way at once; a further one waits for its turn as long as connecting may take."""

ERROR_BODY_BYTES_MAX: Final = 64 * 1024
"""How much of an error's body is read, and kept as ``ProviderError.raw``."""

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""How much of an answer to a ``get`` is read; the longest lists of models have some hundred KiB."""

ERROR_CHARS_MAX: Final = 1000
"""Characters of a server's words that are passed on."""

TAIL_SECONDS: Final = 10.0
"""How long to wait for what may follow the end of an answer, such as its usage."""

_LEFTOVER_SECONDS: Final = 0.2
"""How long to wait, after the answer, for the end of the response."""

_KEEPALIVE_SECONDS: Final = 30.0

_HEADERS: Final = {
    "Accept": "text/event-stream, application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "nousd",
}

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

_FAILURES: Final[tuple[tuple[type[httpx2.HTTPError], str, bool], ...]] = (
    (httpx2.ConnectTimeout, "the server cannot be reached", True),
    (httpx2.ConnectError, "the server cannot be reached", True),
    (httpx2.PoolTimeout, f"all {CONNECTIONS_MAX} connections are in use", True),
    # The server may still be at work on it: asking again would double its load.
    (httpx2.TimeoutException, "the server sent nothing for too long", False),
    (httpx2.NetworkError, "the connection broke", True),
    (httpx2.RemoteProtocolError, "the connection broke", True),
    (httpx2.HTTPError, "the call failed", False),
)
"""The first that fits -> (what is said about it, whether trying again may help)."""


class ModelServer:
    """A server that speaks some dialect.

    Args:
        api_base: ``http(s)://host[:port][/path]``; what is asked of it follows behind.
        api_key: None only for a server on this machine.
        key_variable: what the key's setting is called, for the errors.
        key_headers: key -> the headers that carry it.
        headers: sent with every request.
        wall_clock: seconds since 1970, for a Retry-After that names a date.
        record: if given, every exchange passes through what it returns.
        secrets: what else must not be told of what the server says.

    Raises:
        ConfigError: ``api_base`` or ``api_key`` cannot be used, or the key is missing.
    """

    def __init__(
        self,
        api_base: str,
        api_key: str | None,
        *,
        key_variable: str,
        key_headers: Callable[[str], Mapping[str, str]],
        headers: Mapping[str, str],
        idle_timeout_seconds: float,
        connect_timeout_seconds: float,
        wall_clock: Callable[[], float],
        record: Record | None,
        secrets: Redactor,
    ) -> None:
        base = _checked_base(api_base, key_variable)
        self.host: Final = base.hostname or ""
        self._on_this_machine = _is_loopback(self.host)
        needed_for = None if self._on_this_machine else base.netloc
        self._key = _checked_key(api_key, key_variable, needed_for)
        self._base = base._replace(path=base.path.rstrip("/")).geturl()
        with_key = key_headers(self._key) if self._key else {}
        self._headers = {**_HEADERS, **headers, **with_key}
        self._has_tls = base.scheme == "https"
        self._timeout = httpx2.Timeout(
            idle_timeout_seconds, connect=connect_timeout_seconds, pool=connect_timeout_seconds
        )
        self._wall_clock = wall_clock
        self._record = record
        self._secrets = secrets
        self._client: httpx2.AsyncClient | None = None
        self._opening = trio.Lock()

    def __repr__(self) -> str:
        return f"<ModelServer {self._base}>"

    async def aclose(self) -> None:
        """Closes the idle connections. Never fails."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def stream(
        self,
        path: str,
        body: bytes,
        decoder: Decoder,
        put: Put,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        """Posts ``body`` and puts the pieces that ``decoder`` makes of the response.

        Raises:
            ProviderError: the server refused, broke off or said nothing for too long, or the decoder
                understood it to have failed; after the pieces that came before.
        """
        with self._without_keys(), self._recorder() as recorder:
            recorder.request(path, body)
            try:
                async with self._response("POST", path, recorder, body, headers) as response:
                    await _read(response, decoder, put, recorder)
            except httpx2.HTTPError as error:
                # A connection that breaks behind the end of the answer has taken nothing with it.
                if not decoder.complete:
                    raise _failure(error) from None
            for piece in decoder.end():
                await put(piece)

    async def get(self, path: str) -> bytes:
        """Returns what the server has under ``path``, up to ``BODY_BYTES_MAX``.

        Raises:
            ProviderError: it refused or cannot be reached.
        """
        with self._without_keys():
            try:
                async with self._response("GET", path, _UNRECORDED) as response:
                    return await _beginning_of(response, BODY_BYTES_MAX, _UNRECORDED)
            except httpx2.HTTPError as error:
                raise _failure(error) from None

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        recorder: Recorder,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> AsyncIterator[httpx2.Response]:
        """Gives a response that is no refusal."""
        client = await self._open_client()
        url = self._base + path
        async with client.stream(method, url, content=body, headers=headers) as response:
            recorder.response(response.status_code, response.headers.get("content-type", ""))
            if response.status_code != httpx2.codes.OK:
                raise await self._refusal(response, recorder)
            yield response

    async def _refusal(self, response: httpx2.Response, recorder: Recorder) -> ProviderError:
        body = await _beginning_of(response, ERROR_BODY_BYTES_MAX, recorder)
        return error_from_response(
            response.status_code, response.headers, body, now=self._wall_clock()
        )

    async def _open_client(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._client is None:
                self._client = httpx2.AsyncClient(
                    verify=await self._tls_context(),
                    trust_env=not self._on_this_machine,
                    timeout=self._timeout,
                    limits=httpx2.Limits(
                        max_connections=CONNECTIONS_MAX, keepalive_expiry=_KEEPALIVE_SECONDS
                    ),
                    headers=self._headers,
                    # Nothing is kept for a server: no cookie of it is taken.
                    cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                )
            return self._client

    async def _tls_context(self) -> ssl.SSLContext | bool:
        """Reads the certificate store, some 30 ms of work, in a thread; not at all without need."""
        if self._on_this_machine and not self._has_tls:
            return False
        return await trio.to_thread.run_sync(httpx2.create_ssl_context)

    @contextmanager
    def _recorder(self) -> Iterator[Recorder]:
        recorder = self._record() if self._record else _UNRECORDED
        try:
            yield recorder
        finally:
            recorder.end()

    @contextmanager
    def _without_keys(self) -> Iterator[None]:
        """Takes all keys out of the error that comes out, and cuts it to a bearable length."""
        try:
            yield
        except ProviderError as error:
            words = self._secrets.redact_text(str(error))
            error.raw = self._secrets.redact_bytes(error.raw)
            if self._key:
                redactor = Redactor([self._key])
                words = redactor.redact(words)
                error.raw = _without(self._key.encode(), redactor, error.raw)
            error.args = (_shortened(scrub(words)),)
            error.raw = error.raw[:ERROR_BODY_BYTES_MAX]
            raise


def _shortened(words: str) -> str:
    return words if len(words) <= ERROR_CHARS_MAX else words[: ERROR_CHARS_MAX - 3] + "..."


def _without(key: bytes, redactor: Redactor, raw: bytes) -> bytes:
    """Returns the bytes without the key, and without a beginning of it at their end: they were cut."""
    # In Latin-1 each byte is a character, and so comes back as it was.
    raw = redactor.redact(raw.decode("latin-1")).encode("latin-1")
    for length in range(len(key) - 1, 0, -1):
        if raw.endswith(key[:length]):
            return raw[:-length]
    return raw


class _Unrecorded:
    """Takes an exchange that nobody wants."""

    def request(self, path: str, body: bytes) -> None: ...

    def response(self, status: int, content_type: str) -> None: ...

    def chunk(self, data: bytes) -> None: ...

    def end(self) -> None: ...


_UNRECORDED: Final = _Unrecorded()


async def _read(response: httpx2.Response, decoder: Decoder, put: Put, recorder: Recorder) -> None:
    """Puts the pieces of the response until the answer is finished or the input ends; what follows a
    complete answer is not waited for long.
    """
    # One scope for all chunks: one for each would cost as much as to read it.
    async with _chunks_of(response) as chunks:
        with trio.CancelScope() as patience:
            async for chunk in chunks:
                if patience.deadline != math.inf:
                    patience.deadline = math.inf
                recorder.chunk(chunk)
                nothing_yet = True
                for piece in decoder.feed(chunk):
                    nothing_yet = False
                    await put(piece)
                if nothing_yet:
                    await put(Alive())
                if decoder.finished:
                    break
                if decoder.complete:
                    patience.deadline = trio.current_time() + TAIL_SECONDS


async def _beginning_of(response: httpx2.Response, bytes_max: int, recorder: Recorder) -> bytes:
    """Returns the body, or as much of it as is wanted."""
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
    """Gives the chunks of the body, and deals with those that were not taken.

    The end of a response is waited for a moment, because only then can the connection serve the next
    call. Then reading is cancelled, which closes the connection: to just leave would not do, because
    the client's inner generators are only ever closed by an exception that comes out of them.
    """
    async with aclosing(response.aiter_bytes()) as chunks:
        try:
            yield chunks
        finally:
            with trio.move_on_after(_LEFTOVER_SECONDS), suppress(httpx2.HTTPError):
                async for _ in chunks:
                    pass


def _failure(error: httpx2.HTTPError) -> ProviderError:
    words, retryable = next(
        (words, retryable) for kind, words, retryable in _FAILURES if isinstance(error, kind)
    )
    reason = str(error)
    return ProviderError(f"{words}: {reason}" if reason else words, retryable=retryable)


def _checked_base(api_base: str, key_variable: str) -> SplitResult:
    # The base itself stays out of the errors: it may hold what should not be shown.
    try:
        base = urlsplit(api_base.strip())
        _ = base.port
    except ValueError:
        raise ConfigError("api_base is not a URL") from None
    if base.scheme not in ("http", "https") or not base.hostname:
        raise ConfigError("api_base must begin with http:// or https:// and name a host")
    if "@" in base.netloc:
        raise ConfigError(f"api_base must not hold credentials; set {key_variable} instead")
    if base.query or base.fragment:
        raise ConfigError("api_base must end with its path, without ? or #")
    return base


def _checked_key(api_key: str | None, key_variable: str, needed_for: str | None) -> str | None:
    key = (api_key or "").strip()
    if not key and needed_for:
        raise ConfigError(f"{key_variable} is not set, and {needed_for} needs it")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{key_variable} holds characters that cannot be sent")
    return key or None


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
