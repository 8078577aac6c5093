"""The findings of a check, as one line each for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

FINDINGS_MAX: Final = 1000
"""Maximum number of stored findings. A completely broken log has one for each of its events."""

Severity = Literal["error", "note"]
"""``error``: something is damaged or lost. ``note``: worth knowing, but not a fault."""


class Finding(msgspec.Struct, frozen=True):
    """A finding, which reads as one sentence.

    Args:
        what: the predicate of a sentence, such as ``is no event of v1``.
        where: its subject: ``evt-17``, ``run run-1``, or the path of a file.
    """

    what: str
    where: str
    severity: Severity = "error"

    def __str__(self) -> str:
        return f"{self.severity}: {self.where} {self.what}"


class Findings:
    """Stores the first ``FINDINGS_MAX`` findings; ``unlisted`` counts the others."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.unlisted = 0
        self.errors = 0

    def add(self, where: str, what: str, severity: Severity = "error") -> None:
        self.errors += severity == "error"
        if len(self.kept) < FINDINGS_MAX:
            self.kept.append(Finding(what, where, severity))
        else:
            self.unlisted += 1


Progress = Callable[[int], None]
"""Receives the number of events processed so far."""

PROGRESS_EVENTS: Final = 50_000
"""Number of events between two calls of a progress function."""


def no_progress(_events: int) -> None:
    """A progress function that does nothing."""


def to_json(report: msgspec.Struct) -> str:
    """Return a report as one line of JSON, for programs."""
    return msgspec.json.encode(report).decode()
