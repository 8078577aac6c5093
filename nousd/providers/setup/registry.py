"""The dialects by name, with the factories of their providers.

A dialect's module is imported on first use, so that a daemon with the built-in model never loads an
HTTP client.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from nousd.errors import ConfigError
from nousd.providers.interface import (
    CONNECT_TIMEOUT_SECONDS,
    IDLE_TIMEOUT_SECONDS,
    Provider,
    Record,
)
from nousd.providers.retry import ATTEMPTS_DEFAULT, RetryingProvider
from nousd.providers.setup.lazy_key import AskKey, LateKeyProvider
from nousd.redaction.redactor import Redactor

if TYPE_CHECKING:
    from nousd.providers.http.hosted import HostedProvider


@dataclass(frozen=True, kw_only=True)
class ProviderSettings:
    """The settings of a provider; None means the provider's own default.

    Args:
        api_key: kept out of the repr, as ``secrets`` are.
        key_variable: the name of the key's setting in errors.
        model: used by sessions that name none.
        context_window: in tokens; overrides the known value.
        is_fallback: whether the built-in model replaces a missing provider, and says so.
        record: if given, returns the recorder for every exchange with the server.
        secrets: further secrets to redact in errors; None for none.
    """

    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)
    key_variable: str | None = None
    model: str | None = None
    context_window: int | None = None
    idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    is_fallback: bool = False
    record: Record | None = None
    secrets: Redactor | None = field(default=None, repr=False)


DEFAULTS: Final = ProviderSettings()


def make_provider(
    dialect: str,
    settings: ProviderSettings = DEFAULTS,
    *,
    name: str | None = None,
    ask_key: AskKey | None = None,
    attempts_max: int = ATTEMPTS_DEFAULT,
    random: Callable[[], float] = random.random,
) -> Provider:
    """Return a provider that speaks a dialect, retrying as ``RetryingProvider`` does.

    Args:
        name: the provider's name; None for the dialect's.
        ask_key: returns the key when it is first needed, instead of the key in the settings.
        random: returns numbers in [0, 1) for the pauses between attempts.

    Raises:
        ConfigError: there is no such dialect, or a setting is missing or cannot be used.
    """
    factory = FACTORIES.get(dialect)
    if factory is None:
        raise ConfigError(f"dialect must be one of: {', '.join(sorted(FACTORIES))}")
    if ask_key is None:
        provider = factory(settings)
    else:
        provider = LateKeyProvider(lambda key: factory(replace(settings, api_key=key)), ask_key)
    return RetryingProvider(provider, random, attempts_max=attempts_max, name=name)


def _make_mock(settings: ProviderSettings) -> Provider:
    from nousd.providers.mock import provider as mock

    return mock.MockProvider(
        settings.model or mock.DEFAULT_MODEL,
        context_window_tokens=settings.context_window or mock.CONTEXT_WINDOW,
        note=mock.NO_MODEL if settings.is_fallback else "",
    )


def _make_openai(settings: ProviderSettings) -> Provider:
    from nousd.providers.openai.provider import OpenAIProvider

    return _make_hosted(OpenAIProvider, settings)


def _make_anthropic(settings: ProviderSettings) -> Provider:
    from nousd.providers.anthropic.provider import AnthropicProvider

    return _make_hosted(AnthropicProvider, settings)


def _make_responses(settings: ProviderSettings) -> Provider:
    from nousd.providers.openai_responses.provider import ResponsesProvider

    return _make_hosted(ResponsesProvider, settings)


def _make_gemini(settings: ProviderSettings) -> Provider:
    from nousd.providers.gemini.provider import GeminiProvider

    return _make_hosted(GeminiProvider, settings)


def _make_hosted(kind: type[HostedProvider], settings: ProviderSettings) -> Provider:
    return kind(
        settings.api_base,
        settings.api_key,
        settings.model,
        key_variable=settings.key_variable,
        context_window_tokens=settings.context_window,
        idle_timeout_seconds=settings.idle_timeout_seconds,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        record=settings.record,
        secrets=settings.secrets,
    )


FACTORIES: Final[dict[str, Callable[[ProviderSettings], Provider]]] = {
    "anthropic": _make_anthropic,
    "gemini": _make_gemini,
    "mock": _make_mock,
    "openai": _make_openai,
    "openai-responses": _make_responses,
}
"""dialect -> factory of its provider, without retries. A new dialect is one row."""
