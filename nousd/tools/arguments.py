"""The arguments of a tool: the schema that models receive, and the validation against that same schema.

One validator serves arguments described by a struct and by a plain JSON Schema. It checks the top level,
where models make nearly all their mistakes and where a message can name the field. msgspec checks nested
values if there is a struct; otherwise the tool does.

Validation accepts unambiguous deviations: other spellings of a name (``file_path``), integers as ``5.0``
or ``"5"``, null for an optional argument, unknown arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nousd.errors import ToolArgumentsInvalid
from nousd.wire.codec.decoding import convert

PATH_ALIASES: Final = dict.fromkeys(
    ("file_path", "filePath", "filepath", "file", "filename", "file_name"), "path"
)
FOLDER_ALIASES: Final = PATH_ALIASES | dict.fromkeys(("directory", "dir", "folder"), "path")

INTEGER_MAX: Final = 2**31 - 1
"""The largest line number or count that a tool accepts."""

_NO_UNICODE: Final = "must be valid Unicode"

_INTEGER_TEXT: Final = re.compile(r"\s*[+-]?[0-9]{1,18}\s*", re.ASCII)
_BOOLEAN_TEXTS: Final = {"true": True, "false": False}

_KINDS: Final[dict[str, tuple[str, tuple[type, ...]]]] = {
    "string": ("a string", (str,)),
    "integer": ("an integer", (int,)),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)),
    "array": ("an array", (list, tuple)),
    "object": ("an object", (Mapping,)),
    "null": ("null", (type(None),)),
}
"""JSON Schema type -> (its name in messages, its Python types)."""


class Arguments(msgspec.Struct, frozen=True):
    """The arguments of a tool: schema and validation.

    Args:
        schema: of type object, without ``$ref``, so that every model API accepts it.
        struct: the type of the validated arguments; None leaves them a dict.
        aliases: other spelling -> the name in the schema.
    """

    schema: dict[str, Any]
    struct: type[msgspec.Struct] | None = None
    aliases: Mapping[str, str] = {}

    def validate(self, tool: str, arguments: object) -> Any:
        """Return the validated arguments as a struct (or dict).

        Raises:
            ToolArgumentsInvalid: ``validation_failed: <tool>.<field> <fault>``.
        """
        if not isinstance(arguments, Mapping):
            raise ToolArgumentsInvalid(f"validation_failed: {tool} takes an object of arguments")
        values = self._with_own_names(arguments)
        required = self.schema.get("required", ())
        for name, rules in self.schema.get("properties", {}).items():
            if values.get(name) is None and "null" not in _types(rules):
                values.pop(name, None)
            if name in values:
                values[name] = _coerce(rules, values[name])
                fault = _fault(rules, values[name])
            else:
                fault = "is required" if name in required else None
            if fault:
                raise ToolArgumentsInvalid(f"validation_failed: {tool}.{name} {fault}")
        return values if self.struct is None else self._convert(tool, values)

    def _with_own_names(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in arguments.items():
            values.setdefault(self.aliases.get(name, name), value)
        # The proper name wins over any other spelling, whichever came first.
        return values | {name: arguments[name] for name in arguments if name not in self.aliases}

    def _convert(self, tool: str, values: dict[str, Any]) -> msgspec.Struct:
        assert self.struct is not None
        try:
            return convert(values, self.struct)
        except msgspec.ValidationError as error:
            raise ToolArgumentsInvalid(f"validation_failed: {tool}: {error}") from error


def struct_arguments(
    struct: type[msgspec.Struct], aliases: Mapping[str, str] | None = None
) -> Arguments:
    """Return arguments described by a struct.

    Raises:
        ValueError: the struct refers to itself, which no flat schema can express.
        TypeError: a field has a type that JSON does not have.
    """
    (root,), definitions = msgspec.json.schema_components([struct], ref_template="{name}")
    schema = _inline_definitions(root, definitions, ())
    # The struct's docstring is for developers; the tool has its own name and description.
    for key in ("title", "description"):
        schema.pop(key, None)
    return Arguments(schema=schema, struct=struct, aliases=aliases or {})


def _inline_definitions(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_inline_definitions(item, definitions, inside) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"]
        if name in inside:
            raise ValueError(f"{name} refers to itself")
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        return _inline_definitions(definitions[name], definitions, (*inside, name)) | siblings
    return _add_type(
        _without_null({key: _inline_definitions(v, definitions, inside) for key, v in node.items()})
    )


def _add_type(node: dict[str, Any]) -> dict[str, Any]:
    """Give enumerations of strings the type ``string``, which some models and ``validate`` need."""
    words = node.get("enum")
    if words is None or "type" in node or not all(isinstance(word, str) for word in words):
        return node
    return {"type": "string", **node}


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """Express "optional" as models expect it: as not required, rather than as "or null"."""
    choices = node.get("anyOf", ())
    others: list[dict[str, Any]] = [choice for choice in choices if choice != {"type": "null"}]
    if len(others) != 1 or len(choices) != 2:
        return node
    kept = {k: v for k, v in node.items() if k != "anyOf" and (k, v) != ("default", None)}
    return others[0] | kept


def _types(rules: Mapping[str, Any]) -> tuple[str, ...]:
    types = rules.get("type", ())
    return (types,) if isinstance(types, str) else tuple(types)


def _coerce(rules: Mapping[str, Any], value: object) -> object:
    types = _types(rules)
    if "integer" in types:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, str) and "string" not in types and _INTEGER_TEXT.fullmatch(value):
            return int(value)
    if types == ("boolean",) and isinstance(value, str):
        return _BOOLEAN_TEXTS.get(value.strip().lower(), value)
    return value


def _fault(rules: Mapping[str, Any], value: object) -> str | None:
    """Return the fault in a value; None if it is valid."""
    types = [name for name in _types(rules) if name in _KINDS]
    if types and not any(_is_a(name, value) for name in types):
        return "must be " + " or ".join(_KINDS[name][0] for name in types)
    if isinstance(value, str):
        return _text_fault(rules, value)
    if isinstance(value, list | tuple | Mapping):
        return None if _is_unicode(value) else _NO_UNICODE
    if isinstance(value, int | float):
        if "minimum" in rules and value < rules["minimum"]:
            return f"must be at least {rules['minimum']}"
        if "maximum" in rules and value > rules["maximum"]:
            return f"must be at most {rules['maximum']}"
    return None


def _is_a(name: str, value: object) -> bool:
    # To Python, True is an int; to JSON it is not.
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _KINDS[name][1])


def _is_unicode(value: object) -> bool:
    """Return whether every text in a value can be sent and stored."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def _text_fault(rules: Mapping[str, Any], text: str) -> str | None:
    if len(text) < rules.get("minLength", 0):
        return f"must have at least {rules['minLength']} characters" if text else "is required"
    if len(text) > rules.get("maxLength", len(text)):
        return f"must have at most {rules['maxLength']} characters"
    if not _is_unicode(text):
        return _NO_UNICODE
    if "enum" in rules and text not in rules["enum"]:
        return "must be one of " + ", ".join(map(str, rules["enum"]))
    return None
