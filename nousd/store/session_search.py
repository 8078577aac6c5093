"""A search through titles and messages: sessions in the order of a list, messages from the newest on.

There is no index of words, because each commit would have to write it. A search reads what it searches,
so it is bounded, by messages and in time. One that comes to its bound says how far it came, also in the
middle of a session, and the next one goes on there.
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
"""Messages that one search reads."""

SEARCHED_CHARS_MAX: Final = 64 * 1024
"""Characters at the beginning of a message that are searched."""

SEARCH_SECONDS: Final = 0.5
"""How long one search takes, and a message more. Other reads have the remaining connections."""

SEARCHED_ROLES: Final = ("user", "assistant")
"""The entries that count as messages."""

_BEFORE_CHARS: Final = 40
_SNIPPET_CHARS: Final = 160


class SearchPlace(msgspec.Struct, frozen=True):
    """How far a search came: through this session, or through its messages down to number ``seq``."""

    session_id: str
    seq: int | None = None


class SearchedMessage(NamedTuple):
    """A message that is searched; ``seq`` is its place in the order of appending."""

    seq: int
    entry_id: str
    role: str
    text: str


class Match(msgspec.Struct, frozen=True):
    """A session with the text; ``message`` is the newest that has it, None if the title does."""

    row: SessionRow
    snippet: str
    message: SearchedMessage | None = None


class SearchPage(msgspec.Struct, frozen=True):
    """The sessions that were found.

    Args:
        place: where to go on; None if everything was searched.
        is_partial: whether the search came to its bound before it had as many as were asked for.
    """

    matches: tuple[Match, ...]
    place: SearchPlace | None = None
    is_partial: bool = False


Messages = Callable[[str, int | None], Iterable[SearchedMessage]]
"""Takes a session's id and a number, None for no bound, and returns its messages before that number,
newest first."""


def search(
    sessions: Iterable[SessionRow],
    messages: Messages,
    text: str,
    *,
    limit: int,
    after: SearchPlace | None,
) -> SearchPage:
    """Search sessions for a text, in any case or accents (``fold_text``).

    Args:
        sessions: from the one on that ``after`` names if it is in the middle of that, else behind it.
        limit: number of sessions to find.
    """
    wanted = fold_text(text)
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
        if below is None and (match := _in_title(row, title, wanted)):
            found.append(match)
        else:
            for message in messages(row.session_id, below):
                if budget.is_spent():
                    place = SearchPlace(row.session_id, message.seq + 1)
                    return SearchPage(tuple(found), place, is_partial=True)
                budget.count()
                if match := _in_message(row, message, wanted):
                    found.append(match)
                    break
        place = SearchPlace(row.session_id)
    return SearchPage(tuple(found))


class _Budget:
    """What is left of the bounds of one search; the first message is always within them."""

    def __init__(self) -> None:
        self._left = SEARCHED_MESSAGES_MAX
        self._deadline = time.monotonic() + SEARCH_SECONDS
        self._has_begun = False

    def count(self) -> None:
        self._left -= 1
        self._has_begun = True

    def is_spent(self) -> bool:
        return self._has_begun and (self._left <= 0 or time.monotonic() >= self._deadline)


def _find_bound(row: SessionRow, after: SearchPlace | None) -> int | None:
    return after.seq if after is not None and after.session_id == row.session_id else None


def _in_title(row: SessionRow, title: str, wanted: str) -> Match | None:
    return Match(row, plain_line(title)) if wanted in fold_text(title) else None


def _in_message(row: SessionRow, message: SearchedMessage, wanted: str) -> Match | None:
    text = message.text[:SEARCHED_CHARS_MAX]
    at = fold_text(text).find(wanted)
    return None if at < 0 else Match(row, _snippet(text, _unfold_position(text, at)), message)


def _unfold_position(text: str, at: int) -> int:
    """Return the position in a text that is at ``at`` in the folded text."""
    if text.isascii():
        return at
    so_far = 0
    for index, char in enumerate(text):
        so_far += len(fold_text(char))
        if so_far > at:
            return index
    return len(text)


def _snippet(text: str, at: int) -> str:
    """Return what surrounds a place in a text, as plain text of one line."""
    start = max(0, at - _BEFORE_CHARS)
    end = start + _SNIPPET_CHARS
    before = "…" if start > 0 else ""
    behind = "…" if end < len(text) else ""
    return f"{before}{plain_line(text[start:end])}{behind}"
