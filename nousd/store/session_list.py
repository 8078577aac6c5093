"""The filter of session lists and its text matching, shared by every store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from unicodedata import normalize

import msgspec

from nousd.machine.session.settings import settings_among

if TYPE_CHECKING:
    from nousd.store.rows import SessionRow


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of a session list; None matches all.

    Args:
        children: whether to include the sessions of tasks.
        parent_id: the session whose branches and tasks to list.
        to_delete: whether a deletion is scheduled.
        text: a part of the name (of the title, if there is no name) or of the workspace, compared by
            ``fold_text``.
        unnamed_workspace: the daemon's workspace, where sessions without a workspace of their own work.
    """

    children: bool = True
    workspace: str | None = None
    source: str | None = None
    archived: bool | None = None
    to_delete: bool | None = None
    parent_id: str | None = None
    text: str | None = None
    unnamed_workspace: str = ""


# ``workspace`` is compared separately, because a session without one uses the daemon's.
EXACT_FILTERS: Final = tuple(name for name in settings_among(SessionFilter) if name != "workspace")
"""The settings that a list can be filtered by. The SQLite store has a column for each."""

EVERY_SESSION: Final = SessionFilter()


class SessionPage(msgspec.Struct, frozen=True):
    """A page of a list; ``count`` is the number of sessions in the whole list."""

    rows: tuple[SessionRow, ...]
    count: int


def fold_text(text: str) -> str:
    """Return a text for comparison: without differences of case or of Unicode composition."""
    if text.isascii():
        return text.lower()
    return normalize("NFD", normalize("NFD", text).casefold())


def is_wanted(row: SessionRow, session_filter: SessionFilter) -> bool:
    """Return whether a session matches the filter."""
    workspace = row.workspace or session_filter.unnamed_workspace
    return (
        (session_filter.children or row.origin is None)
        and session_filter.workspace in (None, workspace)
        and all(
            getattr(session_filter, name) in (None, getattr(row, name)) for name in EXACT_FILTERS
        )
        and session_filter.to_delete in (None, row.delete_at is not None)
        and session_filter.parent_id in (None, row.parent_id, _task_of(row))
        and (
            session_filter.text is None
            or _is_in(session_filter.text, row.name or row.title, workspace)
        )
    )


def _task_of(row: SessionRow) -> str | None:
    return None if row.origin is None else row.origin.session_id


def _is_in(text: str, *places: str | None) -> bool:
    return any(fold_text(text) in fold_text(place) for place in places if place is not None)
