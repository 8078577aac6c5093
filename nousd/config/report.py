"""The settings as lines for people, each with its value and origin. Keys are never shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from nousd.config.providers import ConfiguredProvider
from nousd.config.resolve import Resolved
from nousd.config.settings import FILE_SETTINGS, SETTINGS


def report(resolved: Resolved) -> Iterator[str]:
    """Yield a line for each setting, then for each provider, model and alias: name, value, origin. A
    key is shown as ``set`` or not.
    """
    settings, origins = resolved
    for name in (*SETTINGS, *FILE_SETTINGS, "config_file"):
        yield f"{name} = {_shown(getattr(settings, name))}  ({origins[name]})"
    for provider in settings.providers.values():
        yield from _of_provider(provider, resolved)
    for model, table in settings.models.items():
        for name, value in msgspec.structs.asdict(table).items():
            if value is not None:
                yield f'models."{model}".{name} = {_shown(value)}  (file {settings.config_file})'
    for decision, rules in msgspec.structs.asdict(settings.permissions).items():
        for rule in rules:
            yield f"permissions.{decision} = {rule}  (file {settings.config_file})"
    for alias, model in settings.aliases.items():
        yield f"aliases.{alias} = {model}  (file {settings.config_file})"


def _of_provider(provider: ConfiguredProvider, resolved: Resolved) -> Iterator[str]:
    settings, origins = resolved
    if provider.dialect != provider.name:
        yield f"providers.{provider.name}.dialect = {provider.dialect}  (file {settings.config_file})"
    for name in ("api_base", "model"):
        value = getattr(provider, name)
        # These settings apply to the first one.
        is_setting = provider is next(iter(settings.providers.values())) and value == getattr(
            settings, name
        )
        origin = origins[name] if is_setting else f"file {settings.config_file}"
        if value is not None:
            yield f"providers.{provider.name}.{name} = {value}  ({origin})"
    key = f"set  ({provider.key_origin})" if provider.key_origin else "not set"
    yield f"providers.{provider.name}.api_key = {key}"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case tuple():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value)
