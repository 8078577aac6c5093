"""Parsing bodies and queries into structs: spellings of keys, likely typing errors, error messages.

A field has one name in its struct. Clients may send it in any spelling of the HTTP contract, whose
replies and clients differ: ``session_id``, ``sessionId``, ``sessionID``. Unknown keys are ignored, as in
the engine, unless they are so similar to a known key that they must be a typing error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, get_args

import msgspec

from nousd.bridge.replies import BAD_REQUEST, UNPROCESSABLE, Failure, HttpError
from nousd.wire.codec.decoding import convert, decode_json

T = TypeVar("T", bound=msgspec.Struct)

_GUESSED_CHARS_MIN: Final = 3
"""The length below which a name is not guessed: too many keys are similar to it."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def decode_body(data: bytes, body: type[T]) -> T:
    """Parse a JSON body as the struct.

    Raises:
        HttpError: the body is not JSON, does not match the struct, or has a misspelt key.
    """
    try:
        parsed = decode_json(data)
        return _convert("body", parsed, body, UNPROCESSABLE)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HttpError(BAD_REQUEST, "the body is not JSON") from None


def convert_query(params: Mapping[str, str], query: type[T]) -> T:
    """Parse query parameters as the struct. Raise HttpError if they do not match it."""
    return _convert("query", params, query, BAD_REQUEST)


def _convert(where: str, value: Any, struct: type[T], failure: Failure) -> T:
    try:
        is_text = where == "query"
        return convert(_normalize_keys(where, "", value, struct), struct, strict=not is_text)
    except msgspec.ValidationError as error:
        raise HttpError(failure, describe_mismatch(where, str(error), struct)) from None


# --- spellings -------------------------------------------------------------------------------


class _Field(NamedTuple):
    """A field of a struct; ``struct`` is the struct type of its value or of its items, if any."""

    name: str
    struct: type[msgspec.Struct] | None


@cache
def _fields(struct: type[msgspec.Struct]) -> Mapping[str, _Field]:
    """Return the fields of a struct by each of their spellings."""
    return {
        spelling: _Field(field.encode_name, _struct_in(field.type))
        for field in msgspec.structs.fields(struct)
        for spelling in spellings(field.encode_name)
    }


def spellings(name: str) -> tuple[str, ...]:
    """Return the spellings of a key, beginning with the key itself."""
    first, *others = (word.lower() for word in _WORD.findall(name))
    camel = first + "".join(word.title() for word in others)
    capital = first + "".join("ID" if word == "id" else word.title() for word in others)
    return tuple(dict.fromkeys((name, "_".join((first, *others)), camel, capital)))


def _struct_in(type_: Any) -> type[msgspec.Struct] | None:
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return type_
    return next(filter(None, map(_struct_in, get_args(type_))), None)


def _normalize_keys(where: str, parent: str, parsed: Any, struct: type[msgspec.Struct]) -> Any:
    """Return the value with its keys changed to those of the struct, in nested structs too.

    If a key occurs in several spellings, the first one that is not null counts.
    """
    if isinstance(parsed, list):
        return [
            _normalize_keys(where, f"{parent[:-1]}[{index}].", item, struct)
            for index, item in enumerate(parsed)
        ]
    if not isinstance(parsed, Mapping):
        return parsed
    fields, normalized = _fields(struct), dict[str, Any]()
    for key, value in parsed.items():
        field = fields.get(key)
        if field is None:
            _refuse_typing_error(f"{where}: {parent}", key, struct)
        elif normalized.get(field.name) is None:
            path = f"{parent}{field.name}."
            nested = field.struct
            normalized[field.name] = (
                _normalize_keys(where, path, value, nested) if nested else value
            )
    return normalized


def _refuse_typing_error(where: str, key: str, struct: type[msgspec.Struct]) -> None:
    names = (field.name for field in dict.fromkeys(_fields(struct).values()))
    suggestion = next((name for name in names if _is_near(key, name)), None)
    if suggestion is not None:
        raise HttpError(BAD_REQUEST, f"{where}{key} is unknown; did you mean {suggestion}?")


def _is_near(key: str, name: str) -> bool:
    """Return whether a key differs from a name in one character at most, or in the order of two
    neighbouring characters. Case, ``_`` and ``-`` are ignored.
    """
    one, other = (text.replace("_", "").replace("-", "").lower() for text in (key, name))
    if len(other) < _GUESSED_CHARS_MIN or abs(len(one) - len(other)) > 1:
        return False
    short, long = sorted((one, other), key=len)
    prefix = next((i for i, char in enumerate(short) if char != long[i]), len(short))
    is_replaced = len(short) == len(long)
    swapped = short[:prefix] + short[prefix : prefix + 2][::-1] + short[prefix + 2 :]
    return short[prefix + is_replaced :] == long[prefix + 1 :] or swapped == long


# --- error messages --------------------------------------------------------------------------

_PLACE: Final = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_EXPECTED: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_BOUND: Final = re.compile(r"Expected `\w+` (of length )?(<=|>=) (\d+)")
_CHOICE: Final = re.compile(r"Invalid enum value .*", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `([^`]+)`")

_WORDS: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
}
"""msgspec's name of a type -> its name for people."""


def describe_mismatch(where: str, fault: str, struct: type[msgspec.Struct]) -> str:
    """Return msgspec's error about a body or query as a message that begins with the field."""
    place = _PLACE.search(fault)
    path = "" if place is None else place[1]
    fault = _PLACE.sub("", fault)
    if missing := _MISSING.fullmatch(fault):
        return f"{where}: {f'{path}.' if path else ''}{missing[1]} is required"
    if expected := _EXPECTED.fullmatch(fault):
        kinds = " or ".join(_WORDS.get(kind, kind) for kind in expected[1].split(" | "))
        fault = f"must be {kinds}, not {_WORDS.get(expected[2], expected[2])}"
        return f"{where}: {path} {fault}" if path else f"the {where} {fault}"
    if bound := _BOUND.fullmatch(fault):
        relation = {"<=": "at most", ">=": "at least"}[bound[2]]
        return f"{where}: {path} {'is too long:' if bound[1] else 'must be'} {relation} {bound[3]}"
    if _CHOICE.fullmatch(fault):
        # Sorted, because Literal types that differ only in order may be the same object.
        return f"{where}: {path} must be {' or '.join(sorted(_choices(path, struct)))}"
    return f"{where}: {path}: {fault}" if path else f"{where}: {fault}"


def _choices(path: str, struct: type[msgspec.Struct]) -> list[str]:
    """Return the values that the field at a place in a struct may have."""
    *outer, last = re.sub(r"\[[^\]]*\]", "", path).split(".")
    for name in outer:
        struct = _fields(struct)[name].struct or struct
    (type_,) = (field.type for field in msgspec.structs.fields(struct) if field.encode_name == last)
    return _texts_in(type_)


def _texts_in(type_: Any) -> list[str]:
    """Return the strings of the Literal types in a type."""
    if isinstance(type_, str):
        return [type_]
    return [text for inner in get_args(type_) for text in _texts_in(inner)]
