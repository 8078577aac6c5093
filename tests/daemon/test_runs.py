"""Runs as a client sees them, on a model that the test controls."""

from __future__ import annotations

from pathlib import Path

from nousd.providers.registry import make_provider
from tests.daemon_harness import memory_daemon, types
from tests.stub_model import stub_model


async def test_a_prompt_streams_its_answer_and_ends_once(tmp_path: Path) -> None:
    async with stub_model() as stub:
        provider = make_provider("openai", api_base=stub.api_base, model="m")
        async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
            events = await daemon.watch()
            client = await daemon.connect()
            accepted = await client.request("prompt", text="hello", wait=False)
            run = await events.run()
            assert types(run) == [
                "agent_start",
                "turn_start",
                "message_start",
                "message_end",
                "message_start",
                "message_update",
                "status",
                "message_end",
                "turn_end",
                "agent_end",
            ]
            assert {event["payload"]["run_id"] for event in run} == {accepted["run_id"]}
            assert run[-1]["payload"]["status"] == "completed"
            messages = (await client.request("get_messages"))["messages"]
            assert [message["text"] for message in messages] == ["hello", "stub-reply"]
            daemon.finish()
        await provider.aclose()
