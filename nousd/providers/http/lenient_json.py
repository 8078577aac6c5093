"""Decoded JSON of servers that leave things out, send null, or something else entirely. Pure."""

from __future__ import annotations

from typing import Any


def as_object(value: Any) -> dict[str, Any]:
    """Return an object as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, and an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str:
    """Return a text as it is, and an empty one for anything else."""
    return value if isinstance(value, str) else ""
