"""The argument schemas of offered tools, in a form that every program accepts.

An MCP server may describe its tools in any way, but a program that cannot read one schema refuses all
tools or stops answering. So programs receive only schemas that all of them can read; any other schema is
put into the tool's description, for the model.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from nousd.runtimes.agents.interface import AgentTool
from nousd.tools.interface import Tool
from nousd.wire.codec.canonical_json import expressible, nearest
from nousd.wire.codec.decoding import convert
from nousd.wire.codec.envelope import encode_json

_LEVELS_MAX: Final = 64
"""Maximum nesting of a schema: Codex reads messages of at most 127 levels, the schema included."""

_ANY: Final = {"type": "object"}


class _Schema(msgspec.Struct, rename="camel"):
    """The parts of a JSON Schema that programs check, with the types that they require (Codex
    0.171.0, and the SDK of the Model Context Protocol).
    """

    ref: str = msgspec.field(name="$ref", default="")
    defs: dict[str, _Schema | bool] = msgspec.field(name="$defs", default_factory=dict)
    definitions: dict[str, _Schema | bool] = {}
    description: str = ""
    encrypted: bool = False
    enum: list[Any] = []
    items: _Schema | bool = True
    properties: dict[str, _Schema] = {}
    required: list[str] = []
    additional_properties: _Schema | bool = True
    any_of: list[_Schema | bool] = []
    one_of: list[_Schema | bool] = []
    all_of: list[_Schema | bool] = []


def describe_tool(tool: Tool) -> AgentTool:
    """Return a tool as agents receive it. If a program may not be able to read its schema, the schema
    becomes a part of the description, and a schema for any object replaces it.
    """
    schema = expressible(tool.parameters, nearest)
    if _is_readable(schema):
        return AgentTool(tool.name, tool.description, schema)
    schema_note = f"JSON Schema of the arguments: {encode_json(schema).decode()}"
    return AgentTool(tool.name, f"{tool.description}\n\n{schema_note}".strip(), _ANY)


def _is_readable(schema: Any) -> bool:
    if _is_deep(schema, _LEVELS_MAX):
        return False
    try:
        convert(schema, _Schema)
    except msgspec.ValidationError:
        return False
    return True


def _is_deep(value: Any, levels: int) -> bool:
    """Return whether a value nests deeper than ``levels``."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deep(each, levels - 1) for each in inner)
