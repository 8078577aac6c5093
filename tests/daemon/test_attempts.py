"""Repeated calls: calls that never started are executed, calls that may have run need approval."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.machine.context.model_input import ToolResultMessage
from nousd.machine.policy.rules import rules_of
from nousd.providers.interface import Finished, Receive, ToolCallPiece
from nousd.tools.arguments import struct_arguments
from nousd.tools.function_tool import FunctionTool, touches_nothing
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire.objects.entries import PermissionMode
from tests.daemon.asking_bench import naming
from tests.daemon.process_harness import Place, running
from tests.daemon.scripted import Outcome, ScriptedProvider, ScriptedTool, gives, says
from tests.harness.daemon import Client, Daemon, Event, Events, memory_daemon, of_type, types
from tests.harness.stub_model import StubModel, text_reply, tool_reply
from tests.tools.bench import lifeline


class _NoArguments(msgspec.Struct):
    number: int = 0


class Looks:
    """A read-only tool; ``count`` is the number of its executions."""

    def __init__(self) -> None:
        self.count = 0
        self.text = ""
        self.tool = FunctionTool(
            name="look",
            description="Looks.",
            source="scripted",
            arguments=struct_arguments(_NoArguments),
            function=self._run,
            access_of=touches_nothing,
            is_read_only=True,
        )

    async def _run(self, _args: _NoArguments, _context: ToolContext) -> ToolResult:
        self.count += 1
        return ToolResult(self.text or f"look {self.count}")


def asks_for(*names: str) -> Outcome:
    async def play(receive: Receive) -> None:
        for number, name in enumerate(names):
            await receive(ToolCallPiece(f"own-{number}", name, "{}"))
        await receive(Finished("tool_use"))

    return play


class Bench:
    """A daemon with a tool that acts and a read-only one, and a client that answers requests."""

    def __init__(self, daemon: Daemon, client: Client, events: Events) -> None:
        self.daemon = daemon
        self.client = client
        self.events = events
        self.provider = ScriptedProvider()
        self.work = ScriptedTool()
        self.look = Looks()

    async def run(self, *outcomes: Outcome, text: str = "go") -> list[Event]:
        self.provider.answer(*outcomes)
        await self.client.request("prompt", text=text, wait=False)
        return await self.events.run()

    async def resume(self, *outcomes: Outcome) -> list[Event]:
        self.provider.answer(*outcomes)
        await self.client.request("resume")
        return await self.events.run()

    async def move_back_to_the_calls(self, run: list[Event]) -> str:
        """Move the leaf back to the answer that asked for calls, and return its id."""
        [entry] = [
            appended["entry"]
            for appended in of_type(run, "entry_appended")
            if "tool_calls" in appended["entry"]
        ]
        await self.client.request("set_leaf", leaf_id=entry["id"])
        entry_id: str = entry["id"]
        return entry_id

    def results_sent(self) -> list[ToolResultMessage]:
        """Return the tool results in the newest model call."""
        messages = self.provider.requests[-1].messages
        return [message for message in messages if isinstance(message, ToolResultMessage)]


@asynccontextmanager
async def open_bench(
    workdir: Path, mode: PermissionMode = "yolo", *deny: str, confirms: bool = True, **more: Any
) -> AsyncIterator[Bench]:
    provider, work, look = ScriptedProvider(), ScriptedTool(), Looks()
    rules = rules_of("deny", deny, "the settings")
    async with memory_daemon(
        workdir=workdir,
        provider=provider,
        tools=[work.tool, look.tool],
        permissions=RulePermissions(mode, rules),
        **more,
    ) as daemon:
        events = await daemon.watch(types="all", confirms=confirms)
        bench = Bench(daemon, await daemon.connect(), events)
        bench.provider, bench.work, bench.look = provider, work, look
        yield bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path) as bench:
        yield bench


# --- calls that never started ----------------------------------------------------------------


@pytest.mark.behaviour("calls_that_never_began_are_carried_out")
async def test_resume_executes_the_calls_after_an_interrupted_one(bench: Bench) -> None:
    bench.provider.answer(asks_for("work", "look", "look"))
    await bench.client.request("prompt", text="go", wait=False)
    await bench.events.until("tool_call_started")
    await bench.client.request("abort")
    await bench.events.run()
    assert bench.look.count == 0
    run = await bench.resume(says("done"))
    assert [call["tool_name"] for call in of_type(run, "tool_call_started")] == ["look", "look"]
    assert {call["attempt"] for call in of_type(run, "tool_call_requested")} == {1}
    assert "replay" not in {e["source"] for e in of_type(run, "tool_call_policy_evaluated")}
    assert [result.text for result in bench.results_sent()] == [
        *("tool_error: aborted", "look 1", "look 2"),
    ]
    assert types(run).index("tool_call_started") < types(run).index("model_input")


async def test_a_new_prompt_discards_calls_that_never_started(
    bench: Bench,
) -> None:
    bench.provider.answer(asks_for("work", "look"))
    await bench.client.request("prompt", text="go", wait=False)
    await bench.events.until("tool_call_started")
    await bench.client.request("abort")
    await bench.events.run()
    run = await bench.run(says("done"), text="something else")
    assert bench.look.count == 0
    assert of_type(run, "tool_call_requested") == []
    assert [result.text for result in bench.results_sent()] == [
        "tool_error: aborted",
        "tool_error: interrupted",
    ]


async def test_a_steer_during_resume_skips_the_remaining_calls(bench: Bench) -> None:
    bench.provider.answer(asks_for("work", "work", "look"))
    await bench.client.request("prompt", text="go", wait=False)
    await bench.events.until("tool_call_started")
    await bench.client.request("abort")
    await bench.events.run()
    bench.provider.answer(says("steered"))
    await bench.client.request("resume")
    await bench.events.until("tool_call_started")
    await bench.client.request("steer", text="stop")
    bench.work.finish(gives("well"))
    run = await bench.events.run()
    [denied] = of_type(run, "tool_call_denied")
    assert (denied["tool_name"], denied["by"], denied["attempt"]) == ("look", "steer", 1)
    assert bench.look.count == 0


# --- calls that may have run -----------------------------------------------------------------


@pytest.mark.behaviour("a_call_that_is_seen_again_needs_a_new_word")
async def test_a_call_that_may_have_run_needs_approval_even_in_yolo_mode(bench: Bench) -> None:
    bench.work.finish(gives("once"))
    run = await bench.run(asks_for("work"), says("done"))
    message_id = await bench.move_back_to_the_calls(run)
    bench.provider.answer(says("done again"))
    await bench.client.request("resume")
    request = (await bench.events.until("permission_requested"))["payload"]
    assert (request["tool_call_id"], request["attempt"]) == (f"{message_id}.0", 2)
    assert "may have run before" in request["reason"]
    assert not bench.work.waiting
    wrong = await bench.client.refusal("confirm_tool", **{**naming(request, "once"), "attempt": 1})
    assert wrong["message"] == "attempt_mismatch"
    bench.work.finish(gives("twice"))
    await bench.client.request("confirm_tool", **naming(request, "once"))
    again = await bench.events.run()
    [end] = of_type(again, "tool_execution_end")
    assert (end["attempt"], end["executed"], end["result"]) == (2, True, "twice")
    assert [result.text for result in bench.results_sent()] == ["twice"]
    evaluated = of_type(again, "tool_call_policy_evaluated")
    assert [(each["source"], each["decision"]) for each in evaluated][-2:] == [
        ("replay", "ask"),
        ("user", "allow"),
    ]
    path = (await bench.client.request("get_messages"))["messages"]
    assert [entry["id"] for entry in path if entry["role"] == "tool"] == [
        f"{message_id}.0.result.2"
    ]
    first = await bench.client.request(
        "get_tool_call", tool_call_id=request["tool_call_id"], attempt=1
    )
    assert (first["call"]["result"], first["call"]["attempt"]) == ("once", 1)


async def test_a_call_that_may_have_run_is_denied_if_nobody_can_answer(tmp_path: Path) -> None:
    async with open_bench(tmp_path, confirms=False) as bench:
        bench.work.finish(gives("once"))
        await bench.move_back_to_the_calls(await bench.run(asks_for("work"), says("done")))
        run = await bench.resume(says("done again"))
        [end] = of_type(run, "tool_execution_end")
        assert (end["executed"], end["is_error"], end["attempt"]) == (False, True, 2)
        assert run[-1]["payload"]["status"] == "completed"
        # The second attempt did not run, but the first one did.
        await bench.move_back_to_the_calls(await _answer_with_calls(bench))
        third = await bench.resume(says("done again"))
        [requested] = of_type(third, "tool_call_requested")
        assert requested["attempt"] == 3
        assert of_type(third, "tool_call_denied")


async def _answer_with_calls(bench: Bench) -> list[Event]:
    """Return the event of the answer that asked for calls."""
    events = await bench.client.request("get_events", after="evt-0", types="all", limit=1000)
    return [
        event
        for event in events["events"]
        if event["type"] == "entry_appended" and "tool_calls" in event["payload"]["entry"]
    ]


async def test_a_previously_denied_call_runs_once_it_is_allowed(bench: Bench) -> None:
    await bench.client.request("new_session")
    await bench.client.request("set_active_tools", tools=["read"])
    run = await bench.run(asks_for("ls"), says("done"))
    assert of_type(run, "tool_call_denied")
    await bench.move_back_to_the_calls(run)
    await bench.client.request("set_active_tools", tools=["ls"])
    again = await bench.resume(says("done"))
    [end] = of_type(again, "tool_execution_end")
    assert (end["attempt"], end["executed"]) == (2, True)
    evaluated = of_type(again, "tool_call_policy_evaluated")[-1]
    assert (evaluated["source"], evaluated["decision"]) == ("replay", "allow")


# --- read-only calls -------------------------------------------------------------------------


async def test_a_repeated_read_only_call_returns_its_stored_result_without_running(
    bench: Bench,
) -> None:
    message_id = await bench.move_back_to_the_calls(await bench.run(asks_for("look"), says("done")))
    run = await bench.resume(says("done again"))
    assert bench.look.count == 1
    [end] = of_type(run, "tool_execution_end")
    assert (end["attempt"], end["executed"], end["result"]) == (2, False, "look 1")
    assert end["is_error"] is False
    assert of_type(run, "tool_call_started") == []
    assert len(of_type(run, "tool_call_approved")) == 1
    assert [result.text for result in bench.results_sent()] == ["look 1"]
    call = await bench.client.request("get_tool_call", tool_call_id=f"{message_id}.0")
    assert (call["call"]["state"], call["call"]["executed"]) == ("not_started", False)
    # A third attempt returns the stored result of the first one, too.
    await bench.move_back_to_the_calls(await _answer_with_calls(bench))
    third = await bench.resume(says("done again"))
    [end] = of_type(third, "tool_execution_end")
    assert (end["attempt"], end["result"], bench.look.count) == (3, "look 1", 1)


async def test_a_long_stored_result_is_returned_whole(bench: Bench) -> None:
    bench.look.text = "long " * 20_000
    await bench.move_back_to_the_calls(await bench.run(asks_for("look"), says("done")))
    await bench.resume(says("done again"))
    assert [result.text for result in bench.results_sent()] == [bench.look.text]


async def test_a_stored_result_is_withheld_once_its_call_is_forbidden(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        await bench.move_back_to_the_calls(await bench.run(asks_for("look"), says("done")))
        services = bench.daemon.services
        rules = rules_of("deny", ["look"], "the settings")
        services.run_services.permissions = RulePermissions("yolo", rules)
        run = await bench.resume(says("done again"))
        [end] = of_type(run, "tool_execution_end")
        assert (end["executed"], end["is_error"]) == (False, True)
        assert "look 1" not in bench.results_sent()[-1].text


async def test_equal_arguments_make_separate_calls(bench: Bench) -> None:
    run = await bench.run(asks_for("look", "look"), asks_for("look"), says("done"))
    assert bench.look.count == 3
    requested = of_type(run, "tool_call_requested")
    assert {call["attempt"] for call in requested} == {1}
    assert len({call["input_hash"] for call in requested}) == 1
    assert len({call["tool_call_id"] for call in requested}) == 3


# --- branches --------------------------------------------------------------------------------


async def test_a_branch_asks_before_it_repeats_a_call_of_its_parent(bench: Bench) -> None:
    bench.work.finish(gives("once"))
    message_id = await bench.move_back_to_the_calls(await bench.run(asks_for("work"), says("done")))
    parent = (await bench.client.request("get_state"))["session_id"]
    branch = (await bench.client.request("branch_session", session_id=parent))["session_id"]
    bench.provider.answer(says("done again"))
    await bench.client.request("resume", session_id=branch)
    request = (await bench.events.until("permission_requested"))["payload"]
    assert (request["tool_call_id"], request["attempt"]) == (f"{message_id}.0", 2)
    await bench.client.request("confirm_tool", **naming(request, "deny"))
    await bench.events.run()


@pytest.mark.behaviour("one_run_at_a_time_carries_out_a_call")
async def test_a_branch_and_its_parent_do_not_execute_the_same_calls_at_once(
    bench: Bench,
) -> None:
    bench.work.finish(gives("once"))
    await bench.move_back_to_the_calls(await bench.run(asks_for("work"), says("done")))
    parent = (await bench.client.request("get_state"))["session_id"]
    branch = (await bench.client.request("branch_session", session_id=parent))["session_id"]
    await bench.client.request("resume", session_id=branch)
    request = (await bench.events.until("permission_requested"))["payload"]
    await bench.client.request("resume", session_id=parent)
    error = (await bench.events.until("error", session_id=parent))["payload"]
    assert (error["code"], error["cause"]) == ("calls_in_progress", request["run_id"])
    await bench.events.until("agent_end", session_id=parent)
    bench.provider.answer(says("done again"))
    await bench.client.request("confirm_tool", **naming(request, "deny"))
    await bench.events.until("agent_end", session_id=branch)
    await bench.client.request("resume", session_id=parent)
    request = (await bench.events.until("permission_requested"))["payload"]
    assert (request["session_id"], request["attempt"]) == (parent, 3)


async def test_a_branch_cannot_execute_the_calls_of_its_running_parent(bench: Bench) -> None:
    bench.provider.answer(asks_for("work", "look"), says("done"))
    running = await bench.client.request("prompt", text="go", wait=False)
    await bench.events.until("tool_call_started")
    parent = running["session_id"]
    branch = (await bench.client.request("branch_session", session_id=parent))["session_id"]
    await bench.client.request("resume", session_id=branch)
    error = (await bench.events.until("error", session_id=branch))["payload"]
    assert (error["code"], error["cause"]) == ("calls_in_progress", running["run_id"])
    bench.work.finish(gives("once"))
    await bench.events.until("agent_end", run_id=running["run_id"])
    assert bench.look.count == 1


async def test_a_branch_and_its_parent_resumed_at_once_execute_an_unstarted_call_once(
    bench: Bench,
) -> None:
    bench.provider.answer(asks_for("work", "look"))
    await bench.client.request("prompt", text="go", wait=False)
    await bench.events.until("tool_call_started")
    await bench.client.request("abort")
    await bench.events.run()
    parent = (await bench.client.request("get_state"))["session_id"]
    branch = (await bench.client.request("branch_session", session_id=parent))["session_id"]
    bench.provider.answer(says("done"))
    ids = [
        await bench.client.ask("resume", session_id=session_id) for session_id in (parent, branch)
    ]
    for sent in ids:
        assert (await bench.client.answer(sent))["ok"]
    statuses = [(await bench.events.until("agent_end"))["payload"]["status"] for _ in ids]
    assert sorted(statuses) == ["completed", "error"]
    assert bench.look.count == 1


async def test_a_branch_asks_before_it_repeats_a_call_of_its_deleted_parent(bench: Bench) -> None:
    bench.work.finish(gives("once"))
    await bench.move_back_to_the_calls(await bench.run(asks_for("work"), says("done")))
    parent = (await bench.client.request("get_state"))["session_id"]
    branch = (await bench.client.request("branch_session", session_id=parent))["session_id"]
    await bench.client.request("delete_session", session_id=parent)
    bench.provider.answer(says("done again"))
    await bench.client.request("resume", session_id=branch)
    request = (await bench.events.until("permission_requested"))["payload"]
    assert request["attempt"] == 2
    assert not bench.work.waiting
    await bench.client.request("confirm_tool", **naming(request, "deny"))
    await bench.events.run()


@pytest.mark.parametrize("answer", ["once", "deny"])
async def test_a_call_that_is_repeated_for_a_deleted_parent_gets_a_result_of_its_own(
    bench: Bench, answer: str
) -> None:
    bench.work.finish(gives("of the parent"), gives("of the branch"))
    run = await bench.run(asks_for("work"), says("done"))
    parent = (await bench.client.request("get_state"))["session_id"]
    branch = (await bench.client.request("branch_session", session_id=parent))["session_id"]
    await bench.client.request("delete_session", session_id=parent)
    await bench.client.request("switch_session", session_id=branch)
    await bench.move_back_to_the_calls(run)
    bench.provider.answer(says("done again"))
    await bench.client.request("resume", session_id=branch)
    request = (await bench.events.until("permission_requested"))["payload"]
    assert request["attempt"] == 2
    await bench.client.request("confirm_tool", **naming(request, answer))
    run = await bench.events.run()
    tree = (await bench.client.request("get_tree", session_id=branch))["nodes"]
    results = [node["id"] for node in tree if node["role"] == "tool"]
    call_id = request["tool_call_id"]
    assert results == [f"{call_id}.result", f"{call_id}.result.2"]
    [appended] = [each["entry"]["id"] for each in of_type(run, "entry_appended")[:1]]
    assert appended == results[1]


# --- a kill ----------------------------------------------------------------------------------


@pytest.mark.behaviour("no_tool_runs_twice")
@pytest.mark.slow
async def test_after_a_kill_resume_executes_only_the_call_that_never_started(
    short_folder: Path, stub: StubModel
) -> None:
    place = Place(short_folder, stub)
    (place.work / "a.txt").write_text("alpha")
    mark = place.work / "marks"
    with lifeline(short_folder / "lifeline") as line:
        script = f'echo once >> "{mark}"; exec 9>"{line.path}"; echo ready >&9; sleep 1000'
        stub.script(tool_reply(("bash", {"command": script}), ("read", {"path": "a.txt"})))
        async with running(place) as process:
            client = await place.connect()
            await client.request("prompt", text="go", wait=False)
            await line.wait_ready(1)
            await process.kill()
            await line.wait_gone()
    stub.script(text_reply("done"))
    async with running(place):
        events, client = await place.watch(types="all"), await place.connect()
        await client.request("resume")
        run = await events.run()
    assert mark.read_text() == "once\n"
    assert [call["tool_name"] for call in of_type(run, "tool_call_started")] == ["read"]
    [end] = of_type(run, "tool_execution_end")
    assert end["result"] == "alpha"
