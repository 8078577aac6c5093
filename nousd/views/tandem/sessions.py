"""A session as the contract spells it."""

from __future__ import annotations

import hashlib

import msgspec


class SessionTime(msgspec.Struct, frozen=True):
    """Seconds of the epoch."""

    created: int
    updated: int


def project_id(workspace: str) -> str:
    """Returns the id by which the contract calls a folder."""
    return f"workspace-{hashlib.sha256(workspace.lower().encode()).hexdigest()[:12]}"
