"""Tasks: the child sessions of calls of the tool ``task``, from start to end."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.errors import ProviderError
from nousd.providers.interface import Receive, TextDelta
from nousd.store.memory import store as memory
from nousd.tools.builtin.task import TASK
from nousd.wire.limits import (
    TASK_DEPTH_MAX,
    TASKS_PARALLEL_MAX,
    TASKS_PER_CALL_MAX,
    TASKS_PER_ROOT_MAX,
)
from tests.daemon.asking_bench import calls
from tests.daemon.process_harness import Place, running
from tests.daemon.scripted import ScriptedTool, asks_for_tools, fails, gives, says
from tests.daemon.task_bench import (
    PlannedModel,
    TaskBench,
    children_of,
    hangs,
    holds,
    result_of,
    task_daemon,
    tasks,
)
from tests.harness.daemon import Event, FakeClock, of_type


def last_of(run: list[Event]) -> Any:
    return run[-1]["payload"]


@pytest.mark.behaviour("a_task_is_a_session_of_its_own")
async def test_a_task_runs_in_its_own_session_and_returns_its_last_answer(
    tmp_path: Path,
) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "look", "description": "a look"}), says("done"))
        bench.on("look", says("I have ", "seen it"))
        run = await bench.run()
        [child] = children_of(run)
        accepted = last_of(run)
        origin = child["origin"]
        assert origin["session_id"] == origin["root_session_id"] == accepted["session_id"]
        assert origin["run_id"] == origin["root_run_id"] == accepted["run_id"]
        assert origin["tool_call_id"] == result_of(run)["tool_call_id"]
        assert (origin["depth"], child["name"]) == (1, "worker: a look")
        [task_run] = [
            start
            for start in of_type(run, "agent_start")
            if start["session_id"] == child["session_id"]
        ]
        result = result_of(run)
        heading, answer, *_ = result["result"].split("\n")
        assert heading == (
            f"worker: completed (session {child['session_id']}, run {task_run['run_id']})"
        )
        assert (answer, result["is_error"]) == ("I have seen it", False)
        updates = "".join(update["delta"] for update in of_type(run, "tool_execution_update"))
        assert [line.rpartition(": ")[2] for line in updates.splitlines()] == [
            "started",
            "completed",
        ]
        assert "seen it" not in updates
        active = (await bench.client.request("get_state"))["session_id"]
        assert active == accepted["session_id"], "a task's session does not become the active one"


@pytest.mark.behaviour("tasks_of_one_call_run_at_the_same_time")
async def test_tasks_of_one_call_run_together_and_their_results_keep_their_order(
    tmp_path: Path,
) -> None:
    first, second = trio.Event(), trio.Event()
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "a"}, {"prompt": "b"}), says("done"))
        # Both wait for the test, which lets the second task end first.
        bench.on("a", holds(first, says("of a")))
        bench.on("b", holds(second, says("of b")))
        accepted = await bench.start()
        for _ in range(2):
            await bench.child()
        await bench.events.until("model_input", session_id=(await _sessions(bench))["b"])
        second.set()
        await bench.events.until("agent_end", session_id=(await _sessions(bench))["b"])
        first.set()
        result = result_of(await bench.events.run(accepted["run_id"]))["result"]
        assert result.index("[1/2] worker: completed") < result.index("of a")
        assert result.index("of a") < result.index("[2/2] worker: completed")
        assert result.index("[2/2]") < result.index("of b")


async def _sessions(bench: TaskBench) -> dict[str, str]:
    """Return the ids of the tasks' sessions by their first prompt."""
    listed = (await bench.client.request("list_sessions", children=True))["sessions"]
    found = {}
    for each in listed:
        if "origin" in each:
            page = await bench.client.request("get_messages", session_id=each["session_id"])
            if page["messages"]:
                found[page["messages"][0]["text"]] = each["session_id"]
    return found


@pytest.mark.slow
async def test_the_number_of_tasks_that_run_in_parallel_is_bounded(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    gate = trio.Event()
    names = [f"t{number}" for number in range(TASKS_PARALLEL_MAX + 2)]
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks(*({"prompt": name} for name in names)), says("done"))
        for name in names:
            bench.on(name, holds(gate, says(f"of {name}")))
        accepted = await bench.start()
        await trio.testing.wait_all_tasks_blocked(1)
        assert len(bench.model.requests) - 1 == TASKS_PARALLEL_MAX
        gate.set()
        run = await bench.events.run(accepted["run_id"])
        assert result_of(run)["result"].count(": completed") == len(names)


@pytest.mark.behaviour("the_results_of_tasks_are_an_artifact")
async def test_long_results_are_truncated_for_the_model_and_complete_in_an_artifact(
    tmp_path: Path,
) -> None:
    long = "x" * 100_000
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "a"}, {"prompt": "b"}), says("done"))
        bench.on("a", says(long))
        bench.on("b", says("short"))
        end = result_of(await bench.run())
        whole = await bench.client.request("get_artifact", artifact_id=end["artifact_id"])
        text = b64decode(whole["data"]).decode()
        assert long in text
        assert text.endswith("short")
        told = bench.model.requests["go"][1].messages[-1].text
        assert "xxx\n[Cut: the first " in told
        assert "of 100000 bytes.]" in told
        assert "short" in told
        assert f"artifact {end['artifact_id']}" in told
        assert len(told) < 60_000


@pytest.mark.behaviour("a_failing_task_is_an_error_in_its_part")
async def test_a_failing_task_does_not_end_the_run(tmp_path: Path) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "bad"}, {"prompt": "good"}), says("done"))
        bench.on("bad", fails(ProviderError("it broke"), "half "))
        bench.on("good", says("fine"))
        run = await bench.run()
        end = result_of(run)
        assert last_of(run)["status"] == "completed"
        assert not end["is_error"]
        assert "[1/2] worker: error" in end["result"]
        assert "task_error: " in end["result"]
        assert "half" in end["result"]
        assert "[2/2] worker: completed" in end["result"]


async def test_a_call_whose_tasks_all_failed_is_an_error(tmp_path: Path) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "bad"}), says("done"))
        bench.on("bad", fails(ProviderError("it broke")))
        assert result_of(await bench.run())["is_error"]


async def test_a_single_task_needs_no_list(tmp_path: Path) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", calls(("task", '{"prompt": "look"}')), says("done"))
        bench.on("look", says("seen"))
        assert "seen" in result_of(await bench.run())["result"]


# --- bounds ------------------------------------------------------------------------------------


def _nested(depth: int) -> str:
    """Return the prompt of the task at this depth."""
    return f"depth {depth}"


@pytest.mark.behaviour("tasks_are_bounded")
async def test_the_depth_of_tasks_is_bounded(tmp_path: Path) -> None:
    async with task_daemon(tmp_path) as bench:
        for depth in range(TASK_DEPTH_MAX + 1):
            bench.on(_nested(depth), tasks({"prompt": _nested(depth + 1)}), says(f"end {depth}"))
        run = await bench.run(_nested(0))
        depths = [child["origin"]["depth"] for child in children_of(run)]
        assert depths == list(range(1, TASK_DEPTH_MAX + 1))
        roots = {child["origin"]["root_run_id"] for child in children_of(run)}
        assert roots == {last_of(run)["run_id"]}
        refused = of_type(run, "tool_execution_end")[0]
        assert refused["is_error"]
        assert refused["result"].startswith(
            f"tool_error: task_depth_max: tasks can be {TASK_DEPTH_MAX}"
        )


@pytest.mark.slow
async def test_the_number_of_tasks_of_a_run_is_bounded(tmp_path: Path) -> None:
    full = [{"prompt": "t"}] * TASKS_PER_CALL_MAX
    count = TASKS_PER_ROOT_MAX // TASKS_PER_CALL_MAX
    assert count * TASKS_PER_CALL_MAX == TASKS_PER_ROOT_MAX
    async with task_daemon(tmp_path) as bench:
        bench.on("go", *[tasks(*full)] * count, tasks({"prompt": "t"}), says("done"))
        run = await bench.run()
        *good, refused = of_type(run, "tool_execution_end")
        assert [end["result"].count(": completed") for end in good] == [TASKS_PER_CALL_MAX] * count
        assert refused["result"].startswith("tool_error: tasks_per_root_max: ")
        assert len(children_of(run)) == TASKS_PER_ROOT_MAX
        # The next run may start as many again.
        bench.model.plans.clear()
        bench.on("go", tasks({"prompt": "t"}), says("done"))
        assert "completed" in result_of(await bench.run())["result"]


async def test_the_number_of_tasks_of_a_call_is_bounded(tmp_path: Path) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks(*[{"prompt": "t"}] * (TASKS_PER_CALL_MAX + 1)), says("done"))
        run = await bench.run()
        assert result_of(run)["result"].startswith("tool_error: validation_failed: task: ")
        assert children_of(run) == []


@pytest.mark.behaviour("a_worker_has_its_own_bounds")
async def test_the_model_calls_of_a_worker_are_bounded_by_max_calls(tmp_path: Path) -> None:
    work = ScriptedTool()
    work.finish(*[gives()] * 4)
    async with task_daemon(tmp_path, tools=[work.tool]) as bench:
        for calls_max in (2, 3):
            name = f"{calls_max} calls"
            bench.on(
                "go", tasks({"prompt": name, "worker": {"max_calls": calls_max}}), says("done")
            )
            bench.on(name, asks_for_tools(), asks_for_tools(), says("at last"))
        run = await bench.run()
        too_few = result_of(run)
        assert "worker: error" in too_few["result"]
        assert "more than 2 model calls" in too_few["result"]
        enough = result_of(await bench.run("go"))
        assert "at last" in enough["result"]


# --- workers -----------------------------------------------------------------------------------


async def test_a_worker_runs_with_its_own_prompt_tools_and_model(tmp_path: Path) -> None:
    worker = {"name": "w", "prompt": "Be brief.", "tools": ["read", "task"], "model": "other-model"}
    async with task_daemon(tmp_path) as bench:
        await bench.client.request("new_session")
        await bench.client.request("set_thinking", level="high")
        await bench.client.request("set_active_tools", tools=["read", "ls", "task"])
        bench.on("go", tasks({"prompt": "look", "worker": worker}), says("done"))
        bench.on("look", tasks({"prompt": "deeper"}), says("seen"))
        run = await bench.run()
        inputs = {told["session_id"]: told for told in of_type(run, "model_input")}
        first, second = children_of(run)
        told = inputs[first["session_id"]]
        assert told["tools"] == ["read", "task"]
        assert (told["model"], told["thinking"]) == ("other-model", "high")
        assert told["sources"][0]["kind"] == "agent_prompt"
        assert told["sources"][0]["bytes"] == len("Be brief.")
        assert bench.model.requests["look"][0].system.startswith("Be brief.")
        # Its own task has only its tools, and its model.
        below = inputs[second["session_id"]]
        assert (below["tools"], below["model"]) == (["read", "task"], "other-model")
        assert below["sources"][0]["kind"] == "system_prompt"


async def test_a_worker_cannot_use_a_tool_that_its_parent_does_not_have(tmp_path: Path) -> None:
    worker = {"tools": ["read", "write"]}
    async with task_daemon(tmp_path) as bench:
        await bench.client.request("new_session")
        await bench.client.request("set_active_tools", tools=["read", "task"])
        bench.on("go", tasks({"prompt": "look", "worker": worker}), says("done"))
        args = '{"path": "a", "content": "b"}'
        bench.on("look", calls(("write", args)), says("seen"))
        run = await bench.run()
        ends = {end["tool_name"]: end for end in of_type(run, "tool_execution_end")}
        assert ends["write"]["result"] == "tool_error: tool_not_active: write"
        assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ({"agent": "nobody"}, "agent_not_found: nobody; there are no agents"),
        ({"worker": {"permissions": {"deny": ["bash(rm"]}}}, "worker.permissions: deny rule"),
    ],
    ids=["agent", "rule"],
)
async def test_a_task_that_cannot_start_is_an_error_in_its_part_of_the_result(
    tmp_path: Path, task: dict[str, Any], why: str
) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "a", **task}, {"prompt": "b"}), says("done"))
        bench.on("b", says("fine"))
        result = result_of(await bench.run())
        assert ": refused\ntask_error: " + why in result["result"]
        assert "fine" in result["result"]
        assert not result["is_error"]


async def test_the_definition_of_a_worker_survives_a_restart(tmp_path: Path) -> None:
    worker = {"name": "w", "prompt": "Be brief.", "tools": ["read"], "max_calls": 1}
    clock, model = FakeClock(), PlannedModel()
    async with memory.open_store() as store:
        async with task_daemon(tmp_path, model=model, store=store, clock=clock) as bench:
            bench.on("go", tasks({"prompt": "look", "worker": worker}), says("done"))
            run = await bench.run()
            [child] = children_of(run)
        async with task_daemon(tmp_path, model=model, store=store, clock=clock) as bench:
            bench.on("look", calls(("ls", "{}")), says("never asked"))
            run = await bench.run("more", session_id=child["session_id"])
            told = of_type(run, "model_input")
            assert [each["tools"] for each in told] == [["read"]]
            assert told[0]["sources"][0]["kind"] == "agent_prompt"
            assert last_of(run)["status"] == "error"
            [listed] = [
                each
                for each in (await bench.client.request("list_sessions", children=True))["sessions"]
                if each["session_id"] == child["session_id"]
            ]
            assert (listed["worker"], listed["origin"]) == ("w", child["origin"])


# --- stopping ----------------------------------------------------------------------------------


@pytest.mark.behaviour("tasks_end_with_their_call")
async def test_an_abort_ends_the_tasks_before_the_run(tmp_path: Path) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "a"}, {"prompt": "b"}))
        bench.on("a", hangs)
        bench.on("b", tasks({"prompt": "c"}))
        bench.on("c", hangs)
        accepted = await bench.start()
        created = [await bench.child() for _ in range(3)]
        await bench.events.until("model_input", session_id=created[-1]["session_id"])
        await bench.client.request("abort")
        run = await bench.events.run(accepted["run_id"])
        ends = of_type(run, "agent_end")
        assert [end["status"] for end in ends] == ["cancelled"] * 4
        assert ends[-1]["run_id"] == accepted["run_id"]
        assert {end["session_id"] for end in ends[:-1]} == {
            child["session_id"] for child in created
        }
        assert (await bench.client.request("get_state"))["runs"] == []


async def test_an_aborted_task_is_reported_as_cancelled_and_its_parent_completes(
    tmp_path: Path,
) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "a"}), says("done"))
        bench.on("a", hangs)
        accepted = await bench.start()
        child = await bench.child()
        await bench.events.until("model_input", session_id=child["session_id"])
        await bench.client.request("abort", session_id=child["session_id"])
        run = await bench.events.run(accepted["run_id"])
        assert last_of(run)["status"] == "completed"
        assert "worker: cancelled" in result_of(run)["result"]


async def test_a_task_can_be_steered_through_its_session(tmp_path: Path) -> None:
    gate = trio.Event()
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "a"}), says("done"))
        bench.on("a", holds(gate, says("first")), says("second"))
        accepted = await bench.start()
        child = await bench.child()
        await bench.events.until("model_input", session_id=child["session_id"])
        await bench.client.request("steer", text="rather so", session_id=child["session_id"])
        gate.set()
        run = await bench.events.run(accepted["run_id"])
        assert "second" in result_of(run)["result"]
        assert "first" not in result_of(run)["result"]


@pytest.mark.behaviour("tasks_are_nobodys_unnamed_target")
async def test_a_command_without_a_target_never_applies_to_a_task(tmp_path: Path) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "a"}))
        bench.on("a", hangs)
        accepted = await bench.start()
        child = await bench.child()
        await bench.events.until("model_input", session_id=child["session_id"])
        await bench.client.request("new_session")
        runs = (await bench.client.request("get_state"))["runs"]
        assert [run.get("origin") for run in runs] == [None, child["origin"]]
        aborted = await bench.client.request("abort")
        assert aborted["run_id"] == accepted["run_id"]
        await bench.events.run(accepted["run_id"])


async def test_a_shutdown_ends_tasks_and_their_run(tmp_path: Path) -> None:
    async with memory.open_store() as store:
        async with task_daemon(tmp_path, store=store) as bench:
            bench.on("go", tasks({"prompt": "a"}))
            bench.on("a", hangs)
            accepted = await bench.start()
            child = await bench.child()
            await bench.events.until("model_input", session_id=child["session_id"])
        runs = await store.runs(None, limit=10, before=None)
        assert [run.status for run in runs] == ["interrupted", "interrupted"]
        assert {run.session_id for run in runs} == {accepted["session_id"], child["session_id"]}


@pytest.mark.behaviour("a_task_is_stale_by_itself")
async def test_a_stale_task_ends_as_timeout_and_its_parent_continues(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with task_daemon(tmp_path, stale_seconds=5) as bench:
        bench.on("go", tasks({"prompt": "a"}), says("done"))
        bench.on("a", hangs)
        run = await bench.run()
        assert [end["status"] for end in of_type(run, "agent_end")] == ["timeout", "completed"]
        assert "worker: timeout" in result_of(run)["result"]


async def test_a_run_is_not_stale_while_its_task_is_active(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def slow(receive: Receive) -> None:
        for _ in range(4):
            await trio.sleep(4)
            await receive(TextDelta("on "))
        await says("at last")(receive)

    async with task_daemon(tmp_path, stale_seconds=5) as bench:
        bench.on("go", tasks({"prompt": "a"}), says("done"))
        bench.on("a", slow)
        run = await bench.run()
        assert [end["status"] for end in of_type(run, "agent_end")] == ["completed", "completed"]
        assert "on on on on at last" in result_of(run)["result"]


# --- sessions ----------------------------------------------------------------------------------


@pytest.mark.behaviour("sessions_of_tasks_are_listed_if_asked_for")
@pytest.mark.behaviour("deleting_a_session_deletes_its_tasks")
async def test_sessions_of_tasks_are_listed_on_request_and_deleted_with_their_parent(
    tmp_path: Path,
) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "a"}), says("done"))
        bench.on("a", tasks({"prompt": "b"}), says("of a"))
        run = await bench.run()
        own = last_of(run)["session_id"]
        below = [child["session_id"] for child in children_of(run)]
        client = bench.client
        listed = (await client.request("list_sessions"))["sessions"]
        assert [each["session_id"] for each in listed] == [own]
        listed = (await client.request("list_sessions", children=True))["sessions"]
        assert {each["session_id"] for each in listed} == {own, *below}
        page = await client.request("list_sessions", limit=1)
        assert not page["has_more"]
        await client.request("delete_session", session_id=own)
        assert (await client.request("list_sessions", children=True))["sessions"] == []
        for session_id in below:
            refused = await client.refusal("get_messages", session_id=session_id)
            assert refused["code"] == "session_not_found"


async def test_a_session_with_a_running_task_is_not_deleted(tmp_path: Path) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "a"}), says("done"))
        run = await bench.run()
        [child] = children_of(run)
        # A client continues the task's session directly.
        bench.on("a", hangs)
        more = await bench.start("more", session_id=child["session_id"])
        refused = await bench.client.refusal(
            "delete_session", session_id=last_of(run)["session_id"]
        )
        assert (refused["message"], refused["details"]) == (
            "run_in_progress",
            {"run_id": more["run_id"]},
        )
        stopped = await bench.client.request(
            "delete_session", session_id=last_of(run)["session_id"], abort=True
        )
        assert (stopped["deleted"], stopped["run"]["run_id"]) == (False, more["run_id"])
        told = await bench.events.run(more["run_id"])
        [deferred] = of_type(told, "session_delete_deferred")
        assert deferred == {"session_id": child["session_id"], "run_id": more["run_id"]}
        assert (await bench.client.request("list_sessions", children=True))["sessions"] != []


@pytest.mark.behaviour("deletions_can_stop_what_runs")
async def test_a_deletion_with_abort_stops_a_run_with_tasks_and_then_succeeds(
    tmp_path: Path,
) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "a"}))
        bench.on("a", hangs)
        run = await bench.start("go")
        await bench.events.until("message_start", text="a")
        own = run["session_id"]
        stopped = await bench.client.request("delete_session", session_id=own, abort=True)
        assert (stopped["deleted"], stopped["run"]["run_id"]) == (False, run["run_id"])
        told = await bench.events.run(run["run_id"])
        assert told[-1]["payload"]["status"] == "cancelled"
        assert of_type(told, "session_delete_deferred") == [
            {"session_id": own, "run_id": run["run_id"]}
        ]
        gone = await bench.client.request("delete_session", session_id=own, abort=True)
        assert gone == {"session_id": own, "deleted": True}


async def test_a_branch_of_a_task_is_an_ordinary_session_with_the_same_worker(
    tmp_path: Path,
) -> None:
    worker = {"name": "w", "tools": ["read"]}
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "a", "worker": worker}), says("done"))
        run = await bench.run()
        [child] = children_of(run)
        branch = await bench.client.request("branch_session", session_id=child["session_id"])
        listed = (await bench.client.request("list_sessions"))["sessions"]
        [row] = [each for each in listed if each["session_id"] == branch["session_id"]]
        assert row["worker"] == "w"
        assert "origin" not in row
        tools = (await bench.client.request("list_tools"))["tools"]
        assert [tool["name"] for tool in tools if tool["active"]] == ["read"]


# --- killed daemons ----------------------------------------------------------------------------


@pytest.mark.behaviour("tasks_of_a_killed_daemon_are_closed")
@pytest.mark.slow
async def test_a_killed_daemon_closes_tasks_at_the_next_start(short_folder: Path) -> None:
    place = Place(short_folder)
    inner = json.dumps({"tasks": [{"prompt": "[[hang]]"}, {"prompt": "[[say 3]]"}]})
    async with running(place) as process:
        events, client = await place.watch(types="all"), await place.connect()
        accepted = await client.request("prompt", text=f"[[tool task {inner}]]", wait=False)
        await events.until("agent_end")
        await process.kill()
    async with running(place):
        replay, client = await place.watch(after="evt-0", types="all"), await place.connect()
        run = await replay.run(accepted["run_id"])
        while len(of_type(run, "agent_end")) < 3:
            run += await replay.run()
        ends = of_type(run, "agent_end")
        assert sorted(end["status"] for end in ends) == ["completed", "interrupted", "interrupted"]
        assert result_of(run)["result"] == "tool_error: interrupted"
        starts = of_type(run, "agent_start")
        assert len(starts) == 3
        assert (await client.request("get_state"))["runs"] == []
        listed = (await client.request("list_sessions", children=True))["sessions"]
        assert len([each for each in listed if "origin" in each]) == 2


def test_the_task_tool_is_executed_by_the_daemon_and_is_not_read_only() -> None:
    assert (TASK.executed_by, TASK.is_read_only) == ("nousd", False)


@pytest.mark.slow
async def test_the_approval_request_of_a_task_is_expired_after_a_kill(
    short_folder: Path,
) -> None:
    """It is denied in the task's own run and at the root, and listed as expired once."""
    place = Place(short_folder, permission_mode="auto")
    fetch = '[[tool web_fetch {"url": "http://127.0.0.1:9/"}]]'
    inner = json.dumps({"prompt": fetch})
    async with running(place) as process:
        events, client = await place.watch(types="all", confirms=True), await place.connect()
        accepted = await client.request("prompt", text=f"[[tool task {inner}]]", wait=False)
        asked = await events.until("permission_requested", run_id=accepted["run_id"])
        await process.kill()
    async with running(place):
        replay, client = await place.watch(after="evt-0", types="all"), await place.connect()
        run = await replay.run()
        run += await replay.run()
        call_id = asked["payload"]["tool_call_id"]
        denied = [
            each for each in of_type(run, "tool_call_denied") if each["tool_call_id"] == call_id
        ]
        assert {each["session_id"] for each in denied} == {
            accepted["session_id"],
            asked["payload"]["origin"]["session_id"],
        }
        assert [each["by"] for each in denied] == ["stop", "stop"]
        listed = await client.request("list_permissions")
        assert listed["pending"] == []
        assert [each["request"]["tool_call_id"] for each in listed["expired"]] == [call_id]
        assert "origin" not in listed["expired"][0]["request"]
