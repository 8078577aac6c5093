"""A daemon whose sessions are served by an agent program: in memory, or as a process; and a client."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.runs.runtimes import MakeRuntime
from nousd.machine.policy.rules import Rule
from nousd.providers.mock.provider import MockProvider
from nousd.runtimes.agents.agent_runtime import AgentRuntime
from nousd.runtimes.agents.guest import Guest
from nousd.runtimes.agents.interface import Agent, OwnTools
from nousd.runtimes.agents.spaces import Spaces
from nousd.runtimes.agents.surroundings import AgentSurroundings
from nousd.wire.objects.entries import PermissionMode
from tests.daemon.process_harness import Place, Process, running
from tests.harness.daemon import Client, Daemon, Event, Events, Payload, memory_daemon, of_type

WAIT_SECONDS = 60.0


class RuntimeBench:
    """A daemon with one agent program as a runtime, a client, and a subscriber.

    Args:
        runtime: the name of the program's.
    """

    def __init__(
        self, daemon: Daemon | Place, client: Client, events: Events, runtime: str
    ) -> None:
        self.daemon, self.client, self.events, self.runtime = daemon, client, events, runtime
        self.session_id = ""

    async def new_session(self) -> str:
        """Make a session of the program the active one."""
        created = await self.client.request("new_session", runtime=self.runtime)
        self.session_id = created["session_id"]
        return self.session_id

    async def start(self, *acts: Any, **payload: Any) -> Payload:
        """Start a run in which the program carries out these acts."""
        return await self.client.request("prompt", text=json.dumps(acts), wait=False, **payload)

    async def run(self, *acts: Any, **payload: Any) -> list[Event]:
        """Return the events of a whole run."""
        with trio.fail_after(WAIT_SECONDS):
            accepted = await self.start(*acts, **payload)
            return await self.events.run(accepted["run_id"])

    async def texts(self) -> list[str]:
        """Return the texts of the transcript."""
        entries = (await self.client.request("get_messages"))["messages"]
        return [entry["text"] for entry in entries]


def said(run: list[Event]) -> list[str]:
    """Return the texts of the assistant's messages that have any."""
    assistants = {
        start["message_id"]
        for start in of_type(run, "message_start")
        if start["role"] == "assistant"
    }
    ends = of_type(run, "message_end")
    return [end["text"] for end in ends if end["message_id"] in assistants and end["text"]]


def resumed(run: list[Event]) -> list[str]:
    """Return how the lives of the program began that began in a run."""
    return [note["resume"] for note in of_type(run, "agent_session") if "resume" in note]


@asynccontextmanager
async def runtime_bench(
    workdir: Path,
    agent: Agent,
    *,
    mode: PermissionMode = "yolo",
    rules: tuple[Rule, ...] = (),
    own_tools: OwnTools = "off",
    guest: Guest | None = None,
    models: tuple[str, ...] = (),
    **options: Any,
) -> AsyncIterator[RuntimeBench]:
    """Run a daemon in memory whose active session is served by an agent program."""

    def make(around: AgentSurroundings) -> dict[str, MakeRuntime]:
        bubblewrap = None if own_tools == "off" else shutil.which("bwrap")
        bare = Guest(lambda: bubblewrap, ())
        spaces = Spaces(workdir.with_name("spaces"), agent.name)

        def runtime() -> AgentRuntime:
            return AgentRuntime(
                agent, guest or bare, around, spaces, own_tools=own_tools, models=models
            )

        return {agent.name: runtime}

    options.setdefault("permissions", RulePermissions(mode, rules, None))
    async with memory_daemon(
        workdir=workdir, provider=MockProvider(), make_agents=make, **options
    ) as daemon:
        client, events = await daemon.connect(), await daemon.watch(types="all", confirms=True)
        bench = RuntimeBench(daemon, client, events, agent.name)
        await bench.new_session()
        yield bench


class ProcessBench(RuntimeBench):
    """One whose daemon is a process of its own."""

    def __init__(self, process: Process, *rest: Any) -> None:
        super().__init__(*rest)
        self.process = process


@asynccontextmanager
async def process_bench(
    place: Place, runtime: str, *, session_id: str = ""
) -> AsyncIterator[ProcessBench]:
    """Run a daemon whose active session is served by an agent program: a new one, or an earlier one."""
    async with running(place) as process:
        client, events = await place.connect(), await place.watch(types="all", confirms=True)
        bench = ProcessBench(process, place, client, events, runtime)
        if session_id:
            await client.request("switch_session", session_id=session_id)
            bench.session_id = session_id
        else:
            await bench.new_session()
        yield bench
