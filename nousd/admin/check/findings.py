"""The findings of a check, as data: a line each for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

FINDINGS_MAX: Final = 1000
"""Maximum findings that are kept. A log that is broken throughout has one for each of its events."""

Severity = Literal["error", "note"]
"""``error``: something is damaged or lost. ``note``: worth knowing, but in order."""


class Finding(msgspec.Struct, frozen=True):
    """One finding.

    Args:
        what: the end of a sentence, such as ``is no event of v1``.
        where: its beginning: ``evt-17``, ``run run-1``, the path of a file.
    """

    what: str
    where: str
    severity: Severity = "error"

    def __str__(self) -> str:
        return f"{self.severity}: {self.where} {self.what}"


class Findings:
    """Collects findings, the first ``FINDINGS_MAX`` of them; ``untold`` counts the others."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.untold = 0
        self.errors = 0

    def add(self, where: str, what: str, severity: Severity = "error") -> None:
        self.errors += severity == "error"
        if len(self.kept) < FINDINGS_MAX:
            self.kept.append(Finding(what, where, severity))
        else:
            self.untold += 1


Progress = Callable[[int], None]
"""Called from time to time with the number of checked events."""

PROGRESS_EVENTS: Final = 50_000
"""Number of events between two such calls."""


def no_progress(_events: int) -> None:
    """A progress function that does nothing."""


def to_json(report: msgspec.Struct) -> str:
    """Return a report as one line of JSON, for programs."""
    return msgspec.json.encode(report).decode()
