"""Commands that say what tools may do."""

from __future__ import annotations

from nousd.daemon.core import Core, Deferred, Reply
from nousd.wire import commands
from nousd.wire.responses import Accepted


async def set_permission_mode(core: Core, command: commands.SetPermissionMode) -> Reply:
    """Sets the session's mode from its next call on; other sessions keep theirs."""
    live = await core.sessions.require(command.session_id)
    ticket = core.sessions.update(live, permission_mode=command.mode)
    return Deferred(ticket, Accepted(command="set_permission_mode", mode=command.mode))
