"""Which models there are, as the contract lists them: by provider."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from nousd.wire.responses import Models
from nousd.wire.responses.models import ModelSummary, ProviderSummary

DEFAULT_PROVIDER: Final = "local"
"""What is said where no provider is the default."""


class ModelLimit(msgspec.Struct, frozen=True):
    """Tokens that a model takes."""

    context: int


class Model(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model of the catalogue."""

    name: str
    limit: ModelLimit | None = None


class Provider(msgspec.Struct, frozen=True, omit_defaults=True):
    """A provider with its models by their names. ``catalog_source`` is who says which they are;
    ``catalog_status`` is ``unavailable`` if it cannot be used, as without a key, and ``error`` if its
    server did not say; ``catalog_message`` tells why.
    """

    id: str
    name: str
    models: dict[str, Model]
    catalog_source: Literal["remote", "config", "empty"]
    catalog_status: Literal["ok", "unavailable", "error"]
    catalog_message: str | None = None


class Catalog(msgspec.Struct, frozen=True):
    """All providers; ``connected`` are those that can be used, as far as the configuration goes."""

    all: list[Provider]
    connected: list[str]
    default: str


_SOURCES: Final[dict[str, Literal["remote", "config", "empty"]]] = {
    "server": "remote",
    "config": "config",
    "none": "empty",
}
"""who says which models there are -> how the contract calls him."""


def render_catalog(listed: Models) -> Catalog:
    """Returns the catalogue of what was listed."""
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
