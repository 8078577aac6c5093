"""A whole transcript, read page by page."""

from __future__ import annotations

from typing import Final

from nousd.client.client import Client
from nousd.views.tandem.messages import Message, messages
from nousd.wire.commands import GetMessages
from nousd.wire.entries import Entry

ENTRIES_MAX: Final = 10_000
"""Entries of one transcript that are told; of a longer one the newest."""


async def transcript(daemon: Client, session_id: str) -> list[Message]:
    """Returns the messages from the root to the leaf of a session.

    Raises:
        Refused: there is no such session.
    """
    entries: tuple[Entry, ...] = ()
    before: str | None = None
    while len(entries) < ENTRIES_MAX:
        page = await daemon.ask(GetMessages(session_id=session_id, before=before))
        entries = (*page.messages, *entries)
        if not page.has_more or not page.messages:
            break
        before = page.messages[0].id
    return messages(session_id, entries)
