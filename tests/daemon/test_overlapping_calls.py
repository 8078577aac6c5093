"""Several open calls in one run, with the real daemon around a runtime that makes them at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.daemon.eventlog.hub import Hub
from nousd.daemon.eventlog.log import Log
from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.runs.recovery import close_open_work
from nousd.runtimes.calls.runner import CallRunner
from nousd.runtimes.interface import Runtime
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.records import EventFilter
from nousd.tools.arguments import struct_arguments
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire import events
from nousd.wire.codec.envelope import decode_event, event_in
from nousd.wire.objects.entries import MessageEntry, ToolCall
from nousd.wire.objects.questions import UserQuestion
from nousd.wire.objects.tool_footprint import Access
from tests.daemon.asking_bench import naming
from tests.daemon.scripted import Held, ScriptedProvider, ToolOutcome, WithoutThread, emits, gives
from tests.daemon.test_commits_of_a_call import HeldStore
from tests.harness.daemon import (
    Client,
    Daemon,
    Event,
    Events,
    FakeClock,
    check_log,
    memory_daemon,
    of_type,
)

STALE: Final = 1.5

FROZEN: Final = ("message_start", "message_end", "tool_execution_start", "tool_execution_end")


class Named(msgspec.Struct):
    """Arguments of the tool ``work``."""

    name: str = "a"


class Work:
    """A tool whose calls each wait for the test, by their names."""

    def __init__(self) -> None:
        self._calls: dict[str, Held[ToolOutcome]] = {}
        self.tool = WithoutThread(
            name="work",
            description="Does what the test says.",
            source="builtin",
            arguments=struct_arguments(Named),
            function=self._run,
            access_of=lambda _, __: Access(classes=frozenset({"network"}), hosts=("example.org",)),
        )

    def __getitem__(self, name: str) -> Held[ToolOutcome]:
        return self._calls.setdefault(name, Held())

    async def _run(self, args: Named, context: ToolContext) -> ToolResult:
        outcome = await self[args.name].outcome()
        return await outcome(context)


class AtOnce:
    """A runtime that makes all its calls at once; it delegates everything else to the native one."""

    name: Final = "at-once"

    def __init__(self, work: Work, names: str) -> None:
        self._names = names
        self._runner = CallRunner(lambda _: {work.tool.name: work.tool})
        self._native: Any = None
        self.host: Any = None

    def around(self, native: Runtime) -> Any:
        self._native = native
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    async def run_turn(self, host: Any) -> None:
        self.host = host
        host.let_calls_overlap()
        async with trio.open_nursery() as nursery:
            for name in self._names:
                call = ToolCall(
                    tool_call_id=f"{host.new_id('msg')}.0",
                    runtime_tool_call_id=name,
                    name="work",
                    args={"name": name},
                )
                nursery.start_soon(partial(self._runner.execute, host, call))
                await wait_all_tasks_blocked()


class Bench:
    """A daemon whose run makes calls at once, a client, and a subscriber of everything."""

    def __init__(
        self, daemon: Daemon, client: Client, events: Events, work: Work, runtime: AtOnce
    ) -> None:
        self.daemon = daemon
        self.runtime = runtime
        self.client = client
        self.events = events
        self.work = work

    async def record(self, tool_call_id: str) -> dict[str, Any]:
        answer = await self.client.request("get_tool_call", tool_call_id=tool_call_id)
        call: dict[str, Any] = answer["call"]
        return call

    async def start(self, *, running: str) -> None:
        await self.client.request("prompt", text="go", wait=False)
        for name in running:
            await self.work[name].wait_waiting()

    async def finish(self, name: str, outcome: ToolOutcome) -> None:
        self.work[name].decide(outcome)
        await wait_all_tasks_blocked()


@asynccontextmanager
async def at_once(
    workdir: Path, names: str = "ab", mode: Any = "yolo", **options: Any
) -> AsyncIterator[Bench]:
    work = Work()
    runtime = AtOnce(work, names)
    async with memory_daemon(
        workdir=workdir,
        provider=ScriptedProvider(),
        tools=[work.tool],
        around_runtime=runtime.around,
        permissions=RulePermissions(mode),
        **options,
    ) as daemon:
        watch = await daemon.watch(types="all", confirms=True)
        yield Bench(daemon, await daemon.connect(), watch, work, runtime)


def brackets(run: list[Event]) -> list[tuple[str, str]]:
    """Return the frozen starts and ends of messages and calls, with the text of a result."""
    return [
        (event["type"], event["payload"].get("result", ""))
        for event in run
        if event["type"] in FROZEN
    ]


A_BRACKET: Final = [("message_start", ""), ("message_end", ""), ("tool_execution_start", "")]


@pytest.mark.behaviour("calls_that_overlap_have_ordered_brackets")
async def test_a_call_that_ends_first_is_known_at_once_and_shown_in_its_place(
    tmp_path: Path,
) -> None:
    async with at_once(tmp_path) as bench:
        await bench.start(running="ab")
        await bench.finish("b", emits("one", "two"))
        done = (await bench.events.until("tool_call_completed"))["payload"]
        assert done["result"] == "done"
        record = await bench.record(done["tool_call_id"])
        assert record["args"] == {"name": "b"}
        assert (record["result"], record["state"]) == ("done", "completed")
        await bench.finish("a", gives("of a"))
        await bench.events.until("agent_end")
        run = list(bench.events.seen)
        user = [("message_start", ""), ("message_end", "")]
        ends = [("tool_execution_end", "of a"), *A_BRACKET, ("tool_execution_end", "done")]
        assert brackets(run) == [*user, *A_BRACKET, *ends]
        assert {**await bench.record(done["tool_call_id"]), "event": ""} == {**record, "event": ""}
        first, second = of_type(run, "tool_call_requested")
        assert record["input_hash"] == second["input_hash"] != first["input_hash"]
        outputs = of_type(run, "tool_call_output")
        assert [told["delta"] for told in outputs] == ["one", "two"]
        assert [told["delta"] for told in of_type(run, "tool_execution_update")][1:] == ["onetwo"]


@pytest.mark.behaviour("a_stop_loses_no_result_of_calls_that_overlap")
async def test_an_abort_closes_every_open_call_in_the_order_of_beginning(tmp_path: Path) -> None:
    async with at_once(tmp_path, "abc") as bench:
        await bench.start(running="abc")
        await bench.finish("b", gives("of b"))
        await bench.client.request("abort")
        await bench.events.until("agent_end", status="cancelled")
        ends = of_type(list(bench.events.seen), "tool_execution_end")
        results = ["tool_error: aborted", "of b", "tool_error: aborted"]
        assert [end["result"] for end in ends] == results


async def test_each_of_two_calls_is_approved_by_its_own_id(tmp_path: Path) -> None:
    async with at_once(tmp_path, mode="auto") as bench:
        await bench.client.request("prompt", text="go", wait=False)
        one = (await bench.events.until("permission_requested"))["payload"]
        other = (await bench.events.until("permission_requested"))["payload"]
        await bench.client.request("confirm_tool", **naming(other, "deny"))
        await bench.client.request("confirm_tool", **naming(one, "once"))
        await bench.finish("a", gives("of a"))
        await bench.events.until("agent_end", status="completed")
        first, second = of_type(list(bench.events.seen), "tool_execution_end")
        assert (first["tool_call_id"], first["executed"]) == (one["tool_call_id"], True)
        assert (second["tool_call_id"], second["executed"]) == (other["tool_call_id"], False)


async def test_the_requests_of_every_open_call_end_with_the_run(tmp_path: Path) -> None:
    async with at_once(tmp_path, mode="auto") as bench:
        await bench.client.request("prompt", text="go", wait=False)
        for _ in "ab":
            await bench.events.until("permission_requested")
        await bench.client.request("abort")
        await bench.events.until("agent_end", status="cancelled")
        assert len(of_type(list(bench.events.seen), "tool_call_denied")) == 2
        assert (await bench.client.request("list_permissions"))["pending"] == []


async def asks(context: ToolContext) -> ToolResult:
    (answer,) = await context.ask_user([UserQuestion(question="Which?")])
    return ToolResult(str(answer.text))


async def test_a_question_names_the_call_that_asks(tmp_path: Path) -> None:
    async with at_once(tmp_path) as bench:
        await bench.start(running="ab")
        await bench.finish("b", asks)
        asked = (await bench.events.until("question_asked"))["payload"]
        _, second = of_type(list(bench.events.seen), "tool_call_requested")
        assert asked["tool_call_id"] == second["tool_call_id"]
        await bench.client.request(
            "answer_question", question_id=asked["question_id"], answers=[{"text": "this"}]
        )
        await bench.finish("a", gives())
        await bench.events.until("agent_end", status="completed")
        ends = of_type(list(bench.events.seen), "tool_execution_end")
        assert [end["result"] for end in ends] == ["done", "this"]


async def test_a_call_that_may_be_silent_is_not_made_stale_by_another(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def quiet(context: ToolContext) -> ToolResult:
        context.extend_idle_deadline(10 * STALE)
        await trio.sleep(5 * STALE)
        return ToolResult("slept")

    async def speaks(context: ToolContext) -> ToolResult:
        context.extend_idle_deadline(0.0)
        return ToolResult("spoke")

    async with at_once(tmp_path, stale_seconds=STALE) as bench:
        bench.work["a"].decide(quiet)
        bench.work["b"].decide(speaks)
        await bench.client.request("prompt", text="go", wait=False)
        await bench.events.until("agent_end", status="completed")


async def test_a_model_is_told_no_result_that_is_held_and_not_yet_durable(tmp_path: Path) -> None:
    store = HeldStore()
    told: list[str] = []
    async with at_once(tmp_path, store=store) as bench, trio.open_nursery() as nursery:

        async def tell() -> None:
            await bench.runtime.host.wait_results()
            told.append("b")

        await bench.start(running="ab")
        store.hold()
        await bench.finish("b", gives())
        nursery.start_soon(tell)
        await wait_all_tasks_blocked()
        assert told == []
        store.release()
        await wait_all_tasks_blocked()
        assert told == ["b"]
        await bench.finish("a", gives())
        await bench.events.until("agent_end", status="completed")
    await store.aclose()


async def read(store: Store) -> list[events.Event]:
    page = await store.events_after(0, EventFilter(), limit=1000, bytes_max=2**20)
    return [event_in(decode_event(stored.line)) for stored in page]


@pytest.mark.behaviour("a_stop_loses_no_result_of_calls_that_overlap")
async def test_a_kill_leaves_every_call_with_its_result(tmp_path: Path) -> None:
    async with memory.open_store() as store, memory.open_store() as killed:
        async with at_once(tmp_path, "abc", store=store) as bench:
            await bench.start(running="abc")
            await bench.finish("b", gives("of b"))
            await bench.events.until("tool_call_completed")
            happened = await read(store)
        log = Log(killed, Hub(killed), FakeClock())
        await log.submit(log.encode(happened)).wait_committed()
        assert await close_open_work(killed, log, FakeClock()) == 1
        await check_log(killed, complete_after=0)
        told = [each.entry for each in await read(killed) if isinstance(each, events.EntryAppended)]
        results = [entry for entry in told if isinstance(entry, MessageEntry)][-6:]
        assert [entry.role for entry in results] == ["assistant", "tool"] * 3
        texts = [(entry.text, entry.is_error) for entry in results if entry.role == "tool"]
        cut_off = ("tool_error: interrupted", True)
        assert texts == [cut_off, ("of b", False), cut_off]
