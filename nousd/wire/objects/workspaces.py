"""Overrides of a workspace: for a limited time, calls outside it ask for approval."""

from __future__ import annotations

from typing import Literal

import msgspec

OverrideEnd = Literal["expired", "ended", "replaced", "attached"]
"""Why an override ended: by its time, the user, a newer override, or a move to another workspace."""


class OverrideInForce(msgspec.Struct, frozen=True, kw_only=True):
    """An active override of the workspace, and the time at which it ends."""

    ttl_seconds: int
    expires_at: str
