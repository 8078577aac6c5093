"""Creates the usable models from the configuration.

The configuration is described by protocols: this module does not know where it was read from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from nousd.machine.context.model_input import ModelChoice
from nousd.providers.interface import Provider, Record
from nousd.providers.models.catalog import ModelFacts, Models
from nousd.providers.models.prices import Price
from nousd.providers.setup.key_command import key_from
from nousd.providers.setup.lazy_key import AskKey
from nousd.providers.setup.registry import ProviderSettings, make_provider
from nousd.redaction.redactor import Redactor

RecordOf = Callable[[str], Record]
"""Name of a provider -> the recorder of its exchanges with the server."""


class Key(Protocol):
    """A key that is shown only on request."""

    def reveal(self) -> str: ...


class ConfiguredProvider(Protocol):
    """One provider; see ``config.providers``."""

    @property
    def name(self) -> str: ...
    @property
    def dialect(self) -> str: ...
    @property
    def api_base(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def api_key(self) -> Key | None: ...
    @property
    def api_key_command(self) -> tuple[str, ...]: ...
    @property
    def key_variable(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def is_fallback(self) -> bool: ...


class ConfiguredModel(Protocol):
    """The configuration of one model; prices are in US dollars per million tokens."""

    @property
    def context_window(self) -> int | None: ...
    @property
    def input_price(self) -> float | None: ...
    @property
    def output_price(self) -> float | None: ...
    @property
    def cache_read_price(self) -> float | None: ...
    @property
    def cache_write_price(self) -> float | None: ...
    @property
    def attachments(self) -> tuple[str, ...] | None: ...


class ModelConfiguration(Protocol):
    """The whole configuration; ``provider`` is one of ``providers``."""

    @property
    def provider(self) -> str: ...
    @property
    def providers(self) -> Mapping[str, ConfiguredProvider]: ...
    @property
    def models(self) -> Mapping[str, ConfiguredModel]: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...
    @property
    def context_window(self) -> int: ...
    @property
    def idle_timeout_seconds(self) -> float: ...
    @property
    def retry_attempts(self) -> int: ...


def build_configured_models(
    config: ModelConfiguration,
    secrets: Redactor,
    *,
    random: Callable[[], float] = random.random,
    record: RecordOf | None = None,
) -> Models:
    """Return the models of every configured provider. The default provider is created at once, so that
    its errors are reported at the start.

    Args:
        secrets: receives every key as soon as it is known, and redacts the errors of providers.
        record: if given, returns the recorder for every exchange with a provider's server.

    Raises:
        ConfigError: the default provider cannot be used with this configuration.
    """
    default = make_configured(
        config.providers[config.provider], config, secrets, random=random, record=record
    )
    factories: dict[str, Callable[[], Provider]] = {
        name: partial(make_configured, provider, config, secrets, random=random, record=record)
        for name, provider in config.providers.items()
    }
    return Models(
        {**factories, config.provider: lambda: default},
        ModelChoice(config.provider, default.default_model),
        default_models={name: each.model for name, each in config.providers.items() if each.model},
        aliases={name: _choice(model) for name, model in config.aliases.items()},
        facts={name: _facts(model) for name, model in config.models.items()},
        context_window=config.context_window or None,
    )


def make_configured(
    provider: ConfiguredProvider,
    config: ModelConfiguration,
    secrets: Redactor,
    *,
    random: Callable[[], float] = random.random,
    record: RecordOf | None = None,
) -> Provider:
    """Return one of the providers. Its key is added to ``secrets`` before it is first sent.

    Raises:
        ConfigError: the provider cannot be used with this configuration.
    """
    key = provider.api_key.reveal() if provider.api_key else None
    if key is not None:
        secrets.add(key)
    settings = ProviderSettings(
        api_base=provider.api_base,
        api_key=key,
        key_variable=provider.key_variable,
        model=provider.model,
        idle_timeout_seconds=config.idle_timeout_seconds,
        is_fallback=provider.is_fallback,
        record=record(provider.name) if record else None,
        secrets=secrets,
    )
    return make_provider(
        provider.dialect,
        settings,
        name=provider.name,
        ask_key=_ask_key(provider, secrets) if key is None else None,
        attempts_max=config.retry_attempts,
        random=random,
    )


def _ask_key(provider: ConfiguredProvider, secrets: Redactor) -> AskKey | None:
    if not provider.api_key_command:
        return None

    async def ask() -> str:
        key = await key_from(provider.api_key_command, provider.folder)
        secrets.add(key)
        return key

    return ask


def _choice(name: str) -> ModelChoice:
    provider, _, model = name.partition("/")
    return ModelChoice(provider, model)


def _facts(model: ConfiguredModel) -> ModelFacts:
    price = None
    if model.input_price is not None and model.output_price is not None:
        price = Price(
            input=model.input_price,
            output=model.output_price,
            cache_read=model.cache_read_price,
            cache_write=model.cache_write_price,
        )
    return ModelFacts(
        context_window=model.context_window, price=price, attachments=model.attachments
    )
