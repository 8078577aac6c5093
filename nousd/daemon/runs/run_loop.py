"""Carries out one run, from its start in the log to its end.

``RunLoop`` takes turns from the session's queue, passes each to the runtime, and ends the run. If a run
ends early (failed, aborted, stopped), only the machine's ``closing_events`` close its open brackets. The
loop does not know other runs; ``run_host`` is the side of the run that the runtime sees.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from msgspec import UNSET

from nousd.daemon import error_boundary
from nousd.daemon.runs.deliveries import whole_turn
from nousd.daemon.runs.run_hooks import RunHooks
from nousd.errors import NousdError, RunFailed, without_category
from nousd.machine.context import text_offload
from nousd.machine.session import decisions, queue
from nousd.machine.session.appending import append_waiting, leaf_after
from nousd.machine.session.closing_events import closing_events, open_ends
from nousd.machine.session.lifecycle import Phase
from nousd.machine.session.queue import Turn
from nousd.machine.session.settings import in_force
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.events import Event
from nousd.wire.events.base import EndStatus

if TYPE_CHECKING:
    from nousd.daemon.runs.run_host import RunHost
    from nousd.daemon.runs.services import RunServices

CLOSING_SECONDS: Final = 3.0
"""Maximum time that an ended run waits for the commit of its last events; if the commit fails, recovery
closes the run."""


class RunLoop:
    """Carries out one run.

    Args:
        own_prompt: the id of the input that started the run; None for a resumed run.
    """

    def __init__(self, host: RunHost, services: RunServices, *, own_prompt: str | None) -> None:
        self._host = host
        self._services = services
        self._own_prompt = own_prompt
        self._hooks = RunHooks(services.hooks, host)

    async def drive(self) -> None:
        """Carry the run out to its end, unless the session is lost meanwhile. Never raise."""
        host, live = self._host, self._host.live
        outcome = await error_boundary.run_contained(
            self._turns_until_stopped, f"run {host.run_id}"
        )
        if host.scope.cancel_called:
            outcome = None  # an error during a stop is a consequence of the stop
        if not live.lost and host.tracker.phase is not Phase.ENDED:
            ended = await error_boundary.run_contained(
                partial(self._end_early, outcome), "the end of a run"
            )
            if ended is not None:
                # Recovery must close the run, as after a crash.
                live.lost = True
        if not live.lost:
            host.leave()
        with trio.move_on_after(CLOSING_SECONDS):
            await error_boundary.run_contained(
                host.last_handle.wait_committed, f"end of {host.run_id}"
            )
        # The next run may have been accepted while the end of this one was being committed.
        if live.run is host:
            live.run = None

    async def _turns_until_stopped(self) -> None:
        # An error raised together with ``Cancelled`` leaves the scope as a group without ``Cancelled``.
        with self._host.scope:
            await self._turns()

    async def _turns(self) -> None:
        started = self._host.last_handle
        # Read while the start is being committed.
        await self._host.context()
        workspace = await self._host.enter_workspace()
        await self._host.instructions()
        remark = await workspace.project.remark(self._host.live.session_id)
        await started.wait_committed()
        # A run that is aborted before it begins has no turn: the abort has returned its prompt.
        await trio.lowlevel.checkpoint_if_cancelled()
        if remark is not None:
            self._host.warn("project_config_ignored", text_offload.beginning(remark))
        added = await self._hooks.before_run(resumes=self._own_prompt is None)
        await self._host.add_instructions(added)
        turn: Turn | None = await self._next_turn() or Turn("resume", ())
        while turn is not None:
            self._begin_turn(turn)
            await self._hooks.turn_start(turn)
            await self._host.runtime.run_turn(self._host)
            # A stop that came when this task was already scheduled must not look like a completion.
            await trio.lowlevel.checkpoint_if_cancelled()
            self._require_delivered()
            await self._hooks.turn_end()
            turn = await self._end_turn()

    def _require_delivered(self) -> None:
        """Fail the run if its turn ended without its inputs: the next turn would have the same ones."""
        delivery = self._host.delivery
        if delivery is not None and not delivery.is_done:
            raise RunFailed(
                "input_not_delivered",
                "the agent ended its turn without the user's message",
                f"{self._host.runtime.name} never said that it has taken the message",
                hint="the message still waits: resume the session",
            )

    async def _next_turn(self) -> Turn | None:
        """Return the next turn, with full texts. Nothing is awaited after the turn is chosen."""
        return await whole_turn(self._services.store, self._choose_turn)

    def _choose_turn(self) -> Turn | None:
        state = self._host.live.state
        modes = in_force(state, self._services.sessions.defaults)
        return queue.next_turn(
            state.queue,
            own_prompt=self._own_prompt,
            steering=modes.steering_mode,
            follow_up=modes.follow_up_mode,
        )

    def _begin_turn(self, turn: Turn) -> None:
        """Submit the beginning of the turn without waiting for its commit. The model is called
        meanwhile: its output follows in the log, and a tool call waits for both. Events that the runtime
        emits before it first waits are part of the same commit.
        """
        if self._host.runtime.consumes_on_delivery:
            self._host.offer(turn)
            return
        clock = self._services.clock
        self._host.decide(
            decisions.begin_turn(
                self._host.live.state,
                turn,
                run_id=self._host.run_id,
                turn_id=str(self._host.tracker.turns + 1),
                message_id=clock.new_id("msg"),
                created_at=clock.now(),
            )
        )

    async def _end_turn(self) -> Turn | None:
        """End the turn and return the next one; if no input waits, end the run and return None. Nothing
        is awaited in between, so an input is either seen here or refused because the run has ended.
        """
        turn = await self._next_turn()
        ends: list[Event] = [events.TurnEnd(**self._host.tracker.where)]
        if turn is None:
            ends += append_waiting(self._host.live.state, run_id=self._host.run_id)
            ends.append(self._agent_end("completed"))
        self._host.decide(ends)
        return turn

    async def _end_early(self, failure: NousdError | None) -> None:
        status: EndStatus = self._host.stopped_as
        remarks: list[Event] = []
        cause: str | None = None
        category: str | None = None
        if failure is not None:
            status = "error"
            failed = error_boundary.to_run_failure(failure)
            cause = text_offload.beginning(failed.cause or failed.message)
            category = failed.category
            remarks.append(self._error_event(failed))
        elif status == "timeout":
            cause = f"nothing happened for {self._services.stale_seconds * 1000:.0f} ms"
            remarks.append(
                events.Warning(**self._host.remark_where, code="run_stale", message=cause)
            )
        elif self._is_model_asked():
            remarks.append(
                events.Warning(
                    **self._host.tracker.where, code="provider_aborted", message="request_aborted"
                )
            )
        while self._host.is_holding:
            now = self._services.clock.now()
            first_ends = open_ends(
                self._host.tracker, status, leaf_id=self._host.leaf_id, now=now, error=cause
            )
            self._host.decide([*remarks, *first_ends])
            remarks = []
        ends = closing_events(
            self._host.tracker,
            status,
            leaf_id=self._host.leaf_id,
            now=self._services.clock.now(),
            error=cause,
            category=category,
        )
        *first, end = ends
        leaf_id = leaf_after(first, self._host.leaf_id)
        appended = append_waiting(self._host.live.state, run_id=self._host.run_id, leaf_id=leaf_id)
        self._host.decide([*remarks, *first, *appended, end])

    def _is_model_asked(self) -> bool:
        """Return whether a model call is in progress: in a message, or in a turn without tool calls."""
        tracker = self._host.tracker
        return tracker.phase is Phase.MESSAGE or (tracker.phase is Phase.TURN and not tracker.tools)

    def _agent_end(self, status: EndStatus) -> events.AgentEnd:
        return events.AgentEnd(
            session_id=self._host.live.session_id, run_id=self._host.run_id, status=status
        )

    def _error_event(self, failure: RunFailed) -> events.Error:
        """Return the error event of a failure; a long answer of the server becomes an artifact."""
        cause = text_offload.beginning(failure.cause)
        message = without_category(failure.category, failure.cause)
        raw = failure.raw or message.encode(errors="replace")
        is_in_cause = raw.decode(errors="replace").strip() in cause
        return events.Error(
            **self._host.remark_where,
            code=failure.code,
            message=failure.message,
            cause=cause,
            hint=failure.hint or UNSET,
            category=or_unset(failure.category),
            raw_ref=UNSET if is_in_cause else self._host.keep_bytes(raw, _raw_type(raw)),
        )


def _raw_type(raw: bytes) -> str:
    """Return the media type of a server's raw answer."""
    return "application/json" if raw.lstrip()[:1] in (b"{", b"[") else text_offload.TEXT_MEDIA_TYPE
