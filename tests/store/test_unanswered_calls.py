"""Tool calls without a result, on every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nousd.store.interface import Store
from nousd.wire import events
from nousd.wire.objects.workers import Origin
from tests.store.helpers import append

REQUEST: dict[str, Any] = {
    "input_hash": "sha256:0",
    "args": {},
    "reason": "why",
    "expires_at": "2026-01-01T00:00:00Z",
}


def call_events(
    number: int, by: str | None, session_id: str = "s", **more: Any
) -> Sequence[events.Event]:
    """Return the events of a call that needed approval, up to its denial unless ``by`` is None."""
    call: dict[str, Any] = {
        "session_id": session_id,
        "run_id": "r",
        "turn_id": "1",
        "tool_call_id": f"call-{number}",
        "attempt": 1,
        "tool_name": "t",
    }
    calls: list[events.Event] = [
        events.ToolCallRequested(**call, args={}),
        events.PermissionRequested(**call, **REQUEST, **more),
    ]
    if by is not None:
        calls.append(events.ToolCallDenied(**call, by=by, reason="", **more))
    return calls


async def test_unanswered_calls_are_listed_newest_first(store: Store) -> None:
    for number, by in enumerate(["timeout", "user", "stop", None, "stop"]):
        await append(store, *call_events(number, by))
    calls = await store.list_unanswered_calls(None, limit=10)
    assert [(call.tool_call_id, call.by) for call in calls] == [
        ("call-4", "stop"),
        ("call-2", "stop"),
        ("call-0", "timeout"),
    ]
    assert [call.seq + 1 for call in calls] == [call.asked_seq for call in calls]
    assert await store.list_unanswered_calls(None, limit=2) == calls[:2]


async def test_unanswered_calls_can_be_listed_for_one_session(store: Store) -> None:
    await append(store, *call_events(0, "stop"))
    await append(store, *call_events(1, "stop", session_id="other"))
    [call] = await store.list_unanswered_calls("other", limit=10)
    assert call.tool_call_id == "call-1"


async def test_a_parent_runs_copy_of_a_task_request_is_not_listed(store: Store) -> None:
    origin = Origin(session_id="below", run_id="r2")
    await append(store, *call_events(0, "stop", origin=origin)[1:])
    assert await store.list_unanswered_calls(None, limit=10) == ()


async def test_a_call_denied_without_a_request_is_not_listed(store: Store) -> None:
    requested, _, denied = call_events(0, "policy")
    await append(store, requested, denied)
    assert await store.list_unanswered_calls(None, limit=10) == ()
