"""Hooks of runs and turns: their instructions, and the reports of failing hooks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from nousd.extensions.api import ExtensionApi
from nousd.extensions.hooks import (
    AddInstructions,
    HookPayload,
    RunEnded,
)
from nousd.wire.limits import INSTRUCTIONS_BYTES_MAX
from tests.daemon.hooks_bench import asleep, calls, failing, open_bench, warnings
from tests.daemon.scripted import says
from tests.extensions.registering import on
from tests.harness.daemon import WAIT_SECONDS, of_type


@pytest.mark.behaviour("an_extension_may_add_instructions_to_a_run")
async def test_instructions_added_before_a_run_are_in_its_system_prompt_only(
    tmp_path: Path,
) -> None:
    runs: list[str] = []

    def add(beginning: Any) -> AddInstructions | None:
        runs.append(beginning.run_id)
        assert (beginning.kind, beginning.model) == ("prompt", "scripted-model")
        return AddInstructions("Say please.") if len(runs) == 1 else None

    async with open_bench(tmp_path, on("before_run", add)) as bench:
        first, second = [await bench.run(says("ok")) for _ in range(2)]
        assert runs == [of_type(run, "agent_start")[0]["run_id"] for run in (first, second)]
        systems = [request.system for request in bench.provider.requests]
    assert systems[0] == "# Instructions of an extension (one)\n\nSay please."
    assert systems[1] == ""
    [model_input] = of_type(first, "model_input")
    assert model_input["sources"][-1].items() >= {"kind": "extension", "extension": "one"}.items()
    assert model_input["sources"][-1]["bytes"] == len("Say please.")


async def test_instructions_added_by_extensions_are_bounded(tmp_path: Path) -> None:
    half = AddInstructions("x" * (INSTRUCTIONS_BYTES_MAX // 2))
    several = [on("before_run", lambda _: half) for _ in range(3)]
    async with open_bench(tmp_path, *several) as bench:
        [model_input] = of_type(await bench.run(says("ok")), "model_input")
    reasons = [
        source.get("reason") for source in model_input["sources"] if source["kind"] == "extension"
    ]
    assert reasons == [None, None, "no_room"]


@pytest.mark.behaviour("extensions_are_told_of_runs_and_turns")
async def test_hooks_receive_the_start_of_a_run_and_each_of_its_turns(tmp_path: Path) -> None:
    payloads: list[HookPayload] = []
    names = ("before_run", "turn_start", "turn_end")
    registers = [on(name, payloads.append) for name in names]
    async with open_bench(tmp_path, *registers) as bench:
        await bench.client.request("prompt", text="go", wait=False)
        await bench.client.request("follow_up", text="and then")
        bench.provider.answer(says("1"), says("2"))
        await bench.events.run()
    assert [type(each).__name__ for each in payloads] == [
        "RunBeginning",
        *["TurnStarted", "TurnEnding"] * 2,
    ]
    assert [getattr(each, "text", None) for each in payloads[1::2]] == ["go", "and then"]
    assert [each.turn_id for each in payloads[1:]] == ["1", "1", "2", "2"]  # type: ignore[attr-defined]


async def test_run_end_hooks_receive_the_status_of_the_run(tmp_path: Path) -> None:
    send, receive = trio.open_memory_channel[RunEnded](1)
    async with open_bench(tmp_path, on("run_end", send.send)) as bench:
        await bench.run(says("ok"))
        with trio.fail_after(WAIT_SECONDS):
            end = await receive.receive()
        assert (end.status, end.error) == ("completed", "")
        begun = await bench.client.request("prompt", text="go", wait=False)
        await bench.client.request("abort")
        with trio.fail_after(WAIT_SECONDS):
            end = await receive.receive()
        assert (end.run_id, end.status) == (begun["run_id"], "cancelled")


async def test_a_failing_run_end_hook_is_reported_in_the_daemons_own_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_bench(tmp_path, on("run_end", failing)) as bench:
        assert warnings(await bench.run(says("ok"))) == []
    assert "extension_hook_error: one: run_end: ValueError: no idea" in caplog.text


async def test_the_next_run_does_not_wait_for_run_end_hooks(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_bench(tmp_path, on("run_end", asleep, timeout_seconds=1000)) as bench:
        for _ in range(2):
            await bench.run(says("ok"))
        assert trio.current_time() == 0


async def test_shutdown_waits_only_briefly_for_run_end_hooks(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_bench(tmp_path, on("run_end", asleep, timeout_seconds=1000)) as bench:
        await bench.client.request("prompt", text="go", wait=False)
    assert trio.current_time() < 5


@pytest.mark.behaviour("a_failing_hook_is_a_warning")
@pytest.mark.parametrize(
    "name", ["before_run", "turn_start", "turn_end", "tool_call", "tool_result"]
)
@pytest.mark.parametrize(
    ("handler", "code", "why"),
    [
        (failing, "extension_hook_error", "ValueError: no idea"),
        (asleep, "extension_timeout", "did not return within 0.01 seconds"),
    ],
)
async def test_a_failing_hook_is_a_warning_and_the_run_completes(
    name: str,
    handler: Callable[..., Any],
    code: str,
    why: str,
    tmp_path: Path,
) -> None:
    limit = 0.01 if handler is asleep else 20
    async with open_bench(tmp_path, on(name, handler, timeout_seconds=limit)) as bench:
        run = await bench.run(calls("work", "{}"), says("done"))
    assert warnings(run) == [(code, f"one: {name}: {why}")]
    assert of_type(run, "agent_end")[0]["status"] == "completed"
    assert of_type(run, "tool_execution_end")[0]["executed"] is True


async def test_a_slow_hook_does_not_make_its_run_stale(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def think(_payload: object) -> None:
        await trio.sleep(10)

    def register(api: ExtensionApi) -> None:
        for name in ("before_run", "turn_start", "turn_end"):
            on(name, think, timeout_seconds=20)(api)

    async with open_bench(tmp_path, register, stale_seconds=3) as bench:
        run = await bench.run(says("done"))
        assert trio.current_time() == 30
    assert of_type(run, "agent_end")[0]["status"] == "completed"
    assert warnings(run) == []


async def test_an_abort_does_not_wait_for_a_hook(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_bench(tmp_path, on("turn_start", asleep, timeout_seconds=500)) as bench:
        await bench.client.request("prompt", text="go", wait=False)
        await bench.events.until("turn_start")
        await bench.client.request("abort")
        run = await bench.events.run()
        assert trio.current_time() == 0
    assert of_type(run, "agent_end")[0]["status"] == "cancelled"
