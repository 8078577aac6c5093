"""Accepts a client's input and acknowledges it exactly once.

The target is looked up, input hooks run and attachments are read; then the target is looked up again,
because the decision must be based on the current state. A repeated client message id gets the first
acknowledgement for as long as the session exists; the hash of the request is stored with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
import trio
from msgspec import UNSET

from nousd.daemon.blobs.attachments import AttachedFiles, read_attachments
from nousd.daemon.clock import Clock
from nousd.daemon.commands.hooked import Warnings, run_input_hooks
from nousd.daemon.commands.run_requests import choice_for
from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.replies import Deferred
from nousd.daemon.services import Services
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import CommandRejected, InvalidPayload
from nousd.wire import commands
from nousd.wire.codec.envelope import encode_json
from nousd.wire.codec.unset import or_unset
from nousd.wire.limits import LONG_TEXT_BYTES_MAX
from nousd.wire.objects.entries import Entry
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.responses import Accepted

HandedIn = commands.Prompt | commands.AppendMessage | commands.Steer | commands.FollowUp

C = TypeVar("C", commands.Prompt, commands.AppendMessage, commands.Steer, commands.FollowUp)

_LONG_TEXTS: Final = trio.CapacityLimiter(2)
"""Maximum long texts that are read at a time; each may have ``LONG_TEXT_BYTES_MAX``."""

_HASHED_AT_ONCE_BYTES: Final = 64 * 1024
"""Inputs up to this size are hashed without a thread."""


class PendingInput(msgspec.Struct, Generic[C], frozen=True):
    """An input to accept: its text, its attachments, and the extensions that changed it.

    Args:
        request_hash: hash of the client's request; "" without a client message id.
        tail: messages appended at the end of the path that it continues, if they were looked up.
    """

    command: C
    attached: AttachedFiles = AttachedFiles()
    changed_by: tuple[str, ...] = ()
    request_hash: str = ""
    tail: Sequence[Entry] = ()


def facts_of(pending: PendingInput[Any], clock: Clock) -> dict[str, Any]:
    """Return the facts that all kinds of input share, under a new id."""
    client_id = pending.command.client_id
    return {
        "input_id": clock.new_id("in"),
        "text": pending.command.text,
        "client_message_id": or_unset(pending.command.client_message_id),
        "client_id": UNSET if client_id is None else client_id,
        "accepted_at": clock.now(),
        "attachments": pending.attached.attachments or UNSET,
        "changed_by": pending.changed_by or UNSET,
        "request_hash": pending.request_hash or UNSET,
    }


class Target(msgspec.Struct, frozen=True):
    """The target of an input: its session, or None for a new one, and an earlier acknowledgement.

    Args:
        tail: see ``PendingInput``.
    """

    live: LiveSession | None
    known: Deferred | Accepted | None = None
    tail: Sequence[Entry] = ()


async def accept_input(
    services: Services,
    command: C,
    find: Callable[[Services, C, str], Awaitable[Target]],
    accept: Callable[[Services, LiveSession | None, PendingInput[C]], Deferred],
) -> Deferred | Accepted:
    """Accept an input, unless it was accepted before or an extension handles it. ``accept`` receives the
    last target that ``find`` returned.
    """
    if command.text_ref is not None:
        command = await _with_whole_text(services, command, command.text_ref)
    request_hash = "" if command.client_message_id is None else await _hash_of(command)
    target = await find(services, command, request_hash)
    if target.known is not None:
        return target.known
    if not command.attachments and not services.hooks.has("input"):
        # The common case: a plain text, and no extension to ask.
        return accept(
            services,
            target.live,
            PendingInput(command, request_hash=request_hash, tail=target.tail),
        )
    hooked = await run_input_hooks(services, target.live, command)
    if hooked.handled is not None:
        return hooked.handled
    attached = await _read_attachments(services, target.live, command)
    # Awaited above: the session may have changed.
    target = await find(services, command, request_hash)
    if target.known is not None:
        return target.known
    pending = PendingInput(hooked.command, attached, hooked.changed_by, request_hash, target.tail)
    return _with_warnings(accept(services, target.live, pending), hooked.warnings)


async def _read_attachments(
    services: Services, live: LiveSession | None, command: HandedIn
) -> AttachedFiles:
    if not command.attachments:
        return AttachedFiles()
    state = services.sessions.without_session() if live is None else live.state
    choice = choice_for(services, state, command)
    workspace = await services.workspaces.of(state)
    return await read_attachments(
        services.run_services, command.attachments, choice, workspace.path_sandbox
    )


def _with_warnings(reply: Deferred, warnings: Warnings) -> Deferred:
    if warnings is UNSET:
        return reply
    assert isinstance(reply.payload, Accepted)
    return Deferred(reply.handle, msgspec.structs.replace(reply.payload, warnings=warnings))


async def require_entry(services: Services, live: LiveSession | None, entry_id: str) -> None:
    """Raise CommandRejected ``leaf_not_found`` unless there is a session and it has that entry."""
    if live is None or await services.store.entry(live.session_id, entry_id) is None:
        raise CommandRejected("leaf_not_found")


# --- acknowledgements ------------------------------------------------------------------------


def remember_acknowledgement(
    live: LiveSession, handle: CommitHandle, queued: QueuedInput
) -> Deferred:
    """Return the acknowledgement of a new input, and remember it in case the input is sent again."""
    reply = Deferred(handle, _acknowledgement(live, queued))
    if isinstance(queued.client_message_id, str):
        live.remember(queued.client_message_id, reply, queued.request_hash or "")
    return reply


async def find_earlier_acknowledgement(
    services: Services, live: LiveSession, command: HandedIn, request_hash: str
) -> Deferred | Accepted | None:
    """Return the first acknowledgement of an input that is sent again, else None.

    The log is read first and memory last. So nothing is awaited between the last lookup and the caller's
    decision, and the same input cannot be accepted a second time.

    Raises:
        CommandRejected: ``client_message_id_reused``.
    """
    if command.client_message_id is None:
        return None
    with live.retain_accepted():
        row = await services.store.input_by_client_id(live.session_id, command.client_message_id)
        known = live.accepted.get(command.client_message_id)
    if known is not None:
        return _repeat_acknowledgement(command, request_hash, known.reply, known.request_hash)
    if row is None:
        return None
    # A follow-up that was promoted later was acknowledged as a follow-up.
    was_promoted = row.input.kind == "steer" and isinstance(command, commands.FollowUp)
    kind = "follow_up" if was_promoted else row.input.kind
    first = _acknowledgement(live, msgspec.structs.replace(row.input, kind=kind))
    return _repeat_acknowledgement(command, request_hash, first, row.input.request_hash or "")


def _repeat_acknowledgement(
    command: HandedIn, request_hash: str, first: Deferred | Accepted, first_hash: str
) -> Deferred | Accepted:
    """Return an acknowledgement marked as repeated; raise if it does not fit the repeated command."""
    accepted = first.payload if isinstance(first, Deferred) else first
    assert isinstance(accepted, Accepted)
    is_append = isinstance(command, commands.AppendMessage)
    is_strict = isinstance(command, commands.Prompt) and command.strict_resend
    # Only an appended message has no run, so its acknowledgement cannot answer another command.
    if is_append is not (accepted.command == "append_message") or (
        is_strict and first_hash and first_hash != request_hash
    ):
        raise CommandRejected("client_message_id_reused")
    repeated = msgspec.structs.replace(accepted, repeated=True)
    return Deferred(first.handle, repeated) if isinstance(first, Deferred) else repeated


def _acknowledgement(live: LiveSession, queued: QueuedInput) -> Accepted:
    is_message = queued.kind == "message"
    return Accepted(
        command="append_message" if is_message else queued.kind,
        run_id=queued.run_id,
        session_id=live.session_id if queued.kind in ("prompt", "message") else UNSET,
        leaf_id=queued.leaf_id,
        input_id=UNSET if is_message else queued.input_id,
        entry_id=queued.entry_id,
    )


async def _hash_of(command: HandedIn) -> str:
    """Return the hash of an input: its text, its attachments and its options."""
    size = len(command.text) + sum(len(each.data or b"") for each in command.attachments)
    if size <= _HASHED_AT_ONCE_BYTES:
        return _hash(command)
    return await trio.to_thread.run_sync(_hash, command)


_OF_RUNS: Final = ("tools", "model", "provider", "sampling", "tool_choice")


def _options_of(command: commands.Prompt) -> dict[str, Any]:
    """Return the run options that are part of a prompt's identity."""
    return {name: value for name in _OF_RUNS if (value := getattr(command, name)) is not None}


def _hash(command: HandedIn) -> str:
    hashed = hashlib.sha256(encode_json([type(command).__name__, command.text]))
    if isinstance(command, commands.Prompt) and (options := _options_of(command)):
        hashed.update(encode_json(options))
    for each in command.attachments:
        data = each.data or b""
        hashed.update(encode_json([msgspec.structs.replace(each, data=None), len(data)]))
        hashed.update(data)
    return f"sha256:{hashed.hexdigest()}"


async def _with_whole_text(services: Services, command: C, text_ref: str) -> C:
    """Return the command with its text replaced by the whole text in the artifact ``text_ref``.

    Raises:
        InvalidPayload: the artifact is too large, is not text, or begins with another text.
        CommandRejected: ``artifact_not_found``.
    """
    async with _LONG_TEXTS:
        text = _decode(await _bytes_of(services, text_ref))
        await services.store.wait_room()
    # The beginning may not be blank; the whole text may start with any number of blanks.
    if not text.lstrip().startswith(command.text.lstrip()):
        raise InvalidPayload("text must be the beginning of what text_ref names")
    return msgspec.structs.replace(command, text=text, text_ref=None)


async def _bytes_of(services: Services, artifact_id: str) -> bytes:
    missing = CommandRejected(
        "artifact_not_found", details={"artifact_id": artifact_id, "field": "text_ref"}
    )
    info = await services.store.renew_artifact(artifact_id, now=services.clock.now())
    if info is None:
        raise missing
    if info.size_bytes > LONG_TEXT_BYTES_MAX:
        raise InvalidPayload(f"text_ref is too large: at most {LONG_TEXT_BYTES_MAX} bytes")
    artifact = await services.store.artifact(artifact_id)
    if artifact is None:  # deleted with its session just now
        raise missing
    return artifact.data


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidPayload("text_ref names no text in UTF-8") from None
