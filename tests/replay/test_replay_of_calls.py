"""Decisions on tool calls are replayed as recorded, without approvals or extensions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import UNSET
from msgspec.structs import replace
from trio.testing import MockClock

from nousd.daemon.policy.permissions import RulePermissions
from nousd.extensions.hook_chain import Hooks
from nousd.extensions.hooks import BlockCall, ChangeArgs, ChangeResult, ToolCalled, ToolReturned
from nousd.machine.policy.rules import rules_of
from nousd.replay.play import Tuning
from nousd.replay.recorded import read_run
from nousd.replay.replay import replay_run
from nousd.store.memory import store as memory
from nousd.wire import events
from nousd.wire.events import Event
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.policy import PolicyDecision, PolicySnapshot
from tests.daemon.asking_bench import Bench, asking_daemon, calls, naming
from tests.daemon.process_harness import Place, running
from tests.daemon.scripted import says
from tests.daemon.test_runtime_policy import Opinionated
from tests.daemon.test_sandboxing import OpenSandbox
from tests.extensions.registering import hooks, on
from tests.harness.daemon import of_type
from tests.replay.memory_log import MemoryLog
from tests.replay.test_earlier_logs import replay_in_a_thread
from tests.replay.test_replay import check_all_same


@asynccontextmanager
async def replayed_bench(
    workdir: Path, *, mode: PermissionMode = "auto", **options: Any
) -> AsyncIterator[Bench]:
    """Run a daemon whose runs are replayed at the end of the test."""
    async with memory.open_store() as store:
        async with asking_daemon(workdir, mode=mode, store=store, **options) as bench:
            yield bench
        await check_all_same(store._rows)  # type: ignore[attr-defined]


@pytest.mark.parametrize("decision", ["once", "session", "always", "deny"])
async def test_a_users_decision_replays_without_the_user(decision: str, tmp_path: Path) -> None:
    async with replayed_bench(tmp_path) as bench:
        request = await bench.asked()
        await bench.client.request("confirm_tool", **naming(request, decision, reason="so be it"))
        await bench.events.run()
        # A grant also applies to the next run.
        if decision in ("session", "always"):
            await bench.run()


async def test_an_approval_that_timed_out_replays_identically(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with replayed_bench(tmp_path, approval_timeout_seconds=5.0) as bench:
        began = autojump_clock.current_time()
        await bench.run()
        assert autojump_clock.current_time() - began >= 5


async def test_a_denial_because_nobody_can_answer_replays_identically(tmp_path: Path) -> None:
    async with replayed_bench(tmp_path, subscription={"types": "all"}) as bench:
        await bench.run()


async def test_an_approval_under_a_workspace_override_replays_without_the_override(
    tmp_path: Path,
) -> None:
    workdir = tmp_path / "work"
    workdir.mkdir()
    beside = tmp_path / "beside.txt"
    beside.write_text("what lies outside")
    reads = calls(("read", json.dumps({"path": str(beside)})))
    async with replayed_bench(workdir, mode="yolo") as bench:
        await bench.client.request("new_session")
        await bench.client.request("override_workspace", ttl_seconds=3600)
        request = await bench.asked(reads)
        assert request["outside"] == [str(beside)]
        await bench.client.request("confirm_tool", **naming(request, "once"))
        await bench.events.run()
        request = await bench.asked(reads, reads)
        # The pending call is denied during the run, and the next one is refused.
        await bench.client.request("override_workspace", ttl_seconds=0)
        run = await bench.events.run()
        assert len(of_type(run, "tool_call_denied")) == 1
        await bench.client.request("attach_session", workspace=str(workdir))
        await bench.run(calls(("ls", "{}")))
        # The file does not exist when the runs are replayed.
        beside.unlink()


@pytest.mark.parametrize("command", ["exit 3", "echo said; false"])
async def test_a_failed_command_in_a_sandbox_replays_as_sandboxed(
    command: str, tmp_path: Path
) -> None:
    async with replayed_bench(tmp_path, sandbox=OpenSandbox) as bench:
        run = await bench.run(calls(("bash", json.dumps({"command": command}))))
        (completed,) = of_type(run, "tool_call_completed")
        assert completed["is_error"]
        assert completed["sandbox"]["backend"] == "open"


async def test_a_run_aborted_during_an_approval_replays_identically(tmp_path: Path) -> None:
    async with replayed_bench(tmp_path) as bench:
        await bench.asked()
        await bench.client.request("abort")
        await bench.events.run()


async def test_a_run_steered_during_an_approval_replays_identically(tmp_path: Path) -> None:
    async with replayed_bench(tmp_path) as bench:
        await bench.asked()
        await bench.client.request("steer", text="never mind")
        await bench.events.run()


async def test_a_run_replays_identically_with_the_tools_and_modes_of_its_time(
    tmp_path: Path,
) -> None:
    async with replayed_bench(tmp_path) as bench:
        await bench.client.request("set_steering_mode", mode="all")
        await bench.asked()
        bench.provider.answer(says("to both"))
        await bench.client.request("set_follow_up_mode", mode="all")
        for text in ("one", "two"):
            await bench.client.request("follow_up", text=text)
        request = (await bench.pending())[0]
        await bench.client.request("confirm_tool", **naming(request, "deny"))
        run = await bench.events.run()
        assert [start["text"] for start in of_type(run, "message_start") if "text" in start][
            -1
        ] == "one\ntwo"
        await bench.client.request("set_follow_up_mode", mode="one-at-a-time")


@pytest.mark.slow
async def test_a_client_call_during_a_run_is_not_part_of_its_replay(short_folder: Path) -> None:
    place = Place(short_folder, permission_mode="ask")
    async with running(place) as process:
        client = await place.connect()
        await client.request("new_session")
        events = await place.watch(types="all", confirms=True)
        run = await client.request("prompt", text="[[tool ls {}]]", wait=False)
        await events.until("permission_requested")
        await client.request("call_tool", tool="ls")
        await events.until("permission_requested")
        # The next start closes both.
        await process.kill()
    async with running(place) as process:
        await process.stop()
    connection = apsw.Connection(str(place.state / "nousd.db"))
    assert replay_in_a_thread(connection, run["run_id"])
    connection.close()


async def test_a_denial_by_a_rule_replays_without_the_rule(tmp_path: Path) -> None:
    denying = RulePermissions("yolo", rules_of("deny", ["fetch"], "a test"))
    async with replayed_bench(tmp_path, permissions=denying) as bench:
        await bench.run()


@pytest.mark.parametrize("decision", ["allow", "ask", "deny"])
async def test_a_runtimes_decision_replays_without_its_policy(
    decision: PolicyDecision, tmp_path: Path
) -> None:
    around = Opinionated(decision).around
    async with replayed_bench(tmp_path, mode="auto", around_runtime=around) as bench:
        await bench.start(calls(("ls", "{}")))
        if decision == "ask":
            request = (await bench.events.until("permission_requested"))["payload"]
            await bench.client.request("confirm_tool", **naming(request, "once"))
        await bench.events.run()


async def test_a_log_with_fewer_details_of_calls_replays_identically(
    tmp_path: Path,
) -> None:
    """The first logs of version 4 lack some fields of a call's start and the runtime's decision."""
    async with memory.open_store() as store:
        async with asking_daemon(tmp_path, store=store) as bench:
            await bench.run(calls(("ls", "{}")))
            bench.fetched.asks = True
            request = await bench.asked()
            await bench.client.request("confirm_tool", **naming(request, "once"))
            await bench.events.until("question_asked")
            await bench.client.request("abort")
            await bench.events.until("agent_end")
        log = MemoryLog(store._rows)  # type: ignore[attr-defined]
        for run_id in store._rows.runs:  # type: ignore[attr-defined]
            run = read_run(log, run_id)
            earlier = replace(run, events=tuple(as_before(run.events)))
            assert len(earlier.events) < len(run.events)
            report = await replay_run(earlier, Tuning())
            assert report.is_same, "\n".join(report.lines)


def as_before(recorded: Iterable[Event]) -> Iterator[Event]:
    """Yield events as the first revisions of version 4 wrote them."""
    for event in recorded:
        match event:
            case events.ToolCallPolicyEvaluated(source="runtime"):
                pass
            case events.ToolCallStarted():
                yield replace(event, executed_by=UNSET, permission_mode=UNSET)
            case events.ToolCallCompleted(policy_snapshot=PolicySnapshot() as snapshot):
                said = tuple(each for each in snapshot.sources if each.source != "runtime")
                cut_off = event.stop_reason is not UNSET
                mode = UNSET if cut_off else snapshot.permission_mode
                yield replace(
                    event,
                    executed_by=UNSET if cut_off else event.executed_by,
                    policy_snapshot=PolicySnapshot(sources=said, permission_mode=mode),
                )
            case _:
                yield event


async def test_a_question_of_a_tool_replays_identically(tmp_path: Path) -> None:
    async with replayed_bench(tmp_path) as bench:
        await bench.start(calls(("question", '{"questions":[{"question":"Which one?"}]}')))
        shown = (await bench.events.until("question_asked"))["payload"]
        await bench.client.request(
            "answer_question", question_id=shown["question_id"], answers=[{"text": "that one"}]
        )
        await bench.events.run()


def change_url(call: ToolCalled) -> ChangeArgs:
    return ChangeArgs({**call.args, "url": "https://example.com/elsewhere"})


def block_call(_call: ToolCalled) -> BlockCall:
    return BlockCall("not now")


def shorten_result(_told: ToolReturned) -> ChangeResult:
    return ChangeResult("something was fetched")


def failing(_told: object) -> None:
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("hook", "handler"),
    [
        ("tool_call", change_url),
        ("tool_call", block_call),
        ("tool_result", shorten_result),
        ("tool_call", failing),
        ("tool_result", failing),
        ("turn_start", failing),
        ("before_run", failing),
    ],
)
async def test_effects_of_an_extension_replay_without_it(
    hook: str, handler: Callable[[Any], Any], tmp_path: Path
) -> None:
    handlers: Hooks = hooks(on(hook, handler))
    async with replayed_bench(tmp_path, mode="yolo", hooks=handlers) as bench:
        await bench.run()


async def test_a_second_attempt_of_a_call_replays_its_approval(tmp_path: Path) -> None:
    async with replayed_bench(tmp_path, mode="yolo") as bench:
        run = await bench.run()
        [requested] = [e["payload"] for e in run if e["type"] == "tool_call_requested"]
        await bench.client.request("set_leaf", leaf_id=requested["tool_call_id"].partition(".")[0])
        bench.provider.answer(says("well, then"))
        await bench.client.request("resume")
        request = (await bench.events.until("permission_requested"))["payload"]
        assert request["attempt"] == 2
        await bench.client.request("confirm_tool", **naming(request, "deny"))
        await bench.events.run()
