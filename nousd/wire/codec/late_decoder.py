"""Decoders that are built on first use.

``msgspec`` builds a decoder from all structs that its type names, which takes up to a millisecond. The
daemon decodes almost nothing at its start, so the start does not wait for that. ``build_all`` builds the
decoders before they are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, Final, Generic, TypeVar

import msgspec

from nousd.wire.codec.decoding import json_decoder

T = TypeVar("T")


class LateDecoder(Generic[T]):
    """A JSON decoder for values of one type, like ``msgspec.json.Decoder``.

    Create it at module level, because it is never freed.
    """

    def __init__(self, kind: type[T] | UnionType) -> None:
        self._kind = kind
        self.decode: Callable[[bytes | str | msgspec.Raw], T] = self._build_and_decode
        _unbuilt.append(self)

    def build(self) -> None:
        """Build the decoder. Two threads may both do so, one after the other; either result is valid."""
        self.decode = json_decoder(self._kind).decode

    def _build_and_decode(self, line: bytes | str | msgspec.Raw) -> T:
        self.build()
        return self.decode(line)


_unbuilt: Final[list[LateDecoder[Any]]] = []


def build_all() -> None:
    """Build every decoder that is not built yet."""
    while _unbuilt:
        _unbuilt.pop().build()
