"""Commands that hand in, look at or take back inputs: prompt, steer, follow_up, abort, queues."""

from __future__ import annotations

from typing import Literal

import msgspec
import trio
from msgspec import UNSET

from nousd.daemon.core import Core, Deferred, Reply
from nousd.daemon.results import run_result
from nousd.daemon.sessions import LiveSession
from nousd.errors import CommandRejected, CommandTimedOut, ProviderFailed, SessionError
from nousd.machine import decisions, queue
from nousd.wire import commands
from nousd.wire.entries import Entry
from nousd.wire.optional import or_unset
from nousd.wire.responses import Accepted, Queue, QueuedInput, Result
from nousd.wire.subscribe import cursor


async def prompt(core: Core, command: commands.Prompt) -> Reply:
    """Starts a run; creates the first session if none is active."""
    live = await core.sessions.target(command.session_id)
    if command.leaf_id is not None:
        await require_entry(core, live, command.leaf_id)
    if live is None:
        live, _ = core.sessions.create()
    reply = await _repeated(core, live, command) or _start(core, live, command)
    return await _result_of(core, reply) if command.wait else reply


def _start(core: Core, live: LiveSession, command: commands.Prompt) -> Deferred:
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
    )
    decided = decisions.start_run(
        live.state,
        queued,
        runtime=core.runs.runtime.name,
        model=core.runs.choice_of(live.state).model,
        leaf_id=command.leaf_id,
    )
    _, ticket = core.runs.start(live, run_id, decided, own_prompt=queued.input_id)
    return _remembered(live, Deferred(ticket, _acknowledgement(live, queued)), queued)


async def _result_of(core: Core, reply: Deferred | Accepted) -> Result:
    """Waits for the run that a prompt started and returns its result."""
    if isinstance(reply, Deferred):
        await reply.ticket.wait_committed()
    accepted = reply.payload if isinstance(reply, Deferred) else reply
    assert isinstance(accepted, Accepted)
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
    return result


async def steer(core: Core, command: commands.Steer) -> Reply:
    """Queues a text that goes before whatever the run would do next."""
    return await _hand_in(core, command, "steer")


async def follow_up(core: Core, command: commands.FollowUp) -> Reply:
    """Queues a text for when the run would otherwise end."""
    return await _hand_in(core, command, "follow_up")


async def _hand_in(
    core: Core, command: commands.Steer | commands.FollowUp, kind: Literal["steer", "follow_up"]
) -> Reply:
    likely = await _likely_session(core, command)
    if likely is not None and (repeated := await _repeated(core, likely, command)):
        return repeated
    live = await core.sessions.run_target(command.session_id, command.expected_run_id)
    if live is not likely and (repeated := await _repeated(core, live, command)):
        return repeated
    queued = QueuedInput(
        input_id=core.clock.new_id("in"),
        kind=kind,
        text=command.text,
        client_message_id=or_unset(command.client_message_id),
        accepted_at=core.clock.now(),
    )
    decided = decisions.accept_input(live.state, queued, expected_run_id=command.expected_run_id)
    queued = decided.inputs[0]
    return _remembered(
        live, Deferred(live.decide((decided,)), _acknowledgement(live, queued)), queued
    )


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
    return Deferred(ticket, Accepted(command="abort", run_id=driver.run_id, cleared=cleared))


async def resume(core: Core, command: commands.Resume) -> Reply:
    """Starts a run on what is pending, or on an unanswered leaf."""
    live = await core.sessions.require(command.session_id)
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
    return Queue(
        session_id="" if live is None else live.session_id,
        inputs=queue.in_order(pending),
        pending_counts=queue.pending_counts(pending),
        cursor=cursor(core.hub.head),
    )


async def clear_queue(core: Core, command: commands.ClearQueue) -> Reply:
    """Takes back pending inputs and returns them."""
    live = await core.sessions.require(command.session_id)
    decided, cleared = decisions.clear_queue(live.state, command.kind)
    answer = Accepted(command="clear_queue", session_id=live.session_id, cleared=cleared)
    return Deferred(live.decide(decided), answer) if decided else answer


async def promote(core: Core, command: commands.Promote) -> Reply:
    """Turns a pending follow-up into a steer."""
    live = await core.sessions.require(command.session_id)
    ticket = live.decide(decisions.promote(live.state, command.input_id))
    answer = Accepted(command="promote", session_id=live.session_id, input_id=command.input_id)
    return Deferred(ticket, answer)


# --- acknowledging an input once ---------------------------------------------------------------


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
