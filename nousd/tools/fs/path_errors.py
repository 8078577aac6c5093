"""Error texts about paths. Standard library and ``nousd.errors`` only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nousd.errors import ToolError

SHOWN_CHARS_MAX: Final = 200
"""Characters of a path that an error message repeats."""


def shown(given: str) -> str:
    """Return a path for a message: as it was given, but printable and not endless."""
    text = given.encode("utf-8", "replace").decode().replace("\0", "\\0")
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "..."


@contextmanager
def explain_os_errors(verb: str, given: str) -> Iterator[None]:
    """Turn an operating system's refusal into ``<verb>_failed: <path as given>: <reason>``."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{verb}_failed: {shown(given)}: {error.strerror}") from error


def outside(given: str) -> ToolError:
    """Names the path as it was given: where it leads to is nothing a model should learn."""
    return ToolError(f"path_outside_workdir: {shown(given)}")


def denied(given: str, what: str) -> ToolError:
    """Say that a rule closes a place of the workdir."""
    return ToolError(f"path_denied: {shown(given)}: {what} it is not allowed")
