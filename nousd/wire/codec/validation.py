"""Describe a fault in a payload in one sentence, with the field and, if there is one, its bound.

The sentence is made from the type and bounds in the field's JSON Schema, and from the position at which
msgspec found the fault; no text of a parser reaches a client. ``commands.MESSAGES`` has the exceptions.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from nousd.wire.commands import MESSAGES, Command

_KINDS: Final[dict[type, str]] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    type(None): "null",
}


def json_type(value: Any) -> str:
    """Return the JSON type of a value, such as ``array``."""
    return _KINDS.get(type(value), "value")


def describe_missing_field(struct: type[Command], name: str) -> str:
    """Return the message for a required field that is missing."""
    return MESSAGES.get((struct, name), (f"{name} is required", ""))[0]


def describe_fault(
    struct: type[Command],
    field: msgspec.structs.FieldInfo,
    value: Any,
    error: msgspec.ValidationError,
) -> str:
    """Return the message for a value that does not fit its field.

    Args:
        error: msgspec's error about ``value``.
    """
    place = _PLACE.search(str(error))
    if place is None:
        return _describe(struct, field, field.name, value, str(error))
    _, index, inner, deeper = place.groups()
    name, inside = field.name, value
    if index is not None:
        name, inside = f"{name}[{index}]", value[int(index)]
    (of, described) = _field_inside(field, inner)
    fault = str(error)[: place.start()] + (f" - at `${deeper}`" if deeper else "")
    return _describe(of, described, f"{name}.{inner}", inside[inner], fault)


_PLACE: Final = re.compile(r" - at `\$(\[(\d+)\])?\.(\w+)(\S*)`")
"""The position of a fault in a field's struct or list of structs, such as ``attachments[0].name``."""


def _field_inside(
    field: msgspec.structs.FieldInfo, name: str
) -> tuple[type[Any], msgspec.structs.FieldInfo]:
    """Return the type of a field's struct, or list of structs, and its field of that name."""
    described = msgspec.inspect.type_info(field.type)
    choices = described.types if isinstance(described, msgspec.inspect.UnionType) else (described,)
    items = (each.item_type if hasattr(each, "item_type") else each for each in choices)
    (struct,) = (item.cls for item in items if isinstance(item, msgspec.inspect.StructType))
    (inner,) = (each for each in msgspec.structs.fields(struct) if each.name == name)
    return struct, inner


def _describe(
    struct: type[Any],
    field: msgspec.structs.FieldInfo,
    name: str,
    value: Any,
    error: str,
) -> str:
    if unknown := _UNKNOWN.search(error):
        return f"{name} has an unknown key: {unknown[1][:100]}"
    parts = _alternatives(field.type)
    of_outer_type = any(
        json_type(value) == _OUTER_KINDS.get(kind, kind) for kind in map(_type, parts)
    )
    if of_outer_type and (limit := _limit(name, error)):
        return limit
    if fixed := MESSAGES.get((struct, field.name)):
        return fixed[1] if of_outer_type and value != "" else fixed[0]
    if of_outer_type and len(parts) == 1 and (place := _ITEM.search(error)):
        return f"an item of {name} must be {_describe_type_at(place[1], parts[0])}"
    if field.required and _type(parts[0]) == "string":
        return f"{name} is required"
    return f"{name} must be {' or '.join(map(_describe_type, parts))}"


def _alternatives(type_: Any) -> list[dict[str, Any]]:
    """Return the JSON Schemas of the alternatives of a field's type, without ``null``."""
    schema = msgspec.json.schema(type_)
    return [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]


_OUTER_KINDS: Final = {"integer": "number"}


def _type(schema: dict[str, Any]) -> str:
    kind: str = schema.get("type", "object" if "$ref" in schema else "string")
    return kind


def _describe_type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(schema["enum"])
    if "examples" in schema:
        return f"a string like {schema['examples'][0]}"
    if "contentEncoding" in schema:
        return str(schema["contentEncoding"])
    kind = _type(schema)
    return f"{'an' if kind[0] in 'aio' else 'a'} {kind}"


_ITEM: Final = re.compile(r" - at `\$((?:\[(?:\d+|\.{3})\])+)`")
"""The position of a fault in an item of a list or a value in an object, at any depth."""


def _describe_type_at(place: str, schema: dict[str, Any]) -> str:
    """Return the expected type at a position inside a value with that schema."""
    for _ in range(place.count("[")):
        schema = schema["items"] if "items" in schema else schema["additionalProperties"]
    return _describe_type(schema) + (" that is not empty" if "minLength" in schema else "")


_BOUND: Final = re.compile(r"(length )?(<=|>=) (\d+)(.* - at `\$\[\d+\]`)?")


_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(.*)`", re.DOTALL)


def _limit(name: str, error: str) -> str | None:
    """Return the message for a value that exceeds its bound; None if that is not the fault."""
    match = _BOUND.search(error)
    if match is None:
        return None
    of_length, sign, bound, inside = match.groups()
    if not of_length:
        return f"{name} must be {'at most' if sign == '<=' else 'at least'} {bound}"
    if sign == ">=":
        return None
    return f"{'an item of ' if inside else ''}{name} is too long: at most {bound}"
