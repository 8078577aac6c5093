"""The common part of all providers that call a server.

A dialect's class defines the vendor's address, the headers that carry the key, the accepted
attachments, and how a request is encoded and its answer decoded. ``server`` does the I/O.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import trio

from nousd.errors import ProviderError
from nousd.machine.context.model_input import ModelInput
from nousd.providers.encoding.conversations import Conversations
from nousd.providers.http.answer_stream import Decoder
from nousd.providers.http.delta_coalescer import deliver
from nousd.providers.http.server import ModelServer
from nousd.providers.interface import (
    CONNECT_TIMEOUT_SECONDS,
    IDLE_TIMEOUT_SECONDS,
    NO_BLOBS,
    Blobs,
    Receive,
    Record,
)
from nousd.providers.models.context_windows import context_window
from nousd.redaction.redactor import Redactor

_QUICK_MESSAGES_MAX: Final = 256
"""Maximum messages that are encoded in the event loop: about a millisecond, unless they carry files."""

MODEL_PAGES_MAX: Final = 20
"""Maximum pages of a list of models."""


_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Call(NamedTuple):
    """One model call in a dialect: path, body and answer reader; ``headers`` are for this call
    alone.
    """

    path: str
    body: bytes
    decoder: Decoder
    headers: Mapping[str, str] = _NO_HEADERS


class ModelsPage(NamedTuple):
    """A page of a list of models; ``next_path`` is the path of the next page, if there is one."""

    names: tuple[str, ...]
    next_path: str | None = None


class HostedProvider(ABC):
    """A provider that calls a server; see ``Provider``.

    Args:
        api_base: None for the vendor's.
        api_key: None only for a server on this machine.
        default_model: None for ``first_model``.
        key_variable: the name of the key's setting in errors; None for the vendor's usual one.
        context_window_tokens: overrides the table of known models.
        wall_clock: seconds since 1970, for a Retry-After that names a date.
        record: returns a recorder for each exchange.
        secrets: further secrets to redact in the server's messages; None for none.

    Raises:
        ConfigError: ``api_base`` or ``api_key`` cannot be used, or the key is missing.
    """

    name: ClassVar[str]
    vendor_api_base: ClassVar[str]
    key_variable: ClassVar[str]
    first_model: ClassVar[str]
    headers: ClassVar[Mapping[str, str]] = _NO_HEADERS
    models_path: ClassVar[str]

    def __init__(
        self,
        api_base: str | None = None,
        api_key: str | None = None,
        default_model: str | None = None,
        *,
        key_variable: str | None = None,
        context_window_tokens: int | None = None,
        idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        wall_clock: Callable[[], float] = time.time,
        record: Record | None = None,
        secrets: Redactor | None = None,
    ) -> None:
        self._server = ModelServer(
            api_base or self.vendor_api_base,
            api_key,
            key_variable=key_variable or self.key_variable,
            key_headers=self.key_headers,
            headers=self.headers,
            idle_timeout_seconds=idle_timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
            wall_clock=wall_clock,
            record=record,
            secrets=secrets or Redactor(),
        )
        self.conversations = Conversations()
        """The messages sent last, encoded in the dialect."""
        self._default_model = default_model or self.first_model
        self._context_window_tokens = context_window_tokens

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._server!r}>"

    @staticmethod
    @abstractmethod
    def key_headers(key: str) -> Mapping[str, str]:
        """Return the headers that carry the key."""

    @abstractmethod
    def call(self, request: ModelInput, blobs: Blobs) -> Call:
        """Return the HTTP call for a request."""

    @abstractmethod
    def accepts(self, model: str, media_type: str) -> bool:
        """See ``Provider.accepts``."""

    @staticmethod
    @abstractmethod
    def read_models(body: bytes) -> ModelsPage:
        """Read a page of the list of models; raise msgspec's error if it is not one."""

    @property
    def at_vendor(self) -> bool:
        """Return whether the server is the vendor's own, not a compatible one."""
        return self._server.host == urlsplit(self.vendor_api_base).hostname

    @property
    def default_model(self) -> str:
        return self._default_model

    def context_window(self, model: str) -> int:
        return self._context_window_tokens or context_window(model)

    async def models(self) -> tuple[str, ...]:
        names: list[str] = []
        path = self.models_path
        for _ in range(MODEL_PAGES_MAX):
            page = self._models_page(await self._server.get(path))
            names += page.names
            if page.next_path is None:
                break
            path = page.next_path
        return tuple(names)

    def _models_page(self, body: bytes) -> ModelsPage:
        try:
            return self.read_models(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise ProviderError("the server sent no list of models") from None

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        """Make one streaming call; see ``Provider.generate``."""
        if self.conversations.new_messages(request.messages) <= _QUICK_MESSAGES_MAX:
            call = self.call(request, blobs)
        else:  # encoding takes long enough to delay other sessions
            call = await trio.to_thread.run_sync(self.call, request, blobs)
        path, body, decoder, headers = call
        stream = partial(self._server.stream, path, body, decoder, headers=headers)
        await deliver(stream, receive)

    async def aclose(self) -> None:
        await self._server.aclose()
