"""Which models there are, as the contract lists them: by provider."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import UNSET

from nousd.wire.responses import Models, ModelSummary

DEFAULT_PROVIDER = "local"
"""What is said where no provider is the default."""


class ModelLimit(msgspec.Struct, frozen=True):
    """Tokens that a model takes."""

    context: int


class Model(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model of the catalogue."""

    name: str
    limit: ModelLimit | None = None


class Provider(msgspec.Struct, frozen=True, omit_defaults=True):
    """A provider with its models by their names; ``catalog_status`` says whether it could be asked."""

    id: str
    name: str
    models: dict[str, Model]
    catalog_status: Literal["ok", "error"]
    catalog_message: str | None = None


class Catalog(msgspec.Struct, frozen=True):
    """All providers; ``connected`` are those whose models can be asked."""

    all: list[Provider]
    connected: list[str]
    default: str


def catalog(listed: Models) -> Catalog:
    """Returns the catalogue of what was listed."""
    failed = {item.provider: item.cause for item in listed.errors}
    names = dict.fromkeys([*(model.provider for model in listed.models), *failed])
    return Catalog(
        all=[_provider(name, listed.models, failed.get(name)) for name in names],
        connected=[name for name in names if name not in failed],
        default=next((m.provider for m in listed.models if m.is_default), DEFAULT_PROVIDER),
    )


def _provider(name: str, models: Iterable[ModelSummary], cause: str | None) -> Provider:
    return Provider(
        id=name,
        name=name,
        models={model.model: _model(model) for model in models if model.provider == name},
        catalog_status="ok" if cause is None else "error",
        catalog_message=cause,
    )


def _model(model: ModelSummary) -> Model:
    limit = None if model.context_window is UNSET else ModelLimit(model.context_window)
    return Model(model.model, limit)
