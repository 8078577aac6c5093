"""``nousd mcp``: the command line of the MCP server."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated

import typer

from nousd.errors import ConfigError


def mcp(
    *,
    socket: Annotated[
        Path | None, typer.Option("--socket", help="The daemon's socket. [env: NOUSD_SOCKET]")
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", help="Session for the calls. [default: a new one]")
    ] = None,
    workspace: Annotated[
        Path | None,
        typer.Option(
            "--workspace", metavar="DIR", help="Workspace of a new session. [default: the daemon's]"
        ),
    ] = None,
    tools: Annotated[
        str | None, typer.Option("--tools", help="Serve only these tools, comma-separated.")
    ] = None,
    serve_options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- SERVE_OPTIONS...]",
            help="Options for nousd serve, which is started if no daemon answers.",
        ),
    ] = None,
) -> None:
    """Serve the tools over standard input and output until the input ends."""
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError("nousd mcp needs the extra mcp: pip install 'nousd[mcp]'")
    from nousd.config.resolve import resolve_socket
    from nousd.mcp_server.calls import CallSession
    from nousd.mcp_server.host import serve

    if session is not None and workspace is not None:
        raise ConfigError(
            "workspace: a session that exists has one; leave out --session or --workspace"
        )
    folder = None if workspace is None else str(workspace.absolute())
    serve(
        socket or resolve_socket(os.environ),
        session=CallSession(session, folder),
        tools=None if tools is None else tools.split(","),
        serve_options=serve_options or (),
    )
