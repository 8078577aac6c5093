"""Run options and client identification in prompts, and conflicts with an active run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from nousd.machine.context.model_input import ModelChoice
from nousd.providers.models.catalog import Models
from tests.daemon.process_harness import Place, running
from tests.daemon.scripted import ScriptedProvider, ScriptedTool, says
from tests.harness.daemon import (
    Client,
    Daemon,
    Events,
    Payload,
    memory_daemon,
    of_type,
    provider_of,
    socket_daemon,
)
from tests.harness.stub_model import (
    Gate,
    StubModel,
    error_reply,
    hanging_reply,
    text_reply,
    tool_reply,
)

NAMES = {
    "client_id": "desktop",
    "agent_id": "a-1",
    "agent_profile": "reviewer",
    "correlation_id": "c-1",
}


@pytest.fixture
async def daemon(short_folder: Path, stub: StubModel) -> AsyncIterator[Daemon]:
    """A daemon whose provider ``main`` is ``stub``, with two models."""
    models = Models(
        {"main": partial(provider_of, stub, "main")},
        ModelChoice("main", "m1"),
        aliases={"quick": ModelChoice("main", "m2")},
    )
    provider = models.provider("main")
    try:
        with trio.fail_after(60):
            async with socket_daemon(short_folder, provider=provider, models=models) as daemon:
                yield daemon
    finally:
        await models.aclose()


@pytest.fixture
async def events(daemon: Daemon) -> Events:
    """A subscriber of all event types, from the start on."""
    return await daemon.watch(types="all")


def offered_tools(stub: StubModel, request: int) -> list[str]:
    tools = stub.requests[request].json.get("tools", [])
    return [tool["function"]["name"] for tool in tools]


# --- client identification -------------------------------------------------------------------


@pytest.mark.behaviour("runs_say_who_asked_for_them")
async def test_a_run_shows_the_identification_given_in_its_prompt(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(hanging_reply())
    accepted = await client.request("prompt", text="go", wait=False, **NAMES)
    started = await events.until("agent_start")
    assert NAMES.items() <= started["payload"].items()
    (active,) = (await client.request("get_state"))["runs"]
    record = (await client.request("get_run", run_id=accepted["run_id"]))["run"]
    (listed,) = (await client.request("list_runs"))["runs"]
    for shown in (active, record, listed):
        assert NAMES.items() <= shown.items()
        assert shown["started_at"] <= shown["last_activity_at"]
    await client.request("abort")
    await events.run()
    over = (await client.request("get_run", run_id=accepted["run_id"]))["run"]
    assert NAMES.items() <= over.items()
    assert "last_activity_at" not in over


async def test_a_usage_report_has_the_correlation_id_of_its_prompt(
    client: Client, events: Events
) -> None:
    await client.request("prompt", text="go", **NAMES)
    (used,) = of_type(await events.run(), "usage_reported")
    assert used["correlation_id"] == NAMES["correlation_id"]


async def test_a_run_without_identification_and_options_shows_neither(
    client: Client, events: Events
) -> None:
    result = await client.request("prompt", text="go")
    record = (await client.request("get_run", run_id=result["run_id"]))["run"]
    assert not {*NAMES, "options"} & record.keys()
    started = await events.until("agent_start")
    assert not {*NAMES, "options"} & started["payload"].keys()


# --- run options -----------------------------------------------------------------------------


@pytest.mark.behaviour("run_options_hold_for_one_run")
async def test_the_tools_of_a_prompt_apply_to_its_run_only(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(text_reply("one"), tool_reply(("write", {"path": "a", "content": "b"})))
    await client.request("prompt", text="go", tools=[])
    await client.request("prompt", text="go", tools=["read", "ls"])
    await client.request("prompt", text="go")
    assert offered_tools(stub, 0) == []
    assert sorted(offered_tools(stub, 1)) == ["ls", "read"]
    assert {"bash", "write", "read"} <= set(offered_tools(stub, 3))
    await events.run()
    codes = [warning["code"] for warning in of_type(await events.run(), "warning")]
    assert codes == ["tool_not_active"]


async def test_the_tools_of_a_prompt_do_not_activate_a_tool_inactive_in_the_session(
    client: Client, stub: StubModel
) -> None:
    await client.request("set_active_tools", tools=["read"])
    await client.request("prompt", text="go", tools=["read", "write"])
    assert offered_tools(stub, 0) == ["read"]


@pytest.mark.behaviour("run_options_hold_for_one_run")
async def test_the_model_of_a_prompt_applies_to_its_run_only(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(hanging_reply())
    await client.request("prompt", text="go", model="quick", wait=False)
    assert (await stub.next_request()).json["model"] == "m2"
    assert (await client.request("get_state"))["model"] == "m1"
    assert (await events.until("agent_start"))["payload"]["model"] == "m2"
    await client.request("abort")
    await events.run()
    await client.request("prompt", text="go on")
    assert stub.requests[1].json["model"] == "m1"


async def test_the_sampling_of_a_prompt_overrides_the_sessions_for_one_run(
    client: Client, stub: StubModel
) -> None:
    await client.request("new_session", sampling={"temperature": 0.5, "top_p": 0.25})
    await client.request("prompt", text="go", sampling={"temperature": 1.5})
    await client.request("prompt", text="go")
    sampled = [(request.json["temperature"], request.json["top_p"]) for request in stub.requests]
    assert sampled == [(1.5, 0.25), (0.5, 0.25)]


@pytest.mark.behaviour("tool_choice_is_told_to_models")
async def test_a_required_tool_call_is_required_of_the_first_answer_only(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(tool_reply(("ls", {})))
    await client.request("prompt", text="go", tool_choice="required")
    assert [request.json.get("tool_choice") for request in stub.requests] == ["required", None]
    assert not of_type(await events.run(), "warning")


@pytest.mark.behaviour("tool_choice_is_told_to_models")
async def test_a_missing_required_tool_call_is_a_warning(client: Client, events: Events) -> None:
    await client.request("prompt", text="go", tool_choice="required")
    (warning,) = of_type(await events.run(), "warning")
    assert warning["code"] == "tool_choice_unmet"


@pytest.mark.behaviour("tool_choice_is_told_to_models")
async def test_a_tool_call_under_tool_choice_none_is_rejected_with_a_warning(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(tool_reply(("ls", {})))
    await client.request("prompt", text="go", tool_choice="none")
    assert [request.json.get("tool_choice") for request in stub.requests] == ["none", "none"]
    assert "ls" in offered_tools(stub, 0)
    (warning,) = of_type(await events.run(), "warning")
    assert warning["code"] == "tool_not_active"


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ({"provider": "main", "model": "m2"}, "m2"),
        ({"provider": "main", "model": "main/m2"}, "m2"),
        ({"provider": "main", "model": "quick"}, "quick"),
    ],
)
async def test_a_prompt_may_name_its_provider_separately(
    target: Payload, model: str, client: Client, events: Events, stub: StubModel
) -> None:
    await client.request("prompt", text="go", **target)
    assert stub.requests[0].json["model"] == model


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        ({"tools": ["nobody"]}, "command_rejected", "tool_not_registered: nobody"),
        ({"model": "main2/x"}, "command_rejected", "model_unknown"),
        ({"provider": "main2"}, "command_rejected", "provider_not_configured"),
        ({"model": "x", "provider": "main2"}, "command_rejected", "provider_not_configured"),
        (
            {"tool_choice": "required", "tools": []},
            "invalid_payload",
            "tool_choice must not be required where tools is empty",
        ),
        (
            {"sampling": {"temperature": 3}},
            "invalid_payload",
            "sampling.temperature must be at most 2",
        ),
    ],
)
async def test_a_prompt_with_invalid_options_is_refused_without_effect(
    wrong: Payload, code: str, message: str, client: Client, stub: StubModel
) -> None:
    error = await client.refusal("prompt", text="go", **wrong)
    assert (error["code"], error["message"]) == (code, message)
    assert (await client.request("get_state"))["session_id"] == ""
    assert not stub.requests


@pytest.mark.behaviour("resume_keeps_run_options")
async def test_resume_keeps_the_tools_and_the_model_of_the_failed_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(tool_reply(("ls", {})), error_reply(400, "no"))
    error = await client.refusal(
        "prompt", text="go", tools=["ls"], model="quick", tool_choice="required", **NAMES
    )
    assert error["code"] == "provider_error"
    await events.run()
    await client.request("resume")
    resumed = await events.run()
    assert resumed[-1]["payload"]["status"] == "completed"
    assert (offered_tools(stub, 2), stub.requests[2].json["model"]) == (["ls"], "m2")
    assert "tool_choice" not in stub.requests[2].json
    start = of_type(resumed, "agent_start")[0]
    assert start["options"] == {"tools": ["ls"], "provider": "main", "model": "m2"}
    assert not NAMES.keys() & start.keys()
    await client.request("prompt", text="new")
    assert len(offered_tools(stub, 3)) > 1


@pytest.mark.behaviour("resume_keeps_run_options")
@pytest.mark.slow
async def test_a_prompt_interrupted_by_a_kill_is_resumed_with_its_options(
    short_folder: Path, stub: StubModel
) -> None:
    place = Place(short_folder, stub)
    gate = Gate()
    stub.script(text_reply(gate, "an answer"))
    async with running(place) as process:
        client = await place.connect()
        accepted = await client.request(
            "prompt", text="go", wait=False, tools=["ls"], tool_choice="required"
        )
        await process.kill()
    gate.open()
    async with running(place):
        events, client = await place.watch(), await place.connect()
        record = (await client.request("get_run", run_id=accepted["run_id"]))["run"]
        assert record["options"] == {"tools": ["ls"], "tool_choice": "required"}
        await client.request("resume")
        await events.run()
        assert offered_tools(stub, -1) == ["ls"]


async def test_a_task_has_only_the_tools_and_the_model_of_its_run(
    client: Client, stub: StubModel
) -> None:
    task = ("task", {"tasks": [{"prompt": "look"}]})
    stub.script(tool_reply(task), text_reply("looked"), text_reply("done"))
    await client.request("prompt", text="go", tools=["task", "ls"], model="quick")
    assert set(offered_tools(stub, 1)) <= {"task", "ls"}
    assert "ls" in offered_tools(stub, 1)
    assert stub.requests[1].json["model"] == "m2"


async def test_the_tools_of_a_run_do_not_restrict_the_calls_of_clients(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(hanging_reply())
    await client.request("prompt", text="go", tools=[], wait=False)
    await client.request("call_tool", tool="ls")
    completed = await events.until("tool_call_completed")
    assert not completed["payload"]["is_error"]
    listed = (await client.request("list_tools"))["tools"]
    assert {"bash", "ls"} <= {tool["name"] for tool in listed if tool["active"]}


# --- conflicts -------------------------------------------------------------------------------


@pytest.mark.behaviour("conflicts_say_who_is_in_the_way")
async def test_a_conflicting_prompt_is_refused_with_the_details_of_the_active_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(hanging_reply())
    await client.request("prompt", text="go", wait=False, **NAMES)
    error = await client.refusal("prompt", text="me too", client_id="browser", wait=False)
    assert error["message"] == "run_in_progress"
    (active,) = (await client.request("get_state"))["runs"]
    details = error["details"]
    assert details.pop("last_activity_at") >= active.pop("started_at")
    del active["last_activity_at"], active["run_state"], details["started_at"]
    assert details == active
    conflict = await events.until("run_conflict")
    assert conflict["payload"] == {
        "session_id": active["session_id"],
        "run_id": active["run_id"],
        "client_id": "browser",
    }


@pytest.mark.behaviour("conflicts_are_told_once_a_second")
async def test_conflicts_are_logged_at_most_once_a_second(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    model = ScriptedProvider()
    async with memory_daemon(workdir=tmp_path, provider=model) as daemon:
        client, events = await daemon.connect(), await daemon.watch(types=["run_conflict"])
        await client.request("prompt", text="go", wait=False)
        for _ in range(3):
            for _ in range(20):
                await client.refusal("prompt", text="me", wait=False)
            await trio.sleep(1.1)
        model.answer(says("done"))
        for _ in range(3):
            await events.next()
        with trio.move_on_after(5) as nothing_more:
            await events.next()
        assert nothing_more.cancelled_caught


async def test_an_idle_run_keeps_its_activity_time_until_its_deadline_is_extended(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    tool = ScriptedTool()
    async with memory_daemon(
        workdir=tmp_path, provider=ScriptedProvider(), tools=[tool.tool]
    ) as daemon:
        client = await daemon.connect()
        accepted = await client.request("prompt", text="go", wait=False)
        run = daemon.services.runs.find(accepted["run_id"])
        assert run is not None
        seen, seen_at = run.active_at, run.last_activity_at
        await trio.sleep(30)
        assert run.active_at == seen
        assert run.last_activity_at == seen_at
        run.extend_idle_deadline(60)
        await trio.sleep(50)
        assert run.active_at == trio.current_time()
        await trio.sleep(20)
        assert run.active_at == pytest.approx(trio.current_time() - 10)


# --- strict resends --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.behaviour("strict_resends_are_compared")
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("strict", [False, True])
async def test_a_changed_prompt_with_the_same_id_is_refused_only_with_strict_resend(
    strict: bool, restart: bool, short_folder: Path, stub: StubModel
) -> None:
    place = Place(short_folder, stub)
    file = {"data": "aGk=", "media_type": "text/plain"}
    more: Payload = {"client_message_id": "m1", "strict_resend": strict, "wait": False}
    async with running(place) as process:
        client = await place.connect()
        first = await client.request("prompt", text="a", attachments=[file], **more)
        if restart:
            await process.kill()
        else:
            await _check_resends(client, first, strict=strict, file=file, **more)
    if restart:
        async with running(place):
            await _check_resends(await place.connect(), first, strict=strict, file=file, **more)


async def _check_resends(
    client: Client, first: Payload, *, strict: bool, file: Payload, **more: Any
) -> None:
    again = {**first, "repeated": True}
    assert await client.request("prompt", text="a", attachments=[file], **more) == again
    for text, files in (("b", [file]), ("a", []), ("a", [{**file, "data": "aG8="}])):
        if strict:
            error = await client.refusal("prompt", text=text, attachments=files, **more)
            assert error["message"] == "client_message_id_reused"
        else:
            assert await client.request("prompt", text=text, attachments=files, **more) == again


@pytest.mark.behaviour("strict_resends_are_compared")
@pytest.mark.parametrize(
    "option", [{"tools": []}, {"tool_choice": "none"}, {"sampling": {"temperature": 1}}]
)
async def test_strict_resend_also_compares_run_options(option: Payload, client: Client) -> None:
    more: Payload = {"text": "a", "client_message_id": "m1", "strict_resend": True, "wait": False}
    first = await client.request("prompt", **more, **option)
    assert await client.request("prompt", **more, **option) == {**first, "repeated": True}
    error = await client.refusal("prompt", **more)
    assert error["message"] == "client_message_id_reused"


# --- aborts by run id ------------------------------------------------------------------------


@pytest.mark.behaviour("aborts_can_keep_the_queue")
async def test_an_abort_with_keep_queue_leaves_the_queued_inputs_for_resume(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(text_reply("half ", Gate(), "an answer"))
    accepted = await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    await client.request("steer", text="left")
    await client.request("follow_up", text="later")
    run = accepted["run_id"]
    aborted = await client.request("abort", expected_run_id=run, keep_queue=True)
    assert (aborted["run_id"], aborted["cleared"]) == (run, [])
    assert (await events.until("run_aborting"))["payload"]["keep_queue"] is True
    await events.run()
    waiting = (await client.request("get_queue"))["inputs"]
    assert [item["text"] for item in waiting] == ["left", "later"]
    await client.request("resume")
    resumed = await events.run()
    texts = [
        start["text"] for start in of_type(resumed, "message_start") if start["role"] == "user"
    ]
    assert texts == ["left", "later"]


@pytest.mark.behaviour("aborts_by_run_are_certain")
async def test_an_abort_by_run_id_stops_exactly_that_run_or_is_refused(
    client: Client, events: Events, stub: StubModel
) -> None:
    async def refusal(**wanted: Any) -> str:
        error = await client.refusal("abort", keep_queue=True, **wanted)
        return f"{error['code']} {error['message']}".removeprefix("command_rejected ")

    over = await client.request("prompt", text="one")
    session = over["session_id"]
    assert await refusal(expected_run_id=over["run_id"]) == "no_active_run"
    assert await refusal(session_id=session, expected_run_id=over["run_id"]) == "no_active_run"
    stub.script(hanging_reply())
    going = await client.request("prompt", text="two", wait=False)
    assert await refusal(expected_run_id=over["run_id"]) == "run_mismatch"
    assert await refusal(session_id=session, expected_run_id="run-none") == "run_mismatch"
    unknown = await refusal(session_id="sess-none", expected_run_id=going["run_id"])
    assert unknown.startswith("session_not_found")
    await client.request("abort", session_id=session, expected_run_id=going["run_id"])
    assert await refusal(session_id=session, expected_run_id=going["run_id"]) == "no_active_run"
    run = await events.run(going["run_id"])
    ends = [end for end in of_type(run, "agent_end") if end["run_id"] == going["run_id"]]
    assert [end["status"] for end in ends] == ["cancelled"]
