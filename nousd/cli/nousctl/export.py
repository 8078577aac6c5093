"""The verb of ``nousctl`` that prints a session as Markdown, or as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from nousd.cli.arguments import Argument, option
from nousd.cli.client_options import Options
from nousd.cli.nousctl.input_arguments import SESSION
from nousd.cli.nousctl.verbs import Watch
from nousd.cli.output import DONE
from nousd.client.blocking import Connection


def _export(options: Options, values: dict[str, Any]) -> int:
    from nousd.cli.nousctl.artifacts import written

    output = values.get("output")
    encoding = sys.stdout.encoding if output is None else "utf-8"
    wanted = values.get("session_id"), values.get("leaf_id")
    with options.connect() as daemon, written(output) as file:
        for text in _pieces(daemon, *wanted, as_json=options.json):
            file.write(text.encode(encoding, "backslashreplace"))
    return DONE


def _pieces(
    daemon: Connection, session_id: str | None, leaf_id: str | None, *, as_json: bool
) -> Iterator[str]:
    from nousd.client.markdown import records, transcript
    from nousd.wire.codec.envelope import encode_json

    if as_json:
        return (f"{encode_json(each).decode()}\n" for each in records(daemon, session_id, leaf_id))
    return transcript(daemon, session_id, leaf_id)


EXPORTING: Final[dict[str, Watch]] = {
    "export": Watch(
        "Print a session as Markdown; with --json a line for the session and one for each entry.",
        (
            SESSION,
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
