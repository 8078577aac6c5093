"""A daemon whose model acts according to the plan of its prompt.

::

    async with task_daemon(folder) as bench:
        bench.on("go", bench.tasks({"prompt": "look"}, {"prompt": "count"}), says("done"))
        bench.on("look", says("seen"))
        bench.on("count", holds(gate), says("3"))      # waits for the test
        run = await bench.run("go")

A session is known by its first prompt, so that tasks that run at the same time do not mix.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from nousd.machine.context.model_input import ModelInput, UserMessage
from nousd.providers.interface import NO_BLOBS, Blobs, Receive
from tests.daemon.asking_bench import Fetched, calls
from tests.daemon.scripted import OneModel, Outcome, says
from tests.harness.daemon import Client, Daemon, Event, Events, Payload, memory_daemon, of_type


class PlannedModel(OneModel):
    """See ``providers.interface.Provider``. ``requests``: by first prompt."""

    name: Final = "planned"
    default_model = "planned-model"

    def __init__(self) -> None:
        self.plans: dict[str, list[Outcome]] = defaultdict(list)
        self.requests: dict[str, list[ModelInput]] = defaultdict(list)

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        prompts = (message for message in request.messages if isinstance(message, UserMessage))
        prompt = next(prompts).text
        self.requests[prompt].append(request)
        plan = self.plans[prompt]
        await (plan.pop(0) if plan else says(f"nothing planned for {prompt}"))(receive)


def holds(gate: trio.Event, then: Outcome) -> Outcome:
    """A model call that waits for the gate before it says anything."""

    async def play(receive: Receive) -> None:
        await gate.wait()
        await then(receive)

    return play


async def hangs(_: Receive) -> None:
    """A model call that never ends by itself."""
    await trio.sleep_forever()


def tasks(*given: dict[str, Any]) -> Outcome:
    """A model call that asks for tasks, all in one call of the tool."""
    return calls(("task", json.dumps({"tasks": given})))


class TaskBench:
    def __init__(self, daemon: Daemon, client: Client, events: Events, model: PlannedModel) -> None:
        self.daemon = daemon
        self.client = client
        self.events = events
        self.model = model
        self.seen: list[Event] = []

    def on(self, prompt: str, *outcomes: Outcome) -> None:
        self.model.plans[prompt] += outcomes

    async def start(self, prompt: str = "go", **payload: Any) -> Payload:
        return await self.client.request("prompt", text=prompt, wait=False, **payload)

    async def run(self, prompt: str = "go", **payload: Any) -> list[Event]:
        """Return everything that is told up to the end of a run."""
        return await self.events.run((await self.start(prompt, **payload))["run_id"])

    async def child(self, number: int = 0) -> Payload:
        """Return the next session of a task that is told of."""
        event = await self.events.until("session_created")
        while "origin" not in event["payload"]:
            event = await self.events.until("session_created")
        created: Payload = event["payload"]
        return created


def result_of(run: list[Event], tool: str = "task") -> Payload:
    """Return the end of the one call of a tool."""
    [end] = [end for end in of_type(run, "tool_execution_end") if end["tool_name"] == tool]
    return end


def of_run(run: list[Event], run_id: str) -> list[Event]:
    """Return the events of one run."""
    return [event for event in run if event["payload"].get("run_id") == run_id]


def children_of(run: list[Event]) -> list[Payload]:
    """Return what is told of the sessions of tasks when they are made."""
    return [created for created in of_type(run, "session_created") if "origin" in created]


@asynccontextmanager
async def task_daemon(
    workdir: Path,
    *,
    model: PlannedModel | None = None,
    fetched: Fetched | None = None,
    **options: Any,
) -> AsyncIterator[TaskBench]:
    """Run a daemon in memory with a watcher of everything. ``options``: see ``make_deps``."""
    model = model or PlannedModel()
    if fetched is not None:
        options["tools"] = [fetched.tool]
    async with memory_daemon(workdir=workdir, provider=model, **options) as daemon:
        events = await daemon.watch(types="all")
        yield TaskBench(daemon, await daemon.connect(), events, model)
