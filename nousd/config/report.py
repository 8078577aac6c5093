"""The settings as lines, each with its value and origin. API keys are never shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from nousd.config.providers import ConfiguredProvider
from nousd.config.resolve import ResolvedSettings
from nousd.config.settings import FILE_SETTINGS, SETTINGS


class Line(NamedTuple):
    """A setting and its value.

    Args:
        origin: the source of the value.
    """

    name: str
    value: Any
    origin: str

    def __str__(self) -> str:
        origin = f"  ({self.origin})" if self.origin else ""
        return f"{self.name} = {_format_value(self.value)}{origin}"

    def as_json(self) -> str:
        """Return the line as JSON."""
        value = msgspec.to_builtins(self.value, enc_hook=str)
        facts = {"name": self.name, "value": value, "origin": self.origin}
        return msgspec.json.encode(facts).decode()


def report(resolved: ResolvedSettings) -> Iterator[Line]:
    """Yield a line for each setting, then for each provider, model, rule and alias. An API key is shown
    as ``set`` or not set.
    """
    settings, origins = resolved
    file = f"file {settings.config_file}"
    for name in (*SETTINGS, *FILE_SETTINGS, "config_file"):
        yield Line(name, getattr(settings, name), origins[name])
    for provider in settings.providers.values():
        yield from _of_provider(provider, resolved)
    for model, table in settings.models.items():
        for name, value in msgspec.structs.asdict(table).items():
            if value is not None:
                yield Line(f'models."{model}".{name}', value, file)
    for decision, rules in msgspec.structs.asdict(settings.permissions).items():
        for rule in rules:
            yield Line(f"permissions.{decision}", rule, file)
    for alias, model in settings.aliases.items():
        yield Line(f"aliases.{alias}", model, file)


def _of_provider(provider: ConfiguredProvider, resolved: ResolvedSettings) -> Iterator[Line]:
    settings, origins = resolved
    file, where = f"file {settings.config_file}", f"providers.{provider.name}"
    if provider.dialect != provider.name:
        yield Line(f"{where}.dialect", provider.dialect, file)
    for name in ("api_base", "model"):
        value = getattr(provider, name)
        # The settings ``api_base`` and ``model`` apply to the first provider.
        is_setting = provider is next(iter(settings.providers.values())) and value == getattr(
            settings, name
        )
        if value is not None:
            yield Line(f"{where}.{name}", value, origins[name] if is_setting else file)
    key = "set" if provider.key_origin else None
    yield Line(f"{where}.api_key", key, provider.key_origin or "")


def _format_value(value: Any) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case tuple():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value)
