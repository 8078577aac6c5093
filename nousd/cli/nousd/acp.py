"""``nousd acp``: the command line of the server for editors."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer


def acp(
    *,
    socket: Annotated[
        Path | None, typer.Option("--socket", help="The daemon's socket. [env: NOUSD_SOCKET]")
    ] = None,
) -> None:
    """Serve the sessions to an editor over standard input and output until the input ends."""
    from nousd.acp_server.host import serve
    from nousd.cli.starting import start_daemon
    from nousd.config.resolve import resolve_socket

    socket_path = socket or resolve_socket(os.environ)
    serve(socket_path, start=partial(start_daemon, socket_path, is_requested=True))
