"""The one place where an exception becomes an error that a client receives.

Exceptions that are raised on purpose are ``NousdError``s, worded for their reader. Any other exception
is a bug: it is logged with its traceback, the client receives an error that points to the log, and the
daemon continues. This is the daemon's only broad ``except`` around its own code; calls of third-party
code (extensions, the MCP library) have their own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from nousd.errors import (
    CommandRejected,
    ConfigError,
    InternalError,
    InvalidCursor,
    NousdError,
    ProviderError,
    ProviderFailed,
    RunFailed,
    SessionError,
    StoreError,
    StoreFull,
    StoreInDoubt,
    WireError,
    WriteFailed,
    with_category,
    without_frames,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")


async def run_contained(
    call: Callable[[], Awaitable[T]], name: str | Callable[[], str]
) -> T | NousdError:
    """Return the result of ``call``, or its error; never raise an ``Exception``.

    Args:
        name: the call's name in the log; a function if the name is only known later.
    """
    try:
        return await call()
    except Exception as error:  # noqa: BLE001 - the boundary
        known = _unwrap_known_error(error)
        name = name if isinstance(name, str) else name()
        if known is None:
            _log.exception("a fault of ours in %s", name)
            cause = f"{name} failed; the daemon's log says more"
            return InternalError("internal error", cause=cause)
        level = logging.ERROR if isinstance(known, StoreError) else logging.DEBUG
        _log.log(level, "%s: %s", name, known)
        return without_frames(known)


def _unwrap_known_error(error: Exception) -> NousdError | None:
    """Return the ``NousdError``, unwrapped from exception groups; None for a bug."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, NousdError) else None


def to_wire_error(error: NousdError, *, head: str) -> WireError:
    """Return the error in the form that clients receive.

    Args:
        head: id of the newest event, for the details of ``InvalidCursor``.
    """
    if isinstance(error, InvalidCursor):
        return InvalidCursor(error.message, details={"head": head})
    if isinstance(error, WireError):
        return error
    if isinstance(error, StoreError):
        return _session_error(error)
    if isinstance(error, ProviderError | ConfigError):
        return ProviderFailed(
            "provider request failed", cause=with_category(_category(error), str(error))
        )
    return InternalError("internal error", cause=str(error))


def _category(error: ProviderError | ConfigError) -> str | None:
    return error.category if isinstance(error, ProviderError) else "not_configured"


def _session_error(error: StoreError) -> SessionError:
    for kind, reason, message in _DISK_TROUBLE:
        if isinstance(error, kind):
            return SessionError(message, cause=str(error), details={"reason": reason})
    return SessionError("the log could not be read or written", cause=str(error))


_DISK_TROUBLE: Final = (
    (StoreFull, "disk_full", "the disk is full: nothing was accepted"),
    (WriteFailed, "disk_error", "the log could not be written: nothing was accepted"),
    (
        StoreInDoubt,
        "outcome_unknown",
        "it is not known whether this was accepted: send it again with the same client_message_id",
    ),
)
"""The errors for a failed commit: type, ``details.reason`` and message; the first match counts."""


def to_run_failure(error: NousdError) -> RunFailed:
    """Return the error in the form of a run's ``error`` event."""
    if isinstance(error, RunFailed):
        return error
    if isinstance(error, CommandRejected):
        return RunFailed(error.message, "the run cannot go on", error.cause or "")
    if isinstance(error, ConfigError):
        return RunFailed(
            "provider_error",
            "the provider cannot be used",
            str(error),
            category=_category(error),
        )
    return RunFailed("internal_error", "internal error", str(error))
