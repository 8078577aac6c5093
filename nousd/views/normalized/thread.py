"""What the view knows of one run, or of a client's own tool call, at a position of the log."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.views.normalized.payloads import ModelInput
from nousd.wire import events
from nousd.wire.objects.policy import PolicySource

OUTPUT_CHARS_MAX: Final = 64 * 1024
"""The most of each stream of a call's output that is told again when it is complete."""

HELD_OUTPUT_BYTES_MAX: Final = 64 * 1024
"""The most output that the bracket of a call repeats (``machine.session.brackets``)."""


class Output:
    """The output of a call so far, each stream by itself and its beginning only."""

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
        in_bracket: its bracket is open, so its output comes there.
        repeats_left: characters of output that its bracket is about to repeat.
        room_left: bytes that a bracket would still repeat of the output to come.
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
        """Note output that comes before the call's bracket, as the bracket will repeat it."""
        size = len(delta.encode(errors="replace"))
        if size > self.room_left:
            self.room_left = 0
        else:
            self.room_left -= size
            self.repeats_left += len(delta)

    def unseen(self, delta: str) -> str:
        """Return the part of a piece of output in the bracket that was not told before it."""
        told = min(len(delta), self.repeats_left)
        self.repeats_left -= told
        return delta[told:]


class Thread(msgspec.Struct):
    """A run or a client's own call, between its first and its last event.

    ``pending_turn`` is a turn that has begun, until it is known whether it has a message of the user;
    ``held`` the model's input that was logged meanwhile. ``open_turn`` is the turn that was told.
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
