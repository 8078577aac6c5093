"""Resolve every setting from its four sources.

A flag wins over the environment, the environment over the file, the file over the default;
``provider``, ``model`` and ``api_base`` are decided together (``providers``). This module reads the file
and checks the given paths, and changes nothing. ``settings`` declares the settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan, nan
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from nousd.config.checks import decide
from nousd.config.config_file import ConfigFile, read_config_file
from nousd.config.durations import read_duration
from nousd.config.mcp_file import read_mcp_file
from nousd.config.models_file import AUTO
from nousd.config.permissions_file import PERMISSIONS, read_permissions_file
from nousd.config.providers import (
    LOCAL_DIALECT,
    MOCK,
    ConfiguredProvider,
    check_usable,
    decide_models,
)
from nousd.config.runtimes_file import read_runtimes_file
from nousd.config.settings import (
    ALL_SETTINGS,
    FILE_TABLES,
    SETTINGS,
    Settings,
    flag_of,
    variable_of,
)
from nousd.config.values import RawValue, nearest
from nousd.errors import ConfigError
from nousd.runtime_paths import locations

_LIKENESS_MIN: Final = 0.8
"""Minimum similarity at which an unknown variable is reported as a misspelt known one."""

_SHOWN_CHARS: Final = 40
"""Characters of an unusable value that a warning repeats."""


class ResolvedSettings(NamedTuple):
    """The settings, and the origin of each, such as ``environment NOUSD_MODEL``."""

    settings: Settings
    origins: dict[str, str]


_TANDEM_STALE: Final = "TANDEM_RUN_STALE_MS"
"""Tandem's variable for ``run_stale_seconds``, in milliseconds, used if nousd's own is not set."""

_STALE: Final = "run_stale_seconds"


def resolve(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    config_path: Path | None = None,
    *,
    asks_models: bool = True,
) -> ResolvedSettings:
    """Resolve every setting.

    Args:
        flags: the flags on the command line, by setting; None, and an empty list, mean "not given".
        environ: the environment; an empty variable counts as not set.
        config_path: from ``--config``; else ``NOUSD_CONFIG``, else the default path is used. Only the
            default file may be missing.
        asks_models: whether the provider must be usable.

    Raises:
        ConfigError: one line with the setting, its origin and its valid values.
    """
    folder = _current_folder()
    file = read_config_file(config_path, environ, folder)
    sources = (_from_file(file), _from_environment(environ, folder), _from_flags(flags, folder))
    raws = {name: item for source in sources for name, item in source.items()}
    values: dict[str, Any] = {name: decide(ALL_SETTINGS[name], item) for name, item in raws.items()}
    origins = {name: raws[name].origin if name in raws else "default" for name in ALL_SETTINGS}
    values["config_file"], origins["config_file"] = file.path, file.origin
    of_models, origins_of_models = decide_models(map(_of_models, sources), file, environ)
    values["mcp"] = read_mcp_file(file)
    values["runtimes"] = read_runtimes_file(file)
    values[PERMISSIONS] = read_permissions_file(file)
    warnings = list(_find_misspelt_variables(environ))
    if not any(_STALE in source for source in (_own_environment(environ, folder), sources[-1])):
        warnings += filter(None, (_tandem_stale(environ).warning,))
    values["warnings"] = tuple(warnings)
    values["is_mode_insisted_on"] = any("permission_mode" in source for source in sources[1:])
    settings = Settings(**{**values, **of_models})
    origins |= origins_of_models
    if asks_models and settings.provider != AUTO:
        check_usable(settings.providers[settings.provider], origins["provider"])
    return ResolvedSettings(settings, origins)


def _of_models(source: Mapping[str, RawValue]) -> dict[str, RawValue]:
    """Return the settings of one source that name the default model, read and checked."""
    return {
        name: source[name]._replace(value=decide(SETTINGS[name], source[name]))
        for name in ("provider", "model", "api_base")
        if name in source
    }


def with_provider(
    settings: Settings, name: str, *, api_base: str | None = None, model: str | None = None
) -> Settings:
    """Return the settings with the provider that ``auto`` found.

    Args:
        api_base: the base URL of a server on this machine that no setting names.
        model: a model of that server, used if no setting names one.
    """
    provider = settings.providers.get(name, ConfiguredProvider(name=name, dialect=LOCAL_DIALECT))
    if name == MOCK:
        provider = ConfiguredProvider(name=MOCK, dialect=MOCK, is_fallback=True)
    elif api_base is not None:
        provider = replace(provider, api_base=api_base, model=settings.model or model)
    elif settings.model is not None:
        provider = replace(provider, model=settings.model)
    providers = {**settings.providers, name: provider}
    return replace(
        settings,
        provider=name,
        model=provider.model,
        api_base=provider.api_base,
        providers=providers,
    )


def resolve_socket(environ: Mapping[str, str]) -> Path:
    """Resolve a daemon's socket, for its clients. Raises as ``resolve_one`` does."""
    socket: Path = resolve_one("socket", environ) or locations.default_socket()
    return socket


def resolve_one(name: str, environ: Mapping[str, str]) -> Any:
    """Resolve one setting, for clients. The other settings may be invalid, or valid only for the daemon.

    Returns:
        The value; None if it is not set.

    Raises:
        ConfigError: the settings file cannot be read, or this setting is invalid.
    """
    folder = _current_folder()
    sources = (
        _from_file(read_config_file(None, environ, folder)),
        _from_environment(environ, folder),
    )
    raw = {name: item for source in sources for name, item in source.items()}.get(name)
    return None if raw is None else decide(ALL_SETTINGS[name], raw)


# --- sources ---------------------------------------------------------------------------------


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError(f"workdir: the current folder cannot be used: {error.strerror}") from None


def _from_file(file: ConfigFile) -> dict[str, RawValue]:
    raws = {}
    for key, value in file.table.items():
        if key in FILE_TABLES:
            continue
        if key == "api_key":
            raise ConfigError(
                f"api_key belongs to a provider: put it into a table [providers.NAME] of file "
                f"{file.path}"
            )
        if key not in ALL_SETTINGS:
            known = {*ALL_SETTINGS, *FILE_TABLES}
            raise ConfigError(
                f"unknown setting {key!r} in file {file.path}; the nearest is {nearest(key, known)}"
            )
        assert file.path is not None, "a file that is not there says nothing"
        raws[key] = RawValue(value, f"file {file.path}", file.path.parent)
    return raws


def _from_environment(environ: Mapping[str, str], folder: Path) -> dict[str, RawValue]:
    raws = {}
    stale = _tandem_stale(environ).seconds
    if stale is not None:
        raws[_STALE] = RawValue(str(stale), f"environment {_TANDEM_STALE}", folder)
    return {**raws, **_own_environment(environ, folder)}


def _own_environment(environ: Mapping[str, str], folder: Path) -> dict[str, RawValue]:
    raws = {}
    for name in SETTINGS:
        variable = variable_of(name)
        if text := environ.get(variable):
            raws[name] = RawValue(text, f"environment {variable}", folder)
    return raws


def _find_misspelt_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable whose name is similar to a known one. Other variables with the
    prefix ``NOUSD_`` may belong to the user's own programs.
    """
    known = {variable_of(name) for name in SETTINGS}
    for variable in environ:
        if variable.startswith("NOUSD_") and variable not in known:
            import difflib

            for similar in difflib.get_close_matches(variable, known, n=1, cutoff=_LIKENESS_MIN):
                yield f"environment {variable} is ignored: the setting is {similar}"


class _TandemStale(NamedTuple):
    """The value to use from Tandem's variable, and a warning if it differs from the given one."""

    seconds: float | None = None
    warning: str | None = None


def _tandem_stale(environ: Mapping[str, str]) -> _TandemStale:
    """Return the value of Tandem's variable as Tandem reads it: limited to the bounds, and ignored if
    it is not a number.

    The variable may be set for Tandem alone, so no value of it prevents the daemon's start.
    """
    text = environ.get(_TANDEM_STALE)
    if not text:
        return _TandemStale()
    shown = f"environment {_TANDEM_STALE} is {text[:_SHOWN_CHARS]!r}"
    try:
        milliseconds = read_duration(text, "ms")
    except ValueError:
        milliseconds = nan
    if isnan(milliseconds):
        return _TandemStale(None, f"{shown}, no number of milliseconds: it is ignored")
    bounds = SETTINGS[_STALE].meta
    used = min(max(milliseconds, float(bounds.ge or 0) * 1000), float(bounds.le or 0) * 1000)
    is_same = milliseconds == used
    warning = None if is_same else f"{shown}: {used:.0f} is used, the nearest allowed value"
    return _TandemStale(used / 1000, warning)


def _from_flags(flags: Mapping[str, Any], folder: Path) -> dict[str, RawValue]:
    return {
        name: RawValue(value, f"flag {flag_of(name)}", folder)
        for name, value in flags.items()
        if value is not None and value not in ([], ())
    }
