"""Chat Completions over HTTP: the thin shell around ``openai_chat`` and ``openai_stream``.

Speaks to the vendor and to any server that is compatible with it. A stream may last as long as it
likes; only silence is limited. Redirects are not followed, because the key would go with them.

The key is in one header and nowhere else: every error passes ``_in_public``, which takes it out of
what the server said.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

import httpx2
import msgspec
import trio

from nousd.errors import ConfigError, ProviderError
from nousd.machine.model_input import ModelInput
from nousd.providers.context_windows import context_window
from nousd.providers.delivery import Put, deliver
from nousd.providers.interface import (
    CONNECT_TIMEOUT_SECONDS,
    IDLE_TIMEOUT_SECONDS,
    NO_BLOBS,
    Alive,
    Blobs,
    Receive,
)
from nousd.providers.openai_chat import encode_chat, tool_aliases
from nousd.providers.openai_stream import ChatStream
from nousd.providers.server_errors import error_from_response
from nousd.wire.codec import scrub

DEFAULT_API_BASE: Final = "https://api.openai.com/v1"
DEFAULT_MODEL: Final = "gpt-5-mini"

CONNECTIONS_MAX: Final = 256
"""Calls under way at once; a further one waits for its turn as long as connecting may take."""

ERROR_BODY_BYTES_MAX: Final = 64 * 1024
"""How much of an error's body is read."""

MODELS_BYTES_MAX: Final = 4 * 1024 * 1024
"""How much of a list of models is read; the longest there are have some hundred KiB."""

ERROR_CHARS_MAX: Final = 1000
"""Characters of a server's words that are passed on."""

_LEFTOVER_SECONDS: Final = 0.2
"""How long to wait, after the answer, for the end of the response."""

_KEEPALIVE_SECONDS: Final = 30.0

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


class OpenAIProvider:
    """A Chat Completions server.

    Args:
        api_base: ``http(s)://host[:port][/path]``, without ``/chat/completions``.
        api_key: sent as bearer token; None only for a server on this machine.
        context_window_tokens: overrides the table of known models.
        wall_clock: seconds since 1970, for a Retry-After that names a date.

    Raises:
        ConfigError: ``api_base`` or ``api_key`` cannot be used, or the key is missing.
    """

    name: Final = "openai"

    def __init__(
        self,
        api_base: str = DEFAULT_API_BASE,
        api_key: str | None = None,
        default_model: str = DEFAULT_MODEL,
        *,
        context_window_tokens: int | None = None,
        idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        base = _checked_base(api_base)
        self._on_this_machine = _is_loopback(base.hostname or "")
        self._key = _checked_key(api_key, needed_for=None if self._on_this_machine else base.netloc)
        path = base.path.rstrip("/")
        self._url = base._replace(path=f"{path}/chat/completions").geturl()
        self._models_url = base._replace(path=f"{path}/models").geturl()
        self._has_tls = base.scheme == "https"
        self._default_model = default_model
        self._context_window_tokens = context_window_tokens
        self._timeout = httpx2.Timeout(
            idle_timeout_seconds, connect=connect_timeout_seconds, pool=connect_timeout_seconds
        )
        self._wall_clock = wall_clock
        self._client: httpx2.AsyncClient | None = None
        self._opening = trio.Lock()

    def __repr__(self) -> str:
        return f"<OpenAIProvider {self._url}>"

    @property
    def default_model(self) -> str:
        return self._default_model

    def context_window(self, model: str) -> int:
        return self._context_window_tokens or context_window(model)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def models(self) -> tuple[str, ...]:
        """Returns the names of the models that the server lists.

        Raises:
            ProviderError: it refused, cannot be reached, or lists nothing that could be read.
        """
        try:
            client = await self._open_client()
            async with client.stream("GET", self._models_url) as response:
                if response.status_code != httpx2.codes.OK:
                    raise await self._refusal(response)
                return _names_in(await _beginning_of(response, MODELS_BYTES_MAX))
        except httpx2.HTTPError as error:
            raise ProviderError(self._in_public(str(_failure(error)))) from None
        except ProviderError as error:
            error.args = (self._in_public(str(error)),)
            raise

    def accepts(self, model: str, media_type: str) -> bool:  # noqa: ARG002
        return False

    async def generate(
        self,
        request: ModelInput,
        receive: Receive,
        blobs: Blobs = NO_BLOBS,  # noqa: ARG002
    ) -> None:
        """Makes one streaming call; see ``Provider.generate``."""
        try:
            await deliver(partial(self._call, request), receive)
        except ProviderError as error:
            error.args = (self._in_public(str(error)),)
            raise

    async def _call(self, request: ModelInput, put: Put) -> None:
        names = {alias: name for name, alias in tool_aliases(request.tools).items()}
        stream = ChatStream(names)
        client = await self._open_client()
        try:
            async with client.stream("POST", self._url, content=encode_chat(request)) as response:
                if response.status_code != httpx2.codes.OK:
                    raise await self._refusal(response)
                await _read(response, stream, put)
        except httpx2.HTTPError as error:
            if not stream.complete:
                raise _failure(error) from None
        # A connection that breaks behind the finish reason has taken nothing of the answer with it.
        for piece in stream.end():
            await put(piece)

    async def _refusal(self, response: httpx2.Response) -> ProviderError:
        body = await _beginning_of(response, ERROR_BODY_BYTES_MAX)
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
                    headers=self._headers(),
                    # Nothing is kept for a server: no cookie of it is taken.
                    cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                )
            return self._client

    async def _tls_context(self) -> ssl.SSLContext | bool:
        """Reads the certificate store, some 30 ms of work, in a thread; not at all without need."""
        if self._on_this_machine and not self._has_tls:
            return False
        return await trio.to_thread.run_sync(httpx2.create_ssl_context)

    def _headers(self) -> dict[str, str]:
        headers = {
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "nousd",
        }
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers

    def _in_public(self, words: str) -> str:
        """Returns the words without the key, cut to a bearable length."""
        if self._key:
            words = words.replace(self._key, "[redacted]")
        words = scrub(words)
        return words if len(words) <= ERROR_CHARS_MAX else words[: ERROR_CHARS_MAX - 3] + "..."


async def _beginning_of(response: httpx2.Response, bytes_max: int) -> bytes:
    """Returns the body, or as much of it as is wanted."""
    body = bytearray()
    async with _chunks_of(response) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) >= bytes_max:
                break
    return bytes(body[:bytes_max])


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _names_in(body: bytes) -> tuple[str, ...]:
    try:
        return tuple(model.id for model in msgspec.json.decode(body, type=_Models).data)
    except (msgspec.MsgspecError, UnicodeError):
        raise ProviderError("the server sent no list of models") from None


async def _read(response: httpx2.Response, stream: ChatStream, put: Put) -> None:
    """Puts the pieces of the response until the answer is finished or the input ends."""
    async with _chunks_of(response) as chunks:
        async for chunk in chunks:
            nothing_yet = True
            for piece in stream.feed(chunk):
                nothing_yet = False
                await put(piece)
            if nothing_yet:
                await put(Alive())
            if stream.finished:
                break


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


def _checked_base(api_base: str) -> SplitResult:
    # The base itself stays out of the errors: it may hold what should not be shown.
    try:
        base = urlsplit(api_base.strip())
        _ = base.port
    except ValueError:
        raise ConfigError("api_base is not a URL") from None
    if base.scheme not in ("http", "https") or not base.hostname:
        raise ConfigError("api_base must begin with http:// or https:// and name a host")
    if "@" in base.netloc:
        raise ConfigError("api_base must not hold credentials; set OPENAI_API_KEY instead")
    if base.query or base.fragment:
        raise ConfigError("api_base must end with its path, without ? or #")
    return base


def _checked_key(api_key: str | None, *, needed_for: str | None) -> str | None:
    key = (api_key or "").strip()
    if not key and needed_for:
        raise ConfigError(f"OPENAI_API_KEY is not set, and {needed_for} needs it")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("OPENAI_API_KEY holds characters that cannot be sent")
    return key or None


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
