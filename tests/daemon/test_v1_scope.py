"""Clients that name no session: what they see and what they can touch is one set of runs."""

from __future__ import annotations

from typing import Any

import pytest

from nousd.daemon.eventlog import hub as hub_module
from tests.harness.daemon import (
    Client,
    Daemon,
    Events,
    of_type,
    types,
)
from tests.harness.stub_model import Gate, StubModel, text_reply, tool_reply


async def new_session(client: Client, *, activate: bool = True) -> str:
    created = await client.request("new_session", activate=activate)
    session_id: str = created["session_id"]
    return session_id


async def start_in(daemon: Daemon, client: Client, stub: StubModel, session_id: str) -> Gate:
    """Start a run that stands in the middle of its answer until the gate opens."""
    watching = await daemon.watch(session_id=session_id)
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    await client.request("prompt", text="go", wait=False, session_id=session_id)
    await watching.until("message_update")
    return gate


async def pass_event(client: Client, bare: Events, stub: StubModel) -> list[dict[str, Any]]:
    """Make a run in the active session, and return all that a bare client has received up to its end."""
    stub.script(text_reply("marker"))
    accepted = await client.request("prompt", text="mark", wait=False)
    return await bare.run(accepted["run_id"])


@pytest.mark.behaviour("bare_clients_see_the_v1_scope")
async def test_a_bare_subscriber_does_not_see_the_runs_of_other_sessions(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    await new_session(client)
    bare = await daemon.listen()
    foreign = await new_session(client, activate=False)
    gate = await start_in(daemon, client, stub, foreign)
    gate.open()
    seen = await pass_event(client, bare, stub)
    assert [event["payload"]["session_id"] for event in seen if foreign in str(event)] == []
    assert types(seen)[0] == "agent_start"
    assert types(seen)[-1] == "agent_end"


async def test_a_subscriber_of_the_frozen_types_sees_every_session(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    await new_session(client)
    watching = await daemon.watch(types="v1")
    foreign = await new_session(client, activate=False)
    gate = await start_in(daemon, client, stub, foreign)
    gate.open()
    run = await watching.run()
    assert {event["payload"]["session_id"] for event in run} == {foreign}


@pytest.mark.behaviour("bare_clients_see_a_run_from_its_entrance")
async def test_a_foreign_run_is_seen_from_the_moment_when_its_session_becomes_active(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    home = await new_session(client)
    bare = await daemon.listen()
    foreign = await new_session(client, activate=False)
    gate = await start_in(daemon, client, stub, foreign)
    await client.request("switch_session", session_id=foreign)
    # Back at once: a run that entered the scope stays in it to its end.
    await client.request("switch_session", session_id=home)
    gate.open()
    seen = await bare.run()
    assert {event["payload"]["session_id"] for event in seen} == {foreign}
    assert "agent_start" not in types(seen)
    assert "".join(update["delta"] for update in of_type(seen, "message_update")) == "two"


async def test_a_client_that_connects_during_a_run_sees_the_rest_of_it(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    gate = await start_in(daemon, client, stub, await new_session(client))
    bare = await daemon.listen()
    await new_session(client)
    gate.open()
    seen = [type_ for type_ in types(await bare.run()) if type_ != "status"]
    assert seen == ["message_update", "message_end", "turn_end", "agent_end"]


async def test_a_bare_client_far_behind_sees_the_same_from_the_log(
    daemon: Daemon, client: Client, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "WINDOW_EVENTS_MAX", 4)
    monkeypatch.setattr(hub_module, "PAGE_BYTES", 300)
    home = await new_session(client)
    stalled = await daemon.listen()
    foreign = await new_session(client, activate=False)
    gate = await start_in(daemon, client, stub, foreign)
    hidden = await start_in(daemon, client, stub, await new_session(client, activate=False))
    await client.request("switch_session", session_id=foreign)
    await client.request("switch_session", session_id=home)
    hidden.open()
    gate.open()
    seen = await pass_event(client, stalled, stub)
    runs = [event["payload"]["session_id"] for event in seen if event["type"] == "agent_end"]
    assert set(runs) <= {foreign, home}
    assert {event["payload"]["session_id"] for event in seen} == {foreign, home}


async def test_the_run_of_a_task_is_neither_seen_nor_reached(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    session = await new_session(client)
    bare = await daemon.listen()
    gate = Gate()
    tasks = {"tasks": [{"prompt": "look"}]}
    stub.script(tool_reply(("task", tasks)), text_reply("child ", gate, "done"), text_reply("end"))
    await client.request("prompt", text="go", wait=False)
    await gate.reached()
    child = next(
        run["session_id"]
        for run in (await client.request("get_state"))["runs"]
        if run["session_id"] != session
    )
    await client.request("switch_session", session_id=child)
    parent_run = (await client.request("get_state"))["run_id"]
    assert (await client.request("steer", text="hello"))["run_id"] == parent_run
    await client.request("clear_queue", session_id=session)
    gate.open()
    assert {event["payload"]["session_id"] for event in await bare.run(parent_run)} == {session}


async def test_the_run_of_a_task_is_not_reached_in_its_own_session_either(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    await new_session(client)
    parent = await new_session(client, activate=False)
    gate = Gate()
    tasks = {"tasks": [{"prompt": "look"}]}
    stub.script(tool_reply(("task", tasks)), text_reply("child ", gate, "done"), text_reply("end"))
    await client.request("prompt", text="go", wait=False, session_id=parent)
    await gate.reached()
    runs = (await client.request("get_state"))["runs"]
    child = next(run["session_id"] for run in runs if run["session_id"] != parent)
    await client.request("switch_session", session_id=child)
    assert (await client.refusal("steer", text="hello"))["message"] == "no_active_run"
    state = await client.request("get_state")
    assert (state["session_id"], state["run_state"], state["run_id"]) == (child, "idle", "")
    named = await client.request("get_state", session_id=child)
    assert named["run_state"] == "running"
    gate.open()


@pytest.mark.parametrize("is_active_before", [True, False])
async def test_a_later_run_in_the_session_of_an_ended_task_is_the_users_own(
    daemon: Daemon, client: Client, stub: StubModel, *, is_active_before: bool
) -> None:
    parent = await new_session(client)
    tasks = {"tasks": [{"prompt": "look"}]}
    stub.script(tool_reply(("task", tasks)), text_reply("child"), text_reply("end"))
    await client.request("prompt", text="go", wait=True, session_id=parent)
    sessions = (await client.request("list_sessions", children=True))["sessions"]
    child = next(each["session_id"] for each in sessions if each["session_id"] != parent)
    if is_active_before:
        await client.request("switch_session", session_id=child)
    gate = await start_in(daemon, client, stub, child)
    if not is_active_before:
        await client.request("switch_session", session_id=child)
    state = await client.request("get_state")
    assert (state["session_id"], state["run_state"]) == (child, "running")
    assert [run.get("origin") for run in state["runs"]] == [None]
    assert (await client.request("abort"))["run_id"] == state["run_id"]
    gate.open()


@pytest.mark.behaviour("bare_commands_reach_the_v1_scope")
@pytest.mark.parametrize(
    ("command", "payload"), [("steer", {"text": "x"}), ("follow_up", {"text": "x"}), ("abort", {})]
)
async def test_a_command_without_a_target_reaches_no_foreign_run(
    daemon: Daemon, client: Client, stub: StubModel, command: str, payload: dict[str, str]
) -> None:
    await new_session(client)
    foreign = await new_session(client, activate=False)
    gate = await start_in(daemon, client, stub, foreign)
    assert (await client.refusal(command, **payload))["message"] == "no_active_run"
    state = await client.request("get_state")
    assert (state["run_state"], state["run_id"]) == ("idle", "")
    assert len(state["runs"]) == 1
    gate.open()


async def test_get_state_without_a_session_shows_the_run_that_a_steer_would_reach(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    first = await new_session(client)
    gate = await start_in(daemon, client, stub, first)
    second = await new_session(client)
    await client.request("follow_up", text="later")
    state = await client.request("get_state")
    assert state["session_id"] == second
    assert (state["run_state"], state["pending_counts"]) == (
        "running",
        {"steer": 0, "follow_up": 1},
    )
    assert (await client.request("steer", text="now"))["run_id"] == state["run_id"]
    named = await client.request("get_state", session_id=second)
    assert (named["run_state"], named["pending_counts"]) == ("idle", {"steer": 0, "follow_up": 0})
    stub.script(text_reply("steered"), text_reply("followed"))
    gate.open()
    await events.until("agent_end")
    assert (await client.request("get_state"))["run_state"] == "idle"


@pytest.mark.behaviour("abort_without_a_run_clears_the_queue")
async def test_an_abort_without_a_run_gives_back_what_waits_in_the_active_session(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    session = await new_session(client)
    gate = await start_in(daemon, client, stub, session)
    await client.request("follow_up", text="later")
    await client.request("abort", keep_queue=True)
    await events.run()
    assert (await client.refusal("abort", keep_queue=True))["message"] == "no_active_run"
    wrong = await client.refusal("abort", expected_run_id="run-unknown")
    assert wrong["message"] == "no_active_run"
    answer = await client.request("abort")
    assert [queued["text"] for queued in answer["cleared"]] == ["later"]
    assert "run_id" not in answer
    assert (await client.request("get_queue"))["inputs"] == []
    assert (await client.refusal("abort"))["message"] == "no_active_run"
    gate.open()
