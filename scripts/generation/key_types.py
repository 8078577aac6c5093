"""The types of a struct's keys in words, for the tables of the reference pages."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import inspect

from nousd.wire.commands import COMMANDS
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.events import EVENTS
from nousd.wire.responses import RESPONSES

PAYLOADS: Final[dict[str, dict[str, type[Any]]]] = {
    "commands": {**COMMANDS, "subscribe": Subscribe},
    "responses": {**RESPONSES},
    "events": {**EVENTS},
}
"""folder of pages -> name on the wire -> struct; every other struct is an object."""

UNBOUNDED: Final = 2**53
"""A bound that only keeps numbers exact in JSON; pages do not show it."""

SIMPLE: Final[dict[type[inspect.Type], str]] = {
    inspect.AnyType: "any JSON",
    inspect.RawType: "object",
    inspect.BoolType: "boolean",
    inspect.BytesType: "string in base64",
    inspect.NoneType: "null",
}


def in_words(kind: inspect.Type) -> str:
    """Return a type as Markdown, with its bounds and links to the pages of objects."""
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            examples = (extra or {}).get("examples", ())
            return in_words(inner) + "".join(f", like `{each}`" for each in examples)
        case inspect.StrType():
            return "string" + within(kind.min_length, kind.max_length, "characters")
        case inspect.IntType():
            return "integer" + within(kind.ge, kind.le)
        case inspect.FloatType():
            return "number" + within(kind.ge, kind.le)
        case inspect.LiteralType(values=values):
            return join_words([f"`{word_or_json(value)}`" for value in values])
        case inspect.VarTupleType() | inspect.ListType():
            bounds = within(kind.min_length, kind.max_length, "items")
            return f"array of {in_words(kind.item_type)}{bounds}"
        case inspect.DictType(value_type=inspect.AnyType()):
            return "object"
        case inspect.DictType(value_type=value):
            return f"object, each value: {in_words(value)}"
        case inspect.StructType(cls=struct):
            return link(struct)
        case inspect.UnionType(types=types):
            return join_words([in_words(each) for each in types])
    return SIMPLE[type(kind)]


def link(struct: type[Any]) -> str:
    """Return a link to the page of a struct, for other pages of the reference."""
    for kind, structs in PAYLOADS.items():
        for name, payload in structs.items():
            if payload is struct:
                return f"[`{name}`](../{kind}/{name}.md)"
    return f"[{struct.__name__}](../objects/{struct.__name__}.md)"


def within(least: float | None, most: float | None, unit: str = "") -> str:
    """Return bounds as the end of a type, such as `` (1 to 256 characters)``."""
    most = None if most is not None and most >= UNBOUNDED else most
    if least is None and most is None:
        return ""
    if least is None or most is None:
        bounds = f"at most {most:,}" if least is None else f"at least {least:,}"
    else:
        bounds = f"{least:,} to {most:,}"
    return f" ({bounds} {unit})" if unit else f" ({bounds})"


def join_words(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def word_or_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def without_null(field: inspect.Field) -> inspect.Type:
    """Return a field's type; where null only says "not given", without the null."""
    kind = field.type
    if field.default is not None or not isinstance(kind, inspect.UnionType):
        return kind
    rest = tuple(each for each in kind.types if not isinstance(each, inspect.NoneType))
    return rest[0] if len(rest) == 1 else inspect.UnionType(rest)


def default_of(field: inspect.Field) -> str:
    """Return the value that a missing key stands for; nothing where absence has its own meaning."""
    if field.default is msgspec.NODEFAULT:
        return "" if field.default_factory is msgspec.NODEFAULT else "`[]`"
    return f"`{json.dumps(msgspec.to_builtins(field.default))}`"


def structs_in(kind: inspect.Type) -> set[type[Any]]:
    """Return the structs that a type is made of, not those that these are made of in turn."""
    match kind:
        case inspect.StructType(cls=struct):
            return {struct}
        case inspect.Metadata(type=inner):
            return structs_in(inner)
        case inspect.UnionType(types=types):
            return {struct for each in types for struct in structs_in(each)}
        case inspect.VarTupleType() | inspect.ListType():
            return structs_in(kind.item_type)
        case inspect.DictType(value_type=value):
            return structs_in(value)
    return set()
