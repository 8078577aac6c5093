"""Data that servers need back with the next call, made fit for the log: bounded, valid JSON. Pure.

A server's object is opaque and untrusted. Lone surrogates in it become U+FFFD, and an object that is
nested too deep is not kept.
"""

from __future__ import annotations

import json
from typing import Any, Final

from nousd.errors import ProviderError
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import is_nested_too_deep, scrub
from nousd.wire.limits import UNSTREAMED_ANSWER_BYTES_MAX

_ENTRY_CHARS: Final = 100
"""Characters that every kept object counts in addition to its content."""


def storable(data: dict[str, Any]) -> dict[str, Any] | None:
    """Return the object in its stored form; None if it cannot be stored."""
    text = scrub(json.dumps(data, ensure_ascii=False)).encode()
    if is_nested_too_deep(text):
        return None
    stored: dict[str, Any] = decode_json(text)
    return stored


class KeptSize:
    """Limits the size of the kept data of one answer."""

    def __init__(self) -> None:
        self._chars = 0

    def add(self, chars: int = 0) -> None:
        """Count one more object with that much content.

        Raises:
            ProviderError: the kept data exceeds the limit.
        """
        self._chars += chars + _ENTRY_CHARS
        if self._chars > UNSTREAMED_ANSWER_BYTES_MAX:
            raise ProviderError(
                f"the model thought for more than {UNSTREAMED_ANSWER_BYTES_MAX} characters"
            )
