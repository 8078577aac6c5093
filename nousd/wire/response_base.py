"""What every response of v1 has."""

from __future__ import annotations

import msgspec


class Response(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all response payloads."""
