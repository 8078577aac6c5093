"""The external stimuli of a run and their positions.

A position is a count of the run's own events, such as "after the seventh", so nothing depends on time.
The loop checks for new input in the same step in which it decides how to continue. So a stimulus is
entered right after its event, but a steer that the loop just missed right before the next event.
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
    """A stop of the run from outside; ``killed`` if the daemon was killed or could no longer write."""

    status: EndStatus
    killed: bool = False


class Broken(msgspec.Struct, frozen=True):
    """A failure of the run that neither a model nor a tool caused. ``raw`` has the bytes that a server
    or an agent program sent.
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
    """Return the failure for an error event, with the bytes that were received."""
    return Broken(error, run.artifact_data[error.raw_ref] if error.raw_ref else b"")


class ExternalStimuli(msgspec.Struct, frozen=True):
    """The external stimuli of a run, by the number of the run's own events before each.

    Args:
        start: the events that began the run.
        after: the stimuli to enter as soon as that many events exist.
        before: the stimuli to enter just before the next event.
        ending: the position and the cause of an early end; None for a normal end.
    """

    start: tuple[Event, ...]
    after: Mapping[int, Sequence[Event]]
    before: Mapping[int, Sequence[Event]]
    ending: tuple[int, Stopped | Broken] | None

    @property
    def places(self) -> frozenset[int]:
        """Every position with a stimulus."""
        end = () if self.ending is None else (self.ending[0],)
        return frozenset((*self.after, *self.before, *end))


def find_external_stimuli(run: RecordedRun) -> ExternalStimuli:
    """Return the external stimuli of a run."""
    start_index = next(
        index for index, event in enumerate(run.events) if isinstance(event, events.AgentStart)
    )
    start, rest = run.events[: start_index + 1], run.events[start_index + 1 :]
    options = _options_of(start[-1])
    own_events = [event for event in rest if not is_outside(event)]
    after: dict[int, list[Event]] = defaultdict(list)
    before: dict[int, list[Event]] = defaultdict(list)
    tracker = LifecycleTracker(run.session_id, run.run_id, LOGGED)
    for event in start:
        tracker.note(event)
    place = 0
    for event in rest:
        if is_outside(event):
            next_ = own_events[place:]
            is_late = place in before or _is_overlooked(event, run.run_id, options, tracker, next_)
            (before if is_late else after)[place].append(event)
        else:
            place += 1
        if run_of(event) is not None:
            tracker.note(event)
    return ExternalStimuli(start, after, before, _ending(run, start, own_events))


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
    """Return whether the loop, between two steps of a turn, checked for input before the event arrived,
    and so continued without it.
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
    model_input = next(event for event in next_ if not isinstance(event, events.Status))
    if not isinstance(model_input, events.ModelInput):
        return False
    if changed.model not in (UNSET, model_input.model) or changed.thinking not in (
        UNSET,
        model_input.thinking,
    ):
        return True
    if changed.sampling is not UNSET and model_input.sampling != _in_run(changed.sampling, options):
        return True
    # A tool that is offered without being named is an extension's if all later calls offer it too.
    named = changed.active_tools or model_input.tools
    unnamed_tools = set(model_input.tools) - set(named)
    return any(
        not unnamed_tools <= set(answer_input.tools) for answer_input in find_answer_inputs(next_)
    )


def _in_run(sampling: Sampling | None, options: RunOptions) -> Sampling | UnsetType:
    """Return the sampling of a model call, from the session's and the run's own."""
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
    run: RecordedRun, start: Sequence[Event], own_events: Sequence[Event]
) -> tuple[int, Stopped | Broken] | None:
    end = own_events[-1]
    assert isinstance(end, events.AgentEnd)
    if end.status == "completed":
        return None
    if end.status == "error":
        return _failure(run, own_events)
    tracker = LifecycleTracker(run.session_id, run.run_id, LOGGED)
    for event in start:
        tracker.note(event)
    for place, event in enumerate(own_events):
        is_remark = isinstance(event, events.Warning) and event.code in _STOP_WARNINGS
        if _closes(tracker, end.status, own_events[place + is_remark :]):
            killed = end.status == "interrupted" and not is_remark
            return _cause_of(own_events, place), Stopped(end.status, killed)
        tracker.note(event)
    raise AssertionError("a run that has an end was not closed")


_STOP_WARNINGS: Final = frozenset({"provider_aborted", "run_stale"})
"""The warnings that precede the closing events of a stopped run."""

_REPRODUCED_FAILURES: Final = frozenset({"answer_too_long", "tool_loop_limit_exceeded"})
"""The failures that a replay reproduces by itself, in addition to those of a model in its answer."""


def _failure(run: RecordedRun, own_events: Sequence[Event]) -> tuple[int, Broken] | None:
    is_answering = False
    for place, event in enumerate(own_events):
        match event:
            case events.MessageStart():
                is_answering = event.role == "assistant"
            case events.MessageEnd():
                is_answering = False
            case events.Error():
                # Outside of an answer the loop itself raises the same codes. That depends on tools,
                # prompts and windows, which are logged only for calls that were made, or on the
                # settings of a provider that cannot be used.
                known = (
                    _REPRODUCED_FAILURES
                    if not is_answering
                    else _REPRODUCED_FAILURES | MODEL_FAILURES
                )
                if event.code not in known:
                    return _cause_of(own_events, place), make_broken(event, run)
    return None


def _cause_of(own_events: Sequence[Event], place: int) -> int:
    """Return the position of a run's early end, before the usage of a broken call: it is reported
    because the call broke.
    """
    is_bill = place > 0 and isinstance(own_events[place - 1], events.UsageReported)
    return place - is_bill


def _closes(tracker: LifecycleTracker, status: EndStatus, rest: Sequence[Event]) -> bool:
    """Return whether the rest of a run consists only of the closing events for this position."""
    closing_steps = closing_events(tracker, status, leaf_id=None, now="")
    reason = STOP_REASONS[status]
    closing = [event for event in rest if not _is_of_message(event)]
    actual = [event for event in closing if not isinstance(event, _NOT_IN_VERSION_1)]
    expected = [event for event in closing_steps if not isinstance(event, _NOT_IN_VERSION_1)]
    return [type(event) for event in actual] == [type(event) for event in expected] and all(
        _is_closing(event, reason) for event in rest
    )


def _is_of_message(event: Event) -> bool:
    """Return whether an event appends a waiting message, which happens together with the end."""
    if isinstance(event, events.EntryAppended):
        return isinstance(event.entry, MessageEntry) and event.entry.role == "user"
    return isinstance(event, events.QueueUpdate)


_NOT_IN_VERSION_1: Final = (events.ToolCallCompleted, events.ToolCallDenied)


def _is_closing(event: Event, reason: str) -> bool:
    """Return whether an event closes a stopped run instead of being part of the loop."""
    match event:
        case events.MessageEnd() | events.ToolCallCompleted():
            return event.stop_reason == reason
        case events.ToolCallDenied():
            return event.by == "stop"
        case events.ToolExecutionEnd():
            return event.result == f"tool_error: {reason}"
        case _:
            return True
