"""Calls functions of extensions, so that a fault of one is an error of that call only.

A blocking function runs in a thread, with a time limit. After the limit the caller stops waiting, but
the thread cannot be stopped and occupies one of its extension's slots until it ends. So a function that
hangs repeatedly exhausts only the slots of its own extension.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable
from typing import Any, Final

import trio

from nousd.errors import ExtensionError, ExtensionTimedOut, NousdError

TIMEOUT_SECONDS: Final = 30.0
"""Default time limit of a function."""

TIMEOUT_SECONDS_MAX: Final = 3600.0
"""Maximum time limit of a function."""

THREADS_MAX: Final = 8
"""Blocking functions of one extension that run at the same time; further calls wait, within their
limit."""

MESSAGE_CHARS_MAX: Final = 2000
"""Maximum characters of an error message that are passed on."""

Handler = Callable[..., Any]
"""Plain or async; a plain one runs in a thread."""

Redact = Callable[[str], str]
"""Returns a text with the daemon's secrets redacted."""


class Caller:
    """Calls the functions of one extension.

    Args:
        redact: removes the daemon's secrets from error messages.
    """

    def __init__(self, redact: Redact) -> None:
        self._redact = redact
        self._threads = trio.CapacityLimiter(THREADS_MAX)

    async def call(self, handler: Handler, *args: object, timeout_seconds: float) -> Any:
        """Call a function and return its result.

        Raises:
            ExtensionTimedOut: it did not return in time.
            ExtensionError: it raised anything.
        """
        function = _Function(handler)
        with trio.move_on_after(timeout_seconds) as limit:
            try:
                result = await function.result(args, self._threads)
            # A broad except, because an extension can raise anything, even asyncio's CancelledError.
            # Even a KeyboardInterrupt is not the user's: the daemon receives SIGINT as a message.
            except BaseException as error:
                if trio.current_effective_deadline() == -math.inf:
                    _reraise_cancellation(error)
                raise ExtensionError(describe_error(error, self._redact)) from error
            # A function that swallows the cancellation has timed out nevertheless.
            if not limit.cancel_called:
                return result
        raise ExtensionTimedOut(function.describe_timeout(timeout_seconds))


def _reraise_cancellation(error: BaseException) -> None:
    """Re-raise a cancellation, without the errors that tasks of the function raised during it."""
    if isinstance(error, trio.Cancelled):
        raise error
    if isinstance(error, BaseExceptionGroup) and (cancelled := error.subgroup(trio.Cancelled)):
        raise cancelled


class _Function:
    """One call of a function, and its progress."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._is_async = _is_async(handler)
        self._has_thread = False

    async def result(self, args: tuple[object, ...], threads: trio.CapacityLimiter) -> Any:
        if self._is_async:
            return await self._handler(*args)
        # Set before the thread runs: on a busy machine the thread may begin after the deadline, and the
        # call would then be reported as one that found no free thread.
        self._has_thread = threads.available_tokens > 0
        return await trio.to_thread.run_sync(
            self._in_thread, args, abandon_on_cancel=True, limiter=threads
        )

    def _in_thread(self, args: tuple[object, ...]) -> Any:
        self._has_thread = True
        return self._handler(*args)

    def describe_timeout(self, seconds: float) -> str:
        """Return the error text for a call that did not return in time."""
        if self._is_async:
            return f"did not return within {seconds:g} seconds"
        if not self._has_thread:
            return (
                f"found no free thread within {seconds:g} seconds: all {THREADS_MAX} of the extension "
                "are held by functions that have not returned"
            )
        return (
            f"did not return within {seconds:g} seconds; it was abandoned, and its thread keeps one of "
            f"the extension's {THREADS_MAX} places until it ends"
        )


def _is_async(handler: Handler) -> bool:
    # The object may be callable with an async __call__.
    own_call = getattr(handler, "__call__", None)  # noqa: B004 - the method itself is wanted
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(own_call)


def describe_error(error: BaseException, redact: Redact = lambda text: text) -> str:
    """Describe an exception on one line, even if its text cannot be made.

    Args:
        redact: called before the text is cut, because a part of a secret would not be recognised.
    """
    if isinstance(error, NousdError):
        text = str(error)
    else:
        text = traceback.format_exception_only(error)[-1]
    return " ".join(redact(text).split())[:MESSAGE_CHARS_MAX]
