"""Reading as much of a transcript as is needed, from the leaf backwards, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nousd.machine import transcript
from nousd.store.interface import Store
from nousd.wire.entries import CompactionEntry, Entry, parent_of

_FIRST_PAGE_ENTRIES: Final = 32
"""Doubled with each further page, so that what is read is little more than what is needed."""

_PAGE_BYTES: Final = 4 * 1024 * 1024


async def load_context(
    store: Store, session_id: str, leaf_id: str | None, *, tokens_max: int
) -> list[Entry]:
    """Returns what counts of the path that ends with ``leaf_id``, oldest first.

    Reading stops where a compaction makes the rest superfluous, or past ``tokens_max``: what lies
    behind that could not be sent to a model anyway.
    """
    path: list[Entry] = []
    tokens = 0
    cursor = leaf_id
    limit = _FIRST_PAGE_ENTRIES
    while cursor is not None:
        page = await store.path(session_id, cursor, limit=limit, bytes_max=_PAGE_BYTES)
        path[:0] = page.entries
        tokens += transcript.estimate_tokens(page.entries)
        if not page.has_more or _reaches_kept_entry(path) or tokens > tokens_max:
            break
        cursor = parent_of(page.entries[0])
        limit *= 2
    return transcript.in_context(path)


def _reaches_kept_entry(path: Sequence[Entry]) -> bool:
    for entry in reversed(path):
        if isinstance(entry, CompactionEntry):
            return any(kept.id == entry.first_kept_entry_id for kept in path)
    return False
