"""Concurrent sessions: a run stays in its session, and commands find the intended run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nousd.providers.interface import Provider
from nousd.providers.mock.provider import MockProvider
from tests.harness.daemon import Client, Daemon, Events, of_type, socket_daemon
from tests.harness.stub_model import Gate, StubModel, text_reply


class Running:
    """A run in the middle of its answer, which continues when ``gate`` opens."""

    def __init__(self, accepted: dict[str, Any], gate: Gate) -> None:
        self.session_id: str = accepted["session_id"]
        self.run_id: str = accepted["run_id"]
        self.gate = gate


async def start(client: Client, events: Events, stub: StubModel, words: str = "one ") -> Running:
    """Start a run in the active session and wait for its first text."""
    gate = Gate()
    stub.script(text_reply(words, gate, "and the rest"))
    accepted = await client.request("prompt", text=f"say {words}", wait=False)
    await events.until("message_update", run_id=accepted["run_id"])
    return Running(accepted, gate)


async def texts(client: Client, session_id: str) -> list[str]:
    answer = await client.request("get_messages", session_id=session_id)
    return [entry["text"] for entry in answer["messages"]]


async def test_a_run_stays_in_its_session_when_another_becomes_active(
    client: Client, events: Events, stub: StubModel
) -> None:
    first = await start(client, events, stub)
    second = (await client.request("new_session"))["session_id"]
    state = await client.request("get_state")
    assert (state["session_id"], state["run_state"]) == (second, "running")
    named = await client.request("get_state", session_id=second)
    assert (named["run_state"], named["run_id"]) == ("idle", "")
    assert [run["run_id"] for run in state["runs"]] == [first.run_id]
    first.gate.open()
    run = await events.run()
    assert {event["payload"]["session_id"] for event in run} == {first.session_id}
    assert await texts(client, first.session_id) == ["say one ", "one and the rest"]
    assert await texts(client, second) == []


async def test_switching_away_and_back_changes_nothing_for_the_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    other = (await client.request("new_session"))["session_id"]
    home = (await client.request("new_session"))["session_id"]
    running = await start(client, events, stub)
    await client.request("switch_session", session_id=other)
    assert (await client.request("get_state", session_id=other))["run_state"] == "idle"
    await client.request("switch_session", session_id=home)
    assert (await client.request("get_state"))["run_id"] == running.run_id
    running.gate.open()
    assert (await events.run())[-1]["payload"]["status"] == "completed"
    assert await texts(client, other) == []


@pytest.mark.behaviour("sessions_run_in_parallel")
async def test_two_sessions_run_at_once(client: Client, events: Events, stub: StubModel) -> None:
    first = await start(client, events, stub, "one ")
    await client.request("new_session")
    second = await start(client, events, stub, "two ")
    state = await client.request("get_state")
    assert [(run["session_id"], run["run_id"], run["run_state"]) for run in state["runs"]] == [
        (first.session_id, first.run_id, "running"),
        (second.session_id, second.run_id, "running"),
    ]
    second.gate.open()
    await events.until("agent_end", run_id=second.run_id)
    runs = (await client.request("get_state"))["runs"]
    assert [run["run_id"] for run in runs] == [first.run_id]
    first.gate.open()
    await events.until("agent_end", run_id=first.run_id)
    assert await texts(client, first.session_id) == ["say one ", "one and the rest"]
    assert await texts(client, second.session_id) == ["say two ", "two and the rest"]


@pytest.mark.behaviour("several_runs_are_ambiguous")
@pytest.mark.parametrize("command", ["steer", "follow_up", "abort"])
async def test_with_two_runs_and_none_in_the_active_session_a_target_must_be_named(
    command: str, client: Client, events: Events, stub: StubModel
) -> None:
    first = await start(client, events, stub, "one ")
    await client.request("new_session")
    second = await start(client, events, stub, "two ")
    await client.request("new_session")
    text = {} if command == "abort" else {"text": "hello"}
    error = await client.refusal(command, **text)
    assert (error["code"], error["message"]) == ("command_rejected", "ambiguous_run")
    assert error["details"] == {"run_ids": [first.run_id, second.run_id]}
    mismatch = await client.refusal(command, expected_run_id="run-unknown", **text)
    assert mismatch["message"] == "run_mismatch"
    by_run = await client.request(command, expected_run_id=first.run_id, **text)
    assert by_run["run_id"] == first.run_id
    by_session = await client.request(command, session_id=second.session_id, **text)
    assert by_session["run_id"] == second.run_id


async def test_a_command_without_a_target_applies_to_the_active_sessions_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    await start(client, events, stub, "one ")
    await client.request("new_session")
    second = await start(client, events, stub, "two ")
    assert (await client.request("steer", text="hello"))["run_id"] == second.run_id


async def test_a_command_without_a_target_applies_to_the_only_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    first = await start(client, events, stub)
    await client.request("new_session")
    assert (await client.request("steer", text="hello"))["run_id"] == first.run_id
    assert (await client.request("abort"))["run_id"] == first.run_id


async def test_a_command_for_an_idle_session_never_reaches_another_sessions_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    running = await start(client, events, stub)
    idle = (await client.request("new_session"))["session_id"]
    for command, payload in (("steer", {"text": "x"}), ("abort", {})):
        error = await client.refusal(command, session_id=idle, **payload)
        assert error["message"] == "no_active_run"
    error = await client.refusal("abort", session_id="sess-unknown")
    assert error["code"] == "session_not_found"
    running.gate.open()
    assert (await events.run())[-1]["payload"]["status"] == "completed"


async def test_commands_that_conflict_with_a_run_are_refused_until_it_ends(
    client: Client, events: Events, stub: StubModel
) -> None:
    await client.request("prompt", text="before")
    leaf_id = (await client.request("get_state"))["leaf_id"]
    running = await start(client, events, stub)
    for command, payload in (
        ("set_leaf", {"leaf_id": leaf_id}),
        ("compact_session", {}),
        ("delete_session", {"session_id": running.session_id}),
        ("resume", {}),
        ("prompt", {"text": "x"}),
    ):
        error = await client.refusal(command, **payload)
        assert (error["code"], error["message"]) == ("command_rejected", "run_in_progress"), command
        assert error["details"]["run_id"] == running.run_id
    running.gate.open()
    await events.until("agent_end", run_id=running.run_id)
    await client.request("set_leaf", leaf_id=leaf_id)


async def test_a_concurrent_prompt_and_delete_never_both_succeed(short_folder: Path) -> None:
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        client, other = await daemon.connect(), await daemon.connect()
        for number in range(20):
            session_id = (await client.request("new_session"))["session_id"]
            await client.request("prompt", text="first")
            target = {"session_id": session_id, "client_message_id": f"m{number}"}
            asked = await client.ask("prompt", text="[[hang]]", wait=False, **target)
            await other.ask("delete_session", session_id=session_id)
            prompted, deleted = await client.answer(asked), await other.receive()
            assert prompted["ok"] != deleted["ok"]
            if deleted["ok"]:
                assert prompted["error"]["code"] == "session_not_found"
            else:
                assert deleted["error"]["message"] == "run_in_progress"
                await client.request("abort", session_id=session_id)


async def test_another_session_accepts_commands_while_one_runs(
    client: Client, events: Events, stub: StubModel
) -> None:
    other = await client.request("prompt", text="in the other")
    await client.request("new_session")
    running = await start(client, events, stub)
    result = await client.request("prompt", text="again", session_id=other["session_id"])
    assert result["session_id"] == other["session_id"]
    await client.request("delete_session", session_id=other["session_id"])
    assert (await client.request("get_state"))["run_id"] == running.run_id


@pytest.mark.behaviour("a_branch_is_a_snapshot")
async def test_a_branch_during_a_run_has_the_committed_entries_and_nothing_later(
    client: Client, events: Events, stub: StubModel
) -> None:
    await client.request("prompt", text="before")
    running = await start(client, events, stub)
    branch = await client.request("branch_session", session_id=running.session_id)
    assert branch["parent_id"] == running.session_id
    child = branch["session_id"]
    running.gate.open()
    await events.until("agent_end", run_id=running.run_id)
    assert await texts(client, child) == ["before", "stub-reply", "say one "]
    assert await texts(client, running.session_id) == [
        *("before", "stub-reply", "say one ", "one and the rest"),
    ]
    await client.request("prompt", text="in the branch", session_id=child)
    assert [m["content"] for m in stub.requests[-1].json["messages"]] == [
        *("before", "stub-reply", "say one ", "in the branch"),
    ]
    assert len(await texts(client, running.session_id)) == 4


@pytest.mark.behaviour("set_model_holds_from_the_next_call")
async def test_a_model_is_per_session_and_taken_over_by_new_sessions(
    client: Client, stub: StubModel
) -> None:
    first = (await client.request("new_session"))["session_id"]
    await client.request("set_model", model="other-model")
    second = (await client.request("new_session"))["session_id"]
    assert (await client.request("get_state"))["model"] == "other-model"
    await client.request("set_model", model="third-model")
    await client.request("prompt", text="x", session_id=first)
    await client.request("prompt", text="x", session_id=second)
    assert [request.json["model"] for request in stub.requests] == ["other-model", "third-model"]


async def modes_of(client: Client, *session_ids: str) -> list[str]:
    states = [await client.request("get_state", session_id=each) for each in session_ids]
    return [state["steering_mode"] for state in states]


@pytest.mark.behaviour("tools_and_modes_have_a_value_for_all")
async def test_a_mode_set_without_a_session_applies_to_all_sessions(client: Client) -> None:
    first = (await client.request("new_session"))["session_id"]
    await client.request("set_steering_mode", mode="all")
    second = (await client.request("new_session"))["session_id"]
    branch = (await client.request("branch_session", session_id=first))["session_id"]
    assert await modes_of(client, first, second, branch) == ["all", "all", "all"]
    await client.request("set_steering_mode", mode="one-at-a-time")
    assert await modes_of(client, first, second, branch) == ["one-at-a-time"] * 3


@pytest.mark.behaviour("modes_are_kept_per_session")
async def test_a_session_that_a_command_names_has_a_mode_of_its_own(client: Client) -> None:
    plain = (await client.request("new_session"))["session_id"]
    own = (await client.request("new_session", steering_mode="all", active_tools=["ls"]))[
        "session_id"
    ]
    await client.request("set_steering_mode", mode="all", session_id=plain)
    copied = (await client.request("branch_session", session_id=own))["session_id"]
    # A new session copies nothing.
    assert await modes_of(client, plain, own, copied) == ["all", "all", "one-at-a-time"]
    tools = (await client.request("list_tools", session_id=own))["tools"]
    assert {tool["name"] for tool in tools if tool["active"]} == {"ls"}
    # The active session loses its own with a value for all.
    await client.request("set_steering_mode", mode="one-at-a-time")
    assert await modes_of(client, plain, own, copied) == ["all", "all", "one-at-a-time"]
    await client.request("switch_session", session_id=own)
    await client.request("set_steering_mode", mode="one-at-a-time")
    assert await modes_of(client, plain, own) == ["all", "one-at-a-time"]


async def test_a_tool_disabled_without_a_session_stays_disabled_after_a_switch(
    client: Client, stub: StubModel
) -> None:
    before = (await client.request("new_session"))["session_id"]
    await client.request("new_session")
    await client.request("set_active_tools", tools=["ls"])
    await client.request("switch_session", session_id=before)
    await client.request("prompt", text="x")
    [request] = stub.requests
    assert [tool["function"]["name"] for tool in request.json["tools"]] == ["ls"]


async def test_values_for_all_survive_a_restart(short_folder: Path, provider: Provider) -> None:
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        own = (await client.request("new_session"))["session_id"]
        await client.request("set_follow_up_mode", mode="all", session_id=own)
        other = (await client.request("new_session"))["session_id"]
        await client.request("set_steering_mode", mode="all")
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        states = [await client.request("get_state", session_id=each) for each in (own, other)]
        assert [(each["steering_mode"], each["follow_up_mode"]) for each in states] == [
            ("all", "all"),
            ("all", "one-at-a-time"),
        ]


@pytest.mark.behaviour("subscriptions_can_be_filtered")
async def test_a_subscriber_can_follow_one_session_or_one_run_only(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    first = await start(client, events, stub, "one ")
    await client.request("new_session")
    of_session = await daemon.watch(session_id=first.session_id)
    second = await start(client, events, stub, "two ")
    of_run = await daemon.watch(run_id=second.run_id)
    for running in (first, second):
        running.gate.open()
        await events.until("agent_end", run_id=running.run_id)
    assert {e["payload"]["session_id"] for e in await of_session.run()} == {first.session_id}
    seen = await of_run.run()
    assert {event["payload"]["run_id"] for event in seen} == {second.run_id}
    assert of_type(seen, "message_update")[-1]["delta"] == "and the rest"
