"""Accessors for decoded JSON in which values may be missing, null or of the wrong type. Pure."""

from __future__ import annotations

from typing import Any


def as_object(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return ``value`` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str:
    """Return ``value`` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""
