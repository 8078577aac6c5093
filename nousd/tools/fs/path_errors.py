"""Error texts about paths. Standard library and ``nousd.errors`` only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nousd.errors import ToolError

SHOWN_CHARS_MAX: Final = 200
"""Maximum characters of a path in an error message."""


def format_given(path: str) -> str:
    """Return a path for a message: as given, but printable and of bounded length."""
    text = path.encode("utf-8", "replace").decode().replace("\0", "\\0")
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "..."


@contextmanager
def explain_os_errors(verb: str, path: str) -> Iterator[None]:
    """Turn an OSError into a ToolError ``<verb>_failed: <path as given>: <reason>``."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{verb}_failed: {format_given(path)}: {error.strerror}") from error


def make_outside_error(path: str) -> ToolError:
    """Return the error for a path outside, as given: the model must not learn its target."""
    return ToolError(f"path_outside_workdir: {format_given(path)}")


def make_denied_error(path: str, action: str) -> ToolError:
    """Return the error for a path of the workspace that a rule denies."""
    return ToolError(f"path_denied: {format_given(path)}: {action} it is not allowed")
