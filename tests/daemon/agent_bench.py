"""A daemon with a runtime beside the native one, which is told what to do in each of its turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from nousd.runtimes.calls.host import RuntimeOpinion
from nousd.runtimes.calls.runtime_policy import NO_POLICY
from nousd.runtimes.interface import AgentHost
from nousd.runtimes.native.loop import NativeRuntime
from nousd.wire import events
from nousd.wire.objects.entries import MessageEntry, ToolCall
from nousd.wire.objects.runtimes import AuthFacts
from tests.daemon.asking_bench import Bench, asking_daemon
from tests.harness.daemon import Payload

AGENT = "puppet"
Act = Callable[[AgentHost], Awaitable[None]]


class Puppet:
    """An agent program that carries out one act per turn; without one it takes its input and answers."""

    name = AGENT
    version = "1.2.3"
    consumes_on_delivery = True
    capabilities = NativeRuntime.capabilities
    models: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.acts: list[Act] = []

    async def run_turn(self, host: AgentHost) -> None:
        await (self.acts.pop(0) if self.acts else takes_and_answers)(host)

    def forget(self, session_id: str) -> None:
        """Nothing is kept."""

    def auth_facts(self, namespace: str) -> AuthFacts:
        return AuthFacts(is_logged_in=True, instructions="nothing is needed")

    async def opinion_of(self, _call: ToolCall) -> RuntimeOpinion:
        return NO_POLICY


async def takes_and_answers(host: AgentHost) -> None:
    await host.confirm_delivery()
    await says(host, f"did {host.turn_text}")


async def says(host: AgentHost, text: str) -> None:
    """Log an answer of the agent."""
    message_id, where = host.new_id("msg"), host.tracker.where
    entry = MessageEntry(
        id=message_id,
        parent_id=host.leaf_id or "",
        role="assistant",
        text=text,
        run_id=where["run_id"],
        turn_kind=host.tracker.turn_kind,
        created_at=host.now(),
        model="",
        stop_reason="stop",
    )
    await host.stream(
        events.MessageStart(**where, message_id=message_id, role="assistant"),
        events.MessageUpdate(**where, message_id=message_id, delta=text),
        events.MessageEnd(**where, message_id=message_id, text=text, stop_reason="stop"),
        events.EntryAppended(session_id=where["session_id"], run_id=where["run_id"], entry=entry),
    )


class Halting:
    """An act that waits before or after it takes its input, until it is told to go on."""

    def __init__(self, *, takes: bool) -> None:
        self.waits = trio.Event()
        self.go_on = trio.Event()
        self._takes = takes

    async def __call__(self, host: AgentHost) -> None:
        if self._takes:
            await host.confirm_delivery()
        self.waits.set()
        await self.go_on.wait()
        await host.confirm_delivery()
        await says(host, "late")


class AgentBench:
    """A bench whose sessions work with the puppet."""

    def __init__(self, bench: Bench, puppet: Puppet, session_id: str) -> None:
        self.client, self.events, self.daemon = bench.client, bench.events, bench.daemon
        self.provider = bench.provider
        self.puppet = puppet
        self.session_id = session_id

    async def start(self, *acts: Act, text: str = "go", **payload: Any) -> Payload:
        """Start a run of the puppet with these acts."""
        self.puppet.acts += acts
        return await self.client.request("prompt", text=text, wait=False, **payload)


@asynccontextmanager
async def agent_daemon(workdir: Path, **options: Any) -> AsyncIterator[AgentBench]:
    """Run a daemon in memory with an active session that works with the puppet."""
    puppet = Puppet()
    async with asking_daemon(
        workdir, make_agents=lambda _: {AGENT: lambda: puppet}, **options
    ) as bench:
        created = await bench.client.request("new_session", runtime=AGENT)
        yield AgentBench(bench, puppet, created["session_id"])
