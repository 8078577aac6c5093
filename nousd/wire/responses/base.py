"""The base class of responses, and types that several of them share."""

from __future__ import annotations

from typing import Literal

import msgspec

RunState = Literal["idle", "running", "aborting"]
"""The state of a session's run, as ``get_state`` reports it."""


class Response(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all response payloads."""
