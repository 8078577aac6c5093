"""A provider that asks for its key when it first needs one, and again when the key is refused.

It wraps any provider that is made from a key, and does not know where the key comes from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from nousd.errors import ConfigError, KeyUnavailable, ProviderError
from nousd.machine.context.model_input import ModelInput
from nousd.providers.interface import NO_BLOBS, Blobs, Provider, Receive

AskKey = Callable[[], Awaitable[str]]
"""Returns the key, or raises ProviderError."""

_UNAUTHORIZED: Final = 401

_NO_KEY: Final = "no-key-yet"
"""The key of the provider that answers questions without a server."""


class _KeyedProvider:
    """A provider with a key. It is closed when a newer key has replaced it and no call uses it any
    more.
    """

    def __init__(self, key: str, provider: Provider) -> None:
        self.key = key
        self.provider = provider
        self.calls = 0
        self.was_accepted = False


class LateKeyProvider:
    """A provider that ``make`` creates once the key is known.

    A call that is refused with 401 although the key worked before raises a retryable error, and the next
    call uses a new key: keys can expire.

    Raises:
        ConfigError: ``make`` fails with any key.
    """

    def __init__(self, make: Callable[[str], Provider], ask_key: AskKey) -> None:
        self._make = make
        self._ask_key = ask_key
        self._keyless = make(_NO_KEY)
        self._keyed: _KeyedProvider | None = None
        self._is_refused = True
        self._key_lock = trio.Lock()

    @property
    def name(self) -> str:
        return self._keyless.name

    @property
    def default_model(self) -> str:
        return self._keyless.default_model

    def context_window(self, model: str) -> int:
        return self._keyless.context_window(model)

    def accepts(self, model: str, media_type: str) -> bool:
        return self._keyless.accepts(model, media_type)

    async def models(self) -> tuple[str, ...]:
        async with self._with_key() as provider:
            return await provider.models()

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        async with self._with_key() as provider:
            await provider.generate(request, receive, blobs)

    async def aclose(self) -> None:
        await self._keyless.aclose()
        if self._keyed is not None:
            await self._keyed.provider.aclose()

    @asynccontextmanager
    async def _with_key(self) -> AsyncIterator[Provider]:
        keyed = await self._current()
        keyed.calls += 1
        try:
            yield keyed.provider
            keyed.was_accepted = True
        except ProviderError as error:
            if error.status == _UNAUTHORIZED:
                error.retryable = keyed.was_accepted
                self._is_refused = self._is_refused or keyed is self._keyed
            raise
        finally:
            keyed.calls -= 1
            await self._close_if_unused(keyed)

    async def _current(self) -> _KeyedProvider:
        async with self._key_lock:
            if self._keyed is None or self._is_refused:
                earlier, key = self._keyed, await self._ask_key()
                if earlier is None or earlier.key != key:
                    self._keyed = _KeyedProvider(key, self._make_provider(key))
                else:
                    earlier.was_accepted = False
                self._is_refused = False
                if earlier is not None:
                    await self._close_if_unused(earlier)
            assert self._keyed is not None
            return self._keyed

    def _make_provider(self, key: str) -> Provider:
        try:
            return self._make(key)
        except ConfigError as error:
            raise KeyUnavailable(str(error)) from None

    async def _close_if_unused(self, keyed: _KeyedProvider) -> None:
        if keyed is not self._keyed and not keyed.calls:
            with trio.CancelScope(shield=True):
                await keyed.provider.aclose()
