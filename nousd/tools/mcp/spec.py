"""The specification of an MCP server: its command or URL, and the classes of its tools.

It does not know where a specification comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from nousd.errors import ConfigError
from nousd.wire.objects.tool_footprint import ToolClass

FOREIGN_CLASSES: Final[frozenset[ToolClass]] = frozenset({"exec", "network"})
"""Default effects of a foreign tool: it runs a program and reaches a network."""

CALL_SECONDS: Final = 120.0
"""Default time-out of a call."""

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One MCP server. It has a ``command`` or a ``url``.

    Args:
        env: variables of its process in addition to the allowed ones of the daemon; ``${NAME}`` in a
            value refers to a variable of the daemon. The same applies to ``headers``.
        cwd: the working directory of its process, relative to the workspace; None: the workspace.
        classes: the effects of its tools, regardless of the server's own statements.
        tool_classes: the same for single tools, by the server's own names.
        tools: the offered tools, by the server's own names; None: all.
        prefix: precedes its name in the names of its tools, to keep servers of the same name apart.
        is_literal: whether ``${NAME}`` in a value is literal text and not a reference.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    cwd: Path | None = None
    classes: frozenset[ToolClass] = FOREIGN_CLASSES
    tool_classes: Mapping[str, frozenset[ToolClass]] = {}
    tools: tuple[str, ...] | None = None
    timeout_seconds: float = CALL_SECONDS
    prefix: str = ""
    is_literal: bool = False

    def __repr__(self) -> str:
        # Its variables and headers may hold keys.
        return f"ServerSpec({self.name!r})"

    @property
    def transport(self) -> Literal["stdio", "http"]:
        """``stdio`` or ``http``."""
        return "http" if self.url else "stdio"

    @property
    def source(self) -> str:
        """The source of its tools."""
        return f"mcp:{self.full_name}"

    @property
    def full_name(self) -> str:
        """The server's part of the names of its tools."""
        return f"{self.prefix}{self.name}"

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that distinguish this server from another one of the same name."""
        return {"command": self.command, "url": self.url, "cwd": str(self.cwd or "")}

    def classes_of(self, tool: str) -> frozenset[ToolClass]:
        """Return the effects of one of its tools."""
        return self.tool_classes.get(tool, self.classes)


def expand_references(
    values: Mapping[str, str], environ: Mapping[str, str], known: Callable[[str], None]
) -> dict[str, str]:
    """Return the values with each ``${NAME}`` replaced.

    Args:
        known: called with every value that must not be shown.

    Raises:
        ConfigError: a variable is not set.
    """

    def value_of(match: re.Match[str]) -> str:
        value = environ.get(match[1], "")
        if not value:
            raise ConfigError(f"the environment variable {match[1]} is not set")
        known(value)
        return value

    return {name: _REFERENCE.sub(value_of, text) for name, text in values.items()}


def has_reference(text: str) -> bool:
    """Return whether a value refers to a variable of the daemon."""
    return _REFERENCE.search(text) is not None


def without_references(text: str) -> str:
    """Return a value without its references."""
    return _REFERENCE.sub("", text)
