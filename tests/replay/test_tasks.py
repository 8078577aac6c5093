"""Runs with tasks, and runs of tasks, are replayed one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nousd.daemon.policy.permissions import RulePermissions
from nousd.store.memory import store as memory
from tests.daemon.asking_bench import Fetched, calls, naming
from tests.daemon.scripted import says
from tests.daemon.task_bench import task_daemon, tasks
from tests.replay.memory_log import replays


async def test_a_run_with_tasks_and_each_task_replay_identically(tmp_path: Path) -> None:
    worker = {
        "name": "w",
        "prompt": "Be brief.",
        "tools": ["fetch", "read"],
        "max_calls": 2,
        "permissions": {"deny": ["read"]},
    }
    async with memory.open_store() as store:
        async with task_daemon(
            tmp_path, store=store, fetched=Fetched(), permissions=RulePermissions("auto")
        ) as bench:
            await bench.events.subscribe(types="all", confirms=True)
            bench.on("go", tasks({"prompt": "a", "worker": worker}, {"prompt": "b"}), says("done"))
            bench.on("a", calls(("fetch", "{}")), calls(("read", '{"path": "x"}')), says("late"))
            bench.on("b", tasks({"prompt": "c"}), says("of b"))
            bench.on("c", says("of c"))
            accepted = await bench.start()
            asked = (await bench.events.until("permission_requested"))["payload"]
            await bench.client.request("confirm_tool", **naming(asked, "once"))
            await bench.events.run(accepted["run_id"])
        log: Any = store
        reports = await replays(log._rows)
    assert len(reports) == 4
    for run_id, report in reports.items():
        assert report.is_same, "\n".join([run_id, *report.lines])
