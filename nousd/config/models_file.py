"""The tables of the settings file that say which providers and models there are.

::

    provider = "work"                    # the provider of sessions that name no model

    [providers.anthropic]                # named like a dialect: speaks it, at the vendor's own base
    api_key_command = ["pass", "show", "anthropic"]

    [providers.work]                     # any other name: the dialect has to be said
    dialect = "openai"                   # openai, openai-responses, anthropic, gemini or mock
    api_base = "https://llm.example/v1"  # as the vendor documents it: OpenAI dialects end in /v1
    api_key = "..."                      # only in a file that others cannot read (chmod 600)
    model = "large"                      # its default model

    [models."work/large"]                # what the provider does not know of a model, or not well
    context_window = 200000              # tokens
    input_price = 3.0                    # US dollars per million tokens; with output_price
    output_price = 15.0
    cache_read_price = 0.3               # default: as other input
    cache_write_price = 3.75             # default: as other input
    attachments = ["image/*", "application/pdf"]

    [aliases]
    big = "work/large"                   # --model big, set_model big

The key of a provider is taken from the environment (``OPENAI_API_KEY`` for both OpenAI dialects,
``ANTHROPIC_API_KEY``, ``GEMINI_API_KEY`` or ``GOOGLE_API_KEY``; ``NOUSD_WORK_API_KEY`` for a provider
``work``), else it is ``api_key``, else what ``api_key_command`` prints when the provider is first used.
A vendor whose key is in the environment needs no table; but the other dialect of OpenAI has to be named,
by ``provider``, ``model`` or a table ``[providers.openai-responses]``, which may be empty.

Only what stands in the file is looked at here: no environment, no flag, no network.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from nousd.config.checks import decide
from nousd.config.config_file import ConfigFile
from nousd.config.secret import Secret
from nousd.config.values import Given, SettingInfo, describe, nearest
from nousd.errors import ConfigError
from nousd.wire.limits import NAME_CHARS_MAX

PROVIDERS_MAX: Final = 64
MODELS_MAX: Final = 1024
ALIASES_MAX: Final = 256
"""How many of each the file may hold."""

API_BASE_CHARS_MAX: Final = 2048
API_KEY_CHARS_MAX: Final = 8192
CONTEXT_WINDOW_MAX: Final = 100_000_000
PRICE_MAX: Final = 1_000_000

AUTO: Final = "auto"
"""The provider that stands for whichever there is."""

Dialect = Literal["openai", "openai-responses", "anthropic", "gemini", "mock"]

DIALECTS: Final[tuple[str, ...]] = get_args(Dialect)

Name = Annotated[str | None, Meta(max_length=NAME_CHARS_MAX)]
Price = Annotated[float | None, Meta(ge=0, le=PRICE_MAX)]


class ProviderTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[providers.NAME]``; None is what is not said."""

    dialect: Annotated[Dialect | None, Meta()] = None
    api_base: Annotated[str | None, Meta(max_length=API_BASE_CHARS_MAX)] = None
    api_key: Annotated[Secret | None, Meta(min_length=1, max_length=API_KEY_CHARS_MAX)] = None
    api_key_command: Annotated[tuple[str, ...] | None, Meta(min_length=1, max_length=64)] = None
    model: Name = None


class ModelTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[models."provider/model"]``; None is what is not said. Prices are in US dollars per million."""

    context_window: Annotated[int | None, Meta(ge=1, le=CONTEXT_WINDOW_MAX)] = None
    input_price: Price = None
    output_price: Price = None
    cache_read_price: Price = None
    cache_write_price: Price = None
    attachments: Annotated[tuple[str, ...] | None, Meta(max_length=64)] = None


class ModelsFile(NamedTuple):
    """All that the file says of models, in its order.

    Args:
        models: keyed ``provider/model``.
        aliases: name -> ``provider/model``.
    """

    providers: Mapping[str, ProviderTable]
    models: Mapping[str, ModelTable]
    aliases: Mapping[str, str]


TABLES: Final = frozenset(ModelsFile._fields)
"""The keys of the file that are no settings."""


def read_models_file(file: ConfigFile) -> ModelsFile:
    """Reads the three tables.

    Raises:
        ConfigError: one line with the file, the table, the key and what it must be; never a key.
    """
    raw = {name: _table(file, name, file.table.get(name, {}), most) for name, most in _MOST.items()}
    providers = {name: _provider(file, name, raw["providers"][name]) for name in raw["providers"]}
    known = {*DIALECTS, *providers}
    models = {name: _model(file, name, raw["models"][name], known) for name in raw["models"]}
    aliases = {name: _alias(file, name, raw["aliases"][name], known) for name in raw["aliases"]}
    return ModelsFile(providers, models, aliases)


_MOST: Final = {"providers": PROVIDERS_MAX, "models": MODELS_MAX, "aliases": ALIASES_MAX}


def _table(file: ConfigFile, name: str, value: Any, most: int | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a table, as in [{name}] (file {file.path})")
    if most is not None and len(value) > most:
        raise ConfigError(f"[{name}] must hold at most {most} (file {file.path})")
    return value


# --- providers -----------------------------------------------------------------------------------

_PROVIDER_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")


def _provider(file: ConfigFile, name: str, value: Any) -> ProviderTable:
    where = f"[providers.{name}]"
    # Upper-case letters and underscores would make two names one variable.
    if not _PROVIDER_NAME.fullmatch(name) or name == AUTO:
        raise ConfigError(
            f"{where} must be called by at most 64 lower-case letters, digits and dashes, and not "
            f"{AUTO} (file {file.path})"
        )
    table = _struct(file, where, value, ProviderTable)
    if name not in DIALECTS and table.dialect is None:
        choices = ", ".join(DIALECTS)
        raise ConfigError(f"{where} needs a dialect, one of {choices} (file {file.path})")
    if name in DIALECTS and table.dialect not in (None, name):
        raise ConfigError(
            f"{where} is called like a dialect and must speak it, not {table.dialect}: call it "
            f"something else (file {file.path})"
        )
    if table.api_key is not None and file.exposure:
        raise ConfigError(f"{where} holds a key, and {file.exposure}")
    return _with_program_found(file, where, table)


def _with_program_found(file: ConfigFile, where: str, table: ProviderTable) -> ProviderTable:
    """A program that is named by a path starts at the file, as every path in it does."""
    program, *arguments = table.api_key_command or ("",)
    if "/" not in program:
        return table
    info = SettingInfo("api_key_command", Path, Meta())
    path = decide(info, Given(program, _origin(file, where), _folder(file)))
    return replace(table, api_key_command=(str(path), *arguments))


# --- models --------------------------------------------------------------------------------------

_PATTERN: Final = re.compile(r"\*/\*|[a-z0-9.+-]+/(\*|[a-z0-9.+-]+)")


def _model(file: ConfigFile, name: str, value: Any, providers: Collection[str]) -> ModelTable:
    where = f'[models."{name}"]'
    _check_model_name(file, where, name, providers)
    table = _struct(file, where, value, ModelTable)
    for pattern in table.attachments or ():
        if not _PATTERN.fullmatch(pattern):
            raise ConfigError(
                f"attachments must be media types like image/png or image/*, not {pattern[:100]!r} "
                f"({_origin(file, where)})"
            )
    prices = (table.input_price, table.output_price)
    cached = (table.cache_read_price, table.cache_write_price)
    if None in prices and {*prices, *cached} != {None}:
        raise ConfigError(f"{where} needs input_price and output_price together (file {file.path})")
    return table


def _alias(file: ConfigFile, name: str, value: Any, providers: Collection[str]) -> str:
    if not name.strip() or len(name) > NAME_CHARS_MAX or "/" in name or name in providers:
        raise ConfigError(
            f"an alias is a name of at most {NAME_CHARS_MAX} characters without a slash, and not "
            f"that of a provider, not {name[:100]!r} (file {file.path}, [aliases])"
        )
    given = Given(value, _origin(file, "[aliases]"), _folder(file))
    target: str = decide(SettingInfo(name, str, Meta(max_length=NAME_CHARS_MAX)), given)
    _check_model_name(file, f"alias {name} in [aliases]", target, providers)
    return target


def _check_model_name(file: ConfigFile, where: str, name: str, providers: Collection[str]) -> None:
    provider, _, model = name.partition("/")
    if not model or len(name) > NAME_CHARS_MAX:
        raise ConfigError(
            f"{where} must name a model as provider/model, of at most {NAME_CHARS_MAX} characters "
            f"(file {file.path})"
        )
    if provider not in providers:
        import difflib

        close = difflib.get_close_matches(provider, sorted(providers), n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"{where} names the provider {provider}, and there is none; the nearest is {close} "
            f"(file {file.path})"
        )


# --- any table -----------------------------------------------------------------------------------

T = TypeVar("T", bound=msgspec.Struct)


def _struct(file: ConfigFile, where: str, value: Any, struct: type[T]) -> T:
    infos = {info.name: info for info in describe(struct)}
    table = _table(file, where.strip("[]"), value)
    for key in table:
        if key not in infos:
            raise ConfigError(
                f"unknown key {key!r} in {where} of file {file.path}; "
                f"the nearest is {nearest(key, infos)}"
            )
    origin, folder = _origin(file, where), _folder(file)
    return struct(
        **{key: decide(infos[key], Given(item, origin, folder)) for key, item in table.items()}
    )


def _origin(file: ConfigFile, where: str) -> str:
    return f"file {file.path}, {where}"


def _folder(file: ConfigFile) -> Path:
    assert file.path is not None, "a file that is not there has no tables"
    return file.path.parent
