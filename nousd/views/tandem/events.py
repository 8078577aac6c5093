"""Events of the log as the events of Tandem's stream.

One function for each type that has a counterpart; the others are not told. A function looks at nothing
but its event, so that a stream can begin anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from msgspec import UNSET, UnsetType

from nousd.views.tandem.frames import FRAMES_MAX, Envelope, Frame
from nousd.views.tandem.times import milliseconds
from nousd.wire import events

_TENANT: Final = {"org_id": "local", "workspace_id": "local", "source": "local_implicit"}

_STATUSES: Final[dict[events.EndStatus, str]] = {
    "completed": "completed",
    "cancelled": "cancelled",
    "error": "error",
    "timeout": "timeout",
    "interrupted": "error",
}
"""how a run ended -> how the contract says it."""

_CATEGORIES: Final[dict[events.EndStatus, str | None]] = {
    "completed": None,
    "cancelled": "user_cancelled",
    "error": "runtime",
    "timeout": "timeout",
    "interrupted": "runtime",
}


class Seen(NamedTuple):
    """An event with what its line says beside the payload."""

    seq: int
    ts: str
    event: events.Event


Told = tuple[str, dict[str, Any]]
"""Type and properties of a frame."""


def frames(seen: Seen) -> list[Frame]:
    """Returns what an event becomes, in order; at most ``FRAMES_MAX`` frames, mostly one."""
    view = _VIEWS.get(type(seen.event))
    if view is None:
        return []
    told = list(view(seen, seen.event))
    assert len(told) <= FRAMES_MAX
    return [
        Frame(type_, properties, _envelope(seen, index))
        for index, (type_, properties) in enumerate(told)
    ]


def _envelope(seen: Seen, index: int) -> Envelope:
    run_id = getattr(seen.event, "run_id", UNSET)
    return Envelope(
        event_id=f"evt-{seen.seq}.{index}",
        seq=seen.seq * FRAMES_MAX + index,
        occurred_at_ms=milliseconds(seen.ts),
        session_id=seen.event.session_id or None,
        run_id=None if run_id is UNSET else run_id,
    )


def _text(seen: Seen, part: dict[str, Any], event: events.TurnEvent, **more: Any) -> Told:
    whole = {
        "id": f"part-{seen.seq}",
        "sessionID": event.session_id,
        "messageID": getattr(event, "message_id", ""),
        **part,
    }
    where = {"sessionID": event.session_id, "runID": event.run_id}
    return "message.part.updated", {**where, **more, "part": whole}


def _message_update(seen: Seen, event: events.MessageUpdate) -> Iterator[Told]:
    yield _text(seen, {"type": "text", "text": event.delta}, event, delta=event.delta)


def _agent_start(seen: Seen, event: events.AgentStart) -> Iterator[Told]:
    where = {"sessionID": event.session_id, "runID": event.run_id}
    yield (
        "session.run.started",
        {
            **where,
            "startedAtMs": milliseconds(seen.ts),
            "clientID": _or_none(getattr(event, "client_id", UNSET)),
            "agentID": _or_none(getattr(event, "agent_id", UNSET)),
            "agentProfile": _or_none(getattr(event, "agent_profile", UNSET)),
            "tenantContext": _TENANT,
        },
    )
    yield "session.status", {"sessionID": event.session_id, "status": "running"}


def _agent_end(seen: Seen, event: events.AgentEnd) -> Iterator[Told]:
    status = _STATUSES[event.status]
    yield "session.status", {"sessionID": event.session_id, "status": "idle"}
    yield (
        "session.run.finished",
        {
            "sessionID": event.session_id,
            "runID": event.run_id,
            "finishedAtMs": milliseconds(seen.ts),
            "status": status,
            "error": _or_none(event.error),
            "failureCategory": _CATEGORIES[event.status],
            "tenantContext": _TENANT,
        },
    )


def _or_none(value: str | UnsetType) -> str | None:
    return None if value is UNSET else value


_VIEWS: Final[dict[type[events.Event], Callable[[Seen, Any], Iterator[Told]]]] = {
    events.AgentStart: _agent_start,
    events.AgentEnd: _agent_end,
    events.MessageUpdate: _message_update,
}
"""type of an event -> what it becomes; one that is not here is not told."""
