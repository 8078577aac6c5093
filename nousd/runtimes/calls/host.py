"""The daemon's side of the gate, for one tool call.

A run is such a host, and so is a call of a client.
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
        call: the keys of an event of the call, with its ``input_hash``.
        access: the call's footprint.
        rule: the rule that the answers ``session`` and ``always`` would grant.
    """

    call: Mapping[str, Any]
    args: Mapping[str, Any]
    access: Access
    reason: str
    rule: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a request for approval. Its events are in the log or pending.

    Args:
        decision: the user's decision, if there was one.
        rule: the rule that was granted for further calls, if one was.
        client_id: the name of the client that answered, if it gave one.
        hint: what the user can do about a denial, if there is something.
    """

    allows: bool
    by: str
    reason: str
    decision: ConfirmDecision | UnsetType = UNSET
    rule: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    hint: str = ""


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
        """Log events together; return when they are durable."""
        ...

    async def stream(self, *events: Event) -> None:
        """Log events together and in order, without waiting for the disk; wait only if the log is far
        behind. If it is cancelled while waiting, they are pending all the same.
        """
        ...

    async def wait_durable(self) -> None:
        """Return when all that was logged before is durable.

        Raises:
            StoreError: it never will be.
        """
        ...

    async def keep(self, data: bytes | SpooledFile, media_type: str) -> str:
        """Store bytes that are too large for an event with the next commit, or a file at once. Return
        its id, to which an event of the next commit must refer.

        Raises:
            StoreError, OSError: a file could not be stored; nothing is left of it.
        """
        ...

    def extend_idle_deadline(self, seconds: float) -> None:
        """Report that the call is alive, and that it may be silent for so many more seconds."""
        ...

    def tool_is_active(self, name: str) -> bool:
        """Return whether the session may use that tool."""
        ...

    def tool_context(self, tool_call_id: str, emit: Emit) -> ToolContext:
        """Return the context of a call."""
        ...

    async def judge(self, tool: Tool, access: Access) -> Judgement:
        """Return the decision of the rules and the session's mode on a call."""
        ...

    async def runtime_opinion(self, call: ToolCall) -> RuntimeOpinion | None:
        """Return the opinion of the requesting runtime; None if the call is already decided."""
        ...

    async def ask(self, question: Question) -> Answer:
        """Ask for approval and wait for the answer, for a bounded time.

        The decision is in the log or pending when this returns.
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
        """The run's lifecycle; read-only."""
        ...

    @property
    def leaf_id(self) -> str | None:
        """The parent of the next entry."""
        ...
