"""Commands that hand in, look at or take back inputs: prompt, steer, follow_up, abort, queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec
import trio
from msgspec import UNSET

from nousd.daemon.attachments import Attached, attached
from nousd.daemon.commands.hooked import asked_input
from nousd.daemon.core import Core, Deferred, Reply
from nousd.daemon.history import whole_inputs
from nousd.daemon.live_session import LiveSession
from nousd.daemon.log import Ticket
from nousd.daemon.results import run_result
from nousd.errors import CommandRejected, CommandTimedOut, ProviderFailed, SessionError
from nousd.machine import decisions, long_texts, queue
from nousd.wire import commands
from nousd.wire.entries import Entry
from nousd.wire.optional import or_unset
from nousd.wire.responses import Accepted, Queue, QueuedInput, Result
from nousd.wire.subscribe import cursor


async def prompt(core: Core, command: commands.Prompt) -> Reply:
    """Starts a run; creates the first session if none is active."""
    reply = await _accepted(core, command, _place_of_prompt, _start)
    return await _result_of(core, reply) if command.wait else reply


async def _place_of_prompt(core: Core, command: commands.Prompt) -> Place:
    live = await core.sessions.target(command.session_id)
    if command.leaf_id is not None:
        await require_entry(core, live, command.leaf_id)
    if live is None:
        return Place(None, None)
    workspace = await core.workspaces.looked_up(live.state)
    known = await _repeated(core, live, command)
    if known is None and isinstance(workspace, CommandRejected):
        raise workspace
    return Place(live, known)


def _start(core: Core, live: LiveSession | None, given: Given[commands.Prompt]) -> Deferred:
    command, brought = given.command, given.brought
    if live is None:
        live, _ = core.sessions.create()
    run_id = core.clock.new_id("run")
    leaf_id = live.state.leaf_id if command.leaf_id is None else command.leaf_id
    queued = QueuedInput(
        input_id=core.clock.new_id("in"),
        kind="prompt",
        text=command.text,
        run_id=run_id,
        client_message_id=or_unset(command.client_message_id),
        leaf_id=or_unset(leaf_id),
        accepted_at=core.clock.now(),
        attachments=brought.attachments or UNSET,
        changed_by=given.changed_by or UNSET,
    )
    decided = decisions.start_run(
        live.state,
        queued,
        runtime=core.runs.runtime.name,
        model=core.runs.choice_of(live.state).model,
        leaf_id=command.leaf_id,
    )
    _, ticket = core.runs.start(
        live, run_id, decided, own_prompt=queued.input_id, artifacts=brought.artifacts
    )
    return _remembered(live, Deferred(ticket, _acknowledgement(live, queued)), queued)


async def _result_of(core: Core, reply: Deferred | Accepted) -> Result:
    """Waits for the run that a prompt started and returns its result."""
    if isinstance(reply, Deferred):
        await reply.ticket.wait_committed()
    accepted = reply.payload if isinstance(reply, Deferred) else reply
    assert isinstance(accepted, Accepted)
    if isinstance(accepted.handled_by, str):
        return _result_of_handled(accepted)
    assert isinstance(accepted.run_id, str)
    driver = core.runs.find(accepted.run_id)
    if driver is not None:
        with trio.move_on_after(core.command_timeout) as timer:
            await driver.ended.wait()
        if timer.cancelled_caught:
            raise CommandTimedOut("command timed out", details={"run_id": accepted.run_id})
    result = await run_result(core.store, accepted)
    if result.status == "running":
        raise SessionError("the run's end could not be written", details={"run_id": result.run_id})
    if result.status in ("error", "timeout"):
        record = await core.store.run(result.run_id)
        cause = None if record is None or record.error is UNSET else record.error
        raise ProviderFailed(
            "provider request failed", cause=cause, details={"run_id": result.run_id}
        )
    return msgspec.structs.replace(result, warnings=accepted.warnings)


def _result_of_handled(accepted: Accepted) -> Result:
    """Returns what whoever waits for a run is told of a text that an extension dealt with."""
    return Result(
        output=accepted.reply or "",
        events=(),
        session_id=accepted.session_id or "",
        run_id="",
        status="completed",
        handled_by=accepted.handled_by,
        warnings=accepted.warnings,
    )


async def steer(core: Core, command: commands.Steer) -> Reply:
    """Queues a text that goes before whatever the run would do next."""
    return await _accepted(core, command, _place_in_run, partial(_queue, kind="steer"))


async def follow_up(core: Core, command: commands.FollowUp) -> Reply:
    """Queues a text for when the run would otherwise end."""
    return await _accepted(core, command, _place_in_run, partial(_queue, kind="follow_up"))


async def _place_in_run(core: Core, command: commands.Steer | commands.FollowUp) -> Place:
    likely = await _likely_session(core, command)
    if likely is not None and (repeated := await _repeated(core, likely, command)):
        return Place(likely, repeated)
    live = await core.sessions.run_target(command.session_id, command.expected_run_id)
    return Place(live, None if live is likely else await _repeated(core, live, command))


def _queue(
    core: Core,
    live: LiveSession | None,
    given: Given[commands.Steer] | Given[commands.FollowUp],
    *,
    kind: Literal["steer", "follow_up"],
) -> Deferred:
    assert live is not None
    command, brought = given.command, given.brought
    queued = QueuedInput(
        input_id=core.clock.new_id("in"),
        kind=kind,
        text=command.text,
        client_message_id=or_unset(command.client_message_id),
        accepted_at=core.clock.now(),
        attachments=brought.attachments or UNSET,
        changed_by=given.changed_by or UNSET,
    )
    decided = decisions.accept_input(live.state, queued, expected_run_id=command.expected_run_id)
    queued = decided.inputs[0]
    ticket = live.decide((decided,), artifacts=brought.artifacts)
    return _remembered(live, Deferred(ticket, _acknowledgement(live, queued)), queued)


async def _likely_session(
    core: Core, command: commands.Steer | commands.FollowUp
) -> LiveSession | None:
    """Returns where an input that is sent again was accepted: its run may be over by now."""
    if command.client_message_id is None:
        return None
    if command.session_id is None and command.expected_run_id is not None:
        run = await core.store.run(command.expected_run_id)
        return None if run is None else await core.sessions.get(run.session_id)
    return await core.sessions.target(command.session_id)


async def abort(core: Core, command: commands.Abort) -> Reply:
    """Stops the run at once and empties the queues."""
    live = await core.sessions.run_target(command.session_id, command.expected_run_id)
    decided, cleared = decisions.abort_run(live.state, expected_run_id=command.expected_run_id)
    driver = live.run
    assert driver is not None
    ticket = live.decide(decided)
    driver.stop("cancelled")
    answer = Accepted(command="abort", run_id=driver.run_id)
    return await _given_back(core, ticket, answer, cleared)


async def resume(core: Core, command: commands.Resume) -> Reply:
    """Starts a run on what is pending, or on an unanswered leaf."""
    live = await core.sessions.require(command.session_id)
    await core.workspaces.of(live.state)
    leaf = await _leaf(core, live)
    run_id = core.clock.new_id("run")
    decided = decisions.resume_run(
        live.state,
        run_id,
        leaf,
        runtime=core.runs.runtime.name,
        model=core.runs.choice_of(live.state).model,
    )
    _, ticket = core.runs.start(live, run_id, decided, own_prompt=None)
    return Deferred(ticket, Accepted(command="resume", run_id=run_id, session_id=live.session_id))


async def _leaf(core: Core, live: LiveSession) -> Entry | None:
    """Returns the leaf that the caller may decide on without another await."""
    while True:
        leaf_id = live.state.leaf_id
        if leaf_id is None:
            return None
        await core.store.flush()
        leaf = await core.store.entry(live.session_id, leaf_id)
        if live.state.leaf_id == leaf_id:
            return leaf


async def get_queue(core: Core, command: commands.GetQueue) -> Reply:
    """Reads what is pending, in the order in which it will be consumed."""
    live = await core.sessions.target(command.session_id)
    pending = () if live is None else live.committed.queue
    at = cursor(core.hub.head)
    return Queue(
        session_id="" if live is None else live.session_id,
        inputs=await whole_inputs(core.store, queue.in_order(pending)),
        pending_counts=queue.pending_counts(pending),
        cursor=at,
    )


async def clear_queue(core: Core, command: commands.ClearQueue) -> Reply:
    """Takes back pending inputs and returns them."""
    live = await core.sessions.require(command.session_id)
    decided, cleared = decisions.clear_queue(live.state, command.kind)
    answer = Accepted(command="clear_queue", session_id=live.session_id)
    ticket = live.decide(decided) if decided else None
    return await _given_back(core, ticket, answer, cleared)


async def _given_back(
    core: Core, ticket: Ticket | None, answer: Accepted, cleared: queue.Inputs
) -> Reply:
    """Completes an answer by the inputs that were taken out of the queues, with their whole texts."""
    answer = msgspec.structs.replace(answer, cleared=cleared)
    if ticket is None:
        return answer
    if not long_texts.refs_in(cleared):
        return Deferred(ticket, answer)
    # Whoever stops a run does not wait for texts that are read from the disk.
    await ticket.wait_committed()
    whole = await whole_inputs(core.store, cleared)
    return msgspec.structs.replace(answer, cleared=whole)


async def promote(core: Core, command: commands.Promote) -> Reply:
    """Turns a pending follow-up into a steer."""
    live = await core.sessions.require(command.session_id)
    ticket = live.decide(decisions.promote(live.state, command.input_id))
    answer = Accepted(command="promote", session_id=live.session_id, input_id=command.input_id)
    return Deferred(ticket, answer)


# --- accepting an input, and acknowledging it once ---------------------------------------------

C = TypeVar("C", commands.Prompt, commands.Steer, commands.FollowUp)


class Given(NamedTuple, Generic[C]):
    """An input that is about to be accepted, with what it brings along and who changed its text."""

    command: C
    brought: Attached
    changed_by: tuple[str, ...]


class Place(NamedTuple):
    """Where an input goes, None for a new session; and what it was acknowledged with if it is there."""

    live: LiveSession | None
    known: Deferred | Accepted | None


async def _accepted(
    core: Core,
    command: C,
    find: Callable[[Core, C], Awaitable[Place]],
    accept: Callable[[Core, LiveSession | None, Given[C]], Deferred],
) -> Deferred | Accepted:
    """Accepts an input unless it was accepted already, or an extension deals with it: ``accept`` acts on
    what ``find`` last saw.
    """
    place = await find(core, command)
    if place.known is not None:
        return place.known
    asked = await asked_input(core, place.live, command)
    if asked.handled is not None:
        return asked.handled
    brought = Attached()
    if command.attachments:
        seen = core.sessions.without_session() if place.live is None else place.live.state
        choice = core.runs.choice_of(seen)
        workspace = await core.workspaces.of(seen)
        brought = await attached(core, command.attachments, choice, workspace.confinement)
    if command.attachments or core.hooks.has("input"):
        # Anything may have happened meanwhile.
        place = await find(core, command)
    if place.known is not None:
        return place.known
    reply = accept(core, place.live, Given(asked.command, brought, asked.changed_by))
    assert isinstance(reply.payload, Accepted)
    payload = msgspec.structs.replace(reply.payload, warnings=asked.warnings)
    return Deferred(reply.ticket, payload)


def _acknowledgement(live: LiveSession, queued: QueuedInput) -> Accepted:
    return Accepted(
        command=queued.kind,
        run_id=queued.run_id,
        session_id=live.session_id if queued.kind == "prompt" else UNSET,
        leaf_id=queued.leaf_id,
        input_id=queued.input_id,
    )


def _remembered(live: LiveSession, reply: Deferred, queued: QueuedInput) -> Deferred:
    if isinstance(queued.client_message_id, str):
        live.remember(queued.client_message_id, reply)
    return reply


async def _repeated(
    core: Core, live: LiveSession, command: commands.Prompt | commands.Steer | commands.FollowUp
) -> Deferred | Accepted | None:
    """Returns the first acknowledgement of an input that is sent again, else None.

    The log is asked first and memory last, so that there is no moment between the last look and the
    caller's decision in which the same input could slip in a second time.
    """
    if command.client_message_id is None:
        return None
    with live.looking_up():
        row = await core.store.input_by_client_id(live.session_id, command.client_message_id)
        known = live.accepted.get(command.client_message_id)
    if known is not None:
        return known
    if row is None:
        return None
    # A follow-up that was promoted meanwhile was acknowledged as a follow-up.
    was_promoted = row.input.kind == "steer" and isinstance(command, commands.FollowUp)
    kind = "follow_up" if was_promoted else row.input.kind
    return _acknowledgement(live, msgspec.structs.replace(row.input, kind=kind))


async def require_entry(core: Core, live: LiveSession | None, entry_id: str) -> None:
    """Raises CommandRejected ``leaf_not_found`` unless there is a session and it has that entry."""
    if live is None or await core.store.entry(live.session_id, entry_id) is None:
        raise CommandRejected("leaf_not_found")
