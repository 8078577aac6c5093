"""Failures of runs, in the codes and texts of Tandem's contract."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType

_CODES: Final = {
    "context_too_large": "CONTEXT_LENGTH_EXCEEDED",
    "provider_error": "PROVIDER_SERVER_ERROR",
    "run_stale": "ENGINE_TIMEOUT",
}
"""code of an ``error`` event -> the contract's; any other is ENGINE_DISPATCH_FAILED."""


_ERRORS: Final = {"error": "error", "interrupted": "the daemon was stopped", "timeout": "timeout"}
"""status of a run -> its error text where the run has none."""


class Failure(NamedTuple):
    """The failure of a run.

    Args:
        code: the contract's code.
        ended_at: RFC 3339, UTC.
    """

    code: str
    message: str
    ended_at: str

    @property
    def text(self) -> str:
        """The text that takes the place of an answer."""
        return error_text(self.code, self.message)


def run_error(status: str, error: str | UnsetType) -> str | None:
    """Return a failed run's error for people; None if it did not fail."""
    return _ERRORS.get(status) if error is UNSET else error


def engine_code(code: str | None) -> str:
    """Return the contract's code for one of ours, or for an unknown one (None)."""
    return _CODES.get(code or "", "ENGINE_DISPATCH_FAILED")


def error_text(code: str, message: str) -> str:
    """Return the text that takes the place of an answer."""
    return f"ENGINE_ERROR: {code}: {message}"
