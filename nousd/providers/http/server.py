"""One model server over HTTP: its address, key, connections and refusals.

It knows no dialect: it receives the headers that carry the key, sends bodies and feeds responses to a
decoder. A stream may last indefinitely; only silence is limited. Redirects are not followed, because
they would pass on the key.

The key appears in those headers and nowhere else: every error passes ``_without_keys``, which redacts
the key and all other secrets in the server's words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

import trio

from nousd.errors import ConfigError, ProviderError
from nousd.providers.http.answer_stream import Decoder
from nousd.providers.http.delta_coalescer import Put
from nousd.providers.http.server_errors import ERROR_BODY_BYTES_MAX
from nousd.providers.interface import UNRECORDED, Record, Recorder
from nousd.redaction.redactor import Redactor
from nousd.wire.codec.envelope import scrub

if TYPE_CHECKING:
    from nousd.providers.http.connections import Connections

ERROR_CHARS_MAX: Final = 1000
"""Maximum characters of a server's message that are passed on."""

_HEADERS: Final = {
    "Accept": "text/event-stream, application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "nousd",
}

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class ModelServer:
    """A server that speaks some dialect.

    Args:
        api_base: ``http(s)://host[:port][/path]``; request paths follow it.
        api_key: None only for a server on this machine.
        key_variable: the name of the key's setting, for errors.
        key_headers: key -> the headers that carry it.
        headers: sent with every request.
        wall_clock: seconds since 1970, for a Retry-After that names a date.
        record: returns a recorder for each exchange.
        secrets: further secrets to redact in the server's messages.

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
        base = _parse_base(api_base, key_variable)
        self.host: Final = base.hostname or ""
        self._on_this_machine = _is_loopback(self.host)
        needed_for = None if self._on_this_machine else base.netloc
        self._key = _parse_key(api_key, key_variable, needed_for)
        self._base = base._replace(path=base.path.rstrip("/")).geturl()
        with_key = key_headers(self._key) if self._key else {}
        self._headers = {**_HEADERS, **headers, **with_key}
        self._has_tls = base.scheme == "https"
        self._idle_timeout_seconds = idle_timeout_seconds
        self._connect_timeout_seconds = connect_timeout_seconds
        self._wall_clock = wall_clock
        self._record = record
        self._secrets = secrets
        self._connections: Connections | None = None
        self._opening = trio.Lock()

    def __repr__(self) -> str:
        return f"<ModelServer {self._base}>"

    async def aclose(self) -> None:
        """Close the idle connections. Never fails."""
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.aclose()

    async def stream(
        self,
        path: str,
        body: bytes,
        decoder: Decoder,
        put: Put,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        """Post ``body``, decode the response as it arrives, and put its pieces.

        Raises:
            ProviderError: the server refused, broke off or was silent for too long, or the decoder
                found a failure; raised after the pieces before it.
        """
        with self._without_keys(), self._recorder() as recorder:
            recorder.request(path, body)
            connections = await self._open_once()
            url = self._base + path
            await connections.post(url, body, headers, decoder=decoder, put=put, recorder=recorder)
            for piece in decoder.end():
                await put(piece)

    async def get(self, path: str) -> bytes:
        """Return the body at ``path``, up to a bound.

        Raises:
            ProviderError: the server refused or cannot be reached.
        """
        with self._without_keys():
            connections = await self._open_once()
            return await connections.get(self._base + path, UNRECORDED)

    async def _open_once(self) -> Connections:
        if self._connections is not None:
            # Acquiring even a free lock costs a turn of the event loop.
            return self._connections
        async with self._opening:
            if self._connections is None:
                # In a thread: it also imports the HTTP library.
                self._connections = await trio.to_thread.run_sync(self._open)
            return self._connections

    def _open(self) -> Connections:
        from nousd.providers.http.connections import open_connections

        return open_connections(
            self._headers,
            self._wall_clock,
            idle_timeout_seconds=self._idle_timeout_seconds,
            connect_timeout_seconds=self._connect_timeout_seconds,
            needs_tls=self._has_tls or not self._on_this_machine,
            trust_env=not self._on_this_machine,
        )

    @contextmanager
    def _recorder(self) -> Iterator[Recorder]:
        recorder = self._record() if self._record else UNRECORDED
        try:
            yield recorder
        finally:
            recorder.end()

    @contextmanager
    def _without_keys(self) -> Iterator[None]:
        """Redact all keys in an error raised inside, and cut it to a reasonable length."""
        try:
            yield
        except ProviderError as error:
            message = self._secrets.redact_output(str(error))
            error.raw = self._secrets.redact_output_bytes(error.raw)
            if self._key:
                redactor = Redactor([self._key])
                message = redactor.redact(message)
                error.raw = _without(self._key.encode(), redactor, error.raw)
            error.args = (_truncate(scrub(message)),)
            error.raw = error.raw[:ERROR_BODY_BYTES_MAX]
            raise


def _truncate(message: str) -> str:
    return message if len(message) <= ERROR_CHARS_MAX else message[: ERROR_CHARS_MAX - 3] + "..."


def _without(key: bytes, redactor: Redactor, raw: bytes) -> bytes:
    """Return the bytes without the key, and without a part of it at their end, where they may have been
    cut.
    """
    # In Latin-1 each byte is a character, so other bytes stay unchanged.
    raw = redactor.redact(raw.decode("latin-1")).encode("latin-1")
    for length in range(len(key) - 1, 0, -1):
        if raw.endswith(key[:length]):
            return raw[:-length]
    return raw


def _parse_base(api_base: str, key_variable: str) -> SplitResult:
    # The base URL itself stays out of the errors: it may contain a secret.
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


def _parse_key(api_key: str | None, key_variable: str, needed_for: str | None) -> str | None:
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
