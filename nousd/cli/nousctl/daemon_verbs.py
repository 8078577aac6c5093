"""The verbs of ``nousctl`` about the daemon's process, whose functions are imported when they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from nousd.cli.arguments import Argument
from nousd.cli.client_options import Options
from nousd.cli.nousctl.rows import Watch


def _process(name: str) -> Callable[[Options, dict[str, Any]], int]:
    def run(options: Options, values: dict[str, Any]) -> int:
        from nousd.cli.nousctl import daemon_process

        verb: Callable[[Options, dict[str, Any]], int] = getattr(daemon_process, name)
        return verb(options, values)

    return run


CONTROLLING: Final[dict[str, Watch]] = {
    "status": Watch("Show the daemon: version, model, sessions, runs.", (), _process("status")),
    "logs": Watch(
        "Print the daemon's log, or follow it.",
        (
            Argument(
                "follow",
                Annotated[bool | None, typer.Option("--follow", "-f", help="Keep following.")],
            ),
            Argument(
                "lines",
                Annotated[
                    int | None,
                    typer.Option(
                        "--lines", "-n", min=0, max=100_000, help="Lines to show. [default: 50]"
                    ),
                ],
            ),
        ),
        _process("logs"),
    ),
    "stop": Watch(
        "Stop the daemon: runs end, nothing that was accepted is lost.", (), _process("stop")
    ),
    "restart": Watch(
        "Stop the daemon and start it again, with the settings file as it is now.",
        (),
        _process("restart"),
    ),
}
"""Name on the command line -> verb."""
