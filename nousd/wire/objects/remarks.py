"""Warnings about extensions that a response carries, and the kinds of input they are about."""

from __future__ import annotations

from typing import Literal

import msgspec

InputKind = Literal["prompt", "steer", "follow_up", "message"]
"""The command by which a text was sent; ``message`` is ``append_message``."""


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """A failure of an extension; in a run it would be a ``warning`` event."""

    code: str
    message: str
