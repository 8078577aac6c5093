"""Texts as campaigns compare them: long ones by hash, because the log has only their beginning.

From protocol/semantics/artifacts.md ("Long texts") alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

Payload = Mapping[str, Any]

LONG_BYTES: Final = 8 * 1024
"""A text of more bytes is an artifact."""


def handed_as(text: str) -> str:
    """Return the comparable form of a text that a client submitted."""
    return text if len(text.encode()) <= LONG_BYTES else _hash(text)


def told_as(item: Payload) -> str:
    """Return the comparable form of the text of an input or an entry."""
    stands: str = item.get("text_ref", item["text"])
    return stands


def comparable(item: Payload) -> dict[str, Any]:
    """Return an entry with its text replaced by the comparable form."""
    return {**item, "text": told_as(item)} if "text_ref" in item else dict(item)


def is_whole(item: Payload) -> bool:
    """Return True if an answer contains the complete text, as every answer must."""
    return "text_ref" not in item or (
        _hash(item["text"]) == item["text_ref"] and len(item["text"].encode()) == item["text_bytes"]
    )


def _hash(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
