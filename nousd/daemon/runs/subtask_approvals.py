"""Requests of a subtask, repeated on the run at the top of its tree.

People look at that run. So what is asked below, and what comes of it, is told there once more, under the
same ids, with ``origin`` naming where it happened; it is answered as if it had been asked there.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from nousd.daemon.policy.requests import status_of
from nousd.wire import events
from nousd.wire.events import Event
from nousd.wire.events.base import TurnKey
from nousd.wire.objects.workers import Origin

ASKS: Final = (events.PermissionRequested, events.QuestionAsked)
ENDS: Final = (
    events.ToolCallApproved,
    events.ToolCallDenied,
    events.QuestionAnswered,
    events.QuestionRejected,
)

ApprovalEvent = (
    events.PermissionRequested
    | events.QuestionAsked
    | events.ToolCallApproved
    | events.ToolCallDenied
    | events.QuestionAnswered
    | events.QuestionRejected
)


def id_of(event: ApprovalEvent) -> str:
    """Return the id that a request shares with its end."""
    if isinstance(event, events.QuestionAsked | events.QuestionAnswered | events.QuestionRejected):
        return event.question_id
    return event.tool_call_id


def is_of_task(event: Event) -> bool:
    """Whether a run tells an event because a task below it asked."""
    if isinstance(event, events.Status):
        name, _, facts = event.message.partition(": ")
        return name in _ASKING and isinstance(msgspec.json.decode(facts).get("origin"), dict)
    return isinstance(event, ASKS + ENDS) and event.origin is not UNSET


_ASKING: Final = tuple(events.EVENT_TYPES[kind] for kind in ASKS)


def at_root(event: ApprovalEvent, where: TurnKey) -> list[Event]:
    """Return an event as the run at the top tells it, and a status if it asks something."""
    assert isinstance(event.run_id, str)
    origin = Origin(session_id=event.session_id, run_id=event.run_id)
    told = msgspec.structs.replace(event, **where, origin=origin)
    if not isinstance(told, ASKS):
        return [told]
    return [told, *status_of(events.EVENT_TYPES[type(told)], told)]
