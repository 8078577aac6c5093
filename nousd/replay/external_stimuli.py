"""The external stimuli of a run and their positions.

A position is a number of the run's own events: "after the seventh". So nothing depends on time. The
loop looks for new input in the same step in which it decides what to do next, so a stimulus is entered
right after its event; but a steer that the loop had just missed is entered right before its next event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.errors import RunFailed, without_category
from nousd.machine.context.model_input import with_own
from nousd.machine.session.closing_events import closing_events
from nousd.machine.session.lifecycle import LOGGED, STOP_REASONS, LifecycleTracker, Phase
from nousd.machine.session.queue import has_pending_steer
from nousd.machine.session.state import request_of
from nousd.replay.recorded import RecordedRun, is_outside, run_of
from nousd.replay.recorded_context import find_answer_inputs
from nousd.replay.script import MODEL_FAILURES
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.events import Event
from nousd.wire.events.base import EndStatus
from nousd.wire.objects.entries import MessageEntry, Sampling
from nousd.wire.objects.run_options import RunOptions


class Stopped(msgspec.Struct, frozen=True):
    """The run was stopped from outside; ``killed`` if its process was killed, or could not write any
    more.
    """

    status: EndStatus
    killed: bool = False


class Broken(msgspec.Struct, frozen=True):
    """The run failed for a reason that is neither a model's nor a tool's. ``raw`` is what a server, or
    an agent program, sent.
    """

    error: events.Error
    raw: bytes = b""

    @property
    def failure(self) -> RunFailed:
        """The failure with which the run ends."""
        error = self.error
        category = None if error.category is UNSET else error.category
        return RunFailed(
            error.code,
            error.message,
            without_category(category, error.cause),
            raw=self.raw,
            hint="" if error.hint is UNSET else error.hint,
            category=category,
        )


def make_broken(error: events.Error, run: RecordedRun) -> Broken:
    """Return the end of a run by an error, with the bytes that were sent."""
    return Broken(error, run.wholes[error.raw_ref] if error.raw_ref else b"")


class ExternalStimuli(msgspec.Struct, frozen=True):
    """Every external stimulus, by the number of the run's own events before it.

    Args:
        start: the events that began the run.
        behind: entered as soon as that many events exist.
        before: entered when the next event is about to happen.
        ending: what ended the run early, and where.
    """

    start: tuple[Event, ...]
    behind: Mapping[int, Sequence[Event]]
    before: Mapping[int, Sequence[Event]]
    ending: tuple[int, Stopped | Broken] | None

    @property
    def places(self) -> frozenset[int]:
        """Every position with a stimulus."""
        end = () if self.ending is None else (self.ending[0],)
        return frozenset((*self.behind, *self.before, *end))


def cues_of(run: RecordedRun) -> ExternalStimuli:
    """Return the external stimuli of a run."""
    begun = next(
        index for index, event in enumerate(run.events) if isinstance(event, events.AgentStart)
    )
    start, rest = run.events[: begun + 1], run.events[begun + 1 :]
    options = _options_of(start[-1])
    own = [event for event in rest if not is_outside(event)]
    behind: dict[int, list[Event]] = defaultdict(list)
    before: dict[int, list[Event]] = defaultdict(list)
    tracker = LifecycleTracker(run.session_id, run.run_id, LOGGED)
    for event in start:
        tracker.note(event)
    place = 0
    for event in rest:
        if is_outside(event):
            next_ = own[place:]
            is_late = place in before or _is_overlooked(event, run.run_id, options, tracker, next_)
            (before if is_late else behind)[place].append(event)
        else:
            place += 1
        if run_of(event) is not None:
            tracker.note(event)
    return ExternalStimuli(start, behind, before, _ending(run, start, own))


def _options_of(start: Event) -> RunOptions:
    assert isinstance(start, events.AgentStart)
    options = request_of(start).options
    return RunOptions() if options is UNSET else options


def _is_overlooked(
    event: Event,
    run_id: str,
    options: RunOptions,
    tracker: LifecycleTracker,
    next_: Sequence[Event],
) -> bool:
    """Return whether the loop, between two steps of a turn, had looked before it arrived, and went on
    without it.
    """
    if tracker.phase is not Phase.TURN:
        return False
    if isinstance(event, events.SessionUpdated):
        return _is_asked_without(event, options, next_)
    if not isinstance(event, events.QueueUpdate) or event.change not in ("accepted", "promoted"):
        return False
    if not has_pending_steer(event.inputs, run_id):
        return False
    return not isinstance(next_[0], events.TurnEnd) and not _is_skipped(next_)


def _is_asked_without(
    changed: events.SessionUpdated, options: RunOptions, next_: Sequence[Event]
) -> bool:
    """Return whether the next model call uses settings from before the change."""
    told = next(event for event in next_ if not isinstance(event, events.Status))
    if not isinstance(told, events.ModelInput):
        return False
    if changed.model not in (UNSET, told.model) or changed.thinking not in (UNSET, told.thinking):
        return True
    if changed.sampling is not UNSET and told.sampling != _in_run(changed.sampling, options):
        return True
    # A tool that is offered without being named is an extension's, if it always is.
    named = changed.active_tools or told.tools
    unnamed = set(told.tools) - set(named)
    return any(not unnamed <= set(after.tools) for after in find_answer_inputs(next_))


def _in_run(sampling: Sampling | None, options: RunOptions) -> Sampling | UnsetType:
    """Return the session's sampling as a model call of the run receives it."""
    if options.sampling is not UNSET:
        return with_own(sampling, options.sampling)
    return or_unset(sampling)


def _is_skipped(next_: Sequence[Event]) -> bool:
    """Return whether the next event is a tool call that was skipped because of a steer."""
    if not isinstance(next_[0], events.ToolExecutionStart):
        return False
    for event in next_:
        if isinstance(event, events.ToolExecutionEnd):
            return False
        if isinstance(event, events.Warning) and event.code == "tool_execution_skipped":
            return True
    return False


# --- the end ---------------------------------------------------------------------------------


def _ending(
    run: RecordedRun, start: Sequence[Event], own: Sequence[Event]
) -> tuple[int, Stopped | Broken] | None:
    end = own[-1]
    assert isinstance(end, events.AgentEnd)
    if end.status == "completed":
        return None
    if end.status == "error":
        return _failure(run, own)
    tracker = LifecycleTracker(run.session_id, run.run_id, LOGGED)
    for event in start:
        tracker.note(event)
    for place, event in enumerate(own):
        is_remark = isinstance(event, events.Warning) and event.code in _STOPS
        if _closes(tracker, end.status, own[place + is_remark :]):
            killed = end.status == "interrupted" and not is_remark
            return _cause_of(own, place), Stopped(end.status, killed)
        tracker.note(event)
    raise AssertionError("a run that has an end was not closed")


_STOPS: Final = frozenset({"provider_aborted", "run_stale"})
"""The warnings that come before the ends of a stopped run."""

_AT_HOME: Final = frozenset({"answer_too_long", "tool_loop_limit_exceeded"})
"""The failures that a replay reproduces by itself, with those of a model in its answer."""


def _failure(run: RecordedRun, own: Sequence[Event]) -> tuple[int, Broken] | None:
    is_answering = False
    for place, event in enumerate(own):
        match event:
            case events.MessageStart():
                is_answering = event.role == "assistant"
            case events.MessageEnd():
                is_answering = False
            case events.Error():
                # The same codes outside of an answer are the loop's own: what it refuses depends on
                # tools, prompts and windows that are logged only for calls that were made, and a
                # provider that cannot be used on its settings.
                known = _AT_HOME if not is_answering else _AT_HOME | MODEL_FAILURES
                if event.code not in known:
                    return _cause_of(own, place), make_broken(event, run)
    return None


def _cause_of(own: Sequence[Event], place: int) -> int:
    """Return the position of the cut before the closing events: the usage of a broken call is
    reported because it broke.
    """
    is_bill = place > 0 and isinstance(own[place - 1], events.UsageReported)
    return place - is_bill


def _closes(tracker: LifecycleTracker, status: EndStatus, rest: Sequence[Event]) -> bool:
    """Return whether the rest of a run consists only of its closing events at this position."""
    owed = closing_events(tracker, status, leaf_id=None, now="")
    reason = STOP_REASONS[status]
    closing = [event for event in rest if not _is_of_message(event)]
    told = [event for event in closing if not isinstance(event, _NOT_IN_VERSION_1)]
    wanted = [event for event in owed if not isinstance(event, _NOT_IN_VERSION_1)]
    return [type(event) for event in told] == [type(event) for event in wanted] and all(
        _is_owed(event, reason) for event in rest
    )


def _is_of_message(event: Event) -> bool:
    """Return whether an event puts a waiting message into the tree, which happens with the end."""
    if isinstance(event, events.EntryAppended):
        return isinstance(event.entry, MessageEntry) and event.entry.role == "user"
    return isinstance(event, events.QueueUpdate)


_NOT_IN_VERSION_1: Final = (events.ToolCallCompleted, events.ToolCallDenied)


def _is_owed(event: Event, reason: str) -> bool:
    """Return whether an end closes a stopped run, rather than being part of the loop."""
    match event:
        case events.MessageEnd() | events.ToolCallCompleted():
            return event.stop_reason == reason
        case events.ToolCallDenied():
            return event.by == "stop"
        case events.ToolExecutionEnd():
            return event.result == f"tool_error: {reason}"
        case _:
            return True
