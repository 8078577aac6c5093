"""The rows of the limits table about tasks and agents; see ``test_limits``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from nousd.daemon.runs import tasks
from nousd.daemon.workspace import agents
from nousd.daemon.workspace.agents import AgentPlaces, read_agents
from nousd.wire.limit_table import LIMITS
from tests.daemon.limits_bench import Kit
from tests.harness.daemon import Payload, of_type
from tests.harness.stub_model import Gate, text_reply, tool_reply


async def result_of_task(kit: Kit, **args: Any) -> Payload:
    """Return the end of a call of ``task``."""
    kit.stub.script(tool_reply(("task", args)))
    run_id = (await kit.client.request("prompt", text="go", wait=False))["run_id"]
    (end,) = of_type(await kit.events.run(run_id), "tool_execution_end")
    return end


def was_refused(end: Payload, name: str) -> bool:
    """Return True if the call failed with the table's message; assert that it succeeded otherwise."""
    words = LIMITS[name][1].partition("`")[2].partition("...")[0]
    refused: bool = end["is_error"]
    assert refused == end["result"].startswith(f"tool_error: {words}"), end["result"]
    return refused


async def tasks_per_call(kit: Kit, offset: int) -> None:
    count = LIMITS["tasks_per_call_max"][0] + offset
    end = await result_of_task(kit, tasks=[{"prompt": "t"}] * count)
    assert was_refused(end, "tasks_per_call_max") is (offset > 0)
    assert end["result"].count(": completed") == (0 if offset > 0 else count)


async def tasks_parallel(kit: Kit, offset: int) -> None:
    """The task past the bound starts when another one has ended."""
    most = kit.scale("tasks_parallel_max", tasks, "TASKS_PARALLEL_MAX", 2)
    count = most + offset
    gates = [Gate() for _ in range(min(count, most))]
    kit.stub.script(
        tool_reply(("task", {"tasks": [{"prompt": "t"}] * count})),
        *[text_reply("a ", gate, "b") for gate in gates],
    )
    accepted = await kit.client.request("prompt", text="go", wait=False)
    begun = [await kit.events.until("message_update") for _ in gates]
    runs = (await kit.client.request("get_state"))["runs"]
    assert len(begun) == len(runs) - 1 == min(count, most)
    for gate in gates:
        gate.open()
    (end,) = of_type(await kit.events.run(accepted["run_id"]), "tool_execution_end")[-1:]
    assert not end["is_error"]


async def task_depth(kit: Kit, offset: int) -> None:
    """Each task of the chain asks for the next one."""
    most = kit.scale("task_depth_max", tasks, "TASK_DEPTH_MAX", 2)
    depth = most + offset
    kit.stub.script(*[tool_reply(("task", {"prompt": "t"}))] * depth)
    accepted = await kit.client.request("prompt", text="go", wait=False)
    ends = of_type(await kit.events.run(accepted["run_id"]), "tool_execution_end")
    assert was_refused(ends[0], "task_depth_max") is (offset > 0)
    assert len(ends) == depth


async def tasks_per_root(kit: Kit, offset: int) -> None:
    most = kit.scale("tasks_per_root_max", tasks, "TASKS_PER_ROOT_MAX", 3)
    end = await result_of_task(kit, tasks=[{"prompt": "t"}] * (most + offset))
    assert was_refused(end, "tasks_per_root_max") is (offset > 0)


async def agent_file_bytes(kit: Kit, offset: int) -> None:
    size = LIMITS["agent_file_bytes_max"][0] + offset
    head, foot = "---\n# ", "\n---\nprompt"
    text = head + "x" * (size - len(head) - len(foot)) + foot
    assert len(text) == size
    assert _count_usable(kit.folder / "agents", {"a.md": text}) == (0 if offset > 0 else 1)


async def agent_prompt_chars(kit: Kit, offset: int) -> None:
    prompt = "x" * (LIMITS["agent_prompt_chars_max"][0] + offset)
    assert _count_usable(kit.folder / "agents", {"a.md": prompt}) == (0 if offset > 0 else 1)
    end = await result_of_task(kit, prompt="t", worker={"prompt": prompt})
    assert end["is_error"] is (offset > 0)


async def agents_count(kit: Kit, offset: int) -> None:
    most = kit.scale("agents_max", agents, "AGENTS_MAX", 3)
    files = {f"a{number}.md": "prompt" for number in range(most + offset)}
    assert _count_usable(kit.folder / "agents", files) == min(most, len(files))


async def worker_rules(kit: Kit, offset: int) -> None:
    rules = ["read"] * (LIMITS["worker_rules_max"][0] + offset)
    text = f"---\npermissions:\n  deny: [{', '.join(rules)}]\n---\nprompt"
    assert _count_usable(kit.folder / "agents", {"a.md": text}) == (0 if offset > 0 else 1)
    end = await result_of_task(kit, prompt="t", worker={"permissions": {"ask": rules}})
    assert end["is_error"] is (offset > 0)


def _count_usable(folder: Path, files: dict[str, str]) -> int:
    """Return the number of usable agents of these files; each of the others reports its problem."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    found = read_agents(AgentPlaces(folder, None)).agents
    assert len(found) == len(files)
    assert all((agent.worker is None) == bool(agent.problems) for agent in found)
    return sum(agent.worker is not None for agent in found)


TASK_PLAYS: dict[str, Callable[[Any, int], Awaitable[None]]] = {
    "tasks_per_call_max": tasks_per_call,
    "tasks_parallel_max": tasks_parallel,
    "task_depth_max": task_depth,
    "tasks_per_root_max": tasks_per_root,
    "agent_file_bytes_max": agent_file_bytes,
    "agent_prompt_chars_max": agent_prompt_chars,
    "agents_max": agents_count,
    "worker_rules_max": worker_rules,
}
