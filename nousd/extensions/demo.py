"""The demo extension: one command and one tool that echo their input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from nousd.tools.interface import ToolContext

if TYPE_CHECKING:
    from nousd.extensions.api import ExtensionApi


class Echo(msgspec.Struct, frozen=True):
    """Arguments of ``demo.echo``."""

    text: str


def register(api: ExtensionApi) -> None:
    """Add the command ``echo`` and the tool ``demo.echo``."""
    api.command("echo", echo_command)
    api.tool("demo.echo", "Says the text back.", Echo, echo_tool, classes=(), is_read_only=True)


async def echo_command(payload: dict[str, Any]) -> dict[str, Any]:
    text = payload.get("text")
    return {"echo": text if isinstance(text, str) else ""}


async def echo_tool(args: Echo, _context: ToolContext) -> str:
    return f"demo.echo:{args.text}"
