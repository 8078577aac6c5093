"""What every verb of ``nousctl`` shares: what it is told, how it reaches the daemon, how it prints.

Which verbs there are, and what they ask, is not known here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple

from nousd.cli.render import harmless
from nousd.client.answers import REQUEST_TIMEOUT_SECONDS

DONE: Final = 0
FAILED: Final = 1


class Options(NamedTuple):
    """What every verb is told.

    Args:
        json: print what the daemon sent instead of text.
        timeout_seconds: for each answer; None means what is usual for the verb.
    """

    socket_path: Path
    json: bool
    timeout_seconds: float | None

    @property
    def answer_seconds(self) -> float:
        return REQUEST_TIMEOUT_SECONDS if self.timeout_seconds is None else self.timeout_seconds


def shown(text: str) -> str:
    """Returns text of a model or a tool as it may be printed: on a terminal it controls nothing."""
    return harmless(text) if sys.stdout.isatty() else text


def say(text: str) -> None:
    """Prints what is about the work rather than its result."""
    print(harmless(text), file=sys.stderr, flush=True)


def print_line(line: bytes) -> None:
    """Prints a line of the wire as its bytes are."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
