"""Which sessions a list has, and how a text is found in them: the same for every store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from unicodedata import normalize

import msgspec

from nousd.machine.session.settings import settings_among

if TYPE_CHECKING:
    from nousd.store.rows import SessionRow


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions are wanted; None does not matter.

    Args:
        children: also those that calls of ``task`` made.
        parent_id: what they are a branch of, or of which a call of ``task`` made them.
        text: stands in the name or the workspace, however it is written (``folded``).
        unnamed_workspace: where sessions work that name no workspace.
    """

    children: bool = True
    workspace: str | None = None
    source: str | None = None
    archived: bool | None = None
    parent_id: str | None = None
    text: str | None = None
    unnamed_workspace: str = ""


# The workspace of a session that names none is the daemon's, so it is compared apart.
EXACT_FILTERS: Final = tuple(name for name in settings_among(SessionFilter) if name != "workspace")
"""The settings of which a list can be asked for one value. The SQLite store has a column for each."""

EVERY_SESSION: Final = SessionFilter()


class SessionPage(msgspec.Struct, frozen=True):
    """A part of a list; ``count`` is how many sessions all of it has."""

    rows: tuple[SessionRow, ...]
    count: int


def folded(text: str) -> str:
    """Return a text so that two which differ in case, or in how accents are written, are the same."""
    return normalize("NFD", normalize("NFD", text).casefold())


def is_wanted(row: SessionRow, wanted: SessionFilter) -> bool:
    """Whether a list has a session."""
    workspace = row.workspace or wanted.unnamed_workspace
    return (
        (wanted.children or row.origin is None)
        and wanted.workspace in (None, workspace)
        and all(getattr(wanted, name) in (None, getattr(row, name)) for name in EXACT_FILTERS)
        and wanted.parent_id in (None, row.parent_id, _task_of(row))
        and (wanted.text is None or _is_in(wanted.text, row.name, workspace))
    )


def _task_of(row: SessionRow) -> str | None:
    return None if row.origin is None else row.origin.session_id


def _is_in(text: str, *places: str | None) -> bool:
    return any(folded(text) in folded(place) for place in places if place is not None)
