"""Responses about models and their providers."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.responses.base import Response


class Prices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """US dollars per million tokens. Cached tokens without their own price cost the input price."""

    input: float
    output: float
    cache_read: float | UnsetType = UNSET
    cache_write: float | UnsetType = UNSET


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An available model; ``set_model`` takes its ``id``, ``provider/model``."""

    id: str
    provider: str
    model: str
    is_default: bool
    context_window: int | UnsetType = UNSET
    prices: Prices | UnsetType = UNSET
    aliases: tuple[str, ...] | UnsetType = UNSET


class ProviderUnlisted(msgspec.Struct, frozen=True, kw_only=True):
    """A provider whose server did not list its models."""

    provider: str
    cause: str


Catalog = Literal["server", "config", "none"]
"""The source of a provider's list of models: its server, the configuration alone, or none."""


class ProviderSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A configured provider. It is ``usable`` if nothing that a call needs is missing, such as a key."""

    provider: str
    is_default: bool
    usable: bool
    catalog: Catalog


class Models(Response, frozen=True, kw_only=True):
    """The available models."""

    models: tuple[ModelSummary, ...]
    errors: tuple[ProviderUnlisted, ...]
    providers: tuple[ProviderSummary, ...]
    truncated: Literal[True] | UnsetType = UNSET
