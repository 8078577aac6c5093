"""The verb of ``nousctl`` that prints a session as Markdown, or as JSON lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from nousd.cli.arguments import Argument, option
from nousd.cli.client_options import Options
from nousd.cli.nousctl.rows import Watch
from nousd.cli.nousctl.session_arguments import THIS_SESSION
from nousd.cli.output import DONE


def _export(options: Options, values: dict[str, Any]) -> int:
    from nousd.cli.nousctl.artifacts import open_output
    from nousd.client.markdown import transcript
    from nousd.client.session_records import json_lines

    pieces = json_lines if options.json else transcript
    output = values.get("output")
    encoding = sys.stdout.encoding if output is None else "utf-8"
    ids = values.get("session_id"), values.get("leaf_id")
    with options.connect() as daemon, open_output(output) as file:
        for text in pieces(daemon, *ids):
            file.write(text.encode(encoding, "backslashreplace"))
    return DONE


EXPORTING: Final[dict[str, Watch]] = {
    "export": Watch(
        "Print a session as Markdown; with --json a line for the session and one for each entry.",
        (
            *THIS_SESSION,
            option("leaf_id", "--leaf", "Print the path to this entry."),
            Argument(
                "output",
                Annotated[
                    Path | None,
                    typer.Option(
                        "--output",
                        "-o",
                        metavar="FILE",
                        help="Output file. [default: standard output]",
                    ),
                ],
            ),
        ),
        _export,
    ),
}
