"""A daemon with extension hooks and a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing

from nousd.providers.interface import Finished, Receive, ToolCallPiece
from tests.daemon.scripted import Outcome, ScriptedProvider, ScriptedTool, gives
from tests.extensions.registering import Register, hooks
from tests.harness.daemon import Client, Daemon, Event, Events, memory_daemon, of_type


def failing(_payload: object) -> None:
    raise ValueError("no idea")


async def asleep(_payload: object) -> None:
    await trio.sleep_forever()


def calls(name: str, args: str) -> Outcome:
    async def play(receive: Receive) -> None:
        await receive(ToolCallPiece("own-0", name, args))
        await receive(Finished("tool_use"))

    return play


class Bench:
    """A daemon with hooks and a scripted model, a client, and a subscriber of every event type."""

    def __init__(
        self, daemon: Daemon, client: Client, events: Events, provider: ScriptedProvider
    ) -> None:
        self.daemon = daemon
        self.client = client
        self.events = events
        self.provider = provider

    async def run(self, *outcomes: Outcome, text: str = "go") -> list[Event]:
        self.provider.answer(*outcomes)
        await self.client.request("prompt", text=text, wait=False)
        return await self.events.run()


@asynccontextmanager
async def open_bench(workdir: Path, *registers: Register, **options: Any) -> AsyncIterator[Bench]:
    provider, tool = ScriptedProvider(), ScriptedTool()
    tool.finish(gives("worked"))
    async with memory_daemon(
        workdir=workdir,
        provider=provider,
        tools=[tool.tool],
        hooks=hooks(*registers),
        **options,
    ) as daemon:
        events, client = await daemon.watch(types="all"), await daemon.connect()
        yield Bench(daemon, client, events, provider)


def warnings(events: list[Event]) -> list[tuple[str, str]]:
    return [(each["code"], each["message"]) for each in of_type(events, "warning")]
