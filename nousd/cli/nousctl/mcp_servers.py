"""The verb ``nousctl mcp``: lists, adds and removes MCP servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from nousd.cli.arguments import Argument, duration_reader, option
from nousd.cli.client_options import Options, print_answer
from nousd.cli.completion import complete_session
from nousd.cli.output import say

_COMMANDS: Final = {
    "list": "list_mcp",
    "add": "add_mcp",
    "remove": "remove_mcp",
    "restart": "restart_mcp",
}


def _option(key: str, flag: str, help: str, *, metavar: str | None = None) -> Argument:
    return Argument(key, Annotated[str | None, typer.Option(flag, metavar=metavar, help=help)])


def _options(key: str, flag: str, help: str, metavar: str, convert: Any = list) -> Argument:
    annotation = Annotated[list[str] | None, typer.Option(flag, metavar=metavar, help=help)]
    return Argument(key, annotation, convert=convert)


def _table(items: list[str]) -> dict[str, str]:
    pairs = [item.partition("=") for item in items]
    for name, equals, _ in pairs:
        if not equals:
            raise typer.BadParameter(f"{name} needs a value, as in NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _classes(words: list[str]) -> list[str]:
    return [] if words == ["none"] else words


ARGUMENTS: Final = (
    Argument(
        "action",
        Annotated[
            Literal["list", "add", "remove", "restart"],
            typer.Argument(metavar="[list|add|remove|restart]", help="Action."),
        ],
        "list",
    ),
    Argument("name", Annotated[str | None, typer.Argument(metavar="[NAME]", help="Server name.")]),
    Argument(
        "command",
        Annotated[
            list[str] | None,
            typer.Argument(
                metavar="[-- COMMAND...]", help="Command of the server, with its arguments."
            ),
        ],
        convert=list,
    ),
    option(
        "session_id",
        "--session",
        "Session whose own server it is: id, prefix or name.",
        complete=complete_session,
    )._replace(session="filter"),
    _option("url", "--url", "URL of the server, instead of a command."),
    _options(
        "env", "--env", "Environment variable, such as KEY='${MY_KEY}'.", "NAME=VALUE", _table
    ),
    _options(
        "headers",
        "--header",
        "Sent to the URL: Authorization='Bearer ${KEY}'.",
        "NAME=VALUE",
        _table,
    ),
    Argument(
        "cwd",
        Annotated[
            Path | None,
            typer.Option("--cwd", help="Working directory of the command. [default: the daemon's]"),
        ],
        convert=lambda path: str(path.absolute()),
    ),
    _options("classes", "--class", "What its tools may do; as often as needed.", "CLASS", _classes),
    _options("tools", "--tool", "Only this tool; as often as needed.", "TOOL"),
    Argument(
        "timeout_ms",
        Annotated[
            int | None,
            typer.Option(
                "--timeout-ms",
                parser=duration_reader("ms"),
                metavar="DURATION",
                help="Time-out of a call: milliseconds, or such as 30s.",
            ),
        ],
    ),
)


def run(options: Options, values: dict[str, Any]) -> int:
    """Run the verb and return its exit code."""
    action = values.pop("action")
    if action != "list" and "name" not in values:
        raise typer.BadParameter(f"{action} needs the name of a server")
    if action == "list":
        values = {key: value for key, value in values.items() if key == "session_id"}
    # An empty list of classes is meaningful; other empty lists mean that the option was not given.
    payload = {key: value for key, value in values.items() if value or key == "classes"}
    with options.connect() as daemon:
        answer = daemon.request(_COMMANDS[action], payload)
    code = print_answer(options, answer)
    if action in ("add", "restart"):
        say(f"{values['name']} is starting; whether it is ready: nousctl mcp list")
    return code
