"""The tables of the settings file that define the agent programs that sessions can use.

::

    [runtimes.reviewer]                  # nousctl session new --runtime reviewer
    kind = "acp"                         # the adapter for the program
    command = ["agent", "--serve"]
    runtime_tools = "off"                # the program's own tools: off, ask or on
    isolation = "shared"                 # the program's HOME: shared, namespaced or ephemeral
    mode = "subprocess"                  # or server_side: the command connects to a remote program
    models = ["large", "small"]          # the offered models; default: the program's own
    env = ["AGENT_API_KEY"]              # variables of the daemon's environment that it receives

``env`` has only names of variables, never values. This module reads only the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from nousd.config.config_file import ConfigFile
from nousd.config.tables import open_table, read_struct
from nousd.errors import ConfigError
from nousd.wire.objects.runtimes import IsolationLevel, IsolationMode, RuntimeTools

_RUNTIMES_MAX: Final = 32
_WORDS_MAX: Final = 128

Words = Annotated[tuple[str, ...], Meta(max_length=_WORDS_MAX)]


class RuntimeTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[runtimes.NAME]``."""

    kind: Annotated[str, Meta()] = ""
    command: Words = ()
    runtime_tools: Annotated[RuntimeTools, Meta()] = "off"
    models: Words = ()
    env: Words = ()
    isolation: Annotated[IsolationLevel, Meta()] = "shared"
    mode: Annotated[IsolationMode, Meta()] = "subprocess"


class ConfiguredRuntime(NamedTuple):
    """A runtime of the settings file."""

    name: str
    kind: str
    command: tuple[str, ...]
    runtime_tools: RuntimeTools = "off"
    models: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    isolation: IsolationLevel = "shared"
    mode: IsolationMode = "subprocess"


KINDS: Final[Mapping[str, Collection[str]]] = {
    "acp": ("off", "ask", "on"),
    "claude": ("off", "ask", "on"),
    "codex": ("off", "ask", "on"),
    "opencode": ("off", "ask", "on"),
}
"""kind of program that has an adapter -> allowed values of ``runtime_tools``."""

_KINDS_WITH_OWN_STREAM: Final = frozenset({"claude", "codex"})
"""Kinds whose programs can run elsewhere, because they call nousd's tools over their own stream."""

_USUAL_COMMANDS: Final = {"claude": ("claude",), "codex": ("codex",), "opencode": ("opencode",)}
"""kind whose runtime of the same name needs no table -> the program's usual command."""

_NATIVE: Final = "native"
_NAME: Final = r"[a-z0-9][a-z0-9-]{0,31}"
_VARIABLE_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"


def read_runtimes_file(
    file: ConfigFile, kinds: Mapping[str, Collection[str]] = KINDS
) -> tuple[ConfiguredRuntime, ...]:
    """Read the tables, in file order, and add the runtimes that need none.

    Raises:
        ConfigError: one line with the file, the table, the key and its valid values.
    """
    tables = open_table(file, "runtimes", file.table.get("runtimes", {}), _RUNTIMES_MAX)
    configured = [_runtime(file, name, value, kinds) for name, value in tables.content.items()]
    names = {each.name for each in configured}
    defaults = [
        ConfiguredRuntime(kind, kind, command)
        for kind, command in _USUAL_COMMANDS.items()
        if kind in kinds and kind not in names
    ]
    return (*configured, *defaults)


def _runtime(
    file: ConfigFile, name: str, value: Any, kinds: Mapping[str, Collection[str]]
) -> ConfiguredRuntime:
    if not re.fullmatch(_NAME, name) or name == _NATIVE:
        raise ConfigError(
            f"[runtimes.{name[:100]}] must be called by at most 32 lower-case letters, digits and "
            f"dashes, and not {_NATIVE} (file {file.path})"
        )
    table = open_table(file, f"runtimes.{name}", value)
    runtime = read_struct(table, RuntimeTable)
    where = f"(file {file.path})"
    if runtime.kind not in kinds:
        known_kinds = ", ".join(sorted(kinds)) or "none in this version"
        raise ConfigError(
            f"{table.where} has the kind {runtime.kind[:100]!r}; there are {known_kinds} {where}"
        )
    if not runtime.command:
        raise ConfigError(f"{table.where} needs a command {where}")
    for variable in runtime.env:
        if not re.fullmatch(_VARIABLE_NAME, variable):
            raise ConfigError(
                f"{table.where}: env has names of variables, not {variable[:100]!r} {where}"
            )
    possible = kinds[runtime.kind]
    if runtime.runtime_tools not in possible:
        raise ConfigError(
            f"{table.where}: runtime_tools of the kind {runtime.kind} can be {', '.join(possible)}, not"
            f" {runtime.runtime_tools} {where}"
        )
    fault = _fault_of_mode(runtime)
    if fault:
        raise ConfigError(f"{table.where}: mode = {runtime.mode} is not possible: {fault} {where}")
    return ConfiguredRuntime(name, **msgspec.structs.asdict(runtime))


def _fault_of_mode(runtime: RuntimeTable) -> str:
    """Return why a program cannot be used in its mode; "" if it can."""
    if runtime.mode == "in_process":
        return (
            "code of the program inside of the daemon could read the keys of every namespace, and its"
            " log-in, read once, would serve all of them"
        )
    if runtime.mode == "subprocess":
        return ""
    if runtime.kind not in _KINDS_WITH_OWN_STREAM:
        return f"a program of the kind {runtime.kind} needs sockets and files of this machine"
    if runtime.runtime_tools != "off":
        return "tools of its own would act on the server's files, which no rule here knows"
    return ""
