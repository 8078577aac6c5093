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
    """A subscriber of everything, from the start on."""
    return await daemon.watch(types="all")


def offered(stub: StubModel, request: int) -> list[str]:
    tools = stub.requests[request].json.get("tools", [])
    return [tool["function"]["name"] for tool in tools]


# --- who asks --------------------------------------------------------------------------------


@pytest.mark.behaviour("runs_say_who_asked_for_them")
async def test_who_asks_is_shown_with_the_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(hanging_reply())
    accepted = await client.request("prompt", text="go", wait=False, **NAMES)
    started = await events.until("agent_start")
    assert NAMES.items() <= started["payload"].items()
    (active,) = (await client.request("get_state"))["runs"]
    record = (await client.request("get_run", run_id=accepted["run_id"]))["run"]
    (listed,) = (await client.request("list_runs"))["runs"]
    for told in (active, record, listed):
        assert NAMES.items() <= told.items()
        assert told["started_at"] <= told["last_activity_at"]
    await client.request("abort")
    await events.run()
    over = (await client.request("get_run", run_id=accepted["run_id"]))["run"]
    assert NAMES.items() <= over.items()
    assert "last_activity_at" not in over


async def test_what_a_run_used_says_what_its_prompt_gave_to_tell_it_by(
    client: Client, events: Events
) -> None:
    await client.request("prompt", text="go", **NAMES)
    (used,) = of_type(await events.run(), "usage_reported")
    assert used["correlation_id"] == NAMES["correlation_id"]


async def test_of_a_run_of_which_nothing_is_said_nothing_is_shown(
    client: Client, events: Events
) -> None:
    result = await client.request("prompt", text="go")
    record = (await client.request("get_run", run_id=result["run_id"]))["run"]
    assert not {*NAMES, "options"} & record.keys()
    started = await events.until("agent_start")
    assert not {*NAMES, "options"} & started["payload"].keys()


# --- what holds for one run ------------------------------------------------------------------


@pytest.mark.behaviour("run_options_hold_for_one_run")
async def test_tools_are_those_of_the_run_and_of_no_other(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(text_reply("one"), tool_reply(("write", {"path": "a", "content": "b"})))
    await client.request("prompt", text="go", tools=[])
    await client.request("prompt", text="go", tools=["read", "ls"])
    await client.request("prompt", text="go")
    assert offered(stub, 0) == []
    assert sorted(offered(stub, 1)) == ["ls", "read"]
    assert {"bash", "write", "read"} <= set(offered(stub, 3))
    await events.run()
    codes = [warning["code"] for warning in of_type(await events.run(), "warning")]
    assert codes == ["tool_not_active"]


async def test_what_the_session_has_not_made_active_stays_so(
    client: Client, stub: StubModel
) -> None:
    await client.request("set_active_tools", tools=["read"])
    await client.request("prompt", text="go", tools=["read", "write"])
    assert offered(stub, 0) == ["read"]


@pytest.mark.behaviour("run_options_hold_for_one_run")
async def test_a_model_is_that_of_the_run_and_the_session_keeps_its_own(
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


async def test_sampling_stands_in_the_place_of_the_sessions(
    client: Client, stub: StubModel
) -> None:
    await client.request("new_session", sampling={"temperature": 0.5, "top_p": 0.25})
    await client.request("prompt", text="go", sampling={"temperature": 1.5})
    await client.request("prompt", text="go")
    asked = [(request.json["temperature"], request.json["top_p"]) for request in stub.requests]
    assert asked == [(1.5, 0.25), (0.5, 0.25)]


@pytest.mark.behaviour("tool_choice_is_told_to_models")
async def test_a_required_call_is_required_of_the_first_answer_alone(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(tool_reply(("ls", {})))
    await client.request("prompt", text="go", tool_choice="required")
    assert [request.json.get("tool_choice") for request in stub.requests] == ["required", None]
    assert not of_type(await events.run(), "warning")


@pytest.mark.behaviour("tool_choice_is_told_to_models")
async def test_a_model_that_does_not_call_a_tool_all_the_same_is_told_of(
    client: Client, events: Events
) -> None:
    await client.request("prompt", text="go", tool_choice="required")
    (warning,) = of_type(await events.run(), "warning")
    assert warning["code"] == "tool_choice_unmet"


@pytest.mark.behaviour("tool_choice_is_told_to_models")
async def test_where_no_call_is_allowed_none_is_carried_out(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(tool_reply(("ls", {})))
    await client.request("prompt", text="go", tool_choice="none")
    assert [request.json.get("tool_choice") for request in stub.requests] == ["none", "none"]
    assert "ls" in offered(stub, 0)
    (warning,) = of_type(await events.run(), "warning")
    assert warning["code"] == "tool_not_active"


@pytest.mark.parametrize(
    ("said", "model"),
    [
        ({"provider": "main", "model": "m2"}, "m2"),
        ({"provider": "main", "model": "main/m2"}, "m2"),
        ({"provider": "main", "model": "quick"}, "quick"),
    ],
)
async def test_a_run_has_the_model_of_the_provider_that_its_prompt_names(
    said: Payload, model: str, client: Client, events: Events, stub: StubModel
) -> None:
    await client.request("prompt", text="go", **said)
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
async def test_what_cannot_be_meant_is_refused_and_nothing_happens(
    wrong: Payload, code: str, message: str, client: Client, stub: StubModel
) -> None:
    error = await client.refusal("prompt", text="go", **wrong)
    assert (error["code"], error["message"]) == (code, message)
    assert (await client.request("get_state"))["session_id"] == ""
    assert not stub.requests


@pytest.mark.behaviour("resume_keeps_run_options")
async def test_resume_goes_on_under_the_options_of_what_it_resumes(
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
    assert (offered(stub, 2), stub.requests[2].json["model"]) == (["ls"], "m2")
    assert "tool_choice" not in stub.requests[2].json
    start = of_type(resumed, "agent_start")[0]
    assert start["options"] == {"tools": ["ls"], "provider": "main", "model": "m2"}
    assert not NAMES.keys() & start.keys()
    await client.request("prompt", text="new")
    assert len(offered(stub, 3)) > 1


@pytest.mark.behaviour("resume_keeps_run_options")
async def test_a_prompt_that_a_kill_kept_from_beginning_is_resumed_as_it_was_meant(
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
        assert offered(stub, -1) == ["ls"]


async def test_a_task_has_no_tool_that_its_run_does_not_have(
    client: Client, stub: StubModel
) -> None:
    task = ("task", {"tasks": [{"prompt": "look"}]})
    stub.script(tool_reply(task), text_reply("looked"), text_reply("done"))
    await client.request("prompt", text="go", tools=["task", "ls"], model="quick")
    assert set(offered(stub, 1)) <= {"task", "ls"}
    assert "ls" in offered(stub, 1)
    assert stub.requests[1].json["model"] == "m2"


async def test_what_a_client_calls_itself_is_no_matter_of_the_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(hanging_reply())
    await client.request("prompt", text="go", tools=[], wait=False)
    await client.request("call_tool", tool="ls")
    completed = await events.until("tool_call_completed")
    assert not completed["payload"]["is_error"]
    listed = (await client.request("list_tools"))["tools"]
    assert {"bash", "ls"} <= {tool["name"] for tool in listed if tool["active"]}


# --- who is in the way -----------------------------------------------------------------------


@pytest.mark.behaviour("conflicts_say_who_is_in_the_way")
async def test_who_comes_second_is_told_of_the_run_that_goes_on(
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
async def test_who_hammers_does_not_fill_the_log(tmp_path: Path, autojump_clock: MockClock) -> None:
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


async def test_a_sign_of_life_is_seen_and_quiet_is_as_well(
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


# --- once ------------------------------------------------------------------------------------


@pytest.mark.behaviour("strict_resends_are_compared")
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("strict", [False, True])
async def test_another_text_under_the_same_id_is_refused_to_who_is_strict(
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
            await _is_compared(client, first, strict=strict, file=file, **more)
    if restart:
        async with running(place):
            await _is_compared(await place.connect(), first, strict=strict, file=file, **more)


async def _is_compared(
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
async def test_the_same_text_that_is_asked_otherwise_is_another_prompt_to_who_is_strict(
    option: Payload, client: Client
) -> None:
    more: Payload = {"text": "a", "client_message_id": "m1", "strict_resend": True, "wait": False}
    first = await client.request("prompt", **more, **option)
    assert await client.request("prompt", **more, **option) == {**first, "repeated": True}
    error = await client.refusal("prompt", **more)
    assert error["message"] == "client_message_id_reused"


# --- aborted by its run ----------------------------------------------------------------------


@pytest.mark.behaviour("aborts_can_keep_the_queue")
async def test_an_abort_that_keeps_the_queue_leaves_what_others_handed_in(
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
    said = [start["text"] for start in of_type(resumed, "message_start") if start["role"] == "user"]
    assert said == ["left", "later"]


@pytest.mark.behaviour("aborts_by_run_are_certain")
async def test_whether_an_abort_by_its_run_stopped_it_is_certain(
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
