"""The daemon's side of one tool call, as the gate uses it.

The host is a run, or a client's own call.
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
        call: the keys of the call's events, with its ``input_hash``.
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
        rule: the rule that was granted for further calls, if any.
        client_id: the name of the client that answered, if it has one.
        hint: a remedy for a denial; "" if there is none.
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
        """The current mode of the session."""
        ...

    async def commit(self, *events: Event) -> None:
        """Log events together; return when they are durable."""
        ...

    async def stream(self, *events: Event) -> None:
        """Log events together and in order, without waiting for the disk; wait only if the log is far
        behind. Cancelling that wait does not withdraw the events.
        """
        ...

    def commit_now(self) -> None:
        """Commit the events logged before without delay: they will be waited for."""
        ...

    async def wait_durable(self) -> None:
        """Return when all events logged before are durable.

        Raises:
            StoreError: they never will be.
        """
        ...

    async def keep(self, data: bytes | SpooledFile, media_type: str) -> str:
        """Store content that is too large for an event: bytes with the next commit, a file at once.
        Return its artifact id, to which an event of the next commit must refer.

        Raises:
            StoreError, OSError: a file could not be stored; no part of it remains.
        """
        ...

    def extend_idle_deadline(self, seconds: float) -> None:
        """Report that the call is alive and may be silent for ``seconds`` from now."""
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
        """Request approval and wait for the answer, for a bounded time.

        On return, the decision is in the log or pending.
        """
        ...

    def now(self) -> str:
        """Return the time as RFC 3339 UTC."""
        ...


class RuntimeOpinion(msgspec.Struct, frozen=True):
    """A runtime's opinion on a call that it requests; ``reason`` is for people."""

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
