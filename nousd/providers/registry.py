"""The providers by the name that ``--provider`` takes.

A provider's module is imported when it is asked for, so that a daemon with the built-in model never
loads an HTTP client.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nousd.errors import ConfigError
from nousd.providers.interface import CONNECT_TIMEOUT_SECONDS, IDLE_TIMEOUT_SECONDS, Provider
from nousd.providers.retry import ATTEMPTS_MAX, RetryingProvider

if TYPE_CHECKING:
    from nousd.providers.hosted import HostedProvider


@dataclass(frozen=True, kw_only=True)
class ProviderSettings:
    """What a provider is made from; None means the provider's own default.

    Args:
        api_key: kept out of the repr.
        context_window: tokens; overrides what is known of the model.
    """

    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    context_window: int | None = None
    idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS


def make_provider(
    name: str,
    *,
    api_base: str | None = None,
    api_key: str | None = None,
    model: str | None = None,
    context_window: int | None = None,
    idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS,
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    attempts_max: int = ATTEMPTS_MAX,
    random: Callable[[], float] = random.random,
) -> Provider:
    """Returns the provider of that name, retrying as ``RetryingProvider`` does.

    Args:
        model: used where a session names none; None means the provider's own default.
        context_window: tokens; overrides what is known of the model.
        random: returns numbers from 0 up to 1, for the waits between attempts.

    Raises:
        ConfigError: no provider has that name, or a setting is missing or cannot be used.
    """
    factory = FACTORIES.get(name)
    if factory is None:
        raise ConfigError(f"provider must be one of: {', '.join(sorted(FACTORIES))}")
    settings = ProviderSettings(
        api_base=api_base,
        api_key=api_key,
        model=model,
        context_window=context_window,
        idle_timeout_seconds=idle_timeout_seconds,
        connect_timeout_seconds=connect_timeout_seconds,
    )
    return RetryingProvider(factory(settings), random, attempts_max=attempts_max)


def _make_mock(settings: ProviderSettings) -> Provider:
    from nousd.providers import mock

    return mock.MockProvider(
        settings.model or mock.DEFAULT_MODEL,
        context_window_tokens=settings.context_window or mock.CONTEXT_WINDOW,
    )


def _make_openai(settings: ProviderSettings) -> Provider:
    from nousd.providers.openai import OpenAIProvider

    return _hosted(OpenAIProvider, settings)


def _make_responses(settings: ProviderSettings) -> Provider:
    from nousd.providers.responses import ResponsesProvider

    return _hosted(ResponsesProvider, settings)


def _make_gemini(settings: ProviderSettings) -> Provider:
    from nousd.providers.gemini import GeminiProvider

    return _hosted(GeminiProvider, settings)


def _hosted(kind: type[HostedProvider], settings: ProviderSettings) -> Provider:
    return kind(
        settings.api_base,
        settings.api_key,
        settings.model,
        context_window_tokens=settings.context_window,
        idle_timeout_seconds=settings.idle_timeout_seconds,
        connect_timeout_seconds=settings.connect_timeout_seconds,
    )


FACTORIES: Final[dict[str, Callable[[ProviderSettings], Provider]]] = {
    "gemini": _make_gemini,
    "mock": _make_mock,
    "openai": _make_openai,
    "openai-responses": _make_responses,
}
"""name -> what makes it, without the retrying. A new provider is one row."""
