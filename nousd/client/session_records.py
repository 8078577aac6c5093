"""Reading a session and its entries page by page."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from nousd.client.blocking import Connection
from nousd.wire.codec.envelope import encode_json
from nousd.wire.commands import GetMessages, GetSession
from nousd.wire.limits import PAGE_ROWS_MAX
from nousd.wire.objects.entries import Entry
from nousd.wire.responses.sessions import SessionRecord


def records(
    daemon: Connection, session_id: str | None = None, leaf_id: str | None = None
) -> Iterator[SessionRecord | Entry]:
    """Yield a session and then its entries, page by page, the oldest first.

    Args:
        session_id: the session; None for the active one.
        leaf_id: the last entry of the path to show; None for the session's leaf.

    Raises:
        Refused: the session or the leaf does not exist, or was deleted meanwhile.
    """
    page = daemon.ask(GetMessages(session_id=session_id, leaf_id=leaf_id, limit=PAGE_ROWS_MAX))
    if not page.session_id:
        return
    yield daemon.ask(GetSession(session_id=page.session_id)).session
    # On the way back to the first page, keep only the requests of the pages, not their entries. They
    # name the leaf, because the session may grow meanwhile.
    later: list[GetMessages] = []
    end = page.leaf_id or None
    while page.before is not UNSET:
        command = GetMessages(
            session_id=page.session_id, leaf_id=end, before=page.before, limit=PAGE_ROWS_MAX
        )
        later.append(command)
        page = daemon.ask(command)
    yield from page.messages
    for command in reversed(later[:-1]):
        yield from daemon.ask(command).messages
    if later:
        newest = GetMessages(session_id=page.session_id, leaf_id=end, limit=PAGE_ROWS_MAX)
        yield from daemon.ask(newest).messages


def json_lines(
    daemon: Connection, session_id: str | None = None, leaf_id: str | None = None
) -> Iterator[str]:
    """Yield a session and its entries as lines of JSON; see ``records``."""
    return (f"{encode_json(each).decode()}\n" for each in records(daemon, session_id, leaf_id))
