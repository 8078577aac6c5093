"""The model catalogue in the form of the contract: by provider."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from nousd.wire.responses import Models
from nousd.wire.responses.models import ModelSummary, ProviderSummary

DEFAULT_PROVIDER: Final = "local"
"""The provider that is reported as the default if none is marked as the default."""


class ModelLimit(msgspec.Struct, frozen=True):
    """A model's limits, in tokens."""

    context: int


class Model(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model of the catalogue."""

    name: str
    limit: ModelLimit | None = None


class Provider(msgspec.Struct, frozen=True, omit_defaults=True):
    """A provider with its models by name. ``catalog_source`` is the origin of the list.
    ``catalog_status`` is ``unavailable`` if the provider cannot be used, for example without a key, and
    ``error`` if its server did not list its models; ``catalog_message`` is the reason.
    """

    id: str
    name: str
    models: dict[str, Model]
    catalog_source: Literal["remote", "config", "empty"]
    catalog_status: Literal["ok", "unavailable", "error"]
    catalog_message: str | None = None


class Catalog(msgspec.Struct, frozen=True):
    """All providers; ``connected`` are those whose configuration is complete."""

    all: list[Provider]
    connected: list[str]
    default: str


_SOURCES: Final[dict[str, Literal["remote", "config", "empty"]]] = {
    "server": "remote",
    "config": "config",
    "none": "empty",
}
"""source of the list in v1 -> its name in the contract."""


def render_catalog(listed: Models) -> Catalog:
    """Return the catalogue of the listed models."""
    causes = {item.provider: item.cause for item in listed.errors}
    return Catalog(
        all=[
            _render_provider(provider, listed.models, causes.get(provider.provider))
            for provider in listed.providers
        ],
        connected=[provider.provider for provider in listed.providers if provider.usable],
        default=next((p.provider for p in listed.providers if p.is_default), DEFAULT_PROVIDER),
    )


def _render_provider(
    provider: ProviderSummary, models: Iterable[ModelSummary], cause: str | None
) -> Provider:
    status: Literal["ok", "error"] = "ok" if cause is None else "error"
    return Provider(
        id=provider.provider,
        name=provider.provider,
        models={
            model.model: _render_model(model)
            for model in models
            if model.provider == provider.provider
        },
        catalog_source=_SOURCES[provider.catalog],
        catalog_status=status if provider.usable else "unavailable",
        catalog_message=cause,
    )


def _render_model(model: ModelSummary) -> Model:
    limit = None if model.context_window is UNSET else ModelLimit(model.context_window)
    return Model(model.model, limit)
