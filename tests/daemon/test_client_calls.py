"""Clients' own tool calls: the same policy gate and log as for a model's, without a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.runs.call_records import CallRecords
from nousd.errors import StoreFull, ToolError
from nousd.machine.policy.rules import rules_of
from nousd.store.memory import store as memory
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire.limits import CLIENT_CALLS_MAX
from tests.daemon.asking_bench import Fetched, naming
from tests.daemon.process_harness import Place, running
from tests.daemon.scripted import (
    ScriptedProvider,
    ScriptedTool,
    asks_for_tools,
    breaks,
    gives,
    says,
)
from tests.harness.daemon import (
    WAIT_SECONDS,
    Client,
    Daemon,
    Event,
    Events,
    FakeClock,
    Payload,
    memory_daemon,
    of_type,
    types,
)
from tests.tools.bench import lifeline


class Bench:
    """A daemon with a scripted tool, a session, a client, and a subscriber of every event type."""

    def __init__(self, daemon: Daemon, client: Client, events: Events) -> None:
        self.daemon = daemon
        self.client = client
        self.events = events
        self.provider = ScriptedProvider()
        self.tool = ScriptedTool()
        self.session_id = ""

    async def call(self, tool: str = "work", args: Payload | None = None, **more: Any) -> str:
        accepted = await self.client.request("call_tool", tool=tool, args=args or {}, **more)
        call_id: str = accepted["tool_call_id"]
        return call_id

    async def events_of(self, call_id: str) -> list[Event]:
        """Return the events of a call, up to its end."""
        seen: list[Event] = []
        while True:
            event = await self.events.next()
            if event["payload"].get("tool_call_id") == call_id:
                seen.append(event)
                if event["type"] in ("tool_call_completed", "tool_call_denied"):
                    return seen

    async def get(self, call_id: str) -> Payload:
        call: Payload = (await self.client.request("get_tool_call", tool_call_id=call_id))["call"]
        return call


@pytest.fixture
def fetched() -> Fetched:
    return Fetched()


@asynccontextmanager
async def open_bench(workdir: Path, fetched: Fetched, **options: Any) -> AsyncIterator[Bench]:
    provider, tool = ScriptedProvider(), ScriptedTool()
    async with memory_daemon(
        workdir=workdir, provider=provider, tools=[tool.tool, fetched.tool], **options
    ) as daemon:
        events, client = await daemon.watch(types="all", confirms=True), await daemon.connect()
        bench = Bench(daemon, client, events)
        bench.provider, bench.tool = provider, tool
        bench.session_id = (await client.request("new_session"))["session_id"]
        yield bench


@pytest.fixture
async def bench(tmp_path: Path, fetched: Fetched) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path, fetched) as bench:
        yield bench


@pytest.fixture
async def auto_bench(tmp_path: Path, fetched: Fetched) -> AsyncIterator[Bench]:
    """A daemon in the mode auto, in which ``fetch`` needs approval and a rule denies ``work``."""
    rules = rules_of("deny", ["work"], "the settings")
    async with open_bench(tmp_path, fetched, permissions=RulePermissions("auto", rules)) as bench:
        yield bench


def assert_facts_are_recorded(completed: Payload) -> None:
    """Assert that an interrupted call records its runtime, environment and policy."""
    assert (completed["executed_by"], completed["execution_env"]) == ("nousd", "unknown")
    snapshot = completed["policy_snapshot"]
    assert snapshot["permission_mode"] == "yolo"
    assert [said["source"] for said in snapshot["sources"]][-2:] == ["mode", "runtime"]


def steps_of(events: list[Event]) -> list[str]:
    return [name.removeprefix("tool_call_") for name in types(events)]


# --- from its acceptance to its result -------------------------------------------------------


@pytest.mark.behaviour("clients_call_tools")
async def test_a_client_call_is_acknowledged_at_once_and_reports_each_step_without_a_run(
    bench: Bench,
) -> None:
    call_id = await bench.call()
    assert call_id.startswith("call-")
    await bench.tool.calls.wait_waiting()
    assert (await bench.get(call_id))["state"] == "started"
    bench.tool.finish(gives("well"))
    seen = await bench.events_of(call_id)
    assert steps_of(seen) == [
        "requested",
        *["policy_evaluated" for _ in range(6)],
        *("approved", "started", "output", "completed"),
    ]
    payloads = [event["payload"] for event in seen]
    assert not any("run_id" in payload or "turn_id" in payload for payload in payloads)
    assert {(p["session_id"], p["attempt"], p["tool_name"]) for p in payloads} == {
        (bench.session_id, 1, "work")
    }
    assert len({payload["input_hash"] for payload in payloads}) == 1
    completed = payloads[-1]
    assert (completed["result"], completed["is_error"]) == ("well", False)
    assert (completed["executed_by"], completed["execution_env"]) == ("nousd", "host")
    assert completed["policy_snapshot"]["permission_mode"] == "yolo"


async def test_a_client_call_runs_beside_a_run_and_adds_nothing_to_the_transcript(
    bench: Bench,
) -> None:
    bench.provider.answer(asks_for_tools(), says("done"))
    await bench.client.request("prompt", text="go", wait=False)
    await bench.events.until("tool_call_started")
    call_id = await bench.call("ls")
    assert (await bench.events_of(call_id))[-1]["type"] == "tool_call_completed"
    bench.tool.finish(gives("the model's"))
    run = await bench.events.run()
    assert run[-1]["payload"]["status"] == "completed"
    roles = [m["role"] for m in (await bench.client.request("get_messages"))["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    other = await bench.call("ls")
    assert (await bench.events_of(other))[-1]["payload"]["is_error"] is False


@pytest.mark.behaviour("tool_calls_can_be_read")
async def test_get_tool_call_returns_everything_about_a_client_call(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    call_id = await bench.call("read", {"path": "a.txt"}, client_call_id="mine")
    await bench.events_of(call_id)
    call = await bench.get(call_id)
    assert (call["state"], call["executed"], call["is_error"]) == ("completed", True, False)
    assert (call["args"], call["result"]) == ({"path": "a.txt"}, "alpha")
    assert call["client_call_id"] == "mine"
    assert [said["source"] for said in call["sources"]] == [
        *("registry", "session", "arguments", "rules", "mode", "runtime")
    ]
    assert (call["decision"]["approved"], call["decision"]["by"]) == (True, "policy")
    assert call["requested_at"] <= call["started_at"] <= call["ended_at"]
    [listed] = (await bench.client.request("list_tool_calls"))["calls"]
    assert listed.items() <= {**call, "decided_by": "policy"}.items()


@pytest.mark.behaviour("tool_calls_can_be_listed")
async def test_calls_are_listed_newest_first_in_pages_and_by_run(bench: Bench) -> None:
    bench.provider.answer(asks_for_tools(2), says("done"))
    bench.tool.finish(gives(), gives())
    await bench.client.request("prompt", text="go", wait=False)
    [start] = of_type(await bench.events.run(), "agent_start")
    own = await bench.call("ls")
    await bench.events_of(own)
    everything = (await bench.client.request("list_tool_calls"))["calls"]
    assert [call["tool_name"] for call in everything] == ["ls", "work", "work"]
    page = await bench.client.request("list_tool_calls", limit=1)
    assert (page["calls"], page["has_more"]) == (everything[:1], True)
    rest = await bench.client.request("list_tool_calls", before=page["calls"][-1]["event"])
    assert (rest["calls"], rest["has_more"]) == (everything[1:], False)
    of_run = await bench.client.request("list_tool_calls", run_id=start["run_id"])
    assert of_run["calls"] == everything[1:]
    error = await bench.client.refusal("list_tool_calls", session_id="another")
    assert error["code"] == "session_not_found"


async def test_get_tool_call_returns_a_call_of_a_run_too(bench: Bench) -> None:
    bench.provider.answer(asks_for_tools(), says("done"))
    bench.tool.finish(gives("well"))
    await bench.client.request("prompt", text="go", wait=False)
    [end] = of_type(await bench.events.run(), "tool_execution_end")
    call = await bench.get(end["tool_call_id"])
    assert (call["run_id"], call["turn_id"]) == (end["run_id"], "1")
    assert (call["result"], call["runtime_tool_call_id"]) == ("well", "own-0")
    refused = await bench.client.refusal(
        "get_tool_call", tool_call_id=call["tool_call_id"], attempt=2
    )
    assert refused["message"] == "tool_call_not_found"


async def test_a_subscription_to_one_call_receives_only_its_events(bench: Bench) -> None:
    call_id = await bench.call()
    other = await bench.call("ls")
    await bench.events_of(other)
    follower = await bench.daemon.watch(after="evt-0", types="all", run_id=call_id)
    bench.tool.finish(gives("well"))
    seen = [await follower.next() for _ in range(11)]
    assert {event["payload"]["tool_call_id"] for event in seen} == {call_id}
    assert seen[-1]["type"] == "tool_call_completed"


async def test_a_long_result_is_truncated_and_stored_as_an_artifact(bench: Bench) -> None:
    whole = "x" * 100_000
    call_id = await bench.call()
    bench.tool.finish(gives(whole))
    completed = (await bench.events_of(call_id))[-1]["payload"]
    assert whole.startswith(completed["result"])
    assert completed["text_bytes"] == len(whole) > len(completed["result"])
    stored = await bench.daemon.services.store.artifact(completed["text_ref"])
    assert stored is not None
    assert stored.data == whole.encode()
    call = await bench.get(call_id)
    assert call["text_ref"] == completed["text_ref"]


async def test_tool_output_is_reported_while_the_call_runs(bench: Bench) -> None:
    async def play(context: ToolContext) -> ToolResult:
        await context.emit("first")
        await bench.tool.calls.outcome()
        return ToolResult("first and last")

    call_id = await bench.call()
    bench.tool.finish(play)
    output = (await bench.events.until("tool_call_output"))["payload"]
    assert (output["tool_call_id"], output["delta"]) == (call_id, "first")
    bench.tool.finish(gives())
    completed = (await bench.events.until("tool_call_completed"))["payload"]
    assert completed["result"] == "first and last"


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (ToolError("badly"), "tool_error: badly"),
        (
            OSError(28, "No space left on device"),
            "tool_error: work_failed: No space left on device",
        ),
    ],
)
async def test_a_failed_call_has_its_error_as_its_result(
    bench: Bench, error: Exception, result: str
) -> None:
    call_id = await bench.call()
    bench.tool.finish(breaks(error))
    completed = (await bench.events_of(call_id))[-1]["payload"]
    assert (completed["result"], completed["is_error"]) == (result, True)


async def test_an_internal_error_in_a_tool_completes_its_call_with_an_error(bench: Bench) -> None:
    call_id = await bench.call()
    bench.tool.finish(breaks(ZeroDivisionError()))
    completed = (await bench.events_of(call_id))[-1]["payload"]
    assert (completed["is_error"], completed["stop_reason"]) == (True, "error")
    assert "duration_ms" not in completed
    assert (await bench.get(call_id))["state"] == "completed"


# --- the gate --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "args", "source", "reason"),
    [
        ("nope", {}, "registry", "tool_not_found: nope"),
        ("read", {}, "arguments", "validation_failed: read.path is required"),
        ("work", {}, "rules", "tool_blocked: the rule work of the settings"),
    ],
)
async def test_a_forbidden_client_call_is_denied_with_the_reason(
    auto_bench: Bench, tool: str, args: Payload, source: str, reason: str
) -> None:
    call_id = await auto_bench.call(tool, args)
    seen = await auto_bench.events_of(call_id)
    assert "tool_call_started" not in types(seen)
    evaluated = of_type(seen, "tool_call_policy_evaluated")[-1]
    assert (evaluated["source"], evaluated["decision"]) == (source, "deny")
    assert seen[-1]["payload"]["reason"] == reason
    call = await auto_bench.get(call_id)
    assert (call["state"], call["executed"], call["is_error"]) == ("denied", False, True)
    assert not auto_bench.tool.waiting


async def test_a_call_of_an_inactive_tool_is_denied(bench: Bench) -> None:
    await bench.client.request("set_active_tools", tools=["read"])
    seen = await bench.events_of(await bench.call("ls"))
    assert seen[-1]["payload"]["reason"] == "tool_not_active: ls"


async def test_a_client_call_waits_for_approval_and_runs_once_approved(
    auto_bench: Bench, fetched: Fetched
) -> None:
    call_id = await auto_bench.call("fetch")
    request = (await auto_bench.events.until("permission_requested"))["payload"]
    assert request["tool_call_id"] == call_id
    assert (await auto_bench.get(call_id))["state"] == "waiting"
    assert fetched.urls == []
    await auto_bench.client.request("confirm_tool", **naming(request, "once"))
    completed = (await auto_bench.events_of(call_id))[-1]["payload"]
    assert completed["result"] == "fetched"
    assert completed["policy_snapshot"]["sources"][-1]["source"] == "user"
    assert fetched.urls == ["https://example.org"]


async def test_a_client_call_that_the_user_denies_does_not_run(
    auto_bench: Bench, fetched: Fetched
) -> None:
    call_id = await auto_bench.call("fetch")
    request = (await auto_bench.events.until("permission_requested"))["payload"]
    await auto_bench.client.request("confirm_tool", **naming(request, "deny"))
    assert (await auto_bench.events_of(call_id))[-1]["type"] == "tool_call_denied"
    assert fetched.urls == []
    assert (await auto_bench.get(call_id))["decision"]["by"] == "user"


# --- resent calls ----------------------------------------------------------------------------


@pytest.mark.behaviour("tool_calls_sent_again_run_once")
async def test_a_resent_call_runs_once(bench: Bench) -> None:
    first = await bench.call(client_call_id="c-1")
    again = await bench.call(client_call_id="c-1")
    bench.tool.finish(gives())
    await bench.events_of(first)
    later = await bench.call(client_call_id="c-1")
    assert first == again == later
    assert len((await bench.client.request("list_tool_calls"))["calls"]) == 1
    other = await bench.call(client_call_id="c-2")
    assert other != first
    bench.tool.finish(gives())
    await bench.events_of(other)


async def test_equal_arguments_make_separate_calls(bench: Bench) -> None:
    bench.tool.finish(gives("one"), gives("two"))
    first, second = await bench.call(), await bench.call()
    await bench.events_of(second)
    assert first != second
    results = {(await bench.get(call_id))["result"] for call_id in (first, second)}
    assert results == {"one", "two"}


async def test_a_resent_call_is_recognized_after_a_restart(tmp_path: Path) -> None:
    tool, clock = ScriptedTool(), FakeClock()
    async with memory.open_store() as store:
        ids: list[str] = []
        for _ in range(2):
            async with memory_daemon(
                workdir=tmp_path,
                provider=ScriptedProvider(),
                tools=[tool.tool],
                store=store,
                clock=clock,
            ) as daemon:
                events, client = await daemon.watch(types="all"), await daemon.connect()
                if not ids:
                    await client.request("new_session")
                accepted = await client.request("call_tool", tool="work", client_call_id="c-1")
                if not ids:
                    tool.finish(gives())
                    await events.until("tool_call_completed")
                ids.append(accepted["tool_call_id"])
        assert ids[0] == ids[1]
        assert len(await store.tool_calls(None, None, limit=10, before=10**9)) == 1


# --- ends ------------------------------------------------------------------------------------


@pytest.mark.behaviour("client_calls_can_be_stopped")
async def test_a_client_can_cancel_its_call(bench: Bench) -> None:
    call_id = await bench.call()
    await bench.tool.calls.wait_waiting()
    await bench.client.request("cancel_tool_call", tool_call_id=call_id)
    completed = (await bench.events_of(call_id))[-1]["payload"]
    assert (completed["stop_reason"], completed["result"]) == ("aborted", "tool_error: aborted")
    assert not bench.tool.waiting
    refused = await bench.client.refusal("cancel_tool_call", tool_call_id=call_id)
    assert refused["message"] == "tool_call_ended"
    unknown = await bench.client.refusal("cancel_tool_call", tool_call_id="call-none")
    assert unknown["message"] == "tool_call_not_found"


async def test_cancelling_a_call_that_waits_for_approval_denies_it(
    auto_bench: Bench, fetched: Fetched
) -> None:
    call_id = await auto_bench.call("fetch")
    request = (await auto_bench.events.until("permission_requested"))["payload"]
    await auto_bench.client.request("cancel_tool_call", tool_call_id=call_id)
    denied = (await auto_bench.events_of(call_id))[-1]["payload"]
    assert (denied["by"], denied["reason"]) == ("stop", "aborted")
    assert (await auto_bench.client.request("list_permissions"))["pending"] == []
    late = await auto_bench.client.refusal("confirm_tool", **naming(request, "once"))
    assert late["message"] == "already_decided"
    assert fetched.urls == []


async def test_a_models_call_cannot_be_cancelled_by_itself(bench: Bench) -> None:
    bench.provider.answer(asks_for_tools())
    await bench.client.request("prompt", text="go", wait=False)
    started = (await bench.events.until("tool_call_started"))["payload"]
    refused = await bench.client.refusal("cancel_tool_call", tool_call_id=started["tool_call_id"])
    assert refused["message"] == "tool_call_not_cancellable"


async def test_a_call_without_activity_times_out(
    tmp_path: Path, fetched: Fetched, autojump_clock: MockClock
) -> None:
    async with open_bench(tmp_path, fetched, stale_seconds=5.0) as bench:
        call_id = await bench.call()
        started = trio.current_time()
        completed = (await bench.events_of(call_id))[-1]["payload"]
        assert completed["stop_reason"] == "timeout"
        assert_facts_are_recorded(completed)
        assert trio.current_time() - started == pytest.approx(5.0, abs=1.0)


async def test_stopping_the_daemon_interrupts_client_calls(
    tmp_path: Path, fetched: Fetched
) -> None:
    async with memory.open_store() as store:
        async with open_bench(tmp_path, fetched, store=store) as bench:
            call_id = await bench.call()
            await bench.tool.calls.wait_waiting()
        row = await store.tool_call(call_id, None)
        assert row is not None
        assert (row.state, row.is_error) == ("completed", True)
        record = await CallRecords(store).record(call_id, None)
        assert (record.stop_reason, record.executed_by) == ("interrupted", "nousd")
        assert (record.execution_env, record.permission_mode) == ("unknown", "yolo")


async def test_deleting_a_session_stops_and_deletes_its_calls(bench: Bench) -> None:
    call_id = await bench.call()
    await bench.tool.calls.wait_waiting()
    driver = bench.daemon.services.calls.find(call_id)
    assert driver is not None
    await bench.client.request("delete_session", session_id=bench.session_id)
    await bench.events.until("session_deleted")
    with trio.fail_after(WAIT_SECONDS):
        await driver.ended.wait()
    assert not bench.tool.waiting
    assert (await bench.client.request("list_tool_calls"))["calls"] == []


async def test_concurrent_client_calls_are_limited(bench: Bench) -> None:
    calls = [await bench.call() for _ in range(CLIENT_CALLS_MAX)]
    refused = await bench.client.refusal("call_tool", tool="work")
    assert (refused["message"], refused["details"]) == (
        "too_many_calls",
        {"limit": CLIENT_CALLS_MAX},
    )
    bench.tool.finish(gives())
    await bench.events.until("tool_call_completed")
    calls.append(await bench.call())
    bench.tool.finish(*[gives() for _ in calls[1:]])
    for _ in calls[1:]:
        await bench.events.until("tool_call_completed")


async def test_a_call_without_an_active_session_creates_one(tmp_path: Path) -> None:
    async with memory_daemon(workdir=tmp_path, provider=ScriptedProvider()) as daemon:
        client, events = await daemon.connect(), await daemon.watch(types="all")
        accepted = await client.request("call_tool", tool="ls", client_call_id="mine")
        session_id = accepted["session_id"]
        await events.until("tool_call_completed")
        assert types(events.seen)[:3] == [
            *("session_created", "session_activated", "tool_call_requested")
        ]
        assert (await client.request("get_state"))["session_id"] == session_id
        # The new session is active: a resent call is recognized, and the next call runs there.
        again = await client.request("call_tool", tool="ls", client_call_id="mine")
        assert again == accepted
        other = await client.request("call_tool", tool="ls")
        assert other["session_id"] == session_id


async def test_a_call_past_the_limit_creates_no_session(bench: Bench) -> None:
    for _ in range(CLIENT_CALLS_MAX):
        await bench.call()
    active = (await bench.client.request("new_session"))["session_id"]
    await bench.client.request("delete_session", session_id=active)
    refused = await bench.client.refusal("call_tool", tool="ls")
    assert refused["message"] == "too_many_calls"
    sessions = (await bench.client.request("list_sessions"))["sessions"]
    assert [session["session_id"] for session in sessions] == [bench.session_id]


async def test_a_full_disk_ends_a_call_and_its_end_is_stored_once_there_is_space(
    tmp_path: Path, fetched: Fetched
) -> None:
    is_full = False

    def before_commit() -> None:
        if is_full:
            raise StoreFull("the disk is full")

    async with (
        memory.open_store(before_commit=before_commit) as store,
        open_bench(tmp_path, fetched, store=store) as bench,
    ):
        call_id = await bench.call()
        await bench.tool.calls.wait_waiting()
        driver = bench.daemon.services.calls.find(call_id)
        assert driver is not None
        is_full = True
        bench.tool.finish(gives())
        with trio.fail_after(WAIT_SECONDS):
            await driver.ended.wait()
        is_full = False
        completed = (await bench.events_of(call_id))[-1]["payload"]
        assert (completed["stop_reason"], completed["is_error"]) == ("interrupted", True)


# --- crashes ---------------------------------------------------------------------------------


@pytest.mark.behaviour("no_tool_runs_twice")
@pytest.mark.slow
async def test_a_call_interrupted_by_a_kill_is_closed_and_does_not_run_again(
    short_folder: Path,
) -> None:
    place = Place(short_folder)
    mark = place.work / "marks"
    with lifeline(short_folder / "lifeline") as line:
        script = f'echo once >> "{mark}"; exec 9>"{line.path}"; echo ready >&9; sleep 1000'
        async with running(place) as process:
            client = await place.connect()
            await client.request("new_session")
            accepted = await client.request(
                "call_tool", tool="bash", args={"command": script}, client_call_id="c-1"
            )
            await line.wait_ready(1)
            await process.kill()
            await line.wait_gone()
    async with running(place):
        client = await place.connect()
        again = await client.request(
            "call_tool", tool="bash", args={"command": script}, client_call_id="c-1"
        )
        assert again["tool_call_id"] == accepted["tool_call_id"]
        call = (await client.request("get_tool_call", tool_call_id=again["tool_call_id"]))["call"]
        assert (call["state"], call["stop_reason"]) == ("completed", "interrupted")
        assert call["executed"] is True
        assert mark.read_text() == "once\n"
