"""Messages that the user appends without a run: when and where they enter the tree.

During a run they wait in the session's queue, each with the id of its future entry. They enter the tree
before the run's next turn, or at its end, however it ends. So an accepted message is durable at once,
and no run finds a foreign entry between its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.machine.session import queue
from nousd.machine.session import state as session
from nousd.machine.session.queue_updates import (
    build_accepted_update,
    build_accepted_update_unchecked,
    build_removal_updates,
)
from nousd.machine.session.state import SessionState
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.objects.entries import Attachment, Entry, MessageEntry
from nousd.wire.objects.inputs import QueuedInput

Events = tuple[events.Event, ...]

NO_RUN: Final = ""
"""The ``run_id`` in the entry of an appended message; clients of v1 rely on the key."""


def append_message(
    state: SessionState, message: QueuedInput, *, title: str | None = None
) -> Events:
    """Append a message of the user: directly after the leaf, or, during a run, before its next turn.

    The entries of a run must be consecutive, and a result must follow its call; nothing may come between
    them.

    Args:
        title: a title for the session, which is set if the message is appended directly.
    """
    if state.run is not None:
        return (build_accepted_update(state, message, run_id=state.run.run_id),)
    waits = build_accepted_update_unchecked(state, message)
    entered = (waits, *append_waiting(session.apply(state, waits, ""), run_id=None))
    if title is None:
        return entered
    return (events.SessionUpdated(session_id=state.session_id, title=title), *entered)


def copy_waiting_to_branch(
    branch: SessionState, parent: SessionState, new_id: Callable[[], str]
) -> Events:
    """Return the events that give a new branch the messages that are still waiting in its parent.

    The branch gets its own entries for them, because the position of the parent's is not known yet.
    """
    waiting = tuple(
        msgspec.structs.replace(message, entry_id=new_id())
        for message in queue.list_messages(parent.queue)
    )
    return _entries(waiting, branch.session_id, branch.leaf_id, UNSET)


def append_waiting(
    state: SessionState, *, run_id: str | None, leaf_id: str | None = None
) -> Events:
    """Return the events that put waiting messages into the tree.

    Args:
        leaf_id: their parent, if the state does not contain it yet.
    """
    waiting = queue.list_messages(state.queue)
    entries = _entries(waiting, state.session_id, leaf_id or state.leaf_id, or_unset(run_id))
    return (*build_removal_updates(state, "consumed", waiting, run_id), *entries)


def _entries(
    waiting: queue.Inputs, session_id: str, leaf_id: str | None, run_id: str | UnsetType
) -> Events:
    entries: list[events.Event] = []
    for message in waiting:
        entry = build_appended_entry(message, leaf_id)
        entries.append(events.EntryAppended(session_id=session_id, run_id=run_id, entry=entry))
        leaf_id = entry.id
    return tuple(entries)


def build_appended_entry(message: QueuedInput, parent_id: str | None) -> MessageEntry:
    """Return the entry of an appended message, after its parent."""
    assert message.entry_id is not UNSET
    assert message.accepted_at is not UNSET
    return MessageEntry(
        id=message.entry_id,
        parent_id=or_unset(parent_id),
        role="user",
        run_id=NO_RUN,
        turn_kind="prompt",
        text=message.text,
        text_ref=message.text_ref,
        text_bytes=message.text_bytes,
        created_at=message.accepted_at,
        client_message_id=message.client_message_id,
        client_id=message.client_id,
        attachments=message.attachments,
    )


def leaf_after(decided: Sequence[events.Event], leaf_id: str | None) -> str | None:
    """Return the leaf after the events are applied."""
    for event in reversed(decided):
        if isinstance(event, events.EntryAppended):
            return event.entry.id
    return leaf_id


def reusable(
    path: Sequence[Entry], text: str, attachments: Sequence[Attachment]
) -> MessageEntry | None:
    """Return the entry at the end of a path that already contains a text: the last matching one among
    the appended messages there that no model has answered.

    Args:
        path: with whole texts, the leaf last.
        attachments: the attachments of the text; if there are any, the entry must have the same ones.
    """
    for entry in reversed(path):
        if not is_appended(entry):
            return None
        assert isinstance(entry, MessageEntry)
        if entry.text == text and (not attachments or (entry.attachments or ()) == attachments):
            return entry
    return None


def is_appended(entry: Entry) -> bool:
    """Return whether an entry is a message that was appended without a run."""
    return isinstance(entry, MessageEntry) and entry.role == "user" and entry.run_id == NO_RUN
