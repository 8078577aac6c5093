"""Why a run failed, in the contract's words."""

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
"""how a run ended -> what is said where nothing else was."""


class Failure(NamedTuple):
    """What a run failed with.

    Args:
        code: of the contract.
        ended_at: RFC 3339, UTC.
    """

    code: str
    message: str
    ended_at: str

    @property
    def text(self) -> str:
        """What stands in the place of an answer."""
        return error_text(self.code, self.message)


def run_error(status: str, error: str | UnsetType) -> str | None:
    """Returns what a run failed with, for people; None if it did not fail."""
    return _ERRORS.get(status) if error is UNSET else error


def engine_code(code: str | None) -> str:
    """Returns the contract's code for one of ours; None is not known."""
    return _CODES.get(code or "", "ENGINE_DISPATCH_FAILED")


def error_text(code: str, message: str) -> str:
    """Returns what stands in the place of an answer."""
    return f"ENGINE_ERROR: {code}: {message}"
