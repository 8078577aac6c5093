"""A server's tool definitions, checked before they are offered: names, schemas, and a hash of each.

No statement of a server is trusted. A definition that is too large, or has an invalid schema, is left
out and reported; changing it could produce calls that the server does not understand.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from nousd.tools.arguments import Arguments
from nousd.tools.mcp.spec import ServerSpec
from nousd.tools.registry import TOOL_NAME
from nousd.wire.codec.canonical_json import expressible, hash_of, nearest
from nousd.wire.limits import MCP_DESCRIPTION_CHARS_MAX, MCP_SCHEMA_BYTES_MAX, MCP_TOOLS_MAX

_NAME_CHARS_MAX: Final = 64
_HASH_CHARS: Final = 8
_DEFINITION_CHARS: Final = 32
"""Hexadecimal digits of a definition's hash, enough to make collisions infeasible."""

_UNUSABLE: Final = re.compile(r"[^A-Za-z0-9_.-]")
_NUMBERS: Final = ("minimum", "maximum", "minLength", "maxLength")


class OfferedTool(NamedTuple):
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Any


class Definition(NamedTuple):
    """A tool of a server that can be offered.

    Args:
        name: its local name; ``original`` is the server's name of it.
        arguments: the part of the schema that is validated before the server is called.
        hash: hash of the server's whole definition, and of the server's identity.
    """

    name: str
    original: str
    description: str
    schema: dict[str, Any]
    arguments: Arguments
    hash: str


class Definitions(NamedTuple):
    """The usable tools of a server, and in ``left_out`` the names of unusable ones, with the reasons."""

    usable: tuple[Definition, ...]
    left_out: tuple[str, ...]


def definitions_of(
    spec: ServerSpec,
    offered: Iterable[OfferedTool],
    redact: Callable[[str], str] = lambda text: text,
) -> Definitions:
    """Return the usable tools of a server, in its order.

    Args:
        redact: removes secrets, such as the server's own key, from its descriptions.
    """
    usable: dict[str, Definition] = {}
    left_out: list[str] = []
    for tool in offered:
        if spec.tools is not None and tool.name not in spec.tools:
            continue
        name = tool_name(spec.full_name, tool.name)
        if fault := _fault(tool, name in usable, len(usable)):
            left_out.append(f"{redact(tool.name)[:_NAME_CHARS_MAX]}: {fault}")
        elif redact(tool.name) != tool.name:
            left_out.append(f"{redact(tool.name)[:_NAME_CHARS_MAX]}: its name holds a secret")
        else:
            usable[name] = _definition(spec, name, tool, redact)
    return Definitions(tuple(usable.values()), tuple(left_out))


def tool_name(server: str, tool: str) -> str:
    """Return the local name of a server's tool. If the original is too long or has other characters, the
    local name ends with a hash, which distinguishes it from similar ones.
    """
    name = f"mcp__{server}__{tool}"
    if TOOL_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{_UNUSABLE.sub('_', name)[: _NAME_CHARS_MAX - _HASH_CHARS - 1]}_{digest}"


def _fault(tool: OfferedTool, is_known: bool, count: int) -> str:  # noqa: FBT001
    if is_known:
        return "there are two of that name"
    if count >= MCP_TOOLS_MAX:
        return f"the server has more than {MCP_TOOLS_MAX} tools"
    if not isinstance(tool.schema, dict) or tool.schema.get("type", "object") != "object":
        return "its arguments are no object"
    try:
        size = len(json.dumps(tool.schema, allow_nan=False))
    except (ValueError, RecursionError):
        return "its schema cannot be written as JSON"
    if size > MCP_SCHEMA_BYTES_MAX:
        return f"its schema has more than {MCP_SCHEMA_BYTES_MAX} bytes"
    return ""


def _definition(
    spec: ServerSpec, name: str, tool: OfferedTool, redact: Callable[[str], str]
) -> Definition:
    schema = expressible({**tool.schema, "type": "object"}, nearest)
    schema_json = json.dumps(schema)
    if redact(schema_json) != schema_json:
        schema = json.loads(redact(schema_json))
    description = redact(tool.description)[:MCP_DESCRIPTION_CHARS_MAX]
    definition = {
        "server": spec.identity,
        "tool": tool.name,
        "says": tool.description,
        "schema": schema,
    }
    digest = hash_of(expressible(definition, nearest)).removeprefix("sha256:")[:_DEFINITION_CHARS]
    return Definition(name, tool.name, description, schema, _arguments(schema), digest)


def _arguments(schema: Mapping[str, Any]) -> Arguments:
    """Return the part of a schema that is checked here; the server checks the rest."""
    properties = schema.get("properties")
    required = schema.get("required")
    checked = {
        name: _rules(rules)
        for name, rules in (properties.items() if isinstance(properties, dict) else ())
    }
    names = [name for name in required if name in checked] if isinstance(required, list) else []
    return Arguments({"type": "object", "properties": checked, "required": names})


def _rules(rules: object) -> dict[str, Any]:
    if not isinstance(rules, dict):
        return {}
    kept: dict[str, Any] = {
        word: rules[word]
        for word in _NUMBERS
        if isinstance(rules.get(word), int | float) and not isinstance(rules[word], bool)
    }
    kind = rules.get("type")
    if isinstance(kind, str) or (
        isinstance(kind, list) and all(isinstance(item, str) for item in kind)
    ):
        kept["type"] = kind
    if isinstance(rules.get("enum"), list):
        kept["enum"] = rules["enum"]
    return kept
