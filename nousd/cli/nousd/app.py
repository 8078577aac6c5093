"""The subcommands of ``nousd`` as a typer program.

A subcommand's modules are imported when it runs; only ``nousd.cli.nousd.serve`` imports the daemon.
"""

from __future__ import annotations

from typing import Annotated

import typer

from nousd.cli.nousd import bridge, http_token, serve_flags, state
from nousd.cli.nousd import mcp as mcp_host


def build_app() -> typer.Typer:
    """Return the program."""
    app = typer.Typer(
        help="A headless agent runtime daemon.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.command("serve", help="Run the daemon in the foreground.")(serve_flags.command())
    app.command("bridge", help="Serve HTTP in front of a daemon of another process.")(
        bridge.command()
    )
    app.command("mcp", help="Serve the tools to an MCP client over standard input and output.")(
        mcp_host.mcp
    )
    for name, help, function in state.commands():
        app.command(name, help=help)(function)
    app.command("version", help="Print the version.")(_version)
    http = typer.Typer(help="Manage access over HTTP.", no_args_is_help=True, rich_markup_mode=None)
    http.callback()(_group)
    http.command("rotate-token", help="Replace the token of HTTP clients; the old one is void.")(
        http_token.rotate_command()
    )
    app.add_typer(http, name="http")
    service = typer.Typer(
        help="Run the daemon as a service.", no_args_is_help=True, rich_markup_mode=None
    )
    service.callback()(_group)
    service.command("print", help="Print the systemd user unit for this installation.")(_print_unit)
    app.add_typer(service, name="service")
    return app


def _version() -> None:
    from nousd import __version__

    print(__version__)


def _group() -> None:
    pass


def _print_unit(
    *,
    socket: Annotated[
        bool, typer.Option("--socket", help="Print the .socket unit for socket activation.")
    ] = False,
) -> None:
    from nousd.cli.nousd import units

    print(units.socket_unit() if socket else units.service_unit(), end="")
