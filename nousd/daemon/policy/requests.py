"""Requests that wait for the user, and the ends of recent requests.

A request is in the log before clients see it, and its end before the author of the end learns that it
counts. The first end wins. ``approvals`` and ``questions`` define requests and the meaning of answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec
import trio
from msgspec import UNSET, UnsetType

from nousd.daemon.eventlog.log import SETTLED, CommitHandle
from nousd.daemon.policy.approvers import Approvers, Audience
from nousd.machine.context import text_offload
from nousd.wire.codec.envelope import encode_json
from nousd.wire.events import Event, Status
from nousd.wire.events.tools import ToolCallEvent
from nousd.wire.limits import WAITING_REQUESTS_MAX

APPROVAL_SECONDS: Final = 900.0

NOBODY_TO_ASK: Final = "no connected client can be asked"

_REMEMBERED: Final = 1024
"""Number of ended requests whose end is known without reading the log."""

Decide = Callable[[Sequence[Event]], CommitHandle]
"""Decides events for the session of a call, and for its run if it has one."""

E = TypeVar("E", bound=ToolCallEvent)
"""The event that makes the request."""

A = TypeVar("A")
"""The end of such a request."""


PassedOver = Literal["steer", "stop"]
"""Why an answer is no longer waited for."""


class Asker(NamedTuple):
    """The call that makes a request.

    Args:
        decide: decides events for the call.
        audiences: the subscribers that see the request.
        passed_over: returns why the answer is no longer waited for: the user sent a steer instead, to
            the call's run or to a run that waits for that run, or the agent has ended its turn; None
            while the answer is waited for.
    """

    decide: Decide
    audiences: tuple[Audience, ...]
    passed_over: Callable[[], PassedOver | None]


class Request(msgspec.Struct, Generic[E, A], eq=False):
    """A pending request.

    Args:
        event: the request as it is logged.
        end: its end; None while it is pending.
    """

    id: str
    event: E
    asker: Asker
    resolved: trio.Event = msgspec.field(default_factory=trio.Event)
    end: A | None = None


class Requests(Generic[E, A]):
    """All requests of one kind, of all sessions.

    Invariant: a request is in ``_waiting`` from its decision until its end is decided, and in ``_shown``
    from its commit until its end is committed, or until it is given up.
    """

    def __init__(self, approvers: Approvers, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._approvers = approvers
        self._waiting: dict[str, Request[E, A]] = {}
        self._shown: dict[str, Request[E, A]] = {}
        self._ended: OrderedDict[str, tuple[A, CommitHandle]] = OrderedDict()

    def obstacle(self, asker: Asker) -> str | None:
        """Return the reason, worded for people, why no request can be made; None if one can."""
        if not self._approvers.can_answer(asker.audiences):
            return NOBODY_TO_ASK
        if len(self._waiting) >= WAITING_REQUESTS_MAX:
            return f"{len(self._waiting)} others wait already"
        return None

    def find_waiting(self, request_id: str) -> Request[E, A] | None:
        """Return a request that can still be answered."""
        return self._waiting.get(request_id)

    def list_passed_over(self) -> list[tuple[Request[E, A], PassedOver]]:
        """Return the requests whose answers are no longer waited for, each with the reason."""
        waiting = tuple(self._waiting.values())
        return [
            (each, reason) for each in waiting if (reason := each.asker.passed_over()) is not None
        ]

    def list_waiting(self) -> tuple[Request[E, A], ...]:
        """Return every request that can still be answered, the oldest first."""
        return tuple(self._waiting.values())

    @property
    def count(self) -> int:
        """Return the number of pending requests."""
        return len(self._waiting)

    async def find_end(self, request_id: str) -> A | None:
        """Return the end of a recent request, once that end is durable; None if it is unknown.

        If a client learned of it earlier, the end could be missing from the log after a crash.
        """
        if (known := self._ended.get(request_id)) is None:
            return None
        end, handle = known
        await handle.wait_settled()
        return end if handle.failure is None else None

    def list_shown(self, session_id: str | None) -> tuple[E, ...]:
        """Return the pending requests that clients see, in a session or in all, oldest first."""
        return tuple(
            request.event
            for request in self._shown.values()
            if session_id is None
            or any(audience.session_id == session_id for audience in request.asker.audiences)
        )

    async def wait(self, request: Request[E, A], asking: Sequence[Event]) -> A | None:
        """Log a request, wait for its end and return it; None after the time limit."""

        def on_resolved(handle: CommitHandle) -> None:
            if handle.failure is None and request.id in self._waiting:
                self._shown[request.id] = request

        self._waiting[request.id] = request
        try:
            request.asker.decide(asking).when_resolved(on_resolved)
            with trio.move_on_after(self.timeout_seconds):
                await request.resolved.wait()
        finally:
            if request.end is None:
                self._waiting.pop(request.id, None)
                self._shown.pop(request.id, None)
        return request.end

    def end(self, request: Request[E, A], end: A, decided: Sequence[Event]) -> CommitHandle:
        """End a request; the handle is resolved when the end is durable.

        If this raises, the request stays pending.
        """
        handle = request.asker.decide(decided)
        request.end = end
        self._waiting.pop(request.id, None)
        self._remember(request.id, end, handle)

        def on_resolved(handle: CommitHandle) -> None:
            self._shown.pop(request.id, None)
            if handle.failure is not None:
                self._ended.pop(request.id, None)

        handle.when_resolved(on_resolved)
        request.resolved.set()
        return handle

    def withdraw(self, tool_call_id: str, end: A) -> None:
        """Withdraw the requests of a call that is being stopped; later answers are refused."""
        for request in list(self._waiting.values()):
            if request.event.tool_call_id == tool_call_id:
                del self._waiting[request.id]
                self._shown.pop(request.id, None)
                # Nothing is logged here: the events that close the call end the request as well.
                self._remember(request.id, end, SETTLED)

    def _remember(self, request_id: str, end: A, handle: CommitHandle) -> None:
        self._ended[request_id] = end, handle
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)


def as_logged(event: E) -> E:
    """Return a request in the form in which it is logged."""
    (logged,) = text_offload.cut_long_texts((event,)).events
    assert isinstance(logged, type(event))
    return logged


def with_client(details: dict[str, Any], client_id: str | UnsetType) -> dict[str, Any]:
    """Return details of an end, with the name of the client that ended the request, if it gave one."""
    return details if client_id is UNSET else {**details, "client_id": client_id}


def status_of(name: str, event: ToolCallEvent) -> list[Event]:
    """Return the status event with the same facts, for clients that know only the frozen events; none
    for a request that belongs to no run.
    """
    facts = msgspec.to_builtins(as_logged(event))
    if "run_id" not in facts:
        return []
    keys = {key: facts[key] for key in ("session_id", "run_id", "turn_id") if key in facts}
    return [Status(**keys, message=f"{name}: {encode_json(facts).decode()}")]
