"""Tool calls without a result, on every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nousd.store.interface import Store
from nousd.wire import events
from nousd.wire.objects.workers import Origin
from tests.store.helpers import append

ASKED: dict[str, Any] = {
    "input_hash": "sha256:0",
    "args": {},
    "reason": "why",
    "expires_at": "2026-01-01T00:00:00Z",
}


def asked(
    number: int, by: str | None, session_id: str = "s", **more: Any
) -> Sequence[events.Event]:
    """Return the events of a call about which somebody was asked, and how it was decided."""
    call: dict[str, Any] = {
        "session_id": session_id,
        "run_id": "r",
        "turn_id": "1",
        "tool_call_id": f"call-{number}",
        "attempt": 1,
        "tool_name": "t",
    }
    told: list[events.Event] = [
        events.ToolCallRequested(**call, args={}),
        events.PermissionRequested(**call, **ASKED, **more),
    ]
    if by is not None:
        told.append(events.ToolCallDenied(**call, by=by, reason="", **more))
    return told


async def test_those_that_nobody_answered_come_with_the_newest_first(store: Store) -> None:
    for number, by in enumerate(["timeout", "user", "stop", None, "stop"]):
        await append(store, *asked(number, by))
    told = await store.unanswered_calls(None, limit=10)
    assert [(call.tool_call_id, call.by) for call in told] == [
        ("call-4", "stop"),
        ("call-2", "stop"),
        ("call-0", "timeout"),
    ]
    assert [call.seq + 1 for call in told] == [call.asked_seq for call in told]
    assert await store.unanswered_calls(None, limit=2) == told[:2]


async def test_they_can_be_of_one_session(store: Store) -> None:
    await append(store, *asked(0, "stop"))
    await append(store, *asked(1, "stop", session_id="other"))
    [call] = await store.unanswered_calls("other", limit=10)
    assert call.tool_call_id == "call-1"


async def test_what_is_told_of_a_task_at_the_top_is_not_another_one(store: Store) -> None:
    origin = Origin(session_id="below", run_id="r2")
    await append(store, *asked(0, "stop", origin=origin)[1:])
    assert await store.unanswered_calls(None, limit=10) == ()


async def test_a_denial_without_a_question_is_none_of_them(store: Store) -> None:
    requested, _, denied = asked(0, "policy")
    await append(store, requested, denied)
    assert await store.unanswered_calls(None, limit=10) == ()
