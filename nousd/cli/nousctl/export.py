"""The verb of ``nousctl`` that prints a session as Markdown."""

from __future__ import annotations

import sys
from typing import Any, Final

from nousd.cli.arguments import option
from nousd.cli.client_options import Options
from nousd.cli.nousctl.input_arguments import SESSION
from nousd.cli.nousctl.verbs import Watch
from nousd.cli.output import DONE


def _export(options: Options, values: dict[str, Any]) -> int:
    from nousd.client.markdown import transcript

    with options.connect() as daemon:
        for block in transcript(daemon, values.get("session_id"), values.get("leaf_id")):
            sys.stdout.write(block)
    return DONE


EXPORTING: Final[dict[str, Watch]] = {
    "export": Watch(
        "Print a session as Markdown.",
        (SESSION, option("leaf_id", "--leaf", "Print the path to this entry.")),
        _export,
    ),
}
