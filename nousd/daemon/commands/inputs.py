"""The commands prompt, append_message, steer, follow_up, abort and resume, and those of the queues.

``accepting`` ensures that an input is accepted only once.
"""

from __future__ import annotations

from functools import partial

import msgspec
import trio
from msgspec import UNSET

from nousd.daemon.commands.accepting import (
    PendingInput,
    Target,
    accept_input,
    facts_of,
    find_earlier_acknowledgement,
    remember_acknowledgement,
    require_entry,
)
from nousd.daemon.commands.run_requests import (
    LOOKS_MAX,
    build_run_request,
    read_appended_tail,
    read_unfinished_work,
    refuse_second_run,
)
from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.eventlog.log_walk import for_each_event, for_each_published_event
from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.runs.results import ReadEvents, error_of, read_run_result
from nousd.daemon.services import Services
from nousd.daemon.sessions.history import fit_inputs
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import CommandRejected, CommandTimedOut, ProviderFailed, SessionError
from nousd.machine.context import text_offload
from nousd.machine.session import appending, decisions, queue
from nousd.wire import commands
from nousd.wire.codec.unset import or_unset
from nousd.wire.commands.subscribe import cursor
from nousd.wire.objects.field_types import QueueKind
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.responses import Accepted, Queue, Result


async def prompt(services: Services, command: commands.Prompt) -> Reply:
    """Start a run; create a session if none is active."""
    reply = await accept_input(services, command, _place_of_prompt, _start)
    return await _result_of(services, reply) if command.wait else reply


async def _place_of_prompt(
    services: Services, command: commands.Prompt, request_hash: str
) -> Target:
    live = await services.sessions.target(command.session_id)
    if command.leaf_id is not None:
        await require_entry(services, live, command.leaf_id)
    if live is None:
        return Target(None)
    workspace = await services.workspaces.look_up(live.state)
    reuses_appended = command.reuse_appended or command.require_appended
    for _ in range(LOOKS_MAX):
        leaf_id = live.state.leaf_id if command.leaf_id is None else command.leaf_id
        tail = await read_appended_tail(services, live, leaf_id) if reuses_appended else ()
        known = await find_earlier_acknowledgement(services, live, command, request_hash)
        # The leaf may have moved during the reads; a session with a run refuses the prompt anyway.
        is_current = leaf_id in (live.state.leaf_id, command.leaf_id)
        if is_current or not reuses_appended or live.state.run is not None:
            break
    else:
        # If others append without a pause, storing the text twice is better than waiting forever.
        tail = ()
    if known is None and isinstance(workspace, CommandRejected):
        raise workspace
    return Target(live, known, tail)


def _start(
    services: Services, live: LiveSession | None, pending: PendingInput[commands.Prompt]
) -> Deferred:
    command, attached = pending.command, pending.attached
    if live is not None:
        refuse_second_run(services, live, command.client_id)
    state = services.sessions.without_session() if live is None else live.state
    runtime = services.run_services.runtimes.of(state)
    request = build_run_request(services, state, command)
    appended = appending.reusable(pending.tail, command.text, attached.attachments)
    if command.require_appended and appended is None:
        raise CommandRejected("nothing_appended")
    if live is None:
        live, _ = services.sessions.create()
    run_id = services.clock.new_id("run")
    leaf_id = live.state.leaf_id if command.leaf_id is None else command.leaf_id
    queued = QueuedInput(
        **facts_of(pending, services.clock),
        kind="prompt",
        run_id=run_id,
        leaf_id=or_unset(leaf_id),
        entry_id=UNSET if appended is None else appended.id,
    )
    if appended is not None:
        queued = msgspec.structs.replace(queued, attachments=appended.attachments)
    decided = decisions.start_run(
        live.state,
        queued,
        runtime=runtime.name,
        runtime_version=runtime.version,
        model=services.run_services.model_of_run(runtime, live.state, request.options or None),
        leaf_id=command.leaf_id,
        title=services.run_services.new_title(live.state, command.text),
        request=request,
        in_v1_scope=live.session_id == services.sessions.active_id,
    )
    run = services.runs.start(
        live,
        run_id,
        decided,
        runtime=runtime,
        own_prompt=queued.input_id,
        artifacts=attached.artifacts,
    )
    return remember_acknowledgement(live, run.last_handle, queued)


async def _result_of(services: Services, reply: Deferred | Accepted) -> Result:
    """Wait for the run that a prompt started and return its result."""
    if isinstance(reply, Deferred):
        await reply.handle.wait_committed()
    accepted = reply.payload if isinstance(reply, Deferred) else reply
    assert isinstance(accepted, Accepted)
    if isinstance(accepted.handled_by, str):
        return _result_of_handled(accepted)
    assert isinstance(accepted.run_id, str)
    driver = services.runs.find(accepted.run_id)
    read_events: ReadEvents
    if driver is None:
        read_events = partial(for_each_event, services.store)
    else:
        read_events = partial(for_each_published_event, services.hub, after=driver.begun_after)
        with trio.move_on_after(services.command_timeout_seconds) as timer:
            await driver.ended.wait()
        if timer.cancelled_caught:
            raise CommandTimedOut("command timed out", details={"run_id": accepted.run_id})
    result = await read_run_result(read_events, accepted)
    if result.status == "running":
        raise SessionError("the run's end could not be written", details={"run_id": result.run_id})
    if result.status in ("error", "timeout"):
        raise await _failure_of(services, result.run_id)
    return msgspec.structs.replace(result, warnings=accepted.warnings)


async def _failure_of(services: Services, run_id: str) -> ProviderFailed:
    """Return the error for a prompt whose run failed. A run of an agent program has the message of its
    ``error`` event; any other has the message of v1.
    """
    record = await services.store.run(run_id)
    cause = None if record is None or record.error is UNSET else record.error
    details = {"run_id": run_id}
    error = await error_of(services.store, run_id)
    native = services.run_services.runtimes.default
    if error is None or record is None or record.runtime == native:
        return ProviderFailed("provider request failed", cause=cause, details=details)
    details |= {
        key: value
        for key, value in {"category": error.category, "hint": error.hint}.items()
        if isinstance(value, str)
    }
    return ProviderFailed(error.message, cause=cause, details=details)


def _result_of_handled(accepted: Accepted) -> Result:
    """Return the result of a waited-for prompt that an extension handled."""
    return Result(
        output=accepted.reply or "",
        events=(),
        session_id=accepted.session_id or "",
        run_id="",
        status="completed",
        handled_by=accepted.handled_by,
        warnings=accepted.warnings,
    )


async def append_message(services: Services, command: commands.AppendMessage) -> Reply:
    """Store a user message without starting a run; create a session if none is active."""
    return await accept_input(services, command, _place_of_message, _append)


async def _place_of_message(
    services: Services, command: commands.AppendMessage, request_hash: str
) -> Target:
    live = await services.sessions.target(command.session_id)
    if live is not None:
        services.workspaces.require_allowed(live.state)
    known = (
        None
        if live is None
        else await find_earlier_acknowledgement(services, live, command, request_hash)
    )
    return Target(live, known)


def _append(
    services: Services, live: LiveSession | None, pending: PendingInput[commands.AppendMessage]
) -> Deferred:
    if live is None:
        live, _ = services.sessions.create()
    message = QueuedInput(
        **facts_of(pending, services.clock), kind="message", entry_id=services.clock.new_id("msg")
    )
    title = services.run_services.new_title(live.state, message.text)
    decided = appending.append_message(live.state, message, title=title)
    return remember_acknowledgement(
        live, live.decide(decided, artifacts=pending.attached.artifacts), message
    )


async def steer(services: Services, command: commands.Steer) -> Reply:
    """Queue a text for delivery before the run's next step."""
    return await accept_input(services, command, _place_in_run, _queue)


async def follow_up(services: Services, command: commands.FollowUp) -> Reply:
    """Queue a text for the moment when the run would otherwise end."""
    return await accept_input(services, command, _place_in_run, _queue)


async def _place_in_run(
    services: Services, command: commands.Steer | commands.FollowUp, request_hash: str
) -> Target:
    if command.client_message_id is None:
        return Target(
            await services.sessions.find_run_target(command.session_id, command.expected_run_id)
        )
    candidate = await _likely_session(services, command)
    if candidate is not None and (
        known := await find_earlier_acknowledgement(services, candidate, command, request_hash)
    ):
        return Target(candidate, known)
    live = await services.sessions.find_run_target(command.session_id, command.expected_run_id)
    known = (
        None
        if live is candidate
        else await find_earlier_acknowledgement(services, live, command, request_hash)
    )
    return Target(live, known)


def _queue(
    services: Services,
    live: LiveSession | None,
    pending: PendingInput[commands.Steer] | PendingInput[commands.FollowUp],
) -> Deferred:
    assert live is not None
    kind: QueueKind = "steer" if isinstance(pending.command, commands.Steer) else "follow_up"
    queued = QueuedInput(**facts_of(pending, services.clock), kind=kind)
    services.workspaces.require_allowed(live.state)
    decided = decisions.accept_input(
        live.state, queued, expected_run_id=pending.command.expected_run_id
    )
    handle = live.decide((decided,), artifacts=pending.attached.artifacts)
    if kind == "steer":
        _tell_steer(services, live)
    return remember_acknowledgement(live, handle, decided.inputs[0])


def _tell_steer(services: Services, live: LiveSession) -> None:
    """End the approvals and questions that a steer makes obsolete, and wake a runtime that waits for
    steers.
    """
    services.run_services.skip_passed_over()
    if live.run is not None:
        live.run.tell_steer()


async def _likely_session(
    services: Services, command: commands.Steer | commands.FollowUp
) -> LiveSession | None:
    """Return the session that has accepted the input if it is repeated; its run may have ended since."""
    if command.session_id is None and command.expected_run_id is not None:
        run = await services.store.run(command.expected_run_id)
        return None if run is None else await services.sessions.get(run.session_id)
    return await services.sessions.target(command.session_id)


async def abort(services: Services, command: commands.Abort) -> Reply:
    """Abort the run at once and clear the queues, unless they are to be kept."""
    try:
        live = await services.sessions.find_run_target(command.session_id, command.expected_run_id)
    except CommandRejected as refusal:
        return await _abort_without_run(services, command, refusal)
    decided, cleared = decisions.abort_run(
        live.state,
        expected_run_id=command.expected_run_id,
        keep_queue=command.keep_queue,
        client_id=command.client_id,
    )
    driver = live.run
    assert driver is not None
    handle = live.decide(decided)
    driver.stop("cancelled")
    answer = Accepted(command="abort", run_id=driver.run_id)
    return await reply_with_removed(services, handle, answer, cleared)


async def _abort_without_run(
    services: Services, command: commands.Abort, refusal: CommandRejected
) -> Reply:
    """Clear the active session's queue for an abort that names no target while there is no run.

    Raises:
        CommandRejected: the given refusal, if this is another case, or no input is removed.
    """
    if refusal.message != "no_active_run" or command.expected_run_id is not None:
        raise refusal
    live = await services.sessions.active()
    if live is None or command.keep_queue:
        raise refusal
    decided, cleared = decisions.clear_queue(live.state, None, command.client_id)
    if not cleared:
        raise refusal
    return await reply_with_removed(
        services, live.decide(decided), Accepted(command="abort"), cleared
    )


async def resume(services: Services, command: commands.Resume) -> Reply:
    """Start a run on the pending inputs, or on an unanswered leaf."""
    live = await services.sessions.require(command.session_id)
    await services.workspaces.of(live.state)
    unfinished = await read_unfinished_work(services, live)
    refuse_second_run(services, live, command.client_id)
    runtime = services.run_services.runtimes.of(live.state)
    run_id = services.clock.new_id("run")
    request = decisions.build_resumed_request(live.state, unfinished.request, command.client_id)
    decided = decisions.resume_run(
        live.state,
        run_id,
        unfinished.leaf,
        runtime=runtime.name,
        runtime_version=runtime.version,
        model=services.run_services.model_of_run(runtime, live.state, request.options or None),
        request=request,
        in_v1_scope=live.session_id == services.sessions.active_id,
    )
    run = services.runs.start(live, run_id, decided, runtime=runtime, own_prompt=None)
    accepted = Accepted(command="resume", run_id=run_id, session_id=live.session_id)
    return Deferred(run.last_handle, accepted)


async def get_queue(services: Services, command: commands.GetQueue) -> Reply:
    """Read the pending inputs in the order in which turns will consume them."""
    live = await services.sessions.target(command.session_id)
    state = services.sessions.without_session() if live is None else live.committed
    at = cursor(services.hub.head)
    return Queue(
        session_id=state.session_id,
        inputs=await fit_inputs(services.store, queue.in_order(state.queue)),
        pending_counts=state.pending_counts,
        queue_revision=state.queue_revision,
        cursor=at,
    )


async def clear_queue(services: Services, command: commands.ClearQueue) -> Reply:
    """Remove pending inputs and return them."""
    live = await services.sessions.require(command.session_id)
    decided, cleared = decisions.clear_queue(live.state, command.kind, command.client_id)
    answer = Accepted(command="clear_queue", session_id=live.session_id)
    handle = live.decide(decided) if decided else None
    return await reply_with_removed(services, handle, answer, cleared)


async def reply_with_removed(
    services: Services, handle: CommitHandle | None, answer: Accepted, cleared: queue.Inputs
) -> Reply:
    """Complete a response with the inputs that were removed, as ``get_queue`` shows them."""
    answer = msgspec.structs.replace(answer, cleared=cleared)
    if handle is None:
        return answer
    if not text_offload.refs_in(cleared):
        return Deferred(handle, answer)
    # The commit comes first: aborting a run must not wait for texts to be read from the disk.
    await handle.wait_committed()
    shown = await fit_inputs(services.store, cleared)
    return msgspec.structs.replace(answer, cleared=shown)


async def promote(services: Services, command: commands.Promote) -> Reply:
    """Turn a pending follow-up into a steer."""
    live = await services.sessions.require(command.session_id)
    handle = live.decide(decisions.promote(live.state, command.input_id, command.client_id))
    _tell_steer(services, live)
    answer = Accepted(command="promote", session_id=live.session_id, input_id=command.input_id)
    return Deferred(handle, answer)
