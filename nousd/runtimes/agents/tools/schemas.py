"""The arguments of a tool in the form that every program takes.

A server may describe its tools as it likes, and a program that cannot read one schema refuses all of
them, those of ours too, or answers no more. So it is given only what all programs read, and the model is
told the rest.
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
"""Levels to which a schema may nest: Codex reads no message of more than 127, the schema in it."""

_ANY: Final = {"type": "object"}


class _Schema(msgspec.Struct, rename="camel"):
    """The parts of a JSON Schema that programs check (Codex 0.171.0, and the SDK of the Model Context
    Protocol), as they have to be.
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
    """Return a tool as agents are offered it. If a program may not be able to read its schema, that is
    told as a part of the description, and any arguments are taken.
    """
    schema = expressible(tool.parameters, nearest)
    if _is_readable(schema):
        return AgentTool(tool.name, tool.description, schema)
    told = f"JSON Schema of the arguments: {encode_json(schema).decode()}"
    return AgentTool(tool.name, f"{tool.description}\n\n{told}".strip(), _ANY)


def _is_readable(schema: Any) -> bool:
    if _is_deep(schema, _LEVELS_MAX):
        return False
    try:
        convert(schema, _Schema)
    except msgspec.ValidationError:
        return False
    return True


def _is_deep(value: Any, levels: int) -> bool:
    """Return whether a value nests deeper than so many levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deep(each, levels - 1) for each in inner)
