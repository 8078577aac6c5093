"""What a sandboxed command left for programs to obey is told however the call ended, and linked files
are asked about: in a daemon as a user has it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nousd.config.settings import Settings
from nousd.daemon.policy.sandboxing import detector
from nousd.store.memory import store as memory
from nousd.tools.sandbox.detect import SandboxName
from tests.daemon.asking_bench import Bench, asking_daemon, calls
from tests.daemon.process_harness import Place, running
from tests.harness.daemon import of_type
from tests.replay.test_replay import check_all_same

LEFT = "sub/.envrc (direnv, when one enters the folder)"
WAITS = "echo x > sub/.envrc; echo ready; sleep 1000"


@asynccontextmanager
async def sandboxed(backend: SandboxName, root: Path) -> AsyncIterator[Bench]:
    """Run a daemon whose commands are sandboxed; its runs are replayed at the end of the block."""
    work = root / "work"
    (work / "sub").mkdir(parents=True)
    find = detector(Settings(sandbox=backend), [root / "state"])
    if find() is None:
        pytest.skip(f"{backend} does not work here")
    async with memory.open_store() as store:
        async with asking_daemon(work, store=store, sandbox=find) as bench:
            yield bench
        await check_all_same(store._rows)  # type: ignore[attr-defined]


def told(run: list[dict[str, object]]) -> list[str]:
    """Return the warnings of a run about what a command left."""
    warnings = of_type(run, "warning")
    return [each["message"] for each in warnings if each["code"] == "obeyed_files_left"]


@pytest.mark.behaviour("files_left_by_a_stopped_command_are_reported")
@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
async def test_what_an_aborted_command_left_is_reported(
    backend: SandboxName, tmp_path: Path
) -> None:
    async with sandboxed(backend, tmp_path) as bench:
        run_id = await bench.start(calls(("bash", json.dumps({"command": WAITS}))))
        await bench.events.until("tool_execution_update")
        await bench.client.request("abort")
        run = await bench.events.run(run_id)
        [message] = told(run)
        assert LEFT in message
        assert run[-1]["payload"]["status"] == "cancelled"
        names = [event["type"] for event in run]
        assert names.index("warning") < names.index("tool_call_completed")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"command": WAITS, "timeout": 1},
        {"command": "echo x > sub/.envrc; exit 3"},
        {"command": "echo x > sub/.envrc; kill -KILL $$"},
    ],
    ids=["timed out", "failed", "killed"],
)
async def test_what_a_command_that_ended_badly_left_is_reported(
    arguments: dict[str, object], backend: SandboxName, tmp_path: Path
) -> None:
    async with sandboxed(backend, tmp_path) as bench:
        run = await bench.run(calls(("bash", json.dumps(arguments))))
        [message] = told(run)
        assert LEFT in message
        [end] = of_type(run, "tool_execution_end")
        assert LEFT in end["result"]
        assert end["is_error"]


@pytest.mark.behaviour("files_left_by_a_stopped_command_are_reported")
async def test_what_a_clients_cancelled_call_left_is_in_its_output(tmp_path: Path) -> None:
    async with sandboxed("bubblewrap", tmp_path) as bench:
        accepted = await bench.client.request(
            "call_tool", tool="bash", args={"command": WAITS}, wait=False
        )
        await bench.events.until("tool_call_output")
        await bench.client.request("cancel_tool_call", tool_call_id=accepted["tool_call_id"])
        output = (await bench.events.until("tool_call_output"))["payload"]
        assert LEFT in output["delta"]
        completed = (await bench.events.until("tool_call_completed"))["payload"]
        assert completed["stop_reason"] == "aborted"
        await bench.run(calls(("ls", "{}")))


@pytest.mark.slow
async def test_what_a_command_left_when_the_daemon_was_stopped_is_reported(
    short_folder: Path,
) -> None:
    place = Place(short_folder, permission_mode="auto", sandbox="bubblewrap")
    (place.work / "sub").mkdir()
    async with running(place) as process:
        client, events = await place.connect(), await place.watch(types="all")
        await client.request(
            "prompt", text=f"[[tool bash {json.dumps({'command': WAITS})}]]", wait=False
        )
        await events.until("tool_execution_update")
        await process.stop()
    async with running(place):
        client = await place.connect()
        stored = await client.request("get_events", after="evt-0", types="all")
    assert any(LEFT in message for message in told(stored["events"]))


@pytest.mark.slow
@pytest.mark.behaviour("files_that_a_guarded_link_leads_to_are_asked_about")
async def test_a_daemon_asks_about_a_file_that_a_guarded_link_leads_to(short_folder: Path) -> None:
    place = Place(short_folder, permission_mode="auto")
    (place.work / "settings").mkdir()
    (place.work / ".vscode").symlink_to("settings")
    async with running(place):
        client, events = await place.connect(), await place.watch(types="all")
        for path in ("settings/tasks.json", ".vscode/tasks.json", "other/tasks.json"):
            args = json.dumps({"path": path, "content": "{}"})
            await client.request("prompt", text=f"[[tool write {args}]]", wait=False)
            run = await events.run()
            is_denied = bool(of_type(run, "tool_call_denied"))
            assert is_denied is not path.startswith("other"), run
    assert list((place.work / "settings").iterdir()) == []
