"""Runs the tool calls that clients make without a model: one task each, through the gate of all calls.

Such a call does not reserve the session for a run and adds nothing to the transcript. Its events belong
to no run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio

from nousd.daemon import error_boundary
from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.policy.approvers import Audience
from nousd.daemon.replies import Deferred, RecentReplies
from nousd.daemon.runs.call_host import LiveCallHost
from nousd.daemon.runs.run_loop import CLOSING_SECONDS
from nousd.daemon.runs.services import RunServices
from nousd.daemon.sessions.live_session import LiveSession
from nousd.daemon.workspace.workspaces import Workspace
from nousd.errors import CommandRejected
from nousd.machine.session.client_calls import CallLifecycle
from nousd.runtimes.calls.admission import hash_of_request
from nousd.runtimes.calls.host import RuntimeOpinion
from nousd.runtimes.calls.runner import CallRunner
from nousd.runtimes.calls.runtime_policy import NO_RUNTIME
from nousd.tools.interface import Emit, ToolContext
from nousd.tools.registry import ToolRegistry
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.commands import CallTool
from nousd.wire.events import Event
from nousd.wire.events.base import CutOff
from nousd.wire.limits import CLIENT_CALLS_MAX
from nousd.wire.objects.entries import ToolCall
from nousd.wire.responses import Accepted


class ClientCall(LiveCallHost):
    """One call of a client, and its ``CallHost``."""

    turn = None
    """See ``CallHost.turn``."""

    def __init__(
        self, live: LiveSession, call: ToolCall, services: RunServices, workspace: Workspace
    ) -> None:
        super().__init__(live, services)
        self.call = call
        self.ended = trio.Event()
        self.tracker = CallLifecycle()
        self._workspace = workspace
        self._scope = trio.CancelScope()
        self._stop_reason: CutOff | None = None
        self._grace_until = 0.0

    def begin(self, input_hash: str, command: CallTool) -> CommitHandle:
        """Log the request; the handle is resolved when it is durable."""
        requested = events.ToolCallRequested(
            session_id=self.live.session_id,
            tool_call_id=self.call.tool_call_id,
            attempt=1,
            tool_name=self.call.name,
            input_hash=input_hash,
            args=self.call.args,
            client_call_id=or_unset(command.client_call_id),
            client_id=or_unset(command.client_id),
        )
        return self.decide((requested,))

    async def drive(self, runner: CallRunner) -> None:
        """Run the call to its end, unless its session is lost or deleted meanwhile."""
        call_name = f"tool call {self.call.tool_call_id}"
        failure = await error_boundary.run_contained(partial(self._carry_out, runner), call_name)
        if failure is not None and self._stop_reason is None:
            self._stop_reason = "error"
        if not self.live.lost and not self.live.state.deleted:
            await error_boundary.run_contained(self._close, f"the end of {call_name}")
        with trio.move_on_after(CLOSING_SECONDS):
            await error_boundary.run_contained(
                self.last_handle.wait_committed, f"the end of {call_name}"
            )

    def stop(self, reason: CutOff) -> None:
        """End the call early. The first stop counts."""
        if self._stop_reason is None:
            self._stop_reason = reason
            self._scope.cancel()
            self._services.withdraw(self.call.tool_call_id)

    async def _carry_out(self, runner: CallRunner) -> None:
        requested = self.last_handle
        self.extend_idle_deadline(0.0)
        with self._scope:
            await requested.wait_committed()
            await runner.execute(self, self.call)
        if self._scope.cancelled_caught and self._stop_reason is None:
            self._stop_reason = "timeout"

    async def _close(self) -> None:
        ends = self.tracker.closing_events(self._stop_reason or "error")
        if ends:
            self.decide(ends)

    # --- CallHost ----------------------------------------------------------------------------

    @property
    def where(self) -> Mapping[str, Any]:
        """See ``CallHost.where``."""
        return {"session_id": self.live.session_id}

    def call_keys(self, _tool_call_id: str) -> Mapping[str, Any]:
        """See ``LiveCallHost.call_keys``."""
        return self.tracker.call

    @property
    def audiences(self) -> tuple[Audience, ...]:
        """See ``LiveCallHost.audiences``."""
        return (Audience(self.live.session_id, self.call.tool_call_id),)

    def get_skip_reason(self) -> None:
        """See ``LiveCallHost.get_skip_reason``; the call belongs to no run."""

    def extend_idle_deadline(self, seconds: float) -> None:
        """See ``CallHost.extend_idle_deadline``."""
        self._grace_until = trio.current_time() + seconds
        self._scope.deadline = self._grace_until + self._services.stale_seconds

    def tool_is_active(self, name: str) -> bool:
        """See ``CallHost.tool_is_active``."""
        return self._services.tool_is_active(self.live.state, name)

    def tool_context(self, tool_call_id: str, emit: Emit) -> ToolContext:
        """See ``CallHost.tool_context``."""
        return self._context_in(self._workspace, tool_call_id, emit)

    async def runtime_opinion(self, _call: ToolCall) -> RuntimeOpinion:
        """See ``CallHost.runtime_opinion``."""
        return NO_RUNTIME

    # --- logging -----------------------------------------------------------------------------

    def decide(self, decided: Sequence[Event]) -> CommitHandle:
        """See ``LiveCallHost.decide``."""
        artifacts, self._uncommitted_artifacts = self._uncommitted_artifacts, []
        handle = self.live.decide(decided, artifacts=artifacts, follow=self._follow)
        self.last_handle = handle
        if isinstance(decided[-1], _ENDS):
            handle.when_resolved(self._leave)
        return handle

    def _leave(self, handle: CommitHandle) -> None:
        """Remove the call from its session in the step in which clients learn of its end, so that their
        next command does not find it.
        """
        if handle.failure is None:
            self.live.calls.discard(self)

    def _follow(self, decided: Sequence[Event], _logged: Sequence[Event]) -> None:
        for event in decided:
            self.tracker.note(event)
        grace_until = max(self._grace_until, trio.current_time())
        self._scope.deadline = grace_until + self._services.stale_seconds


_ENDS: Final = (events.ToolCallCompleted, events.ToolCallDenied)


class ClientCalls:
    """The active calls of all clients.

    Args:
        nursery: runs their tasks.
        services: the services that calls and runs share.
        runner: the gate.
        tools: the current tools.
    """

    def __init__(
        self,
        *,
        nursery: trio.Nursery,
        services: RunServices,
        runner: CallRunner,
        tools: ToolRegistry,
    ) -> None:
        self._nursery = nursery
        self._services = services
        self._runner = runner
        self._tools = tools
        self._active: dict[str, ClientCall] = {}
        self._acknowledged = RecentReplies()

    async def find_acknowledgement(
        self, live: LiveSession, client_call_id: str | None
    ) -> Deferred | Accepted | None:
        """Return the first acknowledgement of a call that is sent again, else None.

        Memory is read last, and holds more calls than can have arrived since the log was read, so the
        same call cannot be accepted a second time.
        """
        if client_call_id is None:
            return None
        row = await self._services.store.tool_call_by_client_id(live.session_id, client_call_id)
        known = self._acknowledged.get((live.session_id, client_call_id))
        if known is not None or row is None:
            return known
        return _build_accepted(live, row.tool_call_id)

    def require_room(self) -> None:
        """Raise if too many calls are active.

        Raises:
            CommandRejected: ``too_many_calls``.
        """
        if len(self._active) >= CLIENT_CALLS_MAX:
            raise CommandRejected("too_many_calls", details={"limit": CLIENT_CALLS_MAX})

    def start(self, live: LiveSession, command: CallTool, workspace: Workspace) -> Deferred:
        """Start the task of a call and return its acknowledgement. Call ``require_room`` first.

        Args:
            workspace: the session's current workspace.
        """
        call_id = self._services.clock.new_id("call")
        call = ToolCall(
            tool_call_id=call_id, runtime_tool_call_id="", name=command.tool, args=command.args
        )
        driver = ClientCall(live, call, self._services, workspace)
        handle = driver.begin(hash_of_request(self._tools.of(live.session_id), call), command)
        self._active[call_id] = driver
        live.calls.add(driver)
        self._nursery.start_soon(self._drive, driver)
        reply = Deferred(handle, _build_accepted(live, call_id))
        if command.client_call_id is not None:
            self._acknowledged.remember((live.session_id, command.client_call_id), reply)
        return reply

    async def _drive(self, driver: ClientCall) -> None:
        # Only ``stop`` ends a call early, so its end is written even if the daemon is cancelled.
        with trio.CancelScope(shield=True):
            await driver.drive(self._runner)
        del self._active[driver.call.tool_call_id]
        driver.live.calls.discard(driver)
        driver.ended.set()
        if driver.live.lost and driver.live.is_idle:
            # Reading the session again closes the call in the log.
            reread = partial(self._services.sessions.get, driver.live.session_id)
            await error_boundary.run_contained(reread, "closing a lost call")

    def find(self, tool_call_id: str) -> ClientCall | None:
        """Return an active call."""
        return self._active.get(tool_call_id)

    def stop(self, reason: CutOff, matches: Callable[[ClientCall], bool] = lambda _: True) -> None:
        """End calls early."""
        for driver in list(self._active.values()):
            if matches(driver):
                driver.stop(reason)

    async def stop_all(self, reason: CutOff) -> None:
        """End every call early and wait until all are over."""
        drivers = list(self._active.values())
        self.stop(reason)
        for driver in drivers:
            await driver.ended.wait()


def _build_accepted(live: LiveSession, tool_call_id: str) -> Accepted:
    return Accepted(command="call_tool", tool_call_id=tool_call_id, session_id=live.session_id)
