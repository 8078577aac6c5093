"""The configured providers, their keys, and the default one.

A source (file, environment, flags) can name a provider, a model and a base URL. Its model and base URL
belong to the provider that it names, or that a weaker source named; if a stronger source names another
provider, the weaker ones' model and base URL are dropped. So a key never goes to a base URL that was
meant for another provider.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from nousd.config.config_file import ConfigFile
from nousd.config.models_file import AUTO, DIALECTS, ModelsFile, ProviderTable, read_models_file
from nousd.config.secret import Secret
from nousd.config.values import RawValue, nearest
from nousd.errors import ConfigError

MOCK: Final = "mock"

LOCAL_DIALECT: Final = "openai"
"""The dialect of servers on this machine."""

KEY_VARIABLES: Final[dict[str, tuple[str, ...]]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    MOCK: (),
}
"""provider named like its dialect -> variables for its key; the first one that is set is used."""

_VENDORS: Final = ("anthropic", "openai", "gemini")
"""Providers that a key in the environment alone configures, in the order in which ``auto`` tries them.
OpenAI's other dialect must be named: otherwise a key for another server of the first dialect would go to
the vendor."""


class ConfiguredProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that can be called.

    Args:
        name: its name for ``--provider``, and the prefix of its models' names.
        api_base: its base URL; None for the vendor's.
        model: its default model; None for the dialect's.
        api_key_command: prints the key; used only if there is no ``api_key``.
        key_origin: the source of the key; "" without a key.
        key_variable: the environment variable for its key.
        folder: the working directory of ``api_key_command``.
        is_fallback: whether it is used because ``auto`` found no other.
    """

    name: str
    dialect: str
    api_base: str | None = None
    model: str | None = None
    api_key: Secret | None = None
    api_key_command: tuple[str, ...] = ()
    key_origin: str = ""
    key_variable: str = ""
    folder: Path = Path("/")
    is_fallback: bool = False

    @property
    def is_usable(self) -> bool:
        """Return whether it can be called: it has a key, or its own base URL, which may need none."""
        return self.dialect == MOCK or bool(self.key_origin or self.api_base)


class ProviderChoice(NamedTuple):
    """The default provider and model, merged from all sources.

    Args:
        provider: None if no source names one.
        auto: whether another provider may be used instead; also true if no source names one.
        model: the provider's name of the model; None for its default.
    """

    provider: str | None = None
    provider_origin: str = "default"
    auto: bool = True
    model: str | None = None
    model_origin: str = "default"
    api_base: str | None = None
    api_base_origin: str = "default"


RawValues = Mapping[str, RawValue]
"""setting -> its value in one source, read and checked."""


def decide_models(
    sources: Iterable[RawValues], file: ConfigFile, environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings about models, by name, and the origins of those that sources can set.

    Args:
        sources: the sources, the weakest first.

    Raises:
        ConfigError: a named provider does not exist, a table is invalid, or the settings contradict each
            other.
    """
    tables = read_models_file(file)
    chosen = _choose(tuple(sources), tables, environ)
    # If ``auto`` may replace the named provider, the model belongs to that provider and no other.
    fits_provider = not chosen.auto or chosen.provider is None
    folder = file.path.parent if file.path else Path("/")
    values = {
        "provider": AUTO if chosen.auto else chosen.provider,
        "model": chosen.model if fits_provider else None,
        "api_base": chosen.api_base,
        "providers": _configure_providers(chosen, tables, folder, f"file {file.path}", environ),
        "models": tables.models,
        "aliases": tables.aliases,
    }
    origins = {
        "provider": chosen.provider_origin,
        "model": chosen.model_origin,
        "api_base": chosen.api_base_origin,
    }
    return values, origins


def _choose(
    sources: Sequence[RawValues], file: ModelsFile, environ: Mapping[str, str]
) -> ProviderChoice:
    """Return the default provider and model.

    Args:
        sources: the sources, the weakest first.

    Raises:
        ConfigError: a named provider does not exist, or the settings contradict each other.
    """
    words = {source["provider"].value for source in sources if "provider" in source} - {AUTO}
    known = {*file.providers, *DIALECTS}
    for source in sources:
        if "provider" in source:
            _check_known(source["provider"], {*known, AUTO})
    # The prefix of a model's name can be any known provider. If a source names a provider other than
    # mock, the prefix must be a configured one.
    allows_any = words <= {MOCK}
    names = known if allows_any else {*file.providers, *_with_keys(environ), *words, MOCK}
    chosen = ProviderChoice()
    for source in sources:
        chosen = _after(chosen, source, file.aliases, names)
    if chosen.auto and chosen.api_base and chosen.provider is None:
        raise _no_base_for_auto(chosen.api_base_origin)
    return chosen


def _check_known(raw: RawValue, known: set[str]) -> None:
    if raw.value not in known:
        raise ConfigError(
            f"provider must be {' or '.join(sorted(known))}, not {raw.value[:100]!r}; "
            f"the nearest is {nearest(raw.value, known)} ({raw.origin})"
        )


def _after(
    chosen: ProviderChoice, source: RawValues, aliases: Mapping[str, str], names: set[str]
) -> ProviderChoice:
    """Return the choice after applying a stronger source."""
    word, named = source.get("provider"), _model_of(source, aliases, names)
    provider, origin = (word.value, word.origin) if word else (None, "")
    if named is not None and named.provider is not None:
        if provider not in (None, AUTO, named.provider):
            raise ConfigError(
                f"model {named.model} is one of the provider {named.provider}, not of {provider}; "
                f"a model of {provider} that is called so is {provider}/{named.written} "
                f"({named.origin})"
            )
        provider, origin = named.provider, named.origin
    base = source.get("api_base")
    if provider == AUTO:
        if base is not None:
            raise _no_base_for_auto(base.origin)
        chosen = chosen._replace(auto=True, provider_origin=origin)
    elif provider is not None:
        kept = (
            chosen if provider == chosen.provider or chosen.provider is None else ProviderChoice()
        )
        chosen = kept._replace(provider=provider, provider_origin=origin, auto=False)
    if named is not None:
        chosen = chosen._replace(model=named.model, model_origin=named.origin)
    if base is not None:
        chosen = chosen._replace(api_base=base.value, api_base_origin=base.origin)
    return chosen


def _no_base_for_auto(origin: str) -> ConfigError:
    return ConfigError(
        f"api_base is for a provider that is named, such as openai, and not for auto ({origin})"
    )


class _NamedModel(NamedTuple):
    provider: str | None
    model: str
    written: str
    origin: str


def _model_of(source: RawValues, aliases: Mapping[str, str], names: set[str]) -> _NamedModel | None:
    raw = source.get("model")
    if raw is None:
        return None
    name = aliases.get(raw.value, raw.value)
    provider, _, model = name.partition("/")
    if provider in names and model:
        return _NamedModel(provider, model, name, raw.origin)
    return _NamedModel(None, name, name, raw.origin)


# --- configured providers --------------------------------------------------------------------


def _configure_providers(
    chosen: ProviderChoice, file: ModelsFile, folder: Path, origin: str, environ: Mapping[str, str]
) -> dict[str, ConfiguredProvider]:
    """Return the known providers: the chosen one, then those of the file in its order, then those with a
    key in the environment.

    Args:
        folder: the file's directory.
        origin: the origin of keys that are in the file.
    """
    default = chosen.provider
    first = () if default is None else (default,)
    names = dict.fromkeys((*first, *file.providers, *_with_keys(environ)))
    providers = {}
    for name in names:
        table = file.providers.get(name, ProviderTable())
        provider = _provider(name, table, folder, origin, environ)
        if name == default:
            provider = _with(provider, api_base=chosen.api_base, model=chosen.model)
        providers[name] = provider
    return providers


def check_usable(provider: ConfiguredProvider, origin: str) -> None:
    """Raise ConfigError if the provider cannot be called (``is_usable``)."""
    if not provider.is_usable:
        raise ConfigError(
            f"provider {provider.name} needs {provider.key_variable} (or a key in "
            f"[providers.{provider.name}] of the settings file), or an api_base that asks for no key "
            f"({origin})"
        )


def _with_keys(environ: Mapping[str, str]) -> Iterator[str]:
    for name in _VENDORS:
        if any(environ.get(variable) for variable in KEY_VARIABLES[name]):
            yield name


def _provider(
    name: str, table: ProviderTable, folder: Path, origin: str, environ: Mapping[str, str]
) -> ConfiguredProvider:
    own_variable = f"NOUSD_{name.upper().replace('-', '_')}_API_KEY"
    variables = KEY_VARIABLES.get(name, (own_variable,))
    key, key_origin = table.api_key, origin if table.api_key else ""
    for variable in variables:
        if text := environ.get(variable, "").strip():
            key, key_origin = Secret(text), f"environment {variable}"
            break
    return ConfiguredProvider(
        name=name,
        dialect=table.dialect or name,
        api_base=table.api_base,
        model=table.model,
        api_key=key,
        api_key_command=table.api_key_command or (),
        key_origin=key_origin or (f"{origin}, api_key_command" if table.api_key_command else ""),
        key_variable=next(iter(variables), ""),
        folder=folder,
    )


def _with(provider: ConfiguredProvider, **keys: Any) -> ConfiguredProvider:
    known = {key: value for key, value in keys.items() if value is not None}
    return msgspec.structs.replace(provider, **known)
