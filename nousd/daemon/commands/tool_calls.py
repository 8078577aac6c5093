"""Commands that start a tool call without a model, cancel it, and read any call."""

from __future__ import annotations

from typing import Final

from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.daemon.sessions.live_session import LiveSession
from nousd.daemon.workspace.workspaces import Workspace
from nousd.errors import CommandRejected
from nousd.store.rows import ToolCallRow
from nousd.wire import commands
from nousd.wire.codec.unset import or_unset
from nousd.wire.commands.subscribe import cursor, cursor_seq
from nousd.wire.responses import Accepted, ToolCallNow, ToolCalls
from nousd.wire.responses.tools import ToolCallSummary

_BEHIND_ALL: Final = 2**63 - 1

LOOKS_MAX: Final = 16
"""Maximum lookups of a call's workspace while others attach its session elsewhere."""


async def call_tool(services: Services, command: commands.CallTool) -> Reply:
    """Start a call, unless the same one was started before; create a session if none is active."""
    live = await services.sessions.target(command.session_id)
    workspace: Workspace | CommandRejected = services.workspaces.default
    if live is not None:
        workspace, known = await _look_up_call(services, live, command.client_call_id)
        if known is not None:
            return known
    if isinstance(workspace, CommandRejected):
        raise workspace
    services.calls.require_room()
    if live is None:
        live, _ = services.sessions.create()
    return services.calls.start(live, command, workspace)


async def _look_up_call(
    services: Services, live: LiveSession, client_call_id: str | None
) -> tuple[Workspace | CommandRejected, Deferred | Accepted | None]:
    """Return the workspace of a call, and the first acknowledgement if the call is sent again.

    Raises:
        CommandRejected: ``session_changed``, because others keep attaching the session elsewhere.
    """
    for _ in range(LOOKS_MAX):
        path = services.workspaces.path_of(live.state)
        workspace = await services.workspaces.look_up(live.state)
        known = await services.calls.find_acknowledgement(live, client_call_id)
        # The session may have been attached to another workspace meanwhile.
        if path == services.workspaces.path_of(live.state):
            return workspace, known
    raise CommandRejected("session_changed")


async def cancel_tool_call(services: Services, command: commands.CancelToolCall) -> Reply:
    """Cancel a client's tool call; its end event reports its effects."""
    driver = services.calls.find(command.tool_call_id)
    if driver is None:
        row = await services.store.tool_call(command.tool_call_id, None)
        if row is None:
            raise CommandRejected("tool_call_not_found")
        is_over = row.run_id is None or row.ended_at is not None
        # A run's call is stopped with its run.
        raise CommandRejected("tool_call_ended" if is_over else "tool_call_not_cancellable")
    driver.stop("aborted")
    return Accepted(command="cancel_tool_call", tool_call_id=command.tool_call_id)


async def get_tool_call(services: Services, command: commands.GetToolCall) -> Reply:
    """Read one attempt of a call."""
    return ToolCallNow(
        call=await services.run_services.call_records.record(command.tool_call_id, command.attempt)
    )


async def list_tool_calls(services: Services, command: commands.ListToolCalls) -> Reply:
    """List attempts, newest first."""
    if command.session_id is not None:
        await services.sessions.get(command.session_id)
    before = _BEHIND_ALL if command.before is None else cursor_seq(command.before)
    rows = await services.store.tool_calls(
        command.session_id, command.run_id, limit=command.limit + 1, before=before
    )
    shown = rows[: command.limit]
    return ToolCalls(calls=tuple(map(_summary, shown)), has_more=len(rows) > len(shown))


def _summary(row: ToolCallRow) -> ToolCallSummary:
    return ToolCallSummary(
        tool_call_id=row.tool_call_id,
        attempt=row.attempt,
        session_id=row.session_id,
        run_id=or_unset(row.run_id),
        tool_name=row.tool_name,
        state=row.state,
        executed=row.started,
        event=cursor(row.seq),
        requested_at=row.requested_at,
        client_call_id=or_unset(row.client_call_id),
        ended_at=or_unset(row.ended_at),
        is_error=or_unset(row.is_error),
        decided_by=or_unset(row.by),
    )
