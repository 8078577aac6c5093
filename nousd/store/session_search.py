"""Searches the titles and messages of sessions: sessions in list order, messages from the newest on.

There is no word index, because each commit would have to update it. A search reads everything that it
searches, so it is bounded in messages and in time. A search that reaches its bound returns its position,
even in the middle of a session, and the next search continues there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from nousd.store.rows import SessionRow
from nousd.store.session_list import fold_text
from nousd.wire.codec.plain_text import plain_line

SEARCHED_MESSAGES_MAX: Final = 20_000
"""Maximum number of messages that one search reads."""

SEARCHED_CHARS_MAX: Final = 64 * 1024
"""Maximum number of characters searched, from the beginning of each message."""

SEARCH_SECONDS: Final = 0.5
"""Time limit of one search, which it exceeds by at most one message. Other reads use the remaining
connections."""

SEARCHED_ROLES: Final = ("user", "assistant")
"""The roles of entries that are searched as messages."""

_BEFORE_CHARS: Final = 40
_SNIPPET_CHARS: Final = 160


class SearchPlace(msgspec.Struct, frozen=True):
    """Where a search continues: after this session, or in its messages with numbers below ``seq``."""

    session_id: str
    seq: int | None = None


class SearchedMessage(NamedTuple):
    """A message to search; ``seq`` is its position in the order of appending."""

    seq: int
    entry_id: str
    role: str
    text: str


class Match(msgspec.Struct, frozen=True):
    """A matching session; ``message`` is its newest matching message, or None if its title matches."""

    row: SessionRow
    snippet: str
    message: SearchedMessage | None = None


class SearchPage(msgspec.Struct, frozen=True):
    """The sessions found by one search.

    Args:
        place: where to continue; None if everything was searched.
        is_partial: whether the search reached its bound before it found ``limit`` sessions.
    """

    matches: tuple[Match, ...]
    place: SearchPlace | None = None
    is_partial: bool = False


Messages = Callable[[str, int | None], Iterable[SearchedMessage]]
"""Takes a session's id and a bound, or None; returns its messages with numbers below the bound, newest
first."""


def search(
    sessions: Iterable[SessionRow],
    messages: Messages,
    text: str,
    *,
    limit: int,
    after: SearchPlace | None,
) -> SearchPage:
    """Search sessions for a text, compared by ``fold_text``.

    Args:
        sessions: in list order, from the session of ``after`` on if that is a position inside the
            session, else from the next one on.
        limit: number of sessions to find.
    """
    folded_text = fold_text(text)
    budget = _Budget()
    found: list[Match] = []
    place = after
    for row in sessions:
        if len(found) == limit:
            return SearchPage(tuple(found), place)
        if budget.is_spent():
            return SearchPage(tuple(found), place, is_partial=True)
        below = _find_bound(row, after)
        title = row.name or row.title or ""
        if below is None and (match := _in_title(row, title, folded_text)):
            found.append(match)
        else:
            for message in messages(row.session_id, below):
                if budget.is_spent():
                    place = SearchPlace(row.session_id, message.seq + 1)
                    return SearchPage(tuple(found), place, is_partial=True)
                budget.count()
                if match := _in_message(row, message, folded_text):
                    found.append(match)
                    break
        place = SearchPlace(row.session_id)
    return SearchPage(tuple(found))


class _Budget:
    """The remaining budget of one search; the first message is always within it."""

    def __init__(self) -> None:
        self._messages_left = SEARCHED_MESSAGES_MAX
        self._deadline = time.monotonic() + SEARCH_SECONDS
        self._has_begun = False

    def count(self) -> None:
        self._messages_left -= 1
        self._has_begun = True

    def is_spent(self) -> bool:
        return self._has_begun and (self._messages_left <= 0 or time.monotonic() >= self._deadline)


def _find_bound(row: SessionRow, after: SearchPlace | None) -> int | None:
    return after.seq if after is not None and after.session_id == row.session_id else None


def _in_title(row: SessionRow, title: str, folded_text: str) -> Match | None:
    return Match(row, plain_line(title)) if folded_text in fold_text(title) else None


def _in_message(row: SessionRow, message: SearchedMessage, folded_text: str) -> Match | None:
    text = message.text[:SEARCHED_CHARS_MAX]
    at = fold_text(text).find(folded_text)
    return None if at < 0 else Match(row, _snippet(text, _unfold_position(text, at)), message)


def _unfold_position(text: str, at: int) -> int:
    """Return the position in a text that corresponds to position ``at`` in the folded text."""
    if text.isascii():
        return at
    so_far = 0
    for index, char in enumerate(text):
        so_far += len(fold_text(char))
        if so_far > at:
            return index
    return len(text)


def _snippet(text: str, at: int) -> str:
    """Return the text around a position, as one line of plain text."""
    start = max(0, at - _BEFORE_CHARS)
    end = start + _SNIPPET_CHARS
    prefix = "…" if start > 0 else ""
    suffix = "…" if end < len(text) else ""
    return f"{prefix}{plain_line(text[start:end])}{suffix}"
