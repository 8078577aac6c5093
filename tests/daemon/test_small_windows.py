"""A small context window: one long turn is compacted repeatedly and always fits."""

from __future__ import annotations

from pathlib import Path

from nousd.machine.context.model_input import ToolResultMessage
from nousd.runtimes.native.loop import NativeSettings
from tests.daemon.scripted import ScriptedProvider, ScriptedTool, asks_for_tools, gives, says
from tests.harness.daemon import memory_daemon, of_type

WINDOW = 2000
CHARS_PER_TOKEN = 4


async def test_one_long_turn_is_compacted_between_its_model_calls(tmp_path: Path) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    settings = NativeSettings(context_window=WINDOW)
    async with memory_daemon(
        workdir=tmp_path, provider=provider, tools=[tool.tool], native=settings
    ) as daemon:
        events = await daemon.watch(types=["entry_appended", "agent_end"])
        client = await daemon.connect()
        # The definitions of all tools would fill such a window.
        await client.request("set_active_tools", tools=["read"])
        await client.request("prompt", text="go", wait=False)
        while daemon.services.runs.active():
            await provider.calls.wait_waiting()
            if provider.requests[-1].purpose == "summary":
                provider.answer(says("so far so good"))
            elif len(provider.requests) < 30:
                provider.answer(asks_for_tools(1))
                tool.finish(gives("x" * 1200))
            else:
                provider.answer(says("done"))
                break
        run = await events.run()
    assert run[-1]["payload"]["status"] == "completed"
    entries = [payload["entry"] for payload in of_type(run, "entry_appended")]
    assert len([entry for entry in entries if entry["type"] == "compaction"]) >= 3
    for request in provider.requests:
        if request.purpose == "answer":
            chars = sum(len(message.text) for message in request.messages)
            assert chars <= WINDOW * CHARS_PER_TOKEN
    newest = provider.requests[-1].messages[-1]
    assert isinstance(newest, ToolResultMessage), "the newest result is always there"
