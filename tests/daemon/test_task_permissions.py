"""Permissions of tasks: those of all their parents, restricted by the worker's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.machine.policy.rules import rules_of
from nousd.store.memory import store as memory
from nousd.wire.objects.entries import PermissionMode
from tests.daemon.asking_bench import Fetched, calls, naming
from tests.daemon.scripted import says
from tests.daemon.task_bench import children_of, hangs, of_run, result_of, task_daemon, tasks
from tests.harness.daemon import Event, FakeClock, Payload, of_type

FETCH = ("fetch", "{}")
WRITE = ("write", '{"path": "a", "content": "b"}')
READ = ("read", '{"path": "there"}')

ALLOW_FETCH = {"allow": ["fetch"]}
DENY_FETCH = {"deny": ["fetch"]}

# Outcomes of a task's call: it runs, it needs approval but nobody can be asked, or it is denied.
RUNS, ASKS, DENIED = "runs", "asks", "denied"


def _events_of_worker(run: list[Event]) -> list[Payload]:
    [child] = children_of(run)
    return [
        event["payload"] for event in run if event["payload"]["session_id"] == child["session_id"]
    ]


Row = tuple[PermissionMode, dict[str, list[str]], dict[str, Any], tuple[str, str], str]
"""The parent's mode, rules of the user, the worker's permissions, the call, its outcome."""

TABLE: list[Row] = [
    ("auto", {}, {}, WRITE, RUNS),
    ("auto", {}, {}, FETCH, ASKS),
    ("ask", {}, {}, READ, ASKS),
    ("yolo", {}, {}, FETCH, RUNS),
    # A worker never widens.
    ("auto", {}, ALLOW_FETCH, FETCH, ASKS),
    ("auto", {}, {"mode": "yolo"}, FETCH, ASKS),
    ("auto", {}, {"mode": "yolo", "allow": ["fetch"]}, FETCH, ASKS),
    ("ask", {}, {"mode": "auto"}, READ, ASKS),
    ("ask", {}, {"mode": "yolo", "allow": ["*"]}, WRITE, ASKS),
    ("auto", {"deny": ["fetch"]}, {"allow": ["fetch"]}, FETCH, DENIED),
    ("yolo", {"deny": ["fetch"]}, {"mode": "yolo", "allow": ["*"]}, FETCH, DENIED),
    ("auto", {"ask": ["read"]}, {"allow": ["read"]}, READ, ASKS),
    # It narrows.
    ("auto", {"allow": ["fetch"]}, {}, FETCH, RUNS),
    ("auto", {"allow": ["fetch"]}, DENY_FETCH, FETCH, DENIED),
    ("auto", {"allow": ["fetch"]}, {"ask": ["fetch"]}, FETCH, ASKS),
    ("auto", {}, {"mode": "ask"}, READ, ASKS),
    ("auto", {}, {"mode": "yolo", "ask": ["read"]}, READ, ASKS),
    ("yolo", {}, {"mode": "auto"}, FETCH, ASKS),
    ("yolo", {}, {"mode": "ask"}, WRITE, ASKS),
    ("yolo", {}, DENY_FETCH, FETCH, DENIED),
    ("auto", {}, {"deny": ["read(there)"]}, READ, DENIED),
    ("auto", {}, {"deny": ["write"]}, READ, RUNS),
    ("auto", {}, {"deny": ["write"]}, WRITE, DENIED),
    # In a narrower mode its allow rules avoid only the approvals of that mode.
    ("auto", {}, {"mode": "ask", "allow": ["read"]}, READ, RUNS),
    ("auto", {}, {"mode": "ask", "allow": ["read"]}, WRITE, ASKS),
    ("auto", {}, {"mode": "ask", "allow": ["fetch"]}, FETCH, ASKS),
    ("yolo", {}, {"mode": "auto", "allow": ["fetch"]}, FETCH, RUNS),
    # yolo asks nobody.
    ("yolo", {}, {"ask": ["fetch"]}, FETCH, RUNS),
]


@pytest.mark.slow(keep=5)
@pytest.mark.behaviour("a_task_may_no_more_than_its_parents")
@pytest.mark.parametrize("row", TABLE, ids=str)
async def test_a_tasks_call_is_limited_by_its_parent_and_its_worker(
    tmp_path: Path, row: Row
) -> None:
    mode, rules, permissions, call, outcome = row
    (tmp_path / "there").write_text("text")
    fetched = Fetched()
    in_force = [
        rule
        for decision, texts in rules.items()
        for rule in rules_of(decision, texts, "the user")  # type: ignore[arg-type]
    ]
    async with task_daemon(
        tmp_path, fetched=fetched, permissions=RulePermissions(mode, in_force)
    ) as bench:
        task = {"prompt": "a", "worker": {"name": "w", "permissions": permissions}}
        bench.on("go", tasks(task), says("done"))
        bench.on("a", calls(call), says("told"))
        events = _events_of_worker(await bench.run())
        did = bool(fetched.urls) or (tmp_path / "a").exists() or call is READ
        [end] = [each for each in events if "executed" in each]
        assert end["executed"] == (outcome == RUNS)
        assert did == (outcome == RUNS) or call is READ
        if outcome == DENIED:
            assert "the rule" in end["result"]
        if outcome == ASKS:
            assert "no connected client can be asked" in end["result"]


async def test_the_workers_decisions_are_logged_as_a_policy_source(tmp_path: Path) -> None:
    async with task_daemon(tmp_path, permissions=RulePermissions("auto")) as bench:
        worker = {"name": "w", "permissions": {"deny": ["write"]}}
        bench.on("go", tasks({"prompt": "a", "worker": worker}), says("done"))
        bench.on("a", calls(WRITE), calls(READ), says("told"))
        run = await bench.run()
        evaluations = [each for each in _events_of_worker(run) if each.get("source") == "worker"]
        assert [(each["decision"], each.get("rule")) for each in evaluations] == [
            ("deny", "write"),
            ("allow", "*"),
        ]
        assert evaluations[0]["reason"] == "the worker w: the rule write of the worker w"
        assert evaluations[1]["reason"] == "the worker w has nothing against it"


async def test_a_nested_task_obeys_the_rules_of_every_worker_above_it(tmp_path: Path) -> None:
    async with task_daemon(tmp_path, permissions=RulePermissions("auto")) as bench:
        worker = {"name": "w", "permissions": {"deny": ["write"]}}
        bench.on("go", tasks({"prompt": "a", "worker": worker}), says("done"))
        bench.on("a", tasks({"prompt": "b", "worker": {"name": "v"}}), says("of a"))
        bench.on("b", calls(WRITE), says("told"))
        run = await bench.run()
        [end] = [end for end in of_type(run, "tool_execution_end") if end["tool_name"] == "write"]
        assert "the worker w" in end["result"]
        assert not (tmp_path / "a").exists()


async def test_a_branch_of_a_task_obeys_the_rules_of_its_worker(tmp_path: Path) -> None:
    async with task_daemon(tmp_path, permissions=RulePermissions("yolo")) as bench:
        worker = {"name": "w", "permissions": {"deny": ["write"]}}
        bench.on("go", tasks({"prompt": "a", "worker": worker}), says("done"))
        [child] = children_of(await bench.run())
        await bench.client.request("branch_session", session_id=child["session_id"])
        bench.on("a", calls(WRITE), says("told"))
        result = result_of(await bench.run("more"), "write")["result"]
        assert result == "tool_error: tool_blocked: the worker w: the rule write of the worker w"
        assert not (tmp_path / "a").exists()


async def test_a_change_of_the_parents_mode_applies_to_its_tasks(tmp_path: Path) -> None:
    fetched = Fetched()
    async with task_daemon(tmp_path, fetched=fetched, permissions=RulePermissions("yolo")) as bench:
        bench.on("go", tasks({"prompt": "a"}), says("done"))
        bench.on("a", calls(FETCH), says("first"))
        run = await bench.run()
        [child] = children_of(run)
        assert len(fetched.urls) == 1
        own = run[-1]["payload"]["session_id"]
        await bench.client.request("set_permission_mode", mode="ask", session_id=own)
        # The task's own mode does not widen its permissions again.
        session_id = child["session_id"]
        await bench.client.request("set_permission_mode", mode="yolo", session_id=session_id)
        state = await bench.client.request("get_state", session_id=session_id)
        assert state["permission_mode"] == "ask"
        bench.on("a", calls(FETCH), says("second"))
        await bench.run("more", session_id=session_id)
        assert len(fetched.urls) == 1
        await bench.client.request("set_permission_mode", mode="yolo", session_id=own)
        bench.on("a", calls(FETCH), says("third"))
        run = await bench.run("more", session_id=session_id)
        assert len(fetched.urls) == 2
        [completed] = of_type(run, "tool_call_completed")
        assert completed["policy_snapshot"]["permission_mode"] == "yolo"


# --- approvals and questions -------------------------------------------------------------------


@pytest.mark.behaviour("what_a_task_asks_is_told_at_the_root")
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("decision", ["once", "deny"])
async def test_a_client_of_the_root_receives_and_decides_a_tasks_approval_request(
    tmp_path: Path, depth: int, decision: str
) -> None:
    fetched = Fetched()
    async with task_daemon(tmp_path, fetched=fetched, permissions=RulePermissions("auto")) as bench:
        bench.on("go", tasks({"prompt": "1"}), says("done"))
        if depth == 2:
            bench.on("1", tasks({"prompt": "2"}), says("of 1"))
        bench.on(str(depth), calls(FETCH), says("told"))
        session = (await bench.client.request("new_session"))["session_id"]
        root = await bench.daemon.watch(types="all", session_id=session, confirms=True)
        accepted = await bench.start()
        asked = (await root.until("permission_requested"))["payload"]
        child = [await bench.child() for _ in range(depth)][-1]
        own = await bench.events.until("permission_requested", session_id=child["session_id"])
        assert asked["origin"] == {
            "session_id": child["session_id"],
            "run_id": own["payload"]["run_id"],
        }
        assert (asked["session_id"], asked["run_id"]) == (session, accepted["run_id"])
        for key in ("tool_call_id", "attempt", "input_hash", "tool_name", "args", "reason"):
            assert asked[key] == own["payload"][key], key
        status = (await root.until("status"))["payload"]["message"]
        assert json.loads(status.partition(": ")[2])["origin"] == asked["origin"]
        pending = await bench.client.request("list_permissions", session_id=session)
        assert [each["tool_call_id"] for each in pending["pending"]] == [asked["tool_call_id"]]
        await bench.client.request("confirm_tool", **naming(asked, decision))
        outcome = "tool_call_denied" if decision == "deny" else "tool_call_approved"
        told = (await root.until(outcome, tool_call_id=asked["tool_call_id"]))["payload"]
        assert (told["origin"], told["by"]) == (asked["origin"], "user")
        run = await root.run(accepted["run_id"])
        assert run[-1]["payload"]["status"] == "completed"
        assert len(fetched.urls) == (decision == "once")


async def test_a_grant_for_the_session_avoids_the_next_approval_of_its_task(tmp_path: Path) -> None:
    fetched = Fetched()
    async with task_daemon(tmp_path, fetched=fetched, permissions=RulePermissions("auto")) as bench:
        await bench.events.subscribe(types="all", confirms=True)
        worker = {"name": "w", "permissions": {"ask": ["fetch"]}}
        bench.on("go", tasks({"prompt": "a", "worker": worker}), says("done"))
        bench.on("a", calls(FETCH), calls(FETCH), says("told"))
        accepted = await bench.start()
        asked = (await bench.events.until("permission_requested"))["payload"]
        await bench.client.request("confirm_tool", **naming(asked, "session"))
        run = await bench.events.run(accepted["run_id"])
        assert len(fetched.urls) == 2
        assert result_of(run)["result"].startswith("w: completed")


async def test_an_aborted_task_withdraws_its_approval_request_at_the_root(tmp_path: Path) -> None:
    async with task_daemon(
        tmp_path, fetched=Fetched(), permissions=RulePermissions("auto")
    ) as bench:
        await bench.events.subscribe(types="all", confirms=True)
        bench.on("go", tasks({"prompt": "a"}), says("done"))
        bench.on("a", calls(FETCH))
        accepted = await bench.start()
        child = await bench.child()
        asked = await bench.events.until("permission_requested", run_id=accepted["run_id"])
        await bench.client.request("abort", session_id=child["session_id"])
        told = await bench.events.until("tool_call_denied", run_id=accepted["run_id"])
        assert told["payload"]["tool_call_id"] == asked["payload"]["tool_call_id"]
        assert told["payload"]["by"] == "stop"
        run = await bench.events.run(accepted["run_id"])
        assert run[-1]["payload"]["status"] == "completed"


@pytest.mark.parametrize("answers", [True, False])
async def test_a_tasks_question_can_be_answered_or_rejected_at_the_root(
    tmp_path: Path, answers: bool
) -> None:
    ask = ("question", '{"questions": [{"question": "Which?"}]}')
    async with task_daemon(tmp_path) as bench:
        session = (await bench.client.request("new_session"))["session_id"]
        root = await bench.daemon.watch(types="all", session_id=session, confirms=True)
        bench.on("go", tasks({"prompt": "a"}), says("done"))
        bench.on("a", calls(ask), says("told"))
        accepted = await bench.start()
        asked = (await root.until("question_asked"))["payload"]
        child = await bench.child()
        assert asked["origin"]["session_id"] == child["session_id"]
        named = {"question_id": asked["question_id"]}
        if answers:
            await bench.client.request("answer_question", **named, answers=[{"text": "that"}])
        else:
            await bench.client.request("reject_question", **named)
        end = "question_answered" if answers else "question_rejected"
        told = (await root.until(end))["payload"]
        assert told["origin"] == asked["origin"]
        run = await root.run(accepted["run_id"])
        assert run[-1]["payload"]["status"] == "completed"


async def test_an_aborted_run_leaves_no_approval_pending(tmp_path: Path) -> None:
    async with task_daemon(
        tmp_path, fetched=Fetched(), permissions=RulePermissions("auto")
    ) as bench:
        await bench.events.subscribe(types="all", confirms=True)
        bench.on("go", tasks({"prompt": "a"}, {"prompt": "b"}))
        bench.on("a", calls(FETCH))
        bench.on("b", hangs)
        accepted = await bench.start()
        await bench.events.until("permission_requested", run_id=accepted["run_id"])
        await bench.client.request("abort")
        run = await bench.events.run(accepted["run_id"])
        own = of_run(run, accepted["run_id"])
        assert [each["by"] for each in of_type(own, "tool_call_denied")] == ["stop"]
        assert (await bench.client.request("list_permissions"))["pending"] == []


async def test_the_effective_mode_of_a_task_is_shown_after_a_restart(tmp_path: Path) -> None:
    clock, permissions = FakeClock(), RulePermissions("auto")
    async with memory.open_store() as store:
        options: dict[str, Any] = {"store": store, "clock": clock, "permissions": permissions}
        async with task_daemon(tmp_path, **options) as bench:
            bench.on("go", tasks({"prompt": "a"}), says("done"))
            run = await bench.run()
            [child] = children_of(run)
            own = run[-1]["payload"]["session_id"]
            await bench.client.request("set_permission_mode", mode="yolo", session_id=own)
        async with task_daemon(tmp_path, **options) as bench:
            state = await bench.client.request("get_state", session_id=child["session_id"])
            assert state["permission_mode"] == "yolo"
