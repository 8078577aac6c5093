"""The result of an awaited run: the same for a resend, with joined deltas, and bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nousd.daemon.eventlog import hub
from nousd.daemon.runs import results
from nousd.store.memory.store import MemoryStore
from nousd.store.records import EventFilter, StoredEvent
from tests.daemon.scripted import ScriptedProvider, ScriptedTool, asks_for_tools, gives, says
from tests.harness.daemon import memory_daemon

Flat = list[dict[str, Any]]


async def result_of(workdir: Path, provider: ScriptedProvider, tool: ScriptedTool) -> Any:
    async with memory_daemon(workdir=workdir, provider=provider, tools=[tool.tool]) as daemon:
        client = await daemon.connect()
        prompt: dict[str, Any] = {"text": "go", "client_message_id": "m"}
        result = await client.request("prompt", **prompt)
        assert await client.request("prompt", **prompt) == result
        return result


def deltas(events: Flat) -> list[str]:
    return [event["delta"] for event in events if event["type"] == "message_update"]


async def test_any_number_of_neighbouring_deltas_is_joined(tmp_path: Path) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    words = [f"{number} " for number in range(1_000)]
    provider.answer(says(*words))
    result = await result_of(tmp_path, provider, tool)
    assert deltas(result["events"]) == ["".join(words)]
    assert result["output"] == "".join(words)
    assert result["status"] == "completed"
    assert "events_truncated" not in result


async def test_the_result_of_a_run_longer_than_the_window_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "WINDOW_EVENTS_MAX", 8)
    provider, tool = ScriptedProvider(), ScriptedTool()
    provider.answer(asks_for_tools(3), says("the end"))
    tool.finish(*[gives() for _ in range(3)])
    result = await result_of(tmp_path, provider, tool)
    assert [event["type"] for event in result["events"]].count("tool_execution_end") == 3
    assert (result["events"][0]["type"], result["output"]) == ("agent_start", "the end")


async def test_the_result_of_a_run_in_the_window_is_not_read_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_of_runs: list[EventFilter] = []
    events_after = MemoryStore.events_after

    async def noted(
        store: MemoryStore, after: int, event_filter: EventFilter, **bounds: Any
    ) -> tuple[StoredEvent, ...]:
        if event_filter.run_id is not None:
            read_of_runs.append(event_filter)
        return await events_after(store, after, event_filter, **bounds)

    monkeypatch.setattr(MemoryStore, "events_after", noted)
    provider = ScriptedProvider()
    provider.answer(says("hello"))
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client = await daemon.connect()
        result = await client.request("prompt", text="go", client_message_id="m")
        assert result["output"] == "hello"
        assert read_of_runs == []
        assert await client.request("prompt", text="go", client_message_id="m") == result
        assert read_of_runs


async def test_deltas_of_different_tool_calls_are_not_joined(tmp_path: Path) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    provider.answer(asks_for_tools(2), says("one ", "two"), says("unasked"))
    tool.finish(gives("a"), gives("b"))
    result = await result_of(tmp_path, provider, tool)
    updates = [e["delta"] for e in result["events"] if e["type"] == "tool_execution_update"]
    assert (updates, deltas(result["events"])) == (["a", "b"], ["one two"])
    assert {event["turn"] for event in result["events"] if "turn" in event} == {1}


async def test_a_result_beyond_the_event_limit_is_truncated_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULT_EVENTS_MAX", 5)
    provider, tool = ScriptedProvider(), ScriptedTool()
    provider.answer(asks_for_tools(3), says("the end"))
    tool.finish(*[gives() for _ in range(3)])
    result = await result_of(tmp_path, provider, tool)
    assert len(result["events"]) == 5
    assert result["events_truncated"] is True
    assert (result["output"], result["status"]) == ("the end", "completed")


@pytest.mark.behaviour("output_is_the_answer_to_the_prompt")
async def test_the_output_is_the_answer_to_the_prompt_and_not_to_what_waited_before(
    tmp_path: Path,
) -> None:
    provider = ScriptedProvider()
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client, waiting = await daemon.connect(), await daemon.connect()
        await client.request("prompt", text="first", wait=False)
        await client.request("follow_up", text="left over")
        await client.request("abort", keep_queue=True)
        events = await daemon.watch(after="evt-0")
        await events.run()
        prompt = await waiting.ask("prompt", text="second")
        await events.until("agent_start")
        await client.request("follow_up", text="later")
        provider.answer(says("to second"), says("to left over"), says("to later"))
        assert (await waiting.answer(prompt))["payload"]["output"] == "to second"


async def test_the_output_is_the_answer_to_the_last_steer_of_the_run(tmp_path: Path) -> None:
    provider = ScriptedProvider()
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client, waiting = await daemon.connect(), await daemon.connect()
        events = await daemon.watch()
        prompt = await waiting.ask("prompt", text="go")
        await events.until("agent_start")
        await client.request("follow_up", text="later")
        await client.request("steer", text="this way")
        provider.answer(says("to go"), says("to the steer"), says("to later"))
        assert (await waiting.answer(prompt))["payload"]["output"] == "to the steer"


async def test_the_output_is_empty_if_no_turn_took_the_prompt(tmp_path: Path) -> None:
    provider = ScriptedProvider()
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client, waiting = await daemon.connect(), await daemon.connect()
        events = await daemon.watch()
        prompt = await waiting.ask("prompt", text="go")
        await events.until("message_end")
        await client.request("abort")
        answer = (await waiting.answer(prompt))["payload"]
        assert (answer["output"], answer["status"]) == ("", "cancelled")
