"""Decode JSON and Python values into types, from any thread.

``msgspec`` builds its description of a struct on first use. Another thread that uses a half-built
description crashes the process with a null pointer (msgspec 0.22). So this module builds types one at a
time, under a lock; any thread can use a type that is built.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar, overload

import msgspec

T = TypeVar("T")

Json = bytes | bytearray | memoryview | str | msgspec.Raw

_building: Final = threading.RLock()
_built: Final[set[Any]] = {Any}
"""The types that need no lock any more. Their number is bounded: all of them are written in code."""


@overload
def json_decoder(type: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(type: Any = Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(type: Any = Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder from JSON into a type."""
    with _building:
        decoder = msgspec.json.Decoder(type)
        _built.add(type)
        return decoder


@overload
def decode_json(data: Json, *, type: type[T], strict: bool = True) -> T: ...
@overload
def decode_json(data: Json, *, type: Any = Any, strict: bool = True) -> Any: ...
def decode_json(data: Json, *, type: Any = Any, strict: bool = True) -> Any:
    """Decode JSON into a type.

    Raises:
        msgspec.DecodeError: the data is not JSON, or not of the type.
        UnicodeDecodeError: the data is not UTF-8.
    """
    if type not in _built:
        json_decoder(type)
    return msgspec.json.decode(data, type=type, strict=strict)


@overload
def convert(value: Any, type: type[T], *, strict: bool = True) -> T: ...
@overload
def convert(value: Any, type: Any, *, strict: bool = True) -> Any: ...
def convert(value: Any, type: Any, *, strict: bool = True) -> Any:
    """Convert a value of plain Python types into ``type``.

    Raises:
        msgspec.ValidationError: the value is not of the type.
    """
    if type not in _built:
        json_decoder(type)
    return msgspec.convert(value, type, strict=strict)
