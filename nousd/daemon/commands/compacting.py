"""The command that compacts a session.

The runtime and ``nousd.machine`` choose the cut point and build the summary request.
"""

from __future__ import annotations

from functools import partial

import trio

from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.runs.model_inputs import artifacts_of, encode_standalone_input, put_large
from nousd.daemon.services import Services
from nousd.daemon.sessions.history import let_go
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import AnswerTooLong, CommandRejected
from nousd.machine.context import compaction
from nousd.machine.context.compaction import CutPoint
from nousd.machine.context.compiler import CompiledInput
from nousd.machine.context.model_input_event import model_input
from nousd.machine.session import decisions
from nousd.machine.session.usage import CallFigures
from nousd.wire import commands, events
from nousd.wire.codec.unset import or_unset
from nousd.wire.responses import Compaction


async def compact_session(services: Services, command: commands.CompactSession) -> Reply:
    """Compact a session's context at a client's request.

    The session stays usable while the model writes the summary. If the session changes in between, the
    summary is discarded and the command refused.
    """
    live = await services.sessions.require(command.session_id)
    decisions.require_kept(live.state)
    decisions.require_idle(live.state)
    leaf_id = live.state.leaf_id
    context = list((await services.contexts.at_leaf(live)).entries)
    choice = services.run_services.choice_of(live.state)
    cut = await services.run_services.summariser.plan_cut(context, choice)
    if cut is None:
        raise CommandRejected("nothing_to_compact")
    instruction = (command.instruction or "").strip() or None
    try:
        summary = await services.run_services.summariser.summarise(
            cut,
            choice,
            instruction=instruction,
            tell=partial(_tell_input, services, live.session_id),
            report=partial(_count_call, services, live.session_id),
        )
    except AnswerTooLong as failure:
        raise CommandRejected("answer_too_long", cause=failure.message) from failure
    # Freeing the memory of the summary request took a while, so give other tasks a turn.
    await trio.lowlevel.checkpoint()
    live = await services.sessions.get(live.session_id)
    decisions.require_idle(live.state)
    if live.state.leaf_id != leaf_id:
        raise CommandRejected("session_changed")
    appended = _append(services, live, cut, summary, instruction)
    del cut
    await let_go(context)
    return appended


def _append(
    services: Services, live: LiveSession, cut: CutPoint, summary: str, instruction: str | None
) -> Deferred:
    """Append the summary that replaces the messages before the cut."""
    entry = compaction.compaction_entry(
        cut,
        summary,
        entry_id=services.clock.new_id("cmp"),
        parent_id=live.state.leaf_id,
        trigger="manual",
        created_at=services.clock.now(),
        run_id=None,
        instruction=instruction,
    )
    appended = events.EntryAppended(session_id=live.session_id, entry=entry)
    answer = Compaction(
        session_id=live.session_id,
        summary=summary,
        first_kept_entry_id=cut.first_kept.id,
        tokens_before=cut.tokens_before,
        trigger="manual",
        entry_id=entry.id,
        instruction=or_unset(instruction),
    )
    return Deferred(live.decide((appended,)), answer)


async def _tell_input(services: Services, session_id: str, compiled: CompiledInput) -> None:
    stored = await encode_standalone_input(compiled)
    artifacts = await put_large(services.store, artifacts_of(stored), now=services.clock.now())
    live = await services.sessions.get(session_id)
    event = model_input(
        compiled,
        stored,
        sources=(),
        leaf_id=live.state.leaf_id,
        session_id=session_id,
    )
    live.decide((event,), artifacts=artifacts)


async def _count_call(services: Services, session_id: str, figures: CallFigures) -> None:
    """Record the usage of the call even if its summary is discarded."""
    with trio.CancelScope(shield=True):
        live = await services.sessions.get(session_id)
        live.decide((figures.to_event(session_id),))
