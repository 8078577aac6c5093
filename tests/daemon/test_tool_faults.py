"""Tool calls that cannot be executed: each has a result for the model and ends no run."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from nousd.providers.interface import Provider
from nousd.runtimes.native.loop import NativeSettings
from tests.harness.daemon import Client, Daemon, Event, Events, of_type, socket_daemon, types
from tests.harness.stub_model import Reply, StubModel, call_delta, finish, text_reply, tool_reply


async def run_calls(
    client: Client, events: Events, stub: StubModel, *calls: tuple[str, dict[str, Any]]
) -> list[Event]:
    """Let the model make the calls in one message and then answer; return the run."""
    stub.script(tool_reply(*calls), text_reply("I see"))
    result = await client.request("prompt", text="go")
    assert (result["status"], result["output"]) == ("completed", "I see")
    return await events.run()


def results(stub: StubModel) -> list[str]:
    """Return the tool results in the last model request."""
    return [m["content"] for m in stub.requests[-1].json["messages"] if m["role"] == "tool"]


async def test_a_successful_call_has_events_with_arguments_output_and_result(
    client: Client, events: Events, stub: StubModel
) -> None:
    run = await run_calls(client, events, stub, ("bash", {"command": "printf hello"}))
    [start] = of_type(run, "tool_execution_start")
    assert (start["tool_name"], start["args"]) == ("bash", {"command": "printf hello"})
    assert start["runtime_tool_call_id"] == "stub-call-0"
    [update] = of_type(run, "tool_execution_update")
    assert update["delta"] == "hello"
    [end] = of_type(run, "tool_execution_end")
    assert (end["result"], end["is_error"], end["executed"]) == ("hello", False, True)
    assert {start["tool_call_id"], update["tool_call_id"]} == {end["tool_call_id"]}
    told = [status["message"] for status in of_type(run, "status")]
    assert told[0] == "provider_stop_reason: tool_use"
    assert "await_next: continue_with_tool_results" in told
    assert results(stub) == ["hello"]


@pytest.mark.behaviour("tool_calls_run_one_after_another")
async def test_calls_of_one_message_run_one_after_another_in_order(
    client: Client, events: Events, stub: StubModel
) -> None:
    calls = [("bash", {"command": f"echo {word} >> log; cat log"}) for word in ("a", "b", "c")]
    run = await run_calls(client, events, stub, *calls)
    assert results(stub) == ["a", "a\nb", "a\nb\nc"]
    told = [kind for kind in types(run) if kind.startswith("tool_execution")]
    assert told == ["tool_execution_start", "tool_execution_update", "tool_execution_end"] * 3


@pytest.mark.behaviour("tool_results_are_entries")
async def test_the_transcript_contains_calls_and_results(
    client: Client, events: Events, stub: StubModel
) -> None:
    run = await run_calls(client, events, stub, ("bash", {"command": "printf hello"}))
    _, asked, result, _ = (await client.request("get_messages"))["messages"]
    [call] = asked["tool_calls"]
    [end] = of_type(run, "tool_execution_end")
    assert asked["stop_reason"] == "tool_use"
    assert (call["tool_call_id"], call["name"]) == (end["tool_call_id"], "bash")
    assert (result["role"], result["text"], result["tool_call_id"]) == (
        *("tool", "hello", end["tool_call_id"]),
    )
    assert (result["is_error"], result["executed"]) == (False, True)


async def test_a_call_of_an_unknown_tool_is_an_error_result(
    client: Client, events: Events, stub: StubModel
) -> None:
    run = await run_calls(client, events, stub, ("teleport", {"to": "Mars"}))
    [warning] = of_type(run, "warning")
    assert (warning["code"], warning["message"]) == ("tool_not_found", "tool_not_found: teleport")
    [end] = of_type(run, "tool_execution_end")
    assert (end["is_error"], end["executed"]) == (True, False)
    assert "hint" not in warning
    assert results(stub) == ["tool_error: tool_not_found: teleport"]


@pytest.mark.behaviour("inactive_tools_are_not_run")
async def test_an_inactive_tool_is_not_offered_and_calling_it_is_an_error_result(
    client: Client, events: Events, stub: StubModel
) -> None:
    await client.request("set_active_tools", tools=["read", "ls"])
    run = await run_calls(client, events, stub, ("bash", {"command": "touch ran"}))
    offered = [tool["function"]["name"] for tool in stub.requests[0].json["tools"]]
    assert sorted(offered) == ["ls", "read"]
    assert [warning["code"] for warning in of_type(run, "warning")] == ["tool_not_active"]
    assert of_type(run, "tool_execution_end")[0]["executed"] is False
    assert results(stub) == ["tool_error: tool_not_active: bash"]


async def test_a_failing_command_is_an_error_result_with_its_output_and_code(
    client: Client, events: Events, stub: StubModel
) -> None:
    run = await run_calls(client, events, stub, ("bash", {"command": "printf oh; exit 3"}))
    [warning] = of_type(run, "warning")
    assert warning["code"] == "tool_execution_error"
    [end] = of_type(run, "tool_execution_end")
    assert (end["is_error"], end["executed"]) == (True, True)
    assert results(stub) == ["tool_error: oh\n\nCommand exited with code 3"]


@pytest.mark.slow
async def test_output_too_long_for_the_model_is_truncated_and_stored_completely(
    client: Client, events: Events, stub: StubModel
) -> None:
    run = await run_calls(client, events, stub, ("bash", {"command": "seq 200000"}))
    [end] = of_type(run, "tool_execution_end")
    assert end["artifact_id"].startswith("sha256:")
    assert len(end["result"]) <= 8192
    [result] = results(stub)
    assert "200000" in result
    assert len(result) < 100_000
    entry = (await client.request("get_messages"))["messages"][2]
    assert (entry["text"], entry["artifact_id"]) == (result, end["artifact_id"])
    artifact = await client.request("get_artifact", artifact_id=end["artifact_id"], length=2**22)
    assert b64decode(artifact["data"]).split() == [b"%d" % number for number in range(1, 200_001)]


async def test_a_missing_file_is_an_error_result(
    client: Client, events: Events, stub: StubModel
) -> None:
    run = await run_calls(client, events, stub, ("read", {"path": "not-there.txt"}))
    [warning] = of_type(run, "warning")
    assert warning["code"] == "tool_execution_error"
    [result] = results(stub)
    assert result.startswith("tool_error: read_failed")


async def test_a_call_with_invalid_arguments_is_not_executed(
    client: Client, events: Events, stub: StubModel
) -> None:
    run = await run_calls(client, events, stub, ("bash", {}), ("bash", {"command": 7}))
    assert {warning["code"] for warning in of_type(run, "warning")} == {"tool_validation_error"}
    assert [end["executed"] for end in of_type(run, "tool_execution_end")] == [False, False]
    assert results(stub)[0] == "tool_error: validation_failed: bash.command is required"


@pytest.mark.parametrize(
    "arguments",
    ['{"command": ', "[1]", "7", '{"command": NaN}', '{"a":' * 960 + "1" + "}" * 960],
    ids=["half", "array", "number", "nan", "deep"],
)
async def test_arguments_that_are_not_a_json_object_are_an_error_result(
    arguments: str, client: Client, events: Events, stub: StubModel
) -> None:
    function = {"name": "bash", "arguments": arguments}
    broken = call_delta(index=0, id="x", type="function", function=function)
    stub.script(Reply((broken, *finish("tool_calls"))), text_reply("I see"))
    assert (await client.request("prompt", text="go"))["output"] == "I see"
    run = await events.run()
    assert [warning["code"] for warning in of_type(run, "warning")] == ["tool_validation_error"]
    assert of_type(run, "tool_execution_start")[0]["args"] == {"_raw": arguments}
    assert results(stub)[0].startswith("tool_error: validation_failed")


@pytest.mark.behaviour("tool_failures_do_not_end_the_run")
async def test_a_failing_call_does_not_prevent_the_calls_after_it(
    client: Client, events: Events, stub: StubModel
) -> None:
    run = await run_calls(
        client,
        events,
        stub,
        ("teleport", {}),
        ("bash", {"command": "exit 1"}),
        ("bash", {"command": "printf good"}),
    )
    ends = of_type(run, "tool_execution_end")
    assert [end["is_error"] for end in ends] == [True, True, False]
    assert results(stub)[2] == "good"


async def test_a_run_fails_at_the_limit_of_its_model_calls(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    settings = NativeSettings(model_calls_max=3)
    async with socket_daemon(short_folder, provider=provider, native=settings) as daemon:
        events, client = await daemon.watch(), await daemon.connect()
        stub.script(*[tool_reply(("ls", {"path": "."}))] * 9)
        await client.request("prompt", text="go", wait=False)
        run = await events.run()
        [error] = of_type(run, "error")
        assert error["code"] == "tool_loop_limit_exceeded"
        assert error["message"] == "tool await-next loop exceeded max rounds"
        assert run[-1]["payload"]["status"] == "error"
        assert len(stub.requests) == 3
        assert len(of_type(run, "tool_execution_end")) == 3


@pytest.mark.parametrize("tools", [["nope"], ["read", "nope"]])
async def test_set_active_tools_refuses_an_unknown_tool(tools: list[str], daemon: Daemon) -> None:
    client = await daemon.connect()
    error = await client.refusal("set_active_tools", tools=tools)
    assert (error["code"], error["message"]) == ("command_rejected", "tool_not_registered: nope")
