"""Runs the input hooks of extensions, before an input is accepted.

An input belongs to no run before it is accepted. So failed hooks are reported in the response and in the
daemon's diagnostic log, not as warnings of a run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from nousd.daemon.replies import Deferred
from nousd.daemon.services import Services
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import CommandRejected, ShuttingDown
from nousd.extensions.hook_chain import Failure, InputOutcome, SwitchOutcome
from nousd.extensions.hooks import InputGiven, SessionForking, SessionSwitching
from nousd.machine.context.text_offload import beginning
from nousd.wire import commands, events
from nousd.wire.codec.envelope import scrub
from nousd.wire.codec.unset import or_unset
from nousd.wire.objects.remarks import InputKind, Remark
from nousd.wire.responses import Accepted

_log: Final = logging.getLogger(__name__)

C = TypeVar("C", commands.Prompt, commands.AppendMessage, commands.Steer, commands.FollowUp)
Warnings = tuple[Remark, ...] | UnsetType


class AskedInput(NamedTuple, Generic[C]):
    """An input after all hooks: its final text, and the extensions that changed it.

    Args:
        handled: the response, if an extension handled the input.
    """

    command: C
    changed_by: tuple[str, ...] = ()
    warnings: Warnings = UNSET
    handled: Deferred | Accepted | None = None


async def run_input_hooks(
    services: Services, live: LiveSession | None, command: C
) -> AskedInput[C]:
    """Run the input hooks of extensions, once for each input.

    Raises:
        ShuttingDown: the daemon began to stop meanwhile.
    """
    if not services.hooks.has("input"):
        return AskedInput(command)
    key = _key(live, command)
    if (earlier := _find_response(services, key)) is not None:
        return AskedInput(command, handled=earlier)
    outcome = await services.hooks.input(_build_hook_input(live, command))
    if services.stopping.is_set():
        raise ShuttingDown("the daemon is stopping")
    if not outcome.handled_by:
        changed = msgspec.structs.replace(command, text=outcome.text)
        return AskedInput(changed, outcome.changed_by, _report_failures(outcome.failures))
    # A client that does not wait for responses may have sent it twice: the first response counts.
    if (earlier := _find_response(services, key)) is not None:
        return AskedInput(command, handled=earlier)
    response = _record_handled(services, live, command, outcome)
    if key is not None:
        services.handled.remember(key, response)
    return AskedInput(command, handled=response)


def _key(live: LiveSession | None, command: C) -> tuple[str, str] | None:
    """Return the idempotency key of an input; None if the client gave none."""
    if command.client_message_id is None:
        return None
    return "" if live is None else live.session_id, command.client_message_id


def _find_response(services: Services, key: tuple[str, str] | None) -> Deferred | None:
    """Return the response to an input that an extension handled before, marked as repeated."""
    earlier = None if key is None else services.handled.get(key)
    if earlier is None:
        return None
    assert isinstance(earlier.payload, Accepted)
    return Deferred(earlier.handle, msgspec.structs.replace(earlier.payload, repeated=True))


def _build_hook_input(live: LiveSession | None, command: C) -> InputGiven:
    run = None if live is None else live.state.run
    return InputGiven(
        session_id="" if live is None else live.session_id,
        run_id="" if run is None else run.run_id,
        kind=_KINDS[type(command)],
        text=command.text,
        attachments=len(command.attachments),
    )


_KINDS: Final[dict[type, InputKind]] = {
    commands.Prompt: "prompt",
    commands.AppendMessage: "message",
    commands.Steer: "steer",
    commands.FollowUp: "follow_up",
}


def _record_handled(
    services: Services, live: LiveSession | None, command: C, outcome: InputOutcome
) -> Deferred:
    """Record that an extension handled an input, and return the response."""
    session_id = "" if live is None else live.session_id
    kind = _KINDS[type(command)]
    reply = scrub(outcome.reply)
    event = events.InputHandled(
        session_id=session_id,
        kind=kind,
        text=outcome.text,
        extension=outcome.handled_by,
        reply=beginning(reply),
        changed_by=outcome.changed_by or UNSET,
        client_message_id=or_unset(command.client_message_id),
        client_id=or_unset(command.client_id),
    )
    answer = Accepted(
        command="append_message" if kind == "message" else kind,
        # Clients of v1 may rely on both keys in the answer to a prompt.
        run_id="" if kind == "prompt" else UNSET,
        session_id=session_id,
        handled_by=outcome.handled_by,
        reply=reply,
        warnings=_report_failures(outcome.failures),
    )
    return Deferred(services.sessions.note(live, event), answer)


async def ask_switch(services: Services, to: LiveSession | None) -> Warnings:
    """Ask extensions whether a session may become the active one.

    Args:
        to: the session; None for a new one.

    Raises:
        CommandRejected: ``cancelled_by_extension``.
        ShuttingDown: the daemon began to stop meanwhile.
    """
    event = SessionSwitching(
        session_id=services.sessions.active_id or "",
        to_session_id="" if to is None else to.session_id,
    )
    return _require_consent(services, await services.hooks.may("session_before_switch", event))


async def ask_fork(services: Services, parent: LiveSession) -> Warnings:
    """Ask extensions whether a session may be branched. Raise as ``ask_switch`` does."""
    event = SessionForking(session_id=parent.session_id, leaf_id=parent.state.leaf_id or "")
    return _require_consent(services, await services.hooks.may("session_before_fork", event))


def _require_consent(services: Services, outcome: SwitchOutcome) -> Warnings:
    warnings = _report_failures(outcome.failures)
    if outcome.cancelled is not None:
        extension, reason = outcome.cancelled
        raise CommandRejected("cancelled_by_extension", cause=f"{extension}: {reason}")
    if services.stopping.is_set():
        raise ShuttingDown("the daemon is stopping")
    return warnings


def _report_failures(failures: Iterable[Failure]) -> Warnings:
    """Log failed hooks, and return them as warnings for the response."""
    warnings = tuple(
        Remark(code=failure.code, message=beginning(failure.message)) for failure in failures
    )
    for warning in warnings:
        _log.warning("%s: %s", warning.code, warning.message)
    return warnings or UNSET
