"""The state of the view for one run, or for a client's own tool call, at a position in the log."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.views.normalized.payloads import ModelInput
from nousd.wire import events
from nousd.wire.objects.policy import PolicySource

OUTPUT_CHARS_MAX: Final = 64 * 1024
"""Maximum length of each stream in the frame that repeats a call's output when it is complete."""

HELD_OUTPUT_BYTES_MAX: Final = 64 * 1024
"""Maximum output that the bracket of a call repeats (``machine.session.brackets``)."""


class Output:
    """The output of a call so far: the beginning of each stream."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.is_truncated = False

    def add(self, stream: str, delta: str) -> None:
        """Add a piece of a stream."""
        text = self.texts.get(stream, "")
        kept = delta[: OUTPUT_CHARS_MAX - len(text)]
        self.texts[stream] = text + kept
        self.is_truncated = self.is_truncated or len(kept) < len(delta)


class OpenCall(msgspec.Struct):
    """An attempt at a call that has neither been denied nor completed.

    Args:
        in_bracket: whether the call's bracket is open, so that its output is in the bracket.
        repeats_left: the number of emitted characters that the bracket is still to repeat.
        room_left: how many bytes of further output the bracket would repeat.
    """

    requested: events.ToolCallRequested
    in_bracket: bool
    sources: list[PolicySource] = []
    approved: events.ToolCallApproved | None = None
    started: events.ToolCallStarted | None = None
    completed: events.ToolCallCompleted | None = None
    output: Output = msgspec.field(default_factory=Output)
    repeats_left: int = 0
    room_left: int = HELD_OUTPUT_BYTES_MAX

    def note_early_output(self, delta: str) -> None:
        """Count output that precedes the call's bracket, because the bracket will repeat it."""
        size = len(delta.encode(errors="replace"))
        if size > self.room_left:
            self.room_left = 0
        else:
            self.room_left -= size
            self.repeats_left += len(delta)

    def unseen(self, delta: str) -> str:
        """Return the part of a piece of output in the bracket that has not been emitted before."""
        repeated = min(len(delta), self.repeats_left)
        self.repeats_left -= repeated
        return delta[repeated:]


class Thread(msgspec.Struct):
    """A run or a client's own call, between its first and its last event.

    ``pending_turn`` is a turn that has begun, until it is known whether it has a message of the user;
    ``held`` has the model inputs that were logged meanwhile. ``open_turn`` is the turn whose start was
    emitted.
    """

    start: events.AgentStart | None = None
    model: str | UnsetType = UNSET
    runtime_session_id: str | UnsetType = UNSET
    is_started: bool = False
    pending_turn: str | None = None
    held: list[ModelInput] = []
    open_turn: str | None = None
    bracket: str | None = None
    error: events.Error | None = None
    calls: dict[str, OpenCall] = {}

    @property
    def runtime(self) -> str | UnsetType:
        """The name of the run's runtime."""
        return UNSET if self.start is None else self.start.runtime
