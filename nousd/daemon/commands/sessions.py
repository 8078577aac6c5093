"""Commands on sessions and their trees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import UNSET

from nousd.daemon.commands.accepting import require_entry
from nousd.daemon.commands.hooked import Warnings, ask_fork, ask_switch
from nousd.daemon.commands.reading import active_run
from nousd.daemon.commands.session_settings import change_settings, said_of_new
from nousd.daemon.eventlog.garbage import drop_leftovers
from nousd.daemon.eventlog.log import Ticket
from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Core
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import InvalidPayload
from nousd.machine.session import appending, decisions
from nousd.wire import commands, events
from nousd.wire.codec.unset import or_unset
from nousd.wire.responses import Leaf, SessionDeleted, SessionSelected, Tree


async def new_session(core: Core, command: commands.NewSession) -> Reply:
    """Creates a session."""
    said = said_of_new(core, command)
    workspace = await core.workspaces.named(command.workspace)
    if command.parent_id is not None:
        await core.sessions.get(command.parent_id)
    warnings = await ask_switch(core, None) if command.activate else UNSET
    live, ticket = core.sessions.create(activate=command.activate, workspace=workspace.path, **said)
    return Deferred(ticket, _selected(live, is_active=command.activate, warnings=warnings))


async def switch_session(core: Core, command: commands.SwitchSession) -> Reply:
    """Makes a session the active one."""
    live = await core.sessions.get(command.session_id)
    warnings = await ask_switch(core, live)
    # It may have been deleted meanwhile.
    live = await core.sessions.get(command.session_id)
    ticket = core.sessions.activate(live)
    return Deferred(ticket, _selected(live, is_active=True, warnings=warnings))


async def branch_session(core: Core, command: commands.BranchSession) -> Reply:
    """Copies what a session holds now into a new one."""
    parent_id = command.session_id or command.parent_id
    if parent_id is None:
        raise InvalidPayload("session_id is required")
    parent = await core.sessions.get(parent_id)
    warnings = await ask_fork(core, parent)
    parent = await core.sessions.get(parent_id)
    live, ticket = core.sessions.create(name=command.name, parent=parent, activate=command.activate)
    new_id = partial(core.clock.new_id, "msg")
    if waiting := appending.joined_to_branch(live.state, parent.state, new_id):
        ticket = live.decide(waiting)
    return Deferred(ticket, _selected(live, is_active=command.activate, warnings=warnings))


async def rename_session(core: Core, command: commands.RenameSession) -> Reply:
    """Gives a session a name for people."""
    live = await core.sessions.require(command.session_id)
    ticket = change_settings(live, name=command.name)
    return Deferred(ticket, _selected(live, is_active=live.session_id == core.sessions.active_id))


async def delete_session(core: Core, command: commands.DeleteSession) -> Reply:
    """Deletes a session's content, and that of its tasks, for good; all of it is gone when this is
    answered. Or stops what runs there, if that is wanted.
    """
    live = await core.sessions.get(command.session_id)
    if not command.abort:
        decisions.require_idle(live.state)
    # Those below first: should the daemon die in between, none is left without the one above it.
    doomed = [*await core.sessions.below(live), live]
    running = [each for each in reversed(doomed) if each.state.run is not None]
    if command.abort and running:
        return await _stopped_first(core, live, running)
    for each in doomed:
        decisions.require_idle(each.state)
    tickets = [_delete(core, each) for each in doomed]
    for ticket in tickets:
        await ticket.wait_committed()
    await drop_leftovers(core.store)
    return SessionDeleted(session_id=live.session_id, deleted=True)


async def _stopped_first(
    core: Core, live: LiveSession, running: Sequence[LiveSession]
) -> SessionDeleted:
    """Tells the runs that keep a session from being deleted to stop: its own, which ends those of its
    tasks, or else those of its tasks that somebody else started.
    """
    run = active_run(core, running[0].state)
    tickets = []
    for each in running if running[0] is not live else (live,):
        tickets.append(each.decide(decisions.defer_deletion(each.state)))
        if each.run is not None:
            each.run.stop("cancelled")
    for ticket in tickets:
        await ticket.wait_committed()
    return SessionDeleted(session_id=live.session_id, deleted=False, run=run)


def _delete(core: Core, live: LiveSession) -> Ticket:
    ticket = core.sessions.delete(live)
    core.calls.stop("aborted", lambda call: call.live is live)

    def settled(ticket: Ticket) -> None:
        if ticket.failure is None:
            core.hub.forget(live.session_id)
            core.contexts.forget(live.session_id)
            core.transcripts.forget(live.session_id)
            core.run_services.inputs.forget(live.session_id)
            core.run_services.overrides.forget_deleted(live.session_id)

    ticket.when_settled(settled)
    return ticket


async def set_leaf(core: Core, command: commands.SetLeaf) -> Reply:
    """Moves the place that new work continues from."""
    live = await core.sessions.require(command.session_id)
    decisions.require_idle(live.state)
    await require_entry(core, live, command.leaf_id)
    # Once more: a run may have started while the entry was looked for.
    decisions.require_idle(live.state)
    moved = events.SessionUpdated(session_id=live.session_id, leaf_id=command.leaf_id)
    answer = Leaf(session_id=live.session_id, leaf_id=command.leaf_id)
    return Deferred(live.decide((moved,)), answer)


async def get_tree(core: Core, command: commands.GetTree) -> Reply:
    """Reads a session's tree, oldest first."""
    live = await core.sessions.target(command.session_id)
    if live is None:
        return Tree(session_id="", nodes=(), has_more=False)
    leaf_id = live.committed.leaf_id
    if command.after is not None:
        await require_entry(core, live, command.after)
    nodes = await core.store.tree(live.session_id, after=command.after, limit=command.limit + 1)
    return Tree(
        session_id=live.session_id,
        nodes=nodes[: command.limit],
        has_more=len(nodes) > command.limit,
        leaf_id=or_unset(leaf_id),
    )


def _selected(live: LiveSession, *, is_active: bool, warnings: Warnings = UNSET) -> SessionSelected:
    return SessionSelected(
        session_id=live.session_id,
        active=is_active,
        parent_id=or_unset(live.state.parent_id),
        name=or_unset(live.state.name),
        warnings=warnings,
    )
