"""Decoders that are built when they are first used.

``msgspec`` builds a decoder from all structs that its type names, which takes up to a millisecond. A
start decodes almost nothing, so it does not wait for that. ``build_all`` builds them before somebody
needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, Final, Generic, TypeVar

import msgspec

from nousd.wire.codec.decoding import json_decoder

T = TypeVar("T")


class LateDecoder(Generic[T]):
    """A JSON decoder for values of one type, as ``msgspec.json.Decoder``.

    Make it at the level of a module: it is kept for ever.
    """

    def __init__(self, kind: type[T] | UnionType) -> None:
        self._kind = kind
        self.decode: Callable[[bytes | str | msgspec.Raw], T] = self._build_and_decode
        _unbuilt.append(self)

    def build(self) -> None:
        """Build it. Two threads may do so, one after the other; either result is good."""
        self.decode = json_decoder(self._kind).decode

    def _build_and_decode(self, line: bytes | str | msgspec.Raw) -> T:
        self.build()
        return self.decode(line)


_unbuilt: Final[list[LateDecoder[Any]]] = []


def build_all() -> None:
    """Build every decoder that exists."""
    while _unbuilt:
        _unbuilt.pop().build()
