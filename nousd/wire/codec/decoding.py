"""Decodes JSON and Python values into types, from any thread.

What ``msgspec`` knows of a struct it builds when the struct is first needed, and while it does so other
threads take what is half built: the process dies of a null pointer (msgspec 0.22). So types are built
here, one at a time; one that is built can be used by all.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar, overload

import msgspec

T = TypeVar("T")

Json = bytes | bytearray | memoryview | str | msgspec.Raw

_building: Final = threading.RLock()
_built: Final[set[Any]] = {Any}
"""The types that need no lock any more. They stand in code, so there is a bounded number of them."""


@overload
def json_decoder(type: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(type: Any = Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(type: Any = Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of JSON into a type."""
    with _building:
        decoder = msgspec.json.Decoder(type)
        _built.add(type)
        return decoder


@overload
def decode_json(data: Json, *, type: type[T], strict: bool = True) -> T: ...
@overload
def decode_json(data: Json, *, type: Any = Any, strict: bool = True) -> Any: ...
def decode_json(data: Json, *, type: Any = Any, strict: bool = True) -> Any:
    """Return what JSON holds.

    Raises:
        msgspec.DecodeError: it is not JSON, or not of the type.
        UnicodeDecodeError: it is not UTF-8.
    """
    if type not in _built:
        json_decoder(type)
    return msgspec.json.decode(data, type=type, strict=strict)


@overload
def convert(value: Any, type: type[T], *, strict: bool = True) -> T: ...
@overload
def convert(value: Any, type: Any, *, strict: bool = True) -> Any: ...
def convert(value: Any, type: Any, *, strict: bool = True) -> Any:
    """Return a value of plain types as one of a type.

    Raises:
        msgspec.ValidationError: it is not of the type.
    """
    if type not in _built:
        json_decoder(type)
    return msgspec.convert(value, type, strict=strict)
