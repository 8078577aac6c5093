"""Keys and values as the contract spells them: camelCase with ids in capitals, times as numbers."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

T = TypeVar("T")


def milliseconds(ts: str) -> int:
    """Return the milliseconds of the epoch of an RFC 3339 time."""
    return round(datetime.fromisoformat(ts).timestamp() * 1000)


def milliseconds_or_none(ts: str | UnsetType) -> int | None:
    """Return the milliseconds of the epoch of a time, or None if it is not set."""
    return None if ts is UNSET else milliseconds(ts)


def seconds(ts: str) -> int:
    """Return the whole seconds of the epoch of an RFC 3339 time."""
    return int(datetime.fromisoformat(ts).timestamp())


def or_none(value: T | UnsetType) -> T | None:
    """Return the value, or None if it is not set."""
    return None if value is UNSET else value


def tandem_key(name: str) -> str:
    """Return ``project_id`` as ``projectID``, ``started_at_ms`` as ``startedAtMs``."""
    first, *rest = name.split("_")
    return first + "".join("ID" if word == "id" else word.capitalize() for word in rest)


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=tandem_key):
    """Base of bodies with such keys. Fields that have their default are left out."""
