"""The tables of the settings file that define providers and models.

::

    provider = "work"                    # the provider of sessions that name no model

    [providers.anthropic]                # named like a dialect: speaks it, at the vendor's base URL
    api_key_command = ["pass", "show", "anthropic"]

    [providers.work]                     # any other name: needs a dialect
    dialect = "openai"                   # openai, openai-responses, anthropic, gemini or mock
    api_base = "https://llm.example/v1"  # as the vendor documents it: OpenAI dialects end in /v1
    api_key = "..."                      # only in a file that others cannot read (chmod 600)
    model = "large"                      # its default model

    [models."work/large"]                # facts that the provider does not report, or wrongly
    context_window = 200000              # tokens
    input_price = 3.0                    # US dollars per million tokens; with output_price
    output_price = 15.0
    cache_read_price = 0.3               # default: the input price
    cache_write_price = 3.75             # default: the input price
    attachments = ["image/*", "application/pdf"]

    [aliases]
    big = "work/large"                   # --model big, set_model big

The key of a provider is taken from the environment (``OPENAI_API_KEY`` for both OpenAI dialects,
``ANTHROPIC_API_KEY``, ``GEMINI_API_KEY`` or ``GOOGLE_API_KEY``; ``NOUSD_WORK_API_KEY`` for a provider
``work``), else from ``api_key``, else from the output of ``api_key_command`` when the provider is first
used. A vendor whose key is in the environment needs no table; but the other dialect of OpenAI must be
named, by ``provider``, ``model`` or a table ``[providers.openai-responses]``, which may be empty.

This module reads only the file: no environment, no flags, no network.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from nousd.config.config_file import ConfigFile
from nousd.config.secret import Secret
from nousd.config.tables import Table, open_table, read_struct
from nousd.config.values import SettingInfo, nearest
from nousd.errors import ConfigError
from nousd.wire.limits import NAME_CHARS_MAX

PROVIDERS_MAX: Final = 64
MODELS_MAX: Final = 1024
ALIASES_MAX: Final = 256
"""Maximum tables of each kind in the file."""

API_BASE_CHARS_MAX: Final = 2048
API_KEY_CHARS_MAX: Final = 8192
CONTEXT_WINDOW_MAX: Final = 100_000_000
PRICE_MAX: Final = 1_000_000

AUTO: Final = "auto"
"""The provider name that means the first usable provider."""

Dialect = Literal["openai", "openai-responses", "anthropic", "gemini", "mock"]

DIALECTS: Final[tuple[str, ...]] = get_args(Dialect)

Name = Annotated[str | None, Meta(max_length=NAME_CHARS_MAX)]
Price = Annotated[float | None, Meta(ge=0, le=PRICE_MAX)]


class ProviderTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[providers.NAME]``; None is unset."""

    dialect: Annotated[Dialect | None, Meta()] = None
    api_base: Annotated[str | None, Meta(max_length=API_BASE_CHARS_MAX)] = None
    api_key: Annotated[Secret | None, Meta(min_length=1, max_length=API_KEY_CHARS_MAX)] = None
    api_key_command: Annotated[tuple[str, ...] | None, Meta(min_length=1, max_length=64)] = None
    model: Name = None


class ModelTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[models."provider/model"]``; None is unset. Prices are in US dollars per million tokens."""

    context_window: Annotated[int | None, Meta(ge=1, le=CONTEXT_WINDOW_MAX)] = None
    input_price: Price = None
    output_price: Price = None
    cache_read_price: Price = None
    cache_write_price: Price = None
    attachments: Annotated[tuple[str, ...] | None, Meta(max_length=64)] = None


class ModelsFile(NamedTuple):
    """The file's tables about models, in file order.

    Args:
        models: keyed ``provider/model``.
        aliases: name -> ``provider/model``.
    """

    providers: Mapping[str, ProviderTable]
    models: Mapping[str, ModelTable]
    aliases: Mapping[str, str]


TABLES: Final = frozenset(ModelsFile._fields)
"""The keys of the file that are not settings."""


def read_models_file(file: ConfigFile) -> ModelsFile:
    """Read the three tables.

    Raises:
        ConfigError: one line with the file, the table, the key and its valid values; never an API key.
    """
    raw = {
        name: open_table(file, name, file.table.get(name, {}), maximum).content
        for name, maximum in _MAXIMA.items()
    }
    providers = {name: _provider(file, name, table) for name, table in raw["providers"].items()}
    known = {*DIALECTS, *providers}
    models = {name: _model(file, name, table, known) for name, table in raw["models"].items()}
    aliases_table = Table(file, "aliases", raw["aliases"])
    aliases = {name: _alias(aliases_table, name, known) for name in raw["aliases"]}
    return ModelsFile(providers, models, aliases)


_MAXIMA: Final = {"providers": PROVIDERS_MAX, "models": MODELS_MAX, "aliases": ALIASES_MAX}


# --- providers -----------------------------------------------------------------------------------

_PROVIDER_NAME: Final = r"[a-z][a-z0-9-]{0,63}"


def _provider(file: ConfigFile, name: str, value: Any) -> ProviderTable:
    table = open_table(file, f"providers.{name}", value)
    where = table.where
    # Other names could share one environment variable for their API keys, such as a-b and a_b.
    if not re.fullmatch(_PROVIDER_NAME, name) or name == AUTO:
        raise ConfigError(
            f"{where} must be called by at most 64 lower-case letters, digits and dashes, and not "
            f"{AUTO} (file {file.path})"
        )
    provider = read_struct(table, ProviderTable)
    if name not in DIALECTS and provider.dialect is None:
        choices = ", ".join(DIALECTS)
        raise ConfigError(f"{where} needs a dialect, one of {choices} (file {file.path})")
    if name in DIALECTS and provider.dialect not in (None, name):
        raise ConfigError(
            f"{where} is called like a dialect and must speak it, not {provider.dialect}: call it "
            f"something else (file {file.path})"
        )
    if provider.api_key is not None and file.exposure:
        raise ConfigError(f"{where} holds a key, and {file.exposure}")
    return _with_program_found(table, provider)


def _with_program_found(table: Table, provider: ProviderTable) -> ProviderTable:
    """Resolve a program's path against the file's directory, like every path in the file."""
    program, *arguments = provider.api_key_command or ("",)
    if "/" not in program:
        return provider
    path = table.read(SettingInfo("api_key_command", Path, Meta()), program)
    return replace(provider, api_key_command=(str(path), *arguments))


# --- models --------------------------------------------------------------------------------------

_PATTERN: Final = r"\*/\*|[a-z0-9.+-]+/(\*|[a-z0-9.+-]+)"


def _model(file: ConfigFile, name: str, value: Any, providers: Collection[str]) -> ModelTable:
    table = open_table(file, f'models."{name}"', value)
    _check_model_name(file, table.where, name, providers)
    model = read_struct(table, ModelTable)
    for pattern in model.attachments or ():
        if not re.fullmatch(_PATTERN, pattern):
            raise ConfigError(
                f"attachments must be media types like image/png or image/*, not {pattern[:100]!r} "
                f"({table.origin})"
            )
    prices = (model.input_price, model.output_price)
    cached = (model.cache_read_price, model.cache_write_price)
    if None in prices and {*prices, *cached} != {None}:
        raise ConfigError(
            f"{table.where} needs input_price and output_price together (file {file.path})"
        )
    return model


def _alias(table: Table, name: str, providers: Collection[str]) -> str:
    if not name.strip() or len(name) > NAME_CHARS_MAX or "/" in name or name in providers:
        raise ConfigError(
            f"an alias is a name of at most {NAME_CHARS_MAX} characters without a slash, and not "
            f"that of a provider, not {name[:100]!r} ({table.origin})"
        )
    info = SettingInfo(name, str, Meta(max_length=NAME_CHARS_MAX))
    target: str = table.read(info, table.content[name])
    _check_model_name(table.file, f"alias {name} in {table.where}", target, providers)
    return target


def _check_model_name(file: ConfigFile, where: str, name: str, providers: Collection[str]) -> None:
    provider, _, model = name.partition("/")
    if not model or len(name) > NAME_CHARS_MAX:
        raise ConfigError(
            f"{where} must name a model as provider/model, of at most {NAME_CHARS_MAX} characters "
            f"(file {file.path})"
        )
    if provider not in providers:
        raise ConfigError(
            f"{where} names the unknown provider {provider}; the nearest is "
            f"{nearest(provider, providers)} (file {file.path})"
        )
