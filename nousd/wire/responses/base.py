"""What every response of v1 has, and the words that several of them share."""

from __future__ import annotations

from typing import Literal

import msgspec

RunState = Literal["idle", "running", "aborting"]
"""Of a session, as ``get_state`` says it."""


class Response(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all response payloads."""
