"""The options that all verbs of ``nousctl`` share, and their connection to the daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nousd.cli.output import DONE, sanitize_output
from nousd.cli.render.answers import as_text
from nousd.client.answers import REQUEST_TIMEOUT_SECONDS, Answer
from nousd.client.blocking import Connection, Subscription


class Options(NamedTuple):
    """The options that all verbs share.

    Args:
        json: whether to print the daemon's JSON instead of text.
        timeout_seconds: the time-out of each response; None means the verb's default.
        verbose: whether to show codes of the wire in errors.
    """

    socket_path: Path
    json: bool
    timeout_seconds: float | None
    verbose: bool = False

    @property
    def answer_seconds(self) -> float:
        """The time-out of a response."""
        return REQUEST_TIMEOUT_SECONDS if self.timeout_seconds is None else self.timeout_seconds

    def connect(self) -> Connection:
        """Return a connection for commands. Raises as ``Connection`` when it is entered."""
        return Connection(self.socket_path, timeout_seconds=self.answer_seconds)

    def subscribe(self, query: Mapping[str, Any]) -> Subscription:
        """Return a subscription to the events of ``query``, the payload of a ``subscribe``."""
        return Subscription(self.socket_path, query, timeout_seconds=self.answer_seconds)


def print_answer(options: Options, answer: Answer) -> int:
    """Print a response as text, or its payload with ``--json``. Return the exit code ``DONE``."""
    if options.json:
        print(json.dumps(answer.payload, ensure_ascii=False))
    else:
        print(*map(sanitize_output, as_text(answer)), sep="\n")
    return DONE
