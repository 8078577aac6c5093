"""Translates descriptions of MCP servers by clients and settings into ``ServerSpec``.

A client's description goes into the log, so it must not contain a secret; it names a variable of the
daemon's environment instead. The description of a session's own server is not logged, and its values are
literal: the client that sends it must not read the daemon's environment.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from nousd.config.config_file import ConfigFile
from nousd.config.mcp_file import ConfiguredMcpServer, read_mcp_file
from nousd.config.project_file import ProjectSettings
from nousd.errors import ConfigError, InvalidPayload
from nousd.redaction.redactor import Redactor
from nousd.redaction.rules import RULES, may_name_secret
from nousd.tools.mcp.server import require_sdk
from nousd.tools.mcp.spec import (
    CALL_SECONDS,
    FOREIGN_CLASSES,
    ServerSpec,
    has_reference,
    without_references,
)
from nousd.wire import commands
from nousd.wire.objects import mcp

_log: Final = logging.getLogger(__name__)

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE_BREAKS: Final = re.compile(r"[\r\n\0]")


def parse_server(command: commands.AddMcp) -> mcp.McpServer:
    """Return the server that a client wants to add.

    Raises:
        InvalidPayload: a field is invalid, or contains a literal secret.
    """
    server = _server_of(command)
    for fault in (*_faults(server), *_find_literal_secrets(server)):
        raise InvalidPayload(fault)
    return server


def parse_session_server(command: commands.AddMcp) -> mcp.McpServer:
    """Return the server that a client wants to add to a session.

    Raises:
        InvalidPayload: a field is invalid.
    """
    server = _server_of(command)
    for fault in _faults(server):
        raise InvalidPayload(fault)
    return server


def _server_of(command: commands.AddMcp) -> mcp.McpServer:
    keys = mcp.McpServer.__struct_fields__
    settings = {key: value for key in keys if (value := getattr(command, key)) is not None}
    return mcp.McpServer(**settings)


def _faults(server: mcp.McpServer) -> Iterator[str]:
    """Yield the faults of a description, including secrets in the fields that clients see."""
    if bool(server.command) == bool(server.url):
        yield "command or url is required, and not both"
    yield from _url_faults(_text(server.url), server.headers or {})
    if server.url and (server.env or server.cwd):
        yield "env and cwd go with a command, not with a url"
    for name, value in (server.env or {}).items():
        if not _VARIABLE_NAME.fullmatch(name) or "\0" in value:
            yield f"env.{name[:100]} must be a variable's name and a text without NUL"
    if any("\0" in word for word in server.command or ()):
        yield "command must not hold a NUL character"
    if _looks_secret(" ".join(server.command or ())):
        yield "command holds what looks like a secret, which would be shown: put it into env"


def _find_literal_secrets(server: mcp.McpServer) -> Iterator[str]:
    """Yield a fault for each value that looks like a secret and would go into the log."""
    for name, value in (server.env or {}).items():
        is_written_out = may_name_secret(name) and not has_reference(value)
        if is_written_out or _looks_secret(f"{name}={without_references(value)}"):
            yield (
                f"env.{name} looks like a secret, which would stand in the log: name a variable of the "
                f"daemon's environment, as ${{{name}}}"
            )
    for name, value in (server.headers or {}).items():
        if not has_reference(value) or _looks_secret(f"{name}: {without_references(value)}"):
            yield (
                f"headers.{name} must name a variable of the daemon's environment, as ${{NAME}}: what "
                "is written out would stand in the log"
            )


def _url_faults(url: str, headers: Mapping[str, str]) -> Iterator[str]:
    if url and not url.startswith(("http://", "https://")):
        yield "url must begin with http:// or https://"
    if "@" in url or _looks_secret(url):
        yield "url must not hold a name, a password or a key: put it into headers"
    if headers and not url:
        yield "headers go with a url, not with a command"
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or _LINE_BREAKS.search(value):
            yield f"headers.{name[:100]} must be a header's name and a text on one line"


def _looks_secret(text: str) -> bool:
    return Redactor(rules=RULES).redact(text) != text


def _text(value: str | UnsetType) -> str:
    return "" if value is UNSET else value


def spec_of(server: mcp.McpServer) -> ServerSpec:
    """Return the specification of a server that a client added."""
    classes = server.classes
    timeout = server.timeout_ms
    tool_classes = {tool: frozenset(own) for tool, own in (server.tool_classes or {}).items()}
    return ServerSpec(
        name=server.name,
        command=server.command or (),
        url=_text(server.url),
        env=server.env or {},
        headers=server.headers or {},
        cwd=Path(server.cwd) if server.cwd else None,
        classes=FOREIGN_CLASSES if classes is UNSET else frozenset(classes),
        tool_classes=tool_classes,
        tools=None if server.tools is UNSET else server.tools,
        timeout_seconds=CALL_SECONDS if timeout is UNSET else timeout / 1000,
    )


SESSION_PREFIX: Final = "session_"
"""Precedes the name of a session's server in the names of its tools. No server of the daemon has a ``_``
in its name, so tool names are unique, and a rule for one kind of server never matches the other.
"""


def spec_of_session(server: mcp.McpServer) -> ServerSpec:
    """Return the specification of a session's own server."""
    return msgspec.structs.replace(spec_of(server), prefix=SESSION_PREFIX, is_literal=True)


_PLAIN_HEADERS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_SECRET_CHARS_MIN: Final = 12


def secrets_of(server: mcp.McpServer) -> frozenset[str]:
    """Return the secret values in the description of a session's own server."""
    variables = (value for name, value in (server.env or {}).items() if may_name_secret(name))
    headers = [
        value
        for name, value in (server.headers or {}).items()
        if name.lower() not in _PLAIN_HEADERS
    ]
    # A key may appear without the scheme that precedes it in a header.
    header_words = (word for value in headers for word in value.split())
    candidates = (*variables, *headers, *header_words)
    return frozenset(value for value in candidates if len(value) >= _SECRET_CHARS_MIN)


class OfSettings(NamedTuple):
    """The servers of the settings: the enabled and the disabled ones."""

    enabled: tuple[ServerSpec, ...]
    disabled: tuple[ServerSpec, ...]


def specs_of_settings(
    servers: Sequence[ConfiguredMcpServer], secret: Callable[[str], None]
) -> OfSettings:
    """Return the specifications of the servers in the settings.

    Args:
        secret: called with every header and variable that may be a key.

    Raises:
        ConfigError: a server is enabled, but the SDK is not installed.
    """
    if any(server.table.enabled for server in servers):
        require_sdk()
    specs: dict[bool, list[ServerSpec]] = {True: [], False: []}
    for server in servers:
        specs[server.table.enabled].append(_spec_of_settings(server, secret))
    return OfSettings(tuple(specs[True]), tuple(specs[False]))


def specs_of_project(
    settings: ProjectSettings, secret: Callable[[str], None]
) -> tuple[ServerSpec, ...]:
    """Return the specifications of a trusted project's servers. An invalid server is reported in the
    daemon's diagnostic log and skipped.
    """
    specs = []
    for name, table in settings.mcp.items():
        file = ConfigFile(Path(settings.path), "project", {"mcp": {name: table}})
        try:
            (server,) = read_mcp_file(file)
        except ConfigError as error:
            _log.warning("%s", error)
        else:
            if server.table.enabled:
                specs.append(_spec_of_settings(server, secret))
    return tuple(specs)


def _spec_of_settings(server: ConfiguredMcpServer, secret: Callable[[str], None]) -> ServerSpec:
    table = server.table
    revealed = {
        where: {name: value.reveal() for name, value in values.items()}
        for where, values in (("env", server.env), ("headers", server.headers))
    }
    for where, values in revealed.items():
        for name, value in values.items():
            if not has_reference(value) and (where == "headers" or may_name_secret(name)):
                secret(value)
    tool_classes = {tool: frozenset(classes) for tool, classes in server.tool_classes.items()}
    return ServerSpec(
        name=server.name,
        command=table.command or (),
        url=table.url or "",
        env=revealed["env"],
        headers=revealed["headers"],
        cwd=table.cwd,
        classes=FOREIGN_CLASSES if server.classes is None else frozenset(server.classes),
        tool_classes=tool_classes,
        tools=table.tools,
        timeout_seconds=(CALL_SECONDS if table.timeout_ms is None else table.timeout_ms / 1000),
    )
