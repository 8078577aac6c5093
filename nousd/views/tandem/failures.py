"""Failures of runs, with the codes and texts of Tandem's contract."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType

from nousd.errors import without_category

_CODES: Final = {
    "context_too_large": "CONTEXT_LENGTH_EXCEEDED",
    "provider_error": "PROVIDER_SERVER_ERROR",
    "run_stale": "ENGINE_TIMEOUT",
}
"""code of an ``error`` event without a category, or with an unknown one -> the contract's code."""

_DISPATCH_FAILED: Final = "ENGINE_DISPATCH_FAILED"
"""The contract's code for everything else."""


class Kind(NamedTuple):
    """A failed model call in the contract: the ``category`` of the run and the ``code`` of the error."""

    category: str
    code: str


KINDS: Final = {
    "authentication": Kind("authentication", "AUTHENTICATION_ERROR"),
    "permission_denied": Kind("permission_denied", "AUTHENTICATION_ERROR"),
    "rate_limit": Kind("provider", "RATE_LIMIT_EXCEEDED"),
    "quota": Kind("provider", "RATE_LIMIT_EXCEEDED"),
    "context_length": Kind("validation", "CONTEXT_LENGTH_EXCEEDED"),
    "tool_schema": Kind("validation", "TOOL_SCHEMA_INVALID"),
    "invalid_request": Kind("validation", "PROVIDER_SERVER_ERROR"),
    "not_found": Kind("provider", "PROVIDER_SERVER_ERROR"),
    "content_filter": Kind("provider", "PROVIDER_SERVER_ERROR"),
    "overloaded": Kind("provider", "PROVIDER_SERVER_ERROR"),
    "server_error": Kind("provider", "PROVIDER_SERVER_ERROR"),
    "timeout": Kind("timeout", "ENGINE_TIMEOUT"),
    "unreachable": Kind("provider", _DISPATCH_FAILED),
    "not_configured": Kind("missing_connection", _DISPATCH_FAILED),
    "agent_failed": Kind("runtime", _DISPATCH_FAILED),
}
"""category of a failed model call -> its category and code in the contract."""


_ERRORS: Final = {"error": "error", "interrupted": "the daemon was stopped", "timeout": "timeout"}
"""status of a run -> its error text, if the run has none."""


class Failure(NamedTuple):
    """The failure of a run.

    Args:
        code: the contract's code.
        ended_at: the time of the run's end, RFC 3339 in UTC.
    """

    code: str
    message: str
    ended_at: str

    @property
    def text(self) -> str:
        """The text that takes the place of an answer."""
        return error_text(self.code, self.message)


def run_error(status: str, error: str | UnsetType, category: str | UnsetType = UNSET) -> str | None:
    """Return a failed run's error for people; None if the run did not fail.

    Args:
        category: the category with which the error begins. It is removed, because the contract has names
            of its own for categories.
    """
    if error is UNSET:
        return _ERRORS.get(status)
    return error if category is UNSET else without_category(category, error)


def failure_category(category: str | UnsetType) -> str:
    """Return the contract's category for a run that ended with an error."""
    kind = None if category is UNSET else KINDS.get(category)
    return "runtime" if kind is None else kind.category


def engine_code(code: str | None, category: str | UnsetType = UNSET) -> str:
    """Return the contract's code for the code (None: unknown) and category of an ``error`` event."""
    kind = None if category is UNSET else KINDS.get(category)
    return _CODES.get(code or "", _DISPATCH_FAILED) if kind is None else kind.code


def error_text(code: str, message: str) -> str:
    """Return the text that takes the place of an answer."""
    return f"ENGINE_ERROR: {code}: {message}"
