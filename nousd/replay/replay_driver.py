"""Enters external stimuli at their recorded positions, between a replay's log and its run.

It counts the run's own events as they are decided (``WatchedStore``), and acts after each step of the
loop (``watch_runtime``). So external input is entered in the run's own task, between two of its
decisions, by the rules of the machine. A stop happens there too, never in the middle of a step.

Approval requests and their answers are replayed from the recording, because a replay has no user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import trio
from msgspec import UNSET

from nousd.daemon.runs.run_host import RunHost
from nousd.daemon.sessions.live_session import LiveSession
from nousd.daemon.sessions.registry import Sessions
from nousd.errors import CommandRejected
from nousd.machine.context.model_input import ToolSpec
from nousd.machine.session import appending, decisions, queue_edits
from nousd.machine.session.queue_updates import build_removal_updates
from nousd.machine.session.settings import extract_changed_defaults
from nousd.replay.external_stimuli import Broken, ExternalStimuli, Stopped
from nousd.replay.recorded import is_outside
from nousd.replay.recorded_context import comes_and_goes, find_answer_inputs
from nousd.replay.recorded_decisions import RecordedPermissions
from nousd.replay.versions import can_be_logged
from nousd.runtimes.calls.attempts import NEVER_SEEN, EarlierAttempts
from nousd.runtimes.calls.host import Answer, Question
from nousd.runtimes.interface import Runtime, RunTurnHost
from nousd.store.memory.store import MemoryStore
from nousd.store.records import Batch
from nousd.wire import events
from nousd.wire.events import Event
from nousd.wire.objects.entries import CompactionEntry, ToolCall


class ReplayDriver:
    """Enters external input, and ends the run where the recorded one ended.

    Args:
        own_events: the run's own events, for lookups by position.
        version: the log's version; events that it could not contain are not counted.
        attempts: the earlier attempts of calls, by call id.
        offers: the tools that each model call offered; see ``RecordedContext``.
    """

    def __init__(
        self,
        stimuli: ExternalStimuli,
        own_events: Sequence[Event],
        version: int,
        permissions: RecordedPermissions,
        *,
        attempts: Mapping[str, EarlierAttempts],
        offers: Mapping[str, Mapping[str, ToolSpec]],
    ) -> None:
        self.place = 0
        self._permissions = permissions
        self._attempts = attempts
        self._offers = offers
        self._host: _Host | None = None
        self._emitted_chars = 0
        self._version = version
        self._stimuli = stimuli
        self._own_events = own_events
        self._places = stimuli.places
        self._after_stimuli = dict(stimuli.after)
        self._before_stimuli = dict(stimuli.before)
        self._running: RunHost | None = None
        self._sessions: Sessions | None = None

    @property
    def live(self) -> LiveSession:
        assert self._running is not None
        return self._running.live

    def watch(self, host: RunTurnHost) -> _Host:
        """Return the host of a turn, with the driver acting after each of its steps."""
        self._host = _Host(host, self)
        return self._host

    async def answer(self) -> Answer:
        """Emit the approval request of the current call and its answer; return the answer.

        If the run was stopped while it waited, stop it again.
        """
        call = self._permissions.current
        if call.approval_events:
            await self.emit(*call.approval_events)
        if call.decision is None:
            await self.at_end_of_part()
            return Answer(allows=False, by="policy", reason="the recording has no more for it")
        allows = isinstance(call.decision, events.ToolCallApproved)
        return Answer(
            allows=allows,
            by=call.decision.by,
            reason=call.decision.reason,
            decision=call.decision.decision,
            rule=call.decision.rule,
            client_id=call.decision.client_id,
            hint=call.hint,
        )

    async def emit(self, *recorded: Event) -> None:
        """Emit recorded events of a tool call."""
        assert self._host is not None
        await self._host.stream(*recorded)

    def earlier(self, call: ToolCall) -> EarlierAttempts:
        """Return the earlier attempts of a call."""
        return self._attempts.get(call.tool_call_id, NEVER_SEEN)

    def was_there(self, tool: str) -> bool:
        """Return whether a tool was registered when the next call reached the gate."""
        for event in self._own_events[self.place :]:
            if isinstance(event, events.ToolCallPolicyEvaluated) and event.source == "registry":
                return event.tool_name != tool or event.decision == "allow"
        return True

    def restore_offered_tools(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Return the tools as offered in the next model call; those of MCP servers come and go."""
        model_input = next(find_answer_inputs(self._own_events[self.place :]), None)
        if (
            model_input is None
            or model_input.rest_ref is UNSET
            or model_input.rest_ref not in self._offers
        ):
            return tuple(tools)
        offered = self._offers[model_input.rest_ref]
        return tuple(
            offered.get(tool.name, tool)
            for tool in tools
            if tool.name in offered or not comes_and_goes(tool.name)
        )

    def begin(self, run: RunHost, sessions: Sessions) -> None:
        """Take over a run in the same step in which its start was decided."""
        self._running = run
        self._sessions = sessions
        self._enter(self._after_stimuli)
        if self._is_over:
            self._end()

    def note(self, decided: Sequence[Event]) -> None:
        """Count events that are being submitted."""
        if self._running is not None:
            for event in decided:
                self.place, self._emitted_chars = self._after(
                    event, self.place, self._emitted_chars
                )

    def next_id(self, prefix: str) -> str | None:
        """Return the next recorded id of a message or compaction, because model inputs contain ids."""
        for event in self._own_events[self.place :]:
            match event:
                case events.MessageStart() if prefix == "msg":
                    return event.message_id
                case events.EntryAppended(entry=CompactionEntry(id=entry_id)) if prefix == "cmp":
                    return entry_id
        return None

    def _after(self, event: Event, place: int, emitted_chars: int) -> tuple[int, int]:
        """Return the position after an event, and the number of characters already emitted of the delta
        at that position: a replay may split deltas differently.
        """
        if is_outside(event) or not can_be_logged(event, self._version):
            return place, emitted_chars
        chars_left = self._measure_rest_of_delta(event, place, emitted_chars)
        if chars_left is None or not isinstance(event, _DELTAS):
            return place + 1, 0
        size = len(event.delta)
        return (place, emitted_chars + size) if size < chars_left else (place + 1, 0)

    def _measure_rest_of_delta(self, event: Event, place: int, emitted_chars: int) -> int | None:
        """Return the number of characters left of the recorded delta at a position; None if there is no
        delta of the event's type.
        """
        recorded = self._own_events[place] if place < len(self._own_events) else None
        if not isinstance(recorded, _DELTAS) or type(recorded) is not type(event):
            return None
        return len(recorded.delta) - emitted_chars

    # --- in the run's task -------------------------------------------------------------------

    def parts(self, decided: Sequence[Event]) -> list[list[Event]]:
        """Split a step of the loop at the positions of external input."""
        parts: list[list[Event]] = [[]]
        place, emitted_chars = self.place, self._emitted_chars
        remaining = list(decided)
        while remaining:
            event = remaining.pop(0)
            if place in self._places and not emitted_chars and parts[-1]:
                parts.append([])
            room = self._measure_rest_of_delta(event, place, emitted_chars)
            if isinstance(event, _DELTAS) and room is not None and len(event.delta) > room:
                head, tail = event.delta[:room], event.delta[room:]
                remaining.insert(0, msgspec.structs.replace(event, delta=tail))
                event = msgspec.structs.replace(event, delta=head)
            parts[-1].append(event)
            place, emitted_chars = self._after(event, place, emitted_chars)
        return parts

    def before_step(self) -> None:
        """Enter the input that arrived right before the next step."""
        self._enter(self._before_stimuli)

    async def after_step(self) -> None:
        """Enter the input that arrived after a step, and stop the run if it was stopped there.

        Raises:
            RunFailed: the recorded run failed there.
        """
        self._enter(self._after_stimuli)
        if self._is_over:
            self._end()
            await trio.sleep_forever()

    async def at_end_of_part(self) -> None:
        """End the run if the recorded model or tool call was cut off here.

        Return only if the recorded run did not end early; then the replay differs.
        """
        if self._stimuli.ending is not None:
            self._end()
            await trio.sleep_forever()

    @property
    def _is_over(self) -> bool:
        return self._stimuli.ending is not None and self.place >= self._stimuli.ending[0]

    def _end(self) -> None:
        assert self._stimuli.ending is not None
        assert self._running is not None
        self._enter(self._before_stimuli)
        match self._stimuli.ending[1]:
            case Stopped(status, killed):
                # A run of a killed process is closed like that of a lost session.
                self.live.lost = self.live.lost or killed
                self._running.stop(status)
            case Broken() as broken:
                raise broken.failure

    # --- external input ----------------------------------------------------------------------

    def _enter(self, pending: dict[int, Sequence[Event]]) -> None:
        for place in sorted(place for place in pending if place <= self.place):
            stimuli = list(pending.pop(place))
            while stimuli:
                event = stimuli.pop(0)
                if isinstance(event, events.RunAborting) and stimuli and _is_emptying(stimuli[0]):
                    stimuli.pop(0)  # one decision of an abort yields both events
                if isinstance(event, events.SessionUpdated) and not event.session_id:
                    assert self._sessions is not None
                    self._sessions.update(None, **extract_changed_defaults(event))
                    continue
                decide = _ENTER.get(type(event), _enter_unchanged)
                self.live.decide(decide(self.live, event))


def _is_emptying(event: Event) -> bool:
    return isinstance(event, events.QueueUpdate) and event.change == "cleared"


def _enter_unchanged(_: LiveSession, event: Event) -> Sequence[Event]:
    return (event,)


def _abort(live: LiveSession, event: events.RunAborting) -> Sequence[Event]:
    keeps = event.keep_queue is True
    decided, _cleared = decisions.abort_run(
        live.state, expected_run_id=None, keep_queue=keeps, client_id=event.client_id or None
    )
    return decided


def _change_queue(live: LiveSession, event: events.QueueUpdate) -> Sequence[Event]:
    (decide,) = (_QUEUE[event.change],)
    return decide(live, event)


def _accept(live: LiveSession, event: events.QueueUpdate) -> Sequence[Event]:
    (queued,) = event.inputs
    if queued.kind == "message":
        return appending.append_message(live.state, queued)
    return (decisions.accept_input(live.state, queued, expected_run_id=None),)


def _promote(live: LiveSession, event: events.QueueUpdate) -> Sequence[Event]:
    return decisions.promote(live.state, event.inputs[0].input_id, event.client_id or None)


def _edit(live: LiveSession, event: events.QueueUpdate) -> Sequence[Event]:
    (queued,) = event.inputs
    return (queue_edits.edit_queued(live.state, queued, client_id=event.client_id or None),)


def _move(live: LiveSession, event: events.QueueUpdate) -> Sequence[Event]:
    moved = queue_edits.move_queued(
        live.state,
        event.inputs[0].input_id,
        event.before_input_id or None,
        client_id=event.client_id or None,
    )
    return (moved,)


def _clear(live: LiveSession, event: events.QueueUpdate) -> Sequence[Event]:
    """Remove exactly these inputs, whichever command removed them."""
    ids = {queued.input_id for queued in event.inputs}
    queued_inputs = tuple(queued for queued in live.state.queue if queued.input_id in ids)
    if len(queued_inputs) < len(ids):
        raise CommandRejected("input_not_found")
    return build_removal_updates(
        live.state, "cleared", event.inputs, event.run_id or None, event.client_id or None
    )


_DELTAS: Final = (events.MessageUpdate, events.ReasoningUpdate, events.ToolExecutionUpdate)

Enter = Callable[[LiveSession, Any], Sequence[Event]]

_QUEUE: Final[dict[str, Enter]] = {
    "accepted": _accept,
    "promoted": _promote,
    "edited": _edit,
    "moved": _move,
    "cleared": _clear,
}

_ENTER: Final[dict[type[Event], Enter]] = {
    events.RunAborting: _abort,
    events.QueueUpdate: _change_queue,
}
"""Type of an external event -> the machine's decision on it; other events are entered
unchanged."""


# --- hooks into log and runtime --------------------------------------------------------------


class WatchedStore(MemoryStore):
    """The log of a replay; ``watch`` receives events in the same step in which they are decided."""

    def __init__(self, watch: Callable[[Sequence[Event]], None]) -> None:
        super().__init__(lambda: None)
        self._watch = watch

    def submit(self, batch: Batch) -> None:
        super().submit(batch)
        self._watch([record.event for record in batch.records])


def watch_runtime(runtime: Runtime, driver: ReplayDriver) -> Runtime:
    """Return the runtime, with the driver acting after each of its steps."""
    return cast("Runtime", _Runtime(runtime, driver))


class _Runtime:
    """A runtime that the driver watches; everything else is delegated."""

    def __init__(self, runtime: Runtime, driver: ReplayDriver) -> None:
        self._runtime = runtime
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    async def run_turn(self, host: RunTurnHost) -> None:
        await self._driver.after_step()
        await self._runtime.run_turn(cast("RunTurnHost", self._driver.watch(host)))


class _Host:
    """The host of a turn that the driver watches; everything else is delegated."""

    def __init__(self, host: RunTurnHost, driver: ReplayDriver) -> None:
        self._host = host
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    async def runtime_opinion(self, call: ToolCall) -> None:
        """Do nothing: a recorded opinion is replayed with the decision (``RecordedPermissions``)."""

    async def ask(self, question: Question) -> Answer:  # noqa: ARG002
        return await self._driver.answer()

    def select_offered_tools(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        return self._driver.restore_offered_tools(self._host.select_offered_tools(tools))

    async def earlier(self, call: ToolCall) -> EarlierAttempts:
        return self._driver.earlier(call)

    async def stream(self, *decided: Event) -> None:
        for part in self._driver.parts(decided):
            self._driver.before_step()
            await self._host.stream(*part)
            await self._driver.after_step()

    async def commit(self, *decided: Event) -> None:
        *first, last = self._driver.parts(decided)
        for part in first:
            await self.stream(*part)
        self._driver.before_step()
        await self._host.commit(*last)
        await self._driver.after_step()
