"""A daemon with MCP servers, a model that calls their tools, and a client that looks on."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from nousd.providers.interface import Provider
from nousd.tools.mcp.spec import ServerSpec
from tests.harness.daemon import Client, Event, Events, of_type, socket_daemon
from tests.harness.stub_model import StubModel, text_reply, tool_reply

STUB = Path(__file__).parent.parent / "tools" / "stub_mcp_server.py"
COMMAND = (sys.executable, "-S", str(STUB))
SPEC = ServerSpec(name="stub", command=COMMAND)


class Kit:
    def __init__(self, client: Client, statuses: Events, events: Events, stub: StubModel) -> None:
        self.client = client
        self.statuses = statuses
        self.events = events
        self.stub = stub

    async def until(self, state: str, **keys: Any) -> Event:
        return await self.statuses.until("mcp_server_status", state=state, **keys)

    async def call(self, tool: str, **args: Any) -> list[Event]:
        """Let the model call a tool of the server; return the events of the run."""
        self.stub.script(tool_reply((f"mcp__stub__{tool}", args)), text_reply("done"))
        await self.client.request("prompt", text="go", wait=False)
        return await self.events.run()

    async def call_and_decide(self, decision: str, tool: str, **args: Any) -> list[Event]:
        """Let the model call a tool, decide its approval, and return the events of the run."""
        self.stub.script(tool_reply((f"mcp__stub__{tool}", args)), text_reply("done"))
        await self.client.request("prompt", text="go", wait=False)
        request = (await self.events.until("permission_requested"))["payload"]
        named = {key: request[key] for key in ("tool_call_id", "attempt", "input_hash")}
        await self.client.request("confirm_tool", **named, decision=decision)
        return await self.events.run()

    async def tool_names(self) -> list[str]:
        tools = (await self.client.request("list_tools"))["tools"]
        return [tool["name"] for tool in tools if tool["source"] == "mcp:stub"]


@asynccontextmanager
async def daemon_with_mcp(
    folder: Path, provider: Provider, stub: StubModel, *, confirms: bool = False, **options: Any
) -> AsyncIterator[Kit]:
    with trio.fail_after(60):
        async with socket_daemon(folder, provider=provider, **options) as daemon:
            # From the first event: a server may be ready before the subscription.
            statuses = await daemon.watch(after="evt-0", types=["mcp_server_status"])
            events = await daemon.watch(types="all", confirms=confirms)
            yield Kit(await daemon.connect(), statuses, events, stub)


def result_of(run: list[Event]) -> Event:
    (end,) = of_type(run, "tool_execution_end")
    return end
