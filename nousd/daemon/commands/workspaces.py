"""Commands that move a session to another workspace, or let it request paths outside its workspace."""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.daemon.sessions.live_session import LiveSession
from nousd.daemon.workspace.workspaces import Workspace
from nousd.errors import CommandRejected, InvalidPayload
from nousd.machine.session import decisions
from nousd.machine.session.state import SessionState
from nousd.wire import commands, events
from nousd.wire.codec.unset import or_unset
from nousd.wire.limits import OVERRIDE_SECONDS_MAX, OVERRIDE_SECONDS_MIN
from nousd.wire.objects.session_values import SessionRules
from nousd.wire.responses import Attached, WorkspaceOverride


async def attach_session(services: Services, command: commands.AttachSession) -> Reply:
    """Move an idle session and the sessions of its tasks to another workspace, and revoke their rules
    that allow calls.
    """
    live = await services.sessions.require(command.session_id)
    _require_no_task(live.state)
    _require_idle(live)
    workspace = await services.workspaces.open_named(command.workspace)
    if services.workspaces.is_wide(workspace):
        raise CommandRejected(
            "workspace_not_allowed",
            cause="it is too wide to move to; create a session there",
            details={"workspace": command.workspace},
        )
    live = await services.sessions.get(live.session_id)
    # Permissions of a parent are revoked first: if the daemon dies in between, no task is restricted
    # less than before.
    subtree = [live, *reversed(await services.sessions.below(live))]
    # A run or a call may have started while the directory was looked up.
    for each in subtree:
        _require_idle(each)
    reason = (command.reason or "").strip() or None
    moves = [_move(services, each, workspace, reason) for each in subtree]
    attached, _ = moves[0]
    assert live.state.attached_at is not None
    answer = Attached(
        session_id=live.session_id,
        workspace=attached.workspace,
        attached_from=attached.attached_from,
        origin_workspace=attached.origin_workspace,
        attached_at=live.state.attached_at,
        reason=attached.reason,
        revoked=attached.revoked,
    )
    *earlier, last = [handle for _, handle in moves]
    for handle in earlier:
        await handle.wait_committed()
    return Deferred(last, answer)


def _move(
    services: Services, live: LiveSession, workspace: Workspace, reason: str | None
) -> tuple[events.SessionAttached, CommitHandle]:
    before = services.workspaces.path_of(live.state)
    attached = events.SessionAttached(
        session_id=live.session_id,
        workspace=workspace.path,
        attached_from=before,
        origin_workspace=live.state.origin_workspace or before,
        reason=or_unset(reason),
        revoked=_list_permitting_rules(live.state),
    )
    override_ends = services.run_services.overrides.build_end_events(live.state, "attached")
    handle = live.decide((*override_ends, attached, *_build_revocation(live.state)))
    if override_ends:
        services.run_services.overrides.forget(live.session_id, "attached", handle)
    workspace.forget(live.session_id)
    live.agents = None
    return attached, handle


def _require_idle(live: LiveSession) -> None:
    """Raise CommandRejected for a session with a run or a call in progress."""
    decisions.require_idle(live.state)
    if live.calls:
        calls = sorted(call.call.tool_call_id for call in live.calls)
        raise CommandRejected("run_in_progress", details={"tool_call_ids": calls})


def _require_no_task(state: SessionState) -> None:
    """Raise CommandRejected for the session of a task, whose workspace depends on its parent."""
    if state.origin is not None:
        raise CommandRejected("session_of_task", details={"session_id": state.origin.session_id})


def _list_permitting_rules(state: SessionState) -> tuple[str, ...]:
    """Return the rules that allow calls in this session only."""
    return (*state.granted, *(() if state.rules is None else state.rules.allow))


def _build_revocation(state: SessionState) -> tuple[events.SessionUpdated, ...]:
    """Return the event that revokes the rules that allow calls, which refer to paths and commands of
    another workspace; none without such rules.
    """
    if not _list_permitting_rules(state):
        return ()
    rules: SessionRules | UnsetType = UNSET
    if state.rules is not None:
        rules = replace(state.rules, allow=())
    return (events.SessionUpdated(session_id=state.session_id, granted=(), rules=rules),)


async def override_workspace(services: Services, command: commands.OverrideWorkspace) -> Reply:
    """Let a session request paths outside its workspace for a limited time, or end that."""
    seconds = command.ttl_seconds
    if 0 < seconds < OVERRIDE_SECONDS_MIN:
        raise InvalidPayload(
            f"ttl_seconds must be 0 or from {OVERRIDE_SECONDS_MIN} to {OVERRIDE_SECONDS_MAX}"
        )
    live = await services.sessions.require(command.session_id)
    _require_no_task(live.state)
    overrides = services.run_services.overrides
    handle = overrides.grant(live, seconds) if seconds else overrides.end(live, "ended")
    answer = WorkspaceOverride(
        session_id=live.session_id, override=or_unset(overrides.find_in_force(live.state))
    )
    return answer if handle is None else Deferred(handle, answer)
