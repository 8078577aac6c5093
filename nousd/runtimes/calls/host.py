"""The daemon's side of the gate, for one tool call.

A run is such a host, and so is a call that a client makes itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from nousd.machine.policy.permission import Judgement
from nousd.machine.session.lifecycle import LifecycleTracker
from nousd.tools.interface import Emit, Tool, ToolContext
from nousd.tools.spooled_file import SpooledFile
from nousd.wire.events import Event
from nousd.wire.objects.entries import PermissionMode, ToolCall
from nousd.wire.objects.policy import ConfirmDecision, PolicyDecision
from nousd.wire.objects.tool_footprint import Access


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request for approval of one call.

    Args:
        call: the keys of an event of the call, its ``input_hash`` among them.
        access: what the call would touch.
        rule: what ``session`` and ``always`` would allow.
    """

    call: Mapping[str, Any]
    args: Mapping[str, Any]
    access: Access
    reason: str
    rule: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a request for approval. Its events are in the log, or on their way there.

    Args:
        decision: what the user said, if he did.
        rule: of what calls that is said from then on, if of others than this one.
    """

    allows: bool
    by: str
    reason: str
    decision: ConfirmDecision | UnsetType = UNSET
    rule: str | UnsetType = UNSET


class CallHost(Protocol):
    """The daemon's side of one tool call."""

    @property
    def turn(self) -> TurnCallHost | None:
        """The turn of the call, whose transcript gets its result; None for a client's own call."""
        ...

    @property
    def where(self) -> Mapping[str, Any]:
        """The keys of an event of the session, and of run and turn if the call belongs to one."""
        ...

    @property
    def permission_mode(self) -> PermissionMode:
        """The mode of the session as it is now."""
        ...

    async def commit(self, *events: Event) -> None:
        """Put events into the log together; returns when they are durable."""
        ...

    async def stream(self, *events: Event) -> None:
        """Put events into the log together and in order, without waiting for the disk; waits only if
        the log is far behind. Cancelled in that wait, they are on their way all the same.
        """
        ...

    async def keep(self, data: bytes | SpooledFile, media_type: str) -> str:
        """Store what is too big for an event: bytes together with the next commit, a file at once.
        Returns its id, to which an event of the next commit has to refer.

        Raises:
            StoreError, OSError: a file could not be stored; nothing is left of it.
        """
        ...

    def extend_idle_deadline(self, seconds: float) -> None:
        """Say that the call is alive, and that it will be although nothing may be seen of it for so
        many seconds.
        """
        ...

    def tool_is_active(self, name: str) -> bool:
        """Whether the session lets that tool be used."""
        ...

    def tool_context(self, tool_call_id: str, emit: Emit) -> ToolContext:
        """Return the surroundings of a call."""
        ...

    async def judge(self, tool: Tool, access: Access) -> Judgement:
        """Return the decision of the rules and the session's mode on a call."""
        ...

    async def runtime_opinion(self, call: ToolCall) -> RuntimeOpinion | None:
        """Return the opinion of the requesting runtime; None if it is judged already."""
        ...

    async def ask(self, question: Question) -> Answer:
        """Ask whoever can answer whether a call may run, and wait; bounded.

        The decision is in the log, or on its way there, when this returns.
        """
        ...

    def now(self) -> str:
        """Return the time as RFC 3339 UTC."""
        ...


class RuntimeOpinion(msgspec.Struct, frozen=True):
    """A runtime's opinion on its own call, with the reason for people."""

    decision: PolicyDecision
    reason: str


class TurnCallHost(CallHost, Protocol):
    """The daemon's side of a tool call that belongs to a turn."""

    @property
    def tracker(self) -> LifecycleTracker:
        """The run's lifecycle; read it, never write it."""
        ...

    @property
    def leaf_id(self) -> str | None:
        """Where the next entry goes."""
        ...
