"""Repeats a model call that failed before any content.

It wraps any provider, so that providers themselves never retry. After the first piece of content a
failure is final: a repeated call would answer differently, and text that clients have seen cannot be
retracted.

The caller passes the source of randomness.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import trio

from nousd.errors import ProviderError
from nousd.machine.context.model_input import ModelInput
from nousd.providers.interface import (
    NO_BLOBS,
    Alive,
    Blobs,
    Piece,
    Provider,
    Receive,
    Retrying,
    UsageSoFar,
)

ATTEMPTS_DEFAULT: Final = 3
"""Maximum attempts, the first included; the setting ``retry_attempts`` (1 to 20) changes it."""

DELAY_FIRST_SECONDS: Final = 0.5
"""Maximum wait before the second attempt; it doubles with each further one."""

DELAY_SECONDS_MAX: Final = 8.0
"""Upper limit of the doubled wait."""

RETRY_AFTER_SECONDS_MAX: Final = 60.0
"""The longest wait that a server may ask for; if it asks for more, the call is not repeated."""


class RetryingProvider:
    """A provider that makes up to ``attempts_max`` attempts through ``inner``.

    Args:
        random: returns numbers from 0 up to 1, to spread the waits of many clients.
        name: replaces the name of ``inner``.
    """

    def __init__(
        self,
        inner: Provider,
        random: Callable[[], float],
        *,
        attempts_max: int = ATTEMPTS_DEFAULT,
        name: str | None = None,
    ) -> None:
        self._inner = inner
        self._random = random
        self._attempts_max = attempts_max
        self._name = name or inner.name

    @property
    def name(self) -> str:
        return self._name

    @property
    def default_model(self) -> str:
        return self._inner.default_model

    def context_window(self, model: str) -> int:
        return self._inner.context_window(model)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def accepts(self, model: str, media_type: str) -> bool:
        return self._inner.accepts(model, media_type)

    async def models(self) -> tuple[str, ...]:
        return await self._inner.models()

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        """Make the call, passing on ``Retrying`` before each wait; see ``Provider.generate``."""
        has_content = False

        async def note_and_receive(piece: Piece) -> None:
            nonlocal has_content
            has_content = has_content or not isinstance(piece, Alive | UsageSoFar)
            await receive(piece)

        for attempt in range(1, self._attempts_max + 1):
            try:
                await self._inner.generate(request, note_and_receive, blobs)
            except ProviderError as error:
                if has_content or not error.retryable:
                    raise
                delay_seconds = self._delay_seconds(attempt, error.retry_after_seconds)
                if delay_seconds is None:
                    error.args = (f"{error}; {_wait_asked_for(error)}",)
                if delay_seconds is None or attempt == self._attempts_max:
                    raise
                cause = _cause(error)
            else:
                return
            await receive(Retrying(attempt, self._attempts_max, cause, delay_seconds))
            await trio.sleep(delay_seconds)

    def _delay_seconds(self, attempt: int, asked_seconds: float | None) -> float | None:
        """Return the seconds to wait after that attempt; None if the server asks for too many."""
        if asked_seconds is not None:
            return asked_seconds if asked_seconds <= RETRY_AFTER_SECONDS_MAX else None
        longest = min(DELAY_SECONDS_MAX, DELAY_FIRST_SECONDS * 2.0 ** (attempt - 1))
        return longest * (0.5 + self._random() / 2)


def _wait_asked_for(error: ProviderError) -> str:
    seconds = math.ceil(error.retry_after_seconds or 0)
    return f"the server asks to wait {seconds} seconds, which is too long to wait here"


def _cause(error: ProviderError) -> str:
    message = str(error)
    if error.status is None or message.startswith("http "):
        return message
    return f"http {error.status}: {message}"
