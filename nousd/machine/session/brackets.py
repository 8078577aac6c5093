"""Orders the events of a run with overlapping calls, so that no bracket overlaps another.

Every client sees the bracket of a message or call; at most one is open. While it is open, brackets that
begin later are held; they follow after its end, in the order in which they began. The events of a
bracket are the frozen events of its message or call, and its entry; for the user's message also
``queue_update consumed``, because an input must not be lost between the two.

All other events are logged at once. So the steps of a held call are in the log when they happen, and a
kill loses no effect: ``tool_call_completed`` of a call that was held has its result, and
``closing_events`` builds its bracket from the steps. Of a held message, a kill loses the text.

A run whose calls do not overlap needs none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from nousd.machine.session import state as machine
from nousd.machine.session.closing_events import announcement, call_of, message_of
from nousd.machine.session.lifecycle import LifecycleTracker
from nousd.machine.session.queue_updates import build_removal_updates
from nousd.machine.session.state import SessionState
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.events.tools import ToolExecutionEvent
from nousd.wire.limits import DELTA_BYTES_MAX
from nousd.wire.objects.entries import MessageEntry

HELD_OUTPUT_BYTES_MAX: Final = 64 * 1024
"""Maximum output of a held call that its bracket repeats; the result is always complete."""

_JOINED_CHARS_MAX: Final = DELTA_BYTES_MAX // 6
"""Maximum characters of held deltas that are joined into one; with escapes they fit into an event."""

_MESSAGE_EVENTS: Final = (
    events.MessageStart,
    events.MessageUpdate,
    events.ReasoningUpdate,
    events.MessageEnd,
)
_STARTS: Final = (events.MessageStart, events.ToolExecutionStart)
_DELTAS: Final = (events.MessageUpdate, events.ReasoningUpdate, events.ToolExecutionUpdate)
_ENDS: Final = (events.MessageEnd, events.ToolExecutionEnd)


class _Bracket(msgspec.Struct):
    """A bracket that has begun. ``waits`` is true if it waits, or has waited, for others. ``is_running``
    only applies to a call.
    """

    id: str
    waits: bool = False
    held: list[events.Event] = []
    input_ids: tuple[str, ...] = ()
    has_ended: bool = False
    has_entry: bool = False
    is_running: bool = False
    output_left: int = HELD_OUTPUT_BYTES_MAX

    def note(self, event: events.Event) -> None:
        """Process an event of the bracket."""
        self.has_ended = self.has_ended or isinstance(event, _ENDS)
        self.has_entry = self.has_entry or isinstance(event, events.EntryAppended)
        if isinstance(event, events.MessageStart):
            self.input_ids = event.input_ids or ()


class _Outgoing:
    """The events to log now, each decided on the state that the events before it produce."""

    def __init__(self, state: SessionState) -> None:
        self.events: list[events.Event] = []
        self.state = state

    def add(self, event: events.Event) -> None:
        if isinstance(event, events.EntryAppended):
            parent_id = or_unset(self.state.leaf_id)
            if event.entry.parent_id != parent_id:
                entry = msgspec.structs.replace(event.entry, parent_id=parent_id)
                event = msgspec.structs.replace(event, entry=entry)
        if isinstance(event, events.EntryAppended | events.QueueUpdate):
            self.state = machine.apply(self.state, event, "")
        self.events.append(event)

    def add_held(self, event: events.Event) -> None:
        """Add an event that was decided on an earlier state."""
        if isinstance(event, events.QueueUpdate):
            for update in build_removal_updates(
                self.state, "consumed", event.inputs, event.run_id or None
            ):
                self.add(update)
        else:
            self.add(event)


class Brackets:
    """Orders the events of one run.

    The held events are bounded by the limits of a run and by the concurrent calls of its runtime.

    Invariant: between two calls of ``order``, something is held only while a bracket is open.
    """

    def __init__(self) -> None:
        self._open: _Bracket | None = None
        self._held: dict[str, _Bracket] = {}
        self._messages: set[str] = set()
        """The messages of the turn so far, including held ones."""

    @property
    def is_holding(self) -> bool:
        """Whether a bracket waits for the open one."""
        return bool(self._held)

    def order(
        self,
        decided: Sequence[events.Event],
        tracker: LifecycleTracker,
        state: SessionState,
        now: str,
    ) -> list[events.Event]:
        """Return the events to log now. The end of a bracket must be decided together with its entry,
        and the completion of a call together with the end of its bracket.

        A call whose message is unknown gets a message of its own directly before its bracket
        (``announcement``).

        Args:
            tracker: the run's lifecycle before these events.
            state: the session's state before these events.
            now: the time for an announcing message.
        """
        out = _Outgoing(state)
        for event in decided:
            bracket_id = self._bracket_of(event)
            if bracket_id is None:
                out.add(self._step(event, decided))
                continue
            if isinstance(event, _STARTS):
                self._begin(bracket_id, out)
                self._announce(event, tracker, now, out)
            self._take(bracket_id, event, out)
        while self._open is not None and self._open.has_ended:
            self._release(out)
        return out.events

    def _bracket_of(self, event: events.Event) -> str | None:
        """Return the id of the message or call whose bracket contains the event, if any does."""
        if isinstance(event, _MESSAGE_EVENTS):
            return event.message_id
        if isinstance(event, ToolExecutionEvent):
            return event.tool_call_id
        if isinstance(event, events.EntryAppended) and isinstance(event.entry, MessageEntry):
            return event.entry.tool_call_id or event.entry.id
        if isinstance(event, events.QueueUpdate) and event.change == "consumed":
            consumed = {queued.input_id for queued in event.inputs}
            for bracket in self._held.values():
                if not consumed.isdisjoint(bracket.input_ids):
                    return bracket.id
        return None

    def _step(self, event: events.Event, decided: Sequence[events.Event]) -> events.Event:
        """Process a step; return it, with the result if it completes a call that waits or has waited."""
        if isinstance(event, events.TurnStart):
            self._messages.clear()
        if not isinstance(event, events.ToolCallStarted | events.ToolCallCompleted):
            return event
        late = self._held.get(event.tool_call_id, self._open)
        if late is None or not late.waits or late.id != event.tool_call_id:
            return event
        late.is_running = isinstance(event, events.ToolCallStarted)
        if isinstance(event, events.ToolCallStarted) or event.result is not UNSET:
            return event
        ends = (each for each in decided if isinstance(each, events.ToolExecutionEnd))
        end = next((end for end in ends if end.tool_call_id == late.id), None)
        assert end is not None, "a call completes without the end of its bracket"
        return msgspec.structs.replace(event, result=end.result)

    def _begin(self, bracket_id: str, out: _Outgoing) -> None:
        while self._open is not None and self._open.has_ended:
            self._release(out)
        if self._open is None:
            self._open = _Bracket(bracket_id)
        else:
            self._held[bracket_id] = _Bracket(bracket_id, waits=True)

    def _announce(
        self, start: events.Event, tracker: LifecycleTracker, now: str, out: _Outgoing
    ) -> None:
        """Add the message of a call before its bracket, if no message contains the call."""
        if isinstance(start, events.MessageStart):
            self._messages.add(start.message_id)
        if not isinstance(start, events.ToolExecutionStart):
            return
        message_id = message_of(start.tool_call_id)
        # For a repeated call, an earlier run has the message.
        if message_id in self._messages or (start.attempt or 1) > 1:
            return
        self._messages.add(message_id)
        # Its parent is set when it is logged.
        announced = announcement(tracker, (call_of(start),), leaf_id=None, now=now)
        held = self._held.get(start.tool_call_id)
        if held is not None:
            held.held += announced
            return
        for event in announced:
            out.add(event)

    def _take(self, bracket_id: str, event: events.Event, out: _Outgoing) -> None:
        """Log an event of a bracket, or hold it."""
        bracket = self._held.get(bracket_id)
        if bracket is not None:
            bracket.note(event)
            self._hold(bracket, event, out)
            return
        out.add(event)
        open_ = self._open
        if open_ is not None and open_.id == bracket_id:
            open_.note(event)
            if open_.has_ended and open_.has_entry:
                self._release(out)

    def _hold(self, bracket: _Bracket, event: events.Event, out: _Outgoing) -> None:
        if isinstance(event, events.ToolExecutionUpdate):
            if bracket.is_running:
                out.add(_output_of(event))
            size = len(event.delta.encode(errors="replace"))
            if size > bracket.output_left:
                bracket.output_left = 0
                return
            bracket.output_left -= size
        joined = _join_deltas(bracket.held[-1], event) if bracket.held else None
        if joined is None:
            bracket.held.append(event)
        else:
            bracket.held[-1] = joined

    def _release(self, out: _Outgoing) -> None:
        """Close the open bracket; log the held ones until one of them stays open."""
        self._open = None
        while self._held and self._open is None:
            bracket = self._held.pop(next(iter(self._held)))
            for event in bracket.held:
                out.add_held(event)
            bracket.held.clear()
            if not (bracket.has_ended and bracket.has_entry):
                self._open = bracket


def _join_deltas(last: events.Event, event: events.Event) -> events.Event | None:
    """Join two deltas; return None if they differ in kind or stream, or are too long together."""
    if type(last) is not type(event) or not isinstance(last, _DELTAS):
        return None
    assert isinstance(event, _DELTAS)
    if getattr(last, "stream", UNSET) != getattr(event, "stream", UNSET):
        return None
    delta = last.delta + event.delta
    return None if len(delta) > _JOINED_CHARS_MAX else msgspec.structs.replace(last, delta=delta)


def _output_of(update: events.ToolExecutionUpdate) -> events.ToolCallOutput:
    return events.ToolCallOutput(
        session_id=update.session_id,
        run_id=update.run_id,
        turn_id=update.turn_id,
        tool_call_id=update.tool_call_id,
        attempt=update.attempt or 1,
        tool_name=update.tool_name,
        input_hash=update.input_hash,
        delta=update.delta,
        stream=update.stream,
    )
