"""The tables of the settings file that say which MCP servers there are.

::

    [mcp.files]                          # its tools are mcp__files__<tool>
    command = ["npx", "-y", "server-files", "."]
    cwd = "~/work"                       # default: the workdir
    tools = ["read_file"]                # only these are offered; default: all
    classes = ["exec", "network"]        # what they may do, which is the default
    timeout_ms = 120000                  # of one call
    enabled = true

    [mcp.files.env]                      # beside a few harmless variables of the daemon's
    LOG_LEVEL = "warning"
    API_KEY = "${FILES_API_KEY}"         # a variable of the daemon's environment

    [mcp.files.tool_classes]             # the same for single tools
    read_file = ["read"]

    [mcp.search]
    url = "https://search.example/mcp"

    [mcp.search.headers]
    Authorization = "Bearer ${SEARCH_TOKEN}"

A key may also stand in ``env`` or ``headers`` itself, in a file that others cannot read (chmod 600).
Only what stands in the file is looked at here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, cast, get_args

import msgspec
from msgspec import Meta

from nousd.config.config_file import ConfigFile
from nousd.config.secret import Secret
from nousd.config.values import Given, SettingInfo, describe, nearest, read_value
from nousd.errors import ConfigError
from nousd.wire.limits import (
    MCP_SERVERS_MAX,
    MCP_TIMEOUT_MS_MAX,
    MCP_VALUE_CHARS_MAX,
    MCP_VALUES_MAX,
)

ToolClass = Literal["read", "write", "exec", "network"]

TOOL_CLASSES: Final[tuple[str, ...]] = get_args(ToolClass)

Words = Annotated[tuple[str, ...] | None, Meta(min_length=1, max_length=MCP_VALUES_MAX)]
Classes = Annotated[tuple[str, ...] | None, Meta(max_length=4)]


class McpTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[mcp.NAME]``; None is what is not said."""

    command: Words = None
    url: Annotated[str | None, Meta(max_length=MCP_VALUE_CHARS_MAX)] = None
    cwd: Annotated[Path | None, Meta()] = None
    classes: Classes = None
    tools: Words = None
    timeout_ms: Annotated[int | None, Meta(ge=1, le=MCP_TIMEOUT_MS_MAX)] = None
    enabled: Annotated[bool, Meta()] = True


class ConfiguredMcpServer(NamedTuple):
    """A server of the settings file."""

    name: str
    table: McpTable
    classes: tuple[ToolClass, ...] | None
    env: Mapping[str, Secret]
    headers: Mapping[str, Secret]
    tool_classes: Mapping[str, tuple[ToolClass, ...]]


_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_REFERENCE: Final = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_SECRET_NAME: Final = re.compile(
    r"(?i)(?:^|[_-])(?:[a-z0-9]*(?:key|token|secret)s?|passw[a-z]*|pass|pwd|credentials?|auth|cookies?|pat)"
    r"(?:$|[_-])"
)
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def read_mcp_file(file: ConfigFile) -> tuple[ConfiguredMcpServer, ...]:
    """Reads the tables, in their order.

    Raises:
        ConfigError: one line with the file, the table, the key and what it must be; never a value that
            may be a key.
    """
    servers = _table(file, "[mcp]", file.table.get("mcp", {}), MCP_SERVERS_MAX)
    return tuple(_server(file, name, value) for name, value in servers.items())


def names_secret(name: str) -> bool:
    """Whether the value of a variable of that name is likely to be a key."""
    return _SECRET_NAME.search(name) is not None


def _server(file: ConfigFile, name: str, value: Any) -> ConfiguredMcpServer:
    where = f"[mcp.{name}]"
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where} must be called by at most 32 lower-case letters, digits and dashes "
            f"(file {file.path})"
        )
    given = dict(_table(file, where, value))
    inner = {key: _inner(file, name, key, given.pop(key, {})) for key in _INNER}
    table = _outer(file, where, given)
    if (table.command is None) == (table.url is None):
        raise ConfigError(f"{where} needs a command or a url, and not both (file {file.path})")
    classes = None if table.classes is None else _checked_classes(file, where, table.classes)
    return ConfiguredMcpServer(
        name,
        table,
        classes,
        _secrets(file, f"[mcp.{name}.env]", inner["env"], _VARIABLE_NAME),
        _secrets(file, f"[mcp.{name}.headers]", inner["headers"], _HEADER_NAME),
        {tool: _classes(file, name, tool, said) for tool, said in inner["tool_classes"].items()},
    )


_INNER: Final = ("env", "headers", "tool_classes")


def _outer(file: ConfigFile, where: str, given: Mapping[str, Any]) -> McpTable:
    infos = {info.name: info for info in describe(McpTable)}
    for key in given:
        if key not in infos:
            known = {*infos, *_INNER}
            raise ConfigError(
                f"unknown key {key!r} in {where} of file {file.path}; "
                f"the nearest is {nearest(key, known)}"
            )
    origin, folder = f"file {file.path}, {where}", _folder(file)
    values = {
        key: read_value(infos[key], Given(item, origin, folder)) for key, item in given.items()
    }
    url = values.get("url", "http://")
    if not url.startswith(("http://", "https://")) or "@" in url:
        # Nothing of it is repeated: a part of it may be a secret.
        raise ConfigError(
            f"url must be one of http or https without a name or password in it ({origin})"
        )
    return McpTable(**values)


def _inner(file: ConfigFile, name: str, key: str, value: Any) -> Mapping[str, Any]:
    return _table(file, f"[mcp.{name}.{key}]", value, MCP_VALUES_MAX)


def _secrets(
    file: ConfigFile, where: str, table: Mapping[str, Any], names: re.Pattern[str]
) -> dict[str, Secret]:
    """Reads values that may be keys."""
    found: dict[str, Secret] = {}
    for name, value in table.items():
        if not names.fullmatch(name):
            raise ConfigError(
                f"{where} has the name {name[:100]!r}, which is none (file {file.path})"
            )
        info = SettingInfo(name, Secret, Meta(min_length=1, max_length=MCP_VALUE_CHARS_MAX))
        found[name] = read_value(info, Given(value, f"file {file.path}, {where}", _folder(file)))
        is_key = where.endswith(".headers]") or names_secret(name)
        if file.exposure and is_key and not _REFERENCE.search(found[name].reveal()):
            raise ConfigError(f"{where} holds a key, and {file.exposure}")
    return found


def _classes(file: ConfigFile, name: str, tool: str, value: Any) -> tuple[ToolClass, ...]:
    where = f"[mcp.{name}.tool_classes]"
    info = SettingInfo(tool[:100], tuple[str, ...], Meta(max_length=len(TOOL_CLASSES)))
    said = read_value(info, Given(value, f"file {file.path}, {where}", _folder(file)))
    return _checked_classes(file, where, said)


def _checked_classes(file: ConfigFile, where: str, said: tuple[str, ...]) -> tuple[ToolClass, ...]:
    for word in said:
        if word not in TOOL_CLASSES:
            raise ConfigError(
                f"{where} names the class {word[:100]!r}; there are {', '.join(TOOL_CLASSES)} "
                f"(file {file.path})"
            )
    return cast("tuple[ToolClass, ...]", said)


def _table(file: ConfigFile, where: str, value: Any, most: int | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a table (file {file.path})")
    if most is not None and len(value) > most:
        raise ConfigError(f"{where} must hold at most {most} (file {file.path})")
    return value


def _folder(file: ConfigFile) -> Path:
    assert file.path is not None, "a file that is not there has no tables"
    return file.path.parent
