"""A forbidden tool call has no side effect, whoever makes it and whatever forbids it.

``ROUTES`` are the ways to call a tool, ``BARS`` the rules and modes that forbid it. Add a row for each
new way to call a tool.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.machine.policy.rules import rules_of
from nousd.providers.interface import Finished, Receive, ToolCallPiece
from nousd.tools.arguments import struct_arguments
from nousd.tools.function_tool import FunctionTool
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire.objects.tool_footprint import Access
from tests.daemon.asking_bench import naming
from tests.daemon.scripted import Outcome, ScriptedProvider, says
from tests.harness.daemon import Client, Daemon, Event, Events, memory_daemon, of_type

TOOL = "mark"


class _NoArguments(msgspec.Struct):
    pass


def marking(source: str) -> FunctionTool:
    """Return a tool that writes a file, and declares that it reaches a network."""

    async def run(_: _NoArguments, context: ToolContext) -> ToolResult:
        (context.workdir / "marked").write_text("it ran")
        return ToolResult("marked")

    return FunctionTool(
        name=TOOL,
        description="Leaves a mark.",
        source=source,
        arguments=struct_arguments(_NoArguments),
        function=run,
        access_of=lambda _args, _context: Access(classes=frozenset({"network"}), hosts=("a.org",)),
    )


class Bench:
    """A daemon with that tool, its model, a client, and a subscriber."""

    def __init__(self, daemon: Daemon, client: Client, events: Events, workdir: Path) -> None:
        self.daemon = daemon
        self.client = client
        self.events = events
        self.provider = ScriptedProvider()
        self.marked = workdir / "marked"

    async def until_end(self) -> list[Event]:
        """Return the events up to the denial or the end of the call."""
        seen = []
        while True:
            seen.append(await self.events.next())
            kind, payload = seen[-1]["type"], seen[-1]["payload"]
            if payload.get("tool_name") == TOOL and kind in (
                "tool_call_denied",
                "tool_call_completed",
            ):
                return seen


def asks_for(name: str, **args: Any) -> Outcome:
    async def play(receive: Receive) -> None:
        await receive(ToolCallPiece("own", name, json.dumps(args)))
        await receive(Finished("tool_use"))

    return play


# --- routes ----------------------------------------------------------------------------------


class Route(NamedTuple):
    """A way to the tool.

    Args:
        source: of the tool.
        call: makes the call, and returns without waiting for its end.
    """

    source: str
    call: Callable[[Bench], Awaitable[None]]


async def by_model(bench: Bench) -> None:
    bench.provider.answer(asks_for(TOOL), says("done"))
    await bench.client.request("prompt", text="go", wait=False)


async def by_task(bench: Bench) -> None:
    bench.provider.answer(
        asks_for("task", tasks=[{"description": "d", "prompt": "p"}]),
        asks_for(TOOL),
        says("the task is done"),
        says("done"),
    )
    await bench.client.request("prompt", text="go", wait=False)


async def by_client(bench: Bench) -> None:
    await bench.client.request("call_tool", tool=TOOL)


ROUTES = {
    "model": Route("builtin", by_model),
    "task": Route("builtin", by_task),
    "client": Route("builtin", by_client),
    "an extension's tool, by a model": Route("some-extension", by_model),
    "an extension's tool, by a client": Route("some-extension", by_client),
}


# --- bars ------------------------------------------------------------------------------------


class Bar(NamedTuple):
    """The rule or mode that forbids the call.

    Args:
        deny: rules that forbid it.
        confirms: True if a client declares that it can answer.
        answer: decision of that client; empty if it is not asked.
    """

    mode: Any = "yolo"
    deny: tuple[str, ...] = ()
    confirms: bool = True
    answer: str = ""


BARS = {
    "a rule for the tool": Bar(deny=(TOOL,)),
    "a rule for what it reaches": Bar(deny=(f"{TOOL}(a.org)",)),
    "a rule, in the mode auto": Bar("auto", deny=(TOOL,)),
    "the user": Bar("auto", answer="deny"),
    "nobody who could be asked": Bar("auto", confirms=False),
    "nobody, where everything asks": Bar("ask", confirms=False),
}


@asynccontextmanager
async def open_bench(workdir: Path, route: Route, bar: Bar) -> AsyncIterator[Bench]:
    provider = ScriptedProvider()
    rules = (*rules_of("deny", bar.deny, "the settings"), *rules_of("allow", ["task"], "us"))
    async with memory_daemon(
        workdir=workdir,
        provider=provider,
        tools=[marking(route.source)],
        permissions=RulePermissions(bar.mode, rules),
    ) as daemon:
        events = await daemon.watch(types="all", confirms=bar.confirms)
        bench = Bench(daemon, await daemon.connect(), events, workdir)
        bench.provider = provider
        await bench.client.request("new_session")
        yield bench


@pytest.mark.slow(keep=15)
@pytest.mark.behaviour("a_forbidden_call_leaves_no_trace")
@pytest.mark.parametrize("bar", BARS.values(), ids=BARS)
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
async def test_a_forbidden_call_is_denied_once_and_has_no_side_effect(
    tmp_path: Path, route: Route, bar: Bar
) -> None:
    async with open_bench(tmp_path, route, bar) as bench:
        await route.call(bench)
        if bar.answer:
            request = (await bench.events.until("permission_requested"))["payload"]
            await bench.client.request("confirm_tool", **naming(request, bar.answer))
        seen_events = await bench.until_end()
    assert not bench.marked.exists()
    assert len(of_type(seen_events, "tool_call_denied")) == 1
    # The call of ``task`` itself runs.
    assert TOOL not in {call["tool_name"] for call in of_type(seen_events, "tool_call_started")}


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
async def test_the_same_call_runs_if_nothing_forbids_it(tmp_path: Path, route: Route) -> None:
    async with open_bench(tmp_path, route, Bar()) as bench:
        await route.call(bench)
        seen_events = await bench.until_end()
    assert bench.marked.read_text() == "it ran"
    assert of_type(seen_events, "tool_call_completed")[-1]["is_error"] is False
