"""The to-do list of a session's model: stored with the session, reported on request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.providers.interface import Finished, Receive, ToolCallPiece
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from tests.daemon.scripted import Outcome, ScriptedProvider, says
from tests.harness.daemon import Client, Event, Events, memory_daemon, of_type, socket_daemon, types

READ: dict[str, Any] = {"content": "Read the tests", "status": "completed"}
FIX: dict[str, Any] = {"content": "Fix the parser", "priority": "high", "id": "fix"}
STORED = [
    {"id": "1", "content": "Read the tests", "status": "completed"},
    {"id": "fix", "content": "Fix the parser", "status": "pending", "priority": "high"},
]


def writes(todos: Any) -> Outcome:
    """Return a model call that calls the tool ``todo`` once."""

    async def play(receive: Receive) -> None:
        await receive(ToolCallPiece("own", "todo", json.dumps({"todos": todos})))
        await receive(Finished("tool_use"))

    return play


class Desk:
    """A daemon whose model writes to-do lists."""

    def __init__(self, client: Client, events: Events, model: ScriptedProvider) -> None:
        self.client = client
        self.events = events
        self.model = model

    async def call(self, todos: Any) -> list[Event]:
        self.model.answer(writes(todos), says("done"))
        await self.client.request("prompt", text="go", wait=False)
        return await self.events.run()

    async def result(self, todos: Any) -> str:
        (end,) = of_type(await self.call(todos), "tool_execution_end")
        result: str = end["result"]
        return result

    async def todos(self, **session: str) -> Any:
        return (await self.client.request("get_todos", **session))["todos"]


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with memory.open_store() as store:
        yield store


@pytest.fixture
async def desk(tmp_path: Path, store: Store) -> AsyncIterator[Desk]:
    model = ScriptedProvider()
    # Nobody can be asked, so a call that needs approval is denied.
    asking = RulePermissions("ask")
    async with memory_daemon(
        workdir=tmp_path, provider=model, store=store, permissions=asking
    ) as daemon:
        client = await daemon.connect()
        yield Desk(client, await daemon.watch(types="all"), model)


@pytest.mark.behaviour("the_list_of_things_to_do_is_kept")
async def test_a_list_is_reported_within_its_call_and_needs_no_approval(desk: Desk) -> None:
    events = await desk.call([READ, FIX])
    inside = types(events)
    told = inside.index("todo_updated")
    assert inside.index("tool_call_started") < told < inside.index("tool_call_completed")
    (updated,) = of_type(events, "todo_updated")
    assert updated["todos"] == STORED
    (end,) = of_type(events, "tool_execution_end")
    assert updated["tool_call_id"] == end["tool_call_id"]
    assert end["result"] == "[x] 1. Read the tests\n[ ] fix. Fix the parser"
    assert await desk.todos() == STORED


async def test_a_call_replaces_the_whole_list(desk: Desk) -> None:
    await desk.call([READ, FIX])
    await desk.call([FIX])
    assert await desk.todos() == STORED[1:]
    assert await desk.result([]) == "The list is empty."
    assert await desk.todos() == []


@pytest.mark.behaviour("a_list_that_does_not_fit_changes_nothing")
@pytest.mark.parametrize(
    ("todos", "message"),
    [
        ([READ, {**FIX, "id": "1"}], "todo_failed: two items have the id 1"),
        ([{**READ, "status": "done"}], "validation_failed: todo: Invalid enum value 'done'"),
        ([{"content": " "}], "validation_failed: todo: "),
        ([{"status": "pending"}], "validation_failed: todo: "),
        (["Read"], "validation_failed: todo: "),
        ("Read", "validation_failed: todo.todos must be an array"),
        ([{"content": "x" * 501}], "validation_failed: todo: "),
        ([{"content": "x"}] * 101, "validation_failed: todo: "),
    ],
)
async def test_an_invalid_list_changes_nothing(desk: Desk, todos: Any, message: str) -> None:
    await desk.call([READ, FIX])
    assert (await desk.result(todos)).startswith(f"tool_error: {message}")
    assert await desk.todos() == STORED


async def test_each_session_has_its_own_list(desk: Desk) -> None:
    await desk.call([READ, FIX])
    first = (await desk.client.request("get_state"))["session_id"]
    await desk.client.request("new_session")
    assert await desk.todos() == []
    assert await desk.todos(session_id=first) == STORED


async def test_a_branch_starts_with_a_copy_of_its_parents_list(desk: Desk) -> None:
    await desk.call([READ, FIX])
    parent = (await desk.client.request("get_state"))["session_id"]
    branch = (await desk.client.request("branch_session", session_id=parent))["session_id"]
    assert await desk.todos(session_id=branch) == STORED
    await desk.client.request("switch_session", session_id=branch)
    await desk.call([])
    assert await desk.todos(session_id=branch) == []
    assert await desk.todos(session_id=parent) == STORED


async def test_the_list_is_empty_without_a_session(desk: Desk) -> None:
    assert await desk.todos() == []


async def test_a_list_survives_a_restart(tmp_path: Path) -> None:
    model = ScriptedProvider()
    async with socket_daemon(tmp_path, provider=model) as daemon:
        client = await daemon.connect()
        await Desk(client, await daemon.watch(types="all"), model).call([READ, FIX])
        state = await client.request("get_state")
        await client.request("branch_session", session_id=state["session_id"])
    async with socket_daemon(tmp_path, provider=model) as daemon:
        client = await daemon.connect()
        sessions = (await client.request("list_sessions"))["sessions"]
        assert len(sessions) == 2
        for session in sessions:
            stored = await client.request("get_todos", session_id=session["session_id"])
            assert stored["todos"] == STORED


async def test_a_list_in_a_memory_store_survives_a_restart(tmp_path: Path, store: Store) -> None:
    model = ScriptedProvider()
    async with memory_daemon(workdir=tmp_path, provider=model, store=store) as daemon:
        client = await daemon.connect()
        await Desk(client, await daemon.watch(types="all"), model).call([READ, FIX])
    async with memory_daemon(workdir=tmp_path, provider=model, store=store) as daemon:
        client = await daemon.connect()
        assert (await client.request("get_todos"))["todos"] == STORED


async def test_a_client_can_write_the_list(desk: Desk) -> None:
    await desk.client.request("new_session")
    await desk.client.request("call_tool", tool="todo", args={"todos": [READ, FIX]})
    updated = (await desk.events.until("todo_updated"))["payload"]
    assert updated["todos"] == STORED
    assert "run_id" not in updated
    assert await desk.todos() == STORED
