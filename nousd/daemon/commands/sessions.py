"""Commands on sessions and their trees."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import trio
from msgspec import UNSET

from nousd.daemon.clock import later
from nousd.daemon.commands.accepting import require_entry
from nousd.daemon.commands.hooked import Warnings, ask_fork, ask_switch
from nousd.daemon.commands.reading import active_run
from nousd.daemon.commands.session_settings import change_settings, collect_new_settings
from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.eventlog.retention import drop_copies, drop_leftovers, drop_rows
from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import CommandRejected, InvalidPayload, SessionNotFound
from nousd.machine.session import appending, decisions
from nousd.store.interface import Store
from nousd.wire import commands, events
from nousd.wire.codec.unset import or_unset
from nousd.wire.responses import Accepted, Leaf, SessionDeleted, SessionSelected, Tree


async def new_session(services: Services, command: commands.NewSession) -> Reply:
    """Create a session."""
    settings = collect_new_settings(services, command)
    workspace = await services.workspaces.open_named(command.workspace)
    if command.parent_id is not None:
        await services.sessions.get(command.parent_id)
    warnings = await ask_switch(services, None) if command.activate else UNSET
    if command.workspace is not None and services.workspaces.is_wide(workspace):
        settings["permission_mode"] = "ask"
    live, handle = services.sessions.create(
        activate=command.activate, workspace=workspace.path, **settings
    )
    return Deferred(handle, _build_reply(live, is_active=command.activate, warnings=warnings))


async def switch_session(services: Services, command: commands.SwitchSession) -> Reply:
    """Make a session the active one."""
    live = await services.sessions.get(command.session_id)
    warnings = await ask_switch(services, live)
    # It may have been deleted meanwhile.
    live = await services.sessions.get(command.session_id)
    handle = services.sessions.activate(live)
    return Deferred(handle, _build_reply(live, is_active=True, warnings=warnings))


async def branch_session(services: Services, command: commands.BranchSession) -> Reply:
    """Copy a session's current content into a new session."""
    parent_id = command.session_id or command.parent_id
    if parent_id is None:
        raise InvalidPayload("session_id is required")
    parent = await services.sessions.get(parent_id)
    decisions.require_kept(parent.state)
    warnings = await ask_fork(services, parent)
    branch_id = services.clock.new_id("sess")
    async with _copy_for_branch(services.store, parent_id, branch_id):
        parent = await services.sessions.get(parent_id)
        decisions.require_kept(parent.state)
        live, handle = services.sessions.create(
            name=command.name, parent=parent, session_id=branch_id, activate=command.activate
        )
    new_id = partial(services.clock.new_id, "msg")
    if waiting := appending.copy_waiting_to_branch(live.state, parent.state, new_id):
        handle = live.decide(waiting)
    return Deferred(handle, _build_reply(live, is_active=command.activate, warnings=warnings))


@asynccontextmanager
async def _copy_for_branch(store: Store, parent_id: str, branch_id: str) -> AsyncIterator[None]:
    """Copy the entries before the block creates the branch, so that creating it takes no time."""
    is_created = False
    try:
        await store.copy_entries(parent_id, branch_id)
        yield
        is_created = True
    finally:
        if not is_created:  # for example, because the parent was deleted meanwhile
            with trio.CancelScope(shield=True):
                await drop_copies(store, (branch_id,))


async def rename_session(services: Services, command: commands.RenameSession) -> Reply:
    """Set a session's display name."""
    live = await services.sessions.require(command.session_id)
    handle = change_settings(live, name=command.name)
    return Deferred(
        handle, _build_reply(live, is_active=live.session_id == services.sessions.active_id)
    )


async def mark_seen(services: Services, command: commands.MarkSeen) -> Reply:
    """Record the last entry of a session that the user has seen."""
    live = await services.sessions.require(command.session_id)
    while True:
        seen_before = live.state.seen_id
        seen = await _later_entry(services, live, command.entry_id, seen_before)
        if live.state.seen_id == seen_before:  # else the mark was moved during the lookup
            break
    decided = (
        ()
        if seen is None or seen == seen_before
        else (events.SessionSeen(session_id=live.session_id, entry_id=seen),)
    )
    answer = Accepted(command="mark_seen", session_id=live.session_id)
    return Deferred(live.decide(decided), answer)


async def _later_entry(
    services: Services, live: LiveSession, entry_id: str | None, seen_before: str | None
) -> str | None:
    """Return the later of two entries: ``entry_id``, by default the leaf, and the one already marked as
    seen. So a client that has seen less than another client does not move the mark back.

    Raises:
        CommandRejected: ``entry_not_found``.
    """
    if entry_id in (None, live.state.leaf_id):
        return live.state.leaf_id
    assert entry_id is not None
    entry = await services.store.entry(live.session_id, entry_id)
    if entry is None:
        raise CommandRejected("entry_not_found")
    before = (
        None if seen_before is None else await services.store.entry(live.session_id, seen_before)
    )
    return seen_before if before is not None and before.created_at > entry.created_at else entry_id


async def delete_session(services: Services, command: commands.DeleteSession) -> Reply:
    """Delete a session and the sessions of its tasks; ``deleted: true`` means that all content is gone.
    With ``abort``, active runs are stopped first, and the client deletes again when they have ended.
    """
    live = await services.sessions.get(command.session_id)
    if not command.abort:
        decisions.require_idle(live.state)
    subtree = await _with_tasks(services, live)
    if command.abort and (running := _list_running(subtree)):
        return await _stop_runs_first(services, live, running)
    for each in subtree:
        decisions.require_idle(each.state)
    if command.undo_seconds:
        return await _schedule_deletion(services, subtree, command.undo_seconds)
    await _delete_all(services, subtree)
    return SessionDeleted(session_id=live.session_id, deleted=True)


async def delete_due(services: Services, session_id: str, delete_at: str) -> bool:
    """Carry out the scheduled deletion of a session and of the sessions of its tasks. Return False if it
    was not carried out: a run is being stopped first, or the schedule has changed.
    """
    try:
        live = await services.sessions.get(session_id)
    except SessionNotFound:
        return False
    if live.state.delete_at != delete_at:
        return False
    subtree = await _with_tasks(services, live)
    if running := _list_running(subtree):
        await _stop_runs_first(services, live, running)
        return False
    await _delete_all(services, subtree)
    return True


async def _with_tasks(services: Services, live: LiveSession) -> Sequence[LiveSession]:
    """Return a session and the sessions of its tasks, tasks first: if the daemon dies during a deletion,
    no task is left without its parent.
    """
    return [*await services.sessions.below(live), live]


def _list_running(subtree: Sequence[LiveSession]) -> Sequence[LiveSession]:
    """Return the sessions with a run, parents first."""
    return [each for each in reversed(subtree) if each.state.run is not None]


async def _schedule_deletion(
    services: Services, subtree: Sequence[LiveSession], seconds: int
) -> SessionDeleted:
    """Schedule the deletion of sessions and stop their work until then."""
    delete_at = later(services.clock.now(), timedelta(seconds=seconds))
    for each in subtree:
        handle = services.sessions.schedule_deletion(each, delete_at)
        _stop_work(services, each)
    await handle.wait_committed()
    services.deletions.note_scheduled()
    return SessionDeleted(session_id=subtree[-1].session_id, deleted=False, delete_at=delete_at)


async def restore_session(services: Services, command: commands.RestoreSession) -> Reply:
    """Cancel the scheduled deletion of a session and of the sessions of its tasks."""
    live = await services.sessions.get(command.session_id)
    for each in await _with_tasks(services, live):
        is_scheduled = each.state.delete_at is not None
        restored = (events.SessionRestored(session_id=each.session_id),) if is_scheduled else ()
        handle = each.decide(restored)
    is_active = live.session_id == services.sessions.active_id
    return Deferred(handle, _build_reply(live, is_active=is_active))


async def _delete_all(services: Services, subtree: Sequence[LiveSession]) -> None:
    handles = [_delete(services, each) for each in subtree]
    for handle in handles:
        await handle.wait_committed()
    with trio.CancelScope(shield=True):  # even if the client stops waiting
        await drop_rows(services.store, [each.session_id for each in subtree])
        await drop_leftovers(services.store)


async def _stop_runs_first(
    services: Services, live: LiveSession, running: Sequence[LiveSession]
) -> SessionDeleted:
    """Stop the runs that prevent a session's deletion: its own run, which ends the runs of its tasks; if
    it has none, the runs that clients started in sessions of its tasks.
    """
    run = active_run(services, running[0].state)
    handles = []
    for each in running if running[0] is not live else (live,):
        handles.append(each.decide(decisions.defer_deletion(each.state)))
        if each.run is not None:
            each.run.stop("cancelled")
    for handle in handles:
        await handle.wait_committed()
    return SessionDeleted(session_id=live.session_id, deleted=False, run=run)


def _stop_work(services: Services, live: LiveSession) -> None:
    services.mcp.of_sessions.end(live.session_id)
    services.calls.stop("aborted", lambda call: call.live is live)


def _delete(services: Services, live: LiveSession) -> CommitHandle:
    handle = services.sessions.delete(live)
    _stop_work(services, live)

    def on_resolved(handle: CommitHandle) -> None:
        if handle.failure is None:
            services.hub.forget(live.session_id)
            services.contexts.forget(live.session_id)
            services.transcripts.forget(live.session_id)
            services.run_services.inputs.forget(live.session_id)
            services.run_services.overrides.forget_deleted(live.session_id)
            services.run_services.runtimes.forget(live.session_id)

    handle.when_resolved(on_resolved)
    return handle


async def set_leaf(services: Services, command: commands.SetLeaf) -> Reply:
    """Set the leaf, the entry that new work continues from."""
    live = await services.sessions.require(command.session_id)
    decisions.require_idle(live.state)
    await require_entry(services, live, command.leaf_id)
    # Checked again: a run may have started while the entry was looked up.
    decisions.require_idle(live.state)
    answer = Leaf(session_id=live.session_id, leaf_id=command.leaf_id)
    return Deferred(live.decide(decisions.move_leaf(live.state, command.leaf_id)), answer)


async def get_tree(services: Services, command: commands.GetTree) -> Reply:
    """Read a page of a session's tree, oldest entries first."""
    live = await services.sessions.target(command.session_id)
    if live is None:
        return Tree(session_id="", nodes=(), has_more=False)
    leaf_id = live.committed.leaf_id
    if command.after is not None:
        await require_entry(services, live, command.after)
    nodes = await services.store.tree(live.session_id, after=command.after, limit=command.limit + 1)
    return Tree(
        session_id=live.session_id,
        nodes=nodes[: command.limit],
        has_more=len(nodes) > command.limit,
        leaf_id=or_unset(leaf_id),
    )


def _build_reply(
    live: LiveSession, *, is_active: bool, warnings: Warnings = UNSET
) -> SessionSelected:
    return SessionSelected(
        session_id=live.session_id,
        active=is_active,
        parent_id=or_unset(live.state.parent_id),
        name=or_unset(live.state.name),
        warnings=warnings,
    )
