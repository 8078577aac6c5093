"""The subcommands of ``nousd`` as a typer program.

A subcommand's modules are imported when it runs; only ``nousd.cli.nousd.serve`` imports the daemon.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nousd.cli.nousctl.command_tree import HELP_FLAGS, SYNONYMS, TREE, nearest
from nousd.cli.nousd import acp as acp_host
from nousd.cli.nousd import bridge, http_token, init, serve_flags, service, state
from nousd.cli.nousd import mcp as mcp_host


def build_app() -> typer.Typer:
    """Return the program."""
    app = typer.Typer(
        cls=_Commands,
        help="A headless agent runtime daemon.",
        context_settings=HELP_FLAGS,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_version_option)
    app.command("serve", help="Run the daemon in the foreground.")(serve_flags.command())
    app.command("config", help="Print every setting with its origin.")(serve_flags.print_command())
    app.command("bridge", help="Serve HTTP in front of a daemon of another process.")(
        bridge.command()
    )
    app.command("mcp", help="Serve the tools to an MCP client over standard input and output.")(
        mcp_host.mcp
    )
    app.command("acp", help="Serve the sessions to an editor over standard input and output.")(
        acp_host.acp
    )
    app.command("init", help="Ask for a provider, its key and modes, and write the settings file.")(
        init.init
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
    app.add_typer(service.app(), name="service")
    return app


class _Commands(TyperGroup):
    """The subcommands. A mistyped word or a verb of the client is refused with a hint."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        word = args[0]
        if self.get_command(ctx, word) is None and not ctx.resilient_parsing:
            near = nearest(word, self.list_commands(ctx))
            if word == "start":
                ctx.fail("there is no command 'start'; it is: nousd serve")
            if word in TREE or word in SYNONYMS:
                ctx.fail(f"{word!r} is a verb of the client: nousctl {word}")
            hint = f"did you mean: nousd {near[0]}" if near else "list them with: nousd --help"
            ctx.fail(f"there is no command {word!r}; {hint}")
        return super().resolve_command(ctx, args)


def _version() -> None:
    from nousd import __version__

    print(__version__)


def _print_version(value: bool) -> None:  # noqa: FBT001  typer calls it so
    if value:
        _version()
        raise typer.Exit


def _version_option(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def _group() -> None:
    pass
