"""The tables of the settings file that define MCP servers.

::

    [mcp.files]                          # its tools are mcp__files__<tool>
    command = ["npx", "-y", "server-files", "."]
    cwd = "~/work"                       # default: the workdir
    tools = ["read_file"]                # only these are offered; default: all
    classes = ["exec", "network"]        # effects of its tools; this is the default
    timeout_ms = 120000                  # of one call
    enabled = true

    [mcp.files.env]                      # in addition to a few harmless variables of the daemon
    LOG_LEVEL = "warning"
    API_KEY = "${FILES_API_KEY}"         # a variable of the daemon's environment

    [mcp.files.tool_classes]             # effects of single tools
    read_file = ["read"]

    [mcp.search]
    url = "https://search.example/mcp"

    [mcp.search.headers]
    Authorization = "Bearer ${SEARCH_TOKEN}"

An API key may also be written into ``env`` or ``headers``, in a file that others cannot read (chmod
600). This module reads only the file, and does not resolve references.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, cast, get_args

import msgspec
from msgspec import Meta

from nousd.config.config_file import ConfigFile
from nousd.config.secret import Secret
from nousd.config.tables import Table, open_table, read_struct
from nousd.config.values import SettingInfo
from nousd.errors import ConfigError
from nousd.redaction.rules import may_name_secret
from nousd.wire.limits import (
    MCP_SERVERS_MAX,
    MCP_TIMEOUT_MS_MAX,
    MCP_VALUE_CHARS_MAX,
    MCP_VALUES_MAX,
)
from nousd.wire.objects.tool_footprint import ToolClass

TOOL_CLASSES: Final[tuple[str, ...]] = get_args(ToolClass)

Words = Annotated[tuple[str, ...] | None, Meta(min_length=1, max_length=MCP_VALUES_MAX)]
Classes = Annotated[tuple[str, ...] | None, Meta(max_length=4)]


class McpTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[mcp.NAME]``; None is unset."""

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


_NAME: Final = r"[a-z0-9][a-z0-9-]{0,31}"
_REFERENCE: Final = r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"
_VARIABLE_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_HEADER_NAME: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"


def read_mcp_file(file: ConfigFile) -> tuple[ConfiguredMcpServer, ...]:
    """Read the tables, in file order.

    Raises:
        ConfigError: one line with the file, the table, the key and its valid values; never a value that
            may be an API key.
    """
    servers = open_table(file, "mcp", file.table.get("mcp", {}), MCP_SERVERS_MAX)
    return tuple(_server(file, name, value) for name, value in servers.content.items())


def _server(file: ConfigFile, name: str, value: Any) -> ConfiguredMcpServer:
    if not re.fullmatch(_NAME, name):
        raise ConfigError(
            f"[mcp.{name}] must be called by at most 32 lower-case letters, digits and dashes "
            f"(file {file.path})"
        )
    table = open_table(file, f"mcp.{name}", value)
    inner = {
        key: open_table(file, f"mcp.{name}.{key}", table.content.get(key, {}), MCP_VALUES_MAX)
        for key in _INNER
    }
    server = _read_outer(table)
    return ConfiguredMcpServer(
        name,
        server,
        None if server.classes is None else _parse_classes(table, server.classes),
        _read_secrets(inner["env"], _VARIABLE_NAME),
        _read_secrets(inner["headers"], _HEADER_NAME, all_are_keys=True),
        _read_tool_classes(inner["tool_classes"]),
    )


_INNER: Final = ("env", "headers", "tool_classes")
"""The tables in the table of a server."""


def _read_outer(table: Table) -> McpTable:
    server = read_struct(table, McpTable, extra_keys=_INNER)
    if server.url is not None and (
        not server.url.startswith(("http://", "https://")) or "@" in server.url
    ):
        # The error does not repeat the URL, because a part of it may be a secret.
        raise ConfigError(
            f"url must be one of http or https without a name or password in it ({table.origin})"
        )
    if (server.command is None) == (server.url is None):
        raise ConfigError(
            f"{table.where} needs a command or a url, and not both (file {table.file.path})"
        )
    return server


def _read_secrets(table: Table, names: str, *, all_are_keys: bool = False) -> dict[str, Secret]:
    """Read values that may be API keys: those with such names, or all of them."""
    found: dict[str, Secret] = {}
    for name, value in table.content.items():
        if not re.fullmatch(names, name):
            raise ConfigError(
                f"{table.where}: the name {name[:100]!r} is not allowed (file {table.file.path})"
            )
        info = SettingInfo(name, Secret, Meta(min_length=1, max_length=MCP_VALUE_CHARS_MAX))
        found[name] = table.read(info, value)
        is_key = all_are_keys or may_name_secret(name)
        if table.file.exposure and is_key and not re.search(_REFERENCE, found[name].reveal()):
            raise ConfigError(f"{table.where} holds a key, and {table.file.exposure}")
    return found


def _read_tool_classes(table: Table) -> dict[str, tuple[ToolClass, ...]]:
    bounds = Meta(max_length=len(TOOL_CLASSES))
    return {
        tool: _parse_classes(
            table, table.read(SettingInfo(tool[:100], tuple[str, ...], bounds), value)
        )
        for tool, value in table.content.items()
    }


def _parse_classes(table: Table, words: tuple[str, ...]) -> tuple[ToolClass, ...]:
    for word in words:
        if word not in TOOL_CLASSES:
            raise ConfigError(
                f"{table.where} names the class {word[:100]!r}; there are {', '.join(TOOL_CLASSES)} "
                f"(file {table.file.path})"
            )
    return cast("tuple[ToolClass, ...]", words)
