"""The settings of the daemon: what there is, within which bounds, and which of four places wins.

``Settings`` is the only list. A field is a setting: its name is the key in the file, with dashes the
flag, in capitals behind ``NOUSD_`` the environment variable; its annotation holds the bounds and the
help text. A flag wins over the environment, the environment over the file, the file over the default.

Two fields come from one place only: ``api_key`` from ``OPENAI_API_KEY``, so that it stands in no file
and no process list, and ``config_file``, which says where the file was.

This module reads the file and looks at the paths it is given, and changes nothing. Making folders and
sockets is the business of ``folders`` and ``sockets``.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_type_hints

import msgspec
from msgspec import Meta, field

from nousd.config.values import Given, SettingInfo, read_value
from nousd.errors import ConfigError
from nousd.places import locations
from nousd.wire.limits import LINE_BYTES_MAX, LONG_LINES_BYTES_MAX, NAME_CHARS_MAX

CONFIG_FILE_BYTES_MAX: Final = 1024 * 1024
"""A longer settings file is a mistake, such as a device or a log."""

API_KEY_VARIABLE: Final = "OPENAI_API_KEY"

Provider = Literal["mock", "openai"]


class Secret:
    """A text that shows itself only to those who ask for it by name."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Returns the text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(...)"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be chosen. Paths are absolute."""

    socket: Annotated[
        Path,
        Meta(
            description="Unix socket for commands. Events are on the same path with '.events'. "
            "[default: nousd.sock in the user's runtime folder]"
        ),
    ] = field(default_factory=locations.default_socket)
    state_dir: Annotated[
        Path,
        Meta(
            description="Folder of the log. One daemon per folder. [default: in the user's state folder]"
        ),
    ] = field(default_factory=locations.default_state_dir)
    workdir: Annotated[
        Path,
        Meta(description="Folder the tools work in and cannot leave. [default: the current one]"),
    ] = field(default_factory=Path.cwd)
    provider: Annotated[
        Provider,
        Meta(description="Whose models are called; 'mock' answers by itself, without a network."),
    ] = "mock"
    model: Annotated[
        str | None,
        Meta(
            max_length=NAME_CHARS_MAX,
            description="Model of sessions that name none. [default: the provider's]",
        ),
    ] = None
    api_base: Annotated[
        str | None,
        Meta(description="Base URL of the model server. [default: the provider's]"),
    ] = None
    api_key: Annotated[Secret | None, Meta(description="Key of the model server.")] = None
    system_prompt: Annotated[
        Path | None,
        Meta(description="Text file with the instructions every model call begins with."),
    ] = None
    allow_exec: Annotated[bool, Meta(description="Let models run programs (the bash tool).")] = (
        False
    )
    command_timeout: Annotated[
        float,
        Meta(gt=0, le=86_400, description="Seconds a prompt with wait:true is waited for."),
    ] = 600.0
    run_stale_ms: Annotated[
        int,
        Meta(
            ge=30_000,
            le=600_000,
            description="Milliseconds without a sign of life after which a run is ended.",
        ),
    ] = 120_000
    extension: Annotated[
        tuple[Path, ...], Meta(max_length=64, description="Extension module to load. Repeatable.")
    ] = ()
    enable_demo_extension: Annotated[
        bool, Meta(description="Load the extension that shows what extensions can do.")
    ] = False
    line_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=LONG_LINES_BYTES_MAX,
            description="Bytes of one command line on the socket, at most.",
        ),
    ] = LINE_BYTES_MAX
    log_file: Annotated[
        Path | None, Meta(description="Write the daemon's own log here. [default: standard error]")
    ] = None
    verbose: Annotated[bool, Meta(description="Log more.")] = False
    model_calls_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Model calls in one turn, at most.")
    ] = 50
    idle_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds a model stream may be silent; run_stale_ms ends its run as well.",
        ),
    ] = 300.0
    context_window: Annotated[
        int,
        Meta(ge=0, le=100_000_000, description="Tokens a model takes. 0: what the provider says."),
    ] = 0
    compact_at: Annotated[
        float,
        Meta(gt=0, le=1, description="Share of the context window that starts a compaction."),
    ] = 0.8
    keep_recent_tokens: Annotated[
        int, Meta(ge=0, le=100_000_000, description="Tokens that a compaction leaves as they are.")
    ] = 20_000
    delta_retention_days: Annotated[
        int,
        Meta(
            ge=0,
            le=36_500,
            description="Days that the deltas of finished messages are kept. 0: for ever.",
        ),
    ] = 7
    retry_attempts: Annotated[
        int, Meta(ge=1, le=20, description="Attempts at one model call, at most. 1: no retry.")
    ] = 3
    config_file: Annotated[
        Path | None, Meta(description="The file that settings were read from.")
    ] = None

    @property
    def events_socket(self) -> Path:
        """The socket that events are on."""
        return locations.events_socket(self.socket)


class Resolved(NamedTuple):
    """The settings, and for each where it came from, such as ``environment NOUSD_MODEL``."""

    settings: Settings
    origins: dict[str, str]


_NOT_CHOSEN: Final = frozenset({"api_key", "config_file"})


def _describe() -> Iterator[SettingInfo]:
    hints = get_type_hints(Settings, include_extras=True)
    for name in Settings.__struct_fields__:
        if name not in _NOT_CHOSEN:
            annotated, meta = get_args(hints[name])
            kinds = [kind for kind in get_args(annotated) if kind is not type(None)]
            optional = type(None) in get_args(annotated)
            yield SettingInfo(name, kinds[0] if optional else annotated, meta)


SETTINGS: Final = {info.name: info for info in _describe()}
"""name -> what it may be, for every setting that a user chooses."""


DEFAULTS: Final = {
    item.name: item.default
    for item in msgspec.structs.fields(Settings)
    if item.name in SETTINGS and item.default is not msgspec.NODEFAULT
}
"""name -> default, for the settings whose default is the same everywhere."""


def flag_of(name: str) -> str:
    """Returns the command line flag of a setting."""
    return f"--{name.replace('_', '-')}"


def variable_of(name: str) -> str:
    """Returns the environment variable of a setting."""
    return f"NOUSD_{name.upper()}"


_ALIASES: Final = {"run_stale_ms": "TANDEM_RUN_STALE_MS"}
"""setting -> a variable of another program that means the same, and counts where ours is not set."""


def resolve(
    flags: Mapping[str, Any], environ: Mapping[str, str], config_path: Path | None = None
) -> Resolved:
    """Decides every setting.

    Args:
        flags: what the command line named, by setting; None, and an empty list, mean "not given".
        environ: the environment; an empty variable counts as not set.
        config_path: from ``--config``; else ``NOUSD_CONFIG``, else the default place is looked at.
            Only the file at the default place may be missing.

    Raises:
        ConfigError: one line with the setting, where it came from and what it must be.
    """
    here = _current_folder()
    config = _find_config(config_path, environ, here)
    config_file, table = _read_config(config)
    given = {
        **_from_file(table, config_file),
        **_from_environment(environ, here),
        **_from_flags(flags, here),
    }
    values: dict[str, Any] = {name: _decided(name, item) for name, item in given.items()}
    origins = {name: given[name].origin if name in given else "default" for name in SETTINGS}
    values["config_file"] = config_file
    origins["config_file"] = config.origin
    key = environ.get(API_KEY_VARIABLE)
    values["api_key"] = Secret(key) if key else None
    origins["api_key"] = f"environment {API_KEY_VARIABLE}" if key else "default"
    settings = Settings(**values)
    _check_together(settings, origins)
    return Resolved(settings, origins)


def resolve_socket(environ: Mapping[str, str]) -> Path:
    """Decides where a daemon listens, for its clients: the other settings may be bad, or need what only
    the daemon has.

    Raises:
        ConfigError: the settings file cannot be read, or this setting is bad.
    """
    here = _current_folder()
    config_file, table = _read_config(_find_config(None, environ, here))
    given = {**_from_file(table, config_file), **_from_environment(environ, here)}.get("socket")
    socket: Path = locations.default_socket() if given is None else _decided("socket", given)
    return socket


def report(resolved: Resolved) -> Iterator[str]:
    """Yields a line for each setting: name, value, origin. A secret is ``set`` or ``not set``."""
    for name in Settings.__struct_fields__:
        shown = _shown(getattr(resolved.settings, name))
        yield f"{name} = {shown}  ({resolved.origins[name]})"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "not set"
        case Secret():
            return "set"
        case bool():
            return str(value).lower()
        case Path():
            return str(value)
        case tuple():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value)


# --- the four places -------------------------------------------------------------------------


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError(f"workdir: the current folder cannot be used: {error.strerror}") from None


def _find_config(chosen: Path | None, environ: Mapping[str, str], here: Path) -> Given:
    if chosen:
        return Given(chosen, "flag --config", here)
    if named := environ.get("NOUSD_CONFIG"):
        return Given(named, "environment NOUSD_CONFIG", here)
    return Given(locations.default_config_file(), "default", here)


def _read_config(config: Given) -> tuple[Path | None, dict[str, Any]]:
    """Returns the file's path and content; None and nothing if none was named and none is there."""
    path = read_value(SettingInfo("config", Path, Meta()), config)
    try:
        with path.open("rb") as file:
            text = file.read(CONFIG_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        if config.origin == "default":
            return None, {}
        raise ConfigError(f"config: there is no file {path} ({config.origin})") from None
    except OSError as error:
        raise ConfigError(f"config: file {path} cannot be read: {error.strerror}") from None
    if len(text) > CONFIG_FILE_BYTES_MAX:
        raise ConfigError(f"config: file {path} is longer than {CONFIG_FILE_BYTES_MAX} bytes")
    try:
        return path, tomllib.loads(text.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"config: file {path} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config: file {path} is not TOML: {error}") from None


def _from_file(table: Mapping[str, Any], path: Path | None) -> dict[str, Given]:
    if path is None:
        return {}
    if "api_key" in table:
        raise ConfigError(
            f"api_key is read from {API_KEY_VARIABLE} only: take it out of file {path}"
        )
    for key in table:
        if key not in SETTINGS:
            raise ConfigError(
                f"unknown setting {key!r} in file {path}; the nearest is {_nearest(key)}"
            )
    return {name: Given(value, f"file {path}", path.parent) for name, value in table.items()}


def _from_environment(environ: Mapping[str, str], here: Path) -> dict[str, Given]:
    return {
        name: Given(text, f"environment {variable}", here)
        for name in SETTINGS
        for variable in (_ALIASES.get(name, ""), variable_of(name))
        if (text := environ.get(variable))
    }


def _from_flags(flags: Mapping[str, Any], here: Path) -> dict[str, Given]:
    return {
        name: Given(value, f"flag {flag_of(name)}", here)
        for name, value in flags.items()
        if value is not None and value not in ([], ())
    }


def _nearest(key: str) -> str:
    """Returns the name that looks most like ``key``; there always is one."""
    wanted = key.replace("-", "_").lower()
    nearest: str = difflib.get_close_matches(wanted, SETTINGS.keys(), n=1, cutoff=0.0)[0]
    return nearest


# --- what the value must be in the world as it is ---------------------------------------------


def _decided(name: str, given: Given) -> Any:
    value = read_value(SETTINGS[name], given)
    try:
        fault = _CHECKS.get(name, _accept)(value)
    except OSError as error:
        fault = f"{error.filename}: {error.strerror}"
    if fault:
        raise ConfigError(f"{name}: {fault} ({given.origin})")
    return value


def _accept(_value: Any) -> str:
    return ""


def _folder_fault(path: Path) -> str:
    return "" if path.is_dir() else f"{path} is no folder"


def _file_fault(path: Path) -> str:
    return "" if path.is_file() else f"{path} is no file"


def _paths_fault(paths: tuple[Path, ...]) -> str:
    return next((f"{path} does not exist" for path in paths if not path.exists()), "")


def _parent_fault(path: Path) -> str:
    return _folder_fault(path.parent)


def _url_fault(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        return f"{url} is no http or https URL"
    # Nothing of it is repeated here: what stands before the @ is a secret.
    return "a URL with a name or password in it is not taken" if "@" in url else ""


_CHECKS: Final[dict[str, Callable[[Any], str]]] = {
    "workdir": _folder_fault,
    "system_prompt": _file_fault,
    "extension": _paths_fault,
    "log_file": _parent_fault,
    "api_base": _url_fault,
}
"""name -> what is wrong with the value as things are, or ""."""


def _check_together(settings: Settings, origins: Mapping[str, str]) -> None:
    if settings.provider == "openai" and not settings.api_key and not settings.api_base:
        raise ConfigError(
            f"provider openai needs {API_KEY_VARIABLE}, or an api_base that asks for no key "
            f"({origins['provider']})"
        )
