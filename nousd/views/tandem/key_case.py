"""How the contract spells keys: camelCase, with ids in capitals."""

from __future__ import annotations

import msgspec


def spelled(name: str) -> str:
    """Returns ``project_id`` as ``projectID``, ``started_at_ms`` as ``startedAtMs``."""
    first, *rest = name.split("_")
    return first + "".join("ID" if word == "id" else word.capitalize() for word in rest)


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=spelled):
    """Base of the bodies that are spelled so. What has its default is left out."""
