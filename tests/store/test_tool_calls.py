"""The rows of tool calls, on every store."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from nousd.store.interface import Store
from nousd.store.rows import ToolCallRow
from nousd.wire import events
from nousd.wire.objects.workers import Origin
from tests.store.helpers import NO_BOUND, append, created, deleted


def call(**changed: Any) -> dict[str, Any]:
    keys = {"session_id": "s1", "tool_call_id": "m.0", "attempt": 1, "tool_name": "ls"}
    return {**keys, "run_id": "r1", "turn_id": "1", **changed}


def clients(**changed: Any) -> dict[str, Any]:
    return call(**{"tool_call_id": "call-1", "run_id": UNSET, "turn_id": UNSET, **changed})


def requested(keys: dict[str, Any], **more: Any) -> events.Event:
    return events.ToolCallRequested(**keys, input_hash="h", args={}, **more)


def approved(keys: dict[str, Any]) -> events.Event:
    return events.ToolCallApproved(**keys, by="policy", reason="")


def denied(keys: dict[str, Any], **more: Any) -> events.Event:
    return events.ToolCallDenied(**keys, by="user", reason="", **more)


def started(keys: dict[str, Any]) -> events.Event:
    return events.ToolCallStarted(**keys)


def completed(keys: dict[str, Any], *, is_error: bool = False) -> events.Event:
    return events.ToolCallCompleted(**keys, is_error=is_error)


def ended(keys: dict[str, Any], *, is_error: bool = False) -> events.Event:
    return events.ToolExecutionEnd(**keys, result="", is_error=is_error, executed=True)


def permission_requested(keys: dict[str, Any], **more: Any) -> events.Event:
    return events.PermissionRequested(
        **keys, input_hash="h", args={}, reason="", expires_at="then", **more
    )


async def row(store: Store, *happened: events.Event, call_id: str = "m.0") -> ToolCallRow:
    await append(store, created(), *happened)
    found = await store.tool_call(call_id, None)
    assert found is not None
    return found


RUN, CLIENT = call(), clients()


@pytest.mark.parametrize(
    ("keys", "steps", "state", "is_over"),
    [
        (RUN, [], "requested", False),
        (RUN, [permission_requested(RUN)], "waiting", False),
        (RUN, [approved(RUN)], "approved", False),
        (RUN, [denied(RUN)], "denied", False),
        (RUN, [denied(RUN), ended(RUN, is_error=True)], "denied", True),
        (RUN, [approved(RUN), ended(RUN, is_error=True)], "not_started", True),
        (RUN, [approved(RUN), started(RUN)], "started", False),
        (RUN, [approved(RUN), started(RUN), completed(RUN)], "started", False),
        (RUN, [approved(RUN), started(RUN), completed(RUN), ended(RUN)], "completed", True),
        (CLIENT, [], "requested", False),
        (CLIENT, [denied(CLIENT)], "denied", True),
        (CLIENT, [approved(CLIENT), completed(CLIENT, is_error=True)], "not_started", True),
        (CLIENT, [approved(CLIENT), started(CLIENT), completed(CLIENT)], "completed", True),
    ],
)
async def test_a_row_has_the_state_of_its_attempt(
    store: Store, keys: dict[str, Any], steps: list[events.Event], state: str, is_over: bool
) -> None:
    found = await row(store, requested(keys), *steps, call_id=keys["tool_call_id"])
    assert (found.state, found.ended_at is not None) == (state, is_over)
    assert found.started is any(isinstance(step, events.ToolCallStarted) for step in steps)
    assert (found.run_id, found.session_id) == (None if keys is CLIENT else "r1", "s1")
    is_open = keys is CLIENT and not is_over
    assert await store.open_client_calls() == ((found,) if is_open else ())


async def test_a_row_names_the_first_and_last_event_of_its_attempt(store: Store) -> None:
    found = await row(store, requested(RUN), approved(RUN), started(RUN), ended(RUN))
    assert (found.seq, found.last_seq) == (2, 5)


async def test_an_attempt_is_found_by_its_number_and_the_last_one_by_default(store: Store) -> None:
    last = await row(store, requested(RUN), denied(RUN), requested(call(attempt=2)))
    assert (last.attempt, last.state) == (2, "requested")
    first = await store.tool_call("m.0", 1)
    assert first is not None
    assert (first.attempt, first.state, first.by) == (1, "denied", "user")
    assert await store.tool_call("m.0", 3) is None
    assert await store.tool_call("m.1", None) is None


async def test_events_of_a_parent_run_about_a_task_call_do_not_change_its_row(store: Store) -> None:
    origin = Origin(session_id="s1", run_id="r1")
    above = call(session_id="s2", run_id="r2")
    found = await row(
        store,
        requested(RUN),
        approved(RUN),
        started(RUN),
        permission_requested(above, origin=origin),
        denied(above, origin=origin),
    )
    assert (found.state, found.session_id, found.by) == ("started", "s1", "policy")


async def test_a_call_that_was_never_requested_has_no_row(store: Store) -> None:
    await append(store, created(), started(RUN), ended(RUN))
    assert await store.tool_calls(None, None, limit=NO_BOUND, before=NO_BOUND) == ()


async def test_calls_of_a_deleted_session_are_deleted_and_others_stay(store: Store) -> None:
    await append(store, created("s1"), created("s2"), requested(RUN))
    await append(store, requested(call(tool_call_id="n.0", session_id="s2", run_id="r2")))
    await append(store, deleted("s1"))
    assert await store.tool_call("m.0", None) is None
    left = await store.tool_calls(None, None, limit=NO_BOUND, before=NO_BOUND)
    assert [found.tool_call_id for found in left] == ["n.0"]


async def test_a_client_call_is_found_by_its_client_id_only_in_its_session(store: Store) -> None:
    await append(store, created(), requested(CLIENT, client_call_id="mine"))
    found = await store.tool_call_by_client_id("s1", "mine")
    assert found is not None
    assert found.tool_call_id == "call-1"
    assert await store.tool_call_by_client_id("s2", "mine") is None
    assert await store.tool_call_by_client_id("s1", "other") is None
