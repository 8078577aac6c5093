"""Keys and values in the form of the contract: camelCase with ``ID`` in capitals, times as numbers."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

T = TypeVar("T")


def milliseconds(ts: str) -> int:
    """Return an RFC 3339 time in milliseconds since the epoch."""
    return round(datetime.fromisoformat(ts).timestamp() * 1000)


def milliseconds_or_none(ts: str | UnsetType) -> int | None:
    """Return an RFC 3339 time in milliseconds since the epoch; None if it is not set."""
    return None if ts is UNSET else milliseconds(ts)


def seconds(ts: str) -> int:
    """Return an RFC 3339 time in whole seconds since the epoch."""
    return int(datetime.fromisoformat(ts).timestamp())


def or_none(value: T | UnsetType) -> T | None:
    """Return the value; None if it is not set."""
    return None if value is UNSET else value


def tandem_key(name: str) -> str:
    """Return ``project_id`` as ``projectID``, ``started_at_ms`` as ``startedAtMs``."""
    first, *rest = name.split("_")
    return first + "".join("ID" if word == "id" else word.capitalize() for word in rest)


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=tandem_key):
    """Base of bodies with keys made by ``tandem_key``. Fields with their default value are left out."""
