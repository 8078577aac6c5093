"""Commands that edit, move or remove one pending input.

``nousd.machine.session.queue_edits`` defines their effect on the queue.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from nousd.daemon.commands.accepting import PendingInput, Target, accept_input
from nousd.daemon.commands.inputs import reply_with_removed
from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import CommandRejected
from nousd.machine.session import queue_edits
from nousd.wire import commands
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.responses import Accepted

Change = commands.EditQueued | commands.MoveQueued | commands.RemoveQueued

_SENT_AS: Final[dict[str, Any]] = {
    "prompt": commands.Prompt,
    "steer": commands.Steer,
    "follow_up": commands.FollowUp,
}
"""kind of an input -> the command that sends one."""


async def edit_queued(services: Services, command: commands.EditQueued) -> Reply:
    """Replace the text of a pending input, and its attachments if any are given. The new text is
    accepted like a sent one: input hooks run and attachments are read.
    """
    live, queued = await _require_pending(services, command)
    services.workspaces.require_allowed(live.state)
    # Another session may become the active one meanwhile.
    command = msgspec.structs.replace(command, session_id=live.session_id)

    async def find(services: Services, _sent: Any, _hash: str) -> Target:
        live, _ = await _require_pending(services, command)
        return Target(live)

    def accept(_: Services, live: LiveSession | None, pending: PendingInput[Any]) -> Deferred:
        assert live is not None
        return _edit(live, command, pending)

    edit = _SENT_AS[queued.kind](
        text=command.text,
        text_ref=command.text_ref,
        attachments=command.attachments or (),
        session_id=command.session_id,
        client_id=command.client_id,
    )
    reply = await accept_input(services, edit, find, accept)
    # If an extension handles the text, the response is that of a sent input; the queue is unchanged.
    assert isinstance(reply, Deferred)
    assert isinstance(reply.payload, Accepted)
    answer = msgspec.structs.replace(reply.payload, command="edit_queued", run_id=UNSET)
    return Deferred(reply.handle, answer)


def _edit(live: LiveSession, command: commands.EditQueued, pending: PendingInput[Any]) -> Deferred:
    queued = queue_edits.require_waiting(live.state, command.input_id, command.queue_revision)
    edited = msgspec.structs.replace(
        queued,
        text=pending.command.text,
        text_ref=UNSET,
        text_bytes=UNSET,
        changed_by=pending.changed_by or UNSET,
        # An entry that was appended before has the old text.
        entry_id=UNSET,
    )
    if command.attachments is not None:
        edited = msgspec.structs.replace(edited, attachments=pending.attached.attachments or UNSET)
    decided = queue_edits.edit_queued(live.state, edited, client_id=command.client_id)
    handle = live.decide((decided,), artifacts=pending.attached.artifacts)
    return Deferred(handle, _answer("edit_queued", live, command))


async def move_queued(services: Services, command: commands.MoveQueued) -> Reply:
    """Move a pending input in front of another of its kind, or behind all of them."""
    live, _ = await _require_pending(services, command)
    decided = queue_edits.move_queued(
        live.state, command.input_id, command.before_input_id, client_id=command.client_id
    )
    return Deferred(live.decide((decided,)), _answer("move_queued", live, command))


async def remove_queued(services: Services, command: commands.RemoveQueued) -> Reply:
    """Remove one pending input and return it."""
    live, _ = await _require_pending(services, command)
    decided, removed = queue_edits.remove_queued(
        live.state, command.input_id, client_id=command.client_id
    )
    handle = live.decide(decided)
    return await reply_with_removed(
        services, handle, _answer("remove_queued", live, command), removed
    )


def _answer(name: str, live: LiveSession, command: Change) -> Accepted:
    return Accepted(
        command=name,
        session_id=live.session_id,
        input_id=command.input_id,
        queue_revision=live.state.queue_revision,
    )


async def _require_pending(services: Services, command: Change) -> tuple[LiveSession, QueuedInput]:
    """Return a pending input that can still be changed, and its session. Nothing is awaited after the
    lookup.

    Raises:
        CommandRejected: ``input_not_found``, ``input_delivered``, ``queue_changed``.
    """
    live = await services.sessions.require(command.session_id)
    try:
        queued = queue_edits.require_waiting(live.state, command.input_id, command.queue_revision)
    except CommandRejected as refusal:
        if refusal.message == "input_not_found" and await _was_delivered(services, live, command):
            raise queue_edits.build_delivered_error() from None
        raise
    return live, queued


async def _was_delivered(services: Services, live: LiveSession, command: Change) -> bool:
    # The turn that consumed it may not be committed yet.
    await services.store.flush()
    row = await services.store.input(live.session_id, command.input_id)
    return row is not None and row.state == "consumed" and row.input.kind != "message"
