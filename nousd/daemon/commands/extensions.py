"""The command that calls a command of an extension."""

from __future__ import annotations

from nousd.daemon.replies import Plain, Reply
from nousd.daemon.services import Services
from nousd.errors import CommandRejected
from nousd.wire import commands


async def extension_command(services: Services, command: commands.ExtensionCommand) -> Reply:
    """Call a command that an extension registered."""
    handler = services.extension_commands.get(command.name)
    if handler is None:
        raise CommandRejected(f"extension_command_not_found: {command.name}")
    payload = command.payload if isinstance(command.payload, dict) else {}
    return Plain("extension_result", await handler(payload))
