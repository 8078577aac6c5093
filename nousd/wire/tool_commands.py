"""The commands about tools: what may run, what waits for a word of the user, and calls without a model."""

from __future__ import annotations

from nousd.wire.command_base import Command, Name
from nousd.wire.entries import PermissionMode


class SetPermissionMode(Command, frozen=True, kw_only=True):
    """Sets which tool calls of a session need a user's word where no rule decides."""

    mode: PermissionMode
    session_id: Name | None = None
