"""A disk that fails: whoever asked is told, the session is read again, and the daemon goes on."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.errors import ProviderError, StoreError
from nousd.store import memory
from tests.daemon.scripted import ScriptedProvider, ScriptedTool, asks_for_tools, fails, gives, says
from tests.daemon_harness import Client, Daemon, Events, memory_daemon, of_type, types


class Disk:
    """Fails every commit while ``is_broken``, or a single one after ``good_commits``."""

    def __init__(self) -> None:
        self.is_broken = False
        self.good_commits = math.inf

    def fail_once(self, *, after: int = 0) -> None:
        self.good_commits = after

    def before_commit(self) -> None:
        if self.good_commits == 0:
            self.good_commits = math.inf
            raise StoreError("an error of a moment")
        self.good_commits -= 1
        if self.is_broken:
            raise StoreError("no space left on device")


@dataclass(frozen=True)
class Bench:
    """A daemon in memory on a disk that can break, with a client and a subscriber of all events."""

    daemon: Daemon
    disk: Disk
    provider: ScriptedProvider
    tool: ScriptedTool
    client: Client
    events: Events

    async def start_run(self) -> dict[str, Any]:
        accepted = await self.client.request("prompt", text="go", wait=False)
        await wait_all_tasks_blocked()
        assert self.provider.waiting
        return accepted

    async def run_to_end(self, text: str = "fine") -> None:
        """Shows that the session works as if nothing had been."""
        self.provider.calls.forget()
        self.tool.calls.forget()
        await self.client.request("clear_queue")
        self.provider.answer(says(text))
        result = await self.client.request("prompt", text="again")
        assert (result["output"], result["status"]) == (text, "completed")


@asynccontextmanager
async def broken_disk_bench(workdir: Path) -> AsyncIterator[Bench]:
    disk, provider, tool = Disk(), ScriptedProvider(), ScriptedTool()
    async with (
        memory.open_store(before_commit=disk.before_commit) as store,
        memory_daemon(workdir=workdir, provider=provider, store=store, tools=[tool.tool]) as daemon,
    ):
        events = await daemon.watch(types="all")
        yield Bench(daemon, disk, provider, tool, await daemon.connect(), events)
        disk.is_broken = False


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with broken_disk_bench(tmp_path) as bench:
        yield bench


def check_session_error(error: dict[str, Any]) -> None:
    assert error["code"] == "session_error"
    assert error["message"] == "the log could not be read or written"


# --- commands --------------------------------------------------------------------------------

COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("new_session", {}),
    ("rename_session", {"name": "new"}),
    ("set_steering_mode", {"mode": "all"}),
    ("set_follow_up_mode", {"mode": "all"}),
    ("set_active_tools", {"tools": []}),
    ("set_model", {"model": "another"}),
    ("prompt", {"text": "x", "wait": False}),
    ("prompt", {"text": "x"}),
]


@pytest.mark.parametrize(
    ("type", "payload"), COMMANDS, ids=[f"{type}-{len(payload)}" for type, payload in COMMANDS]
)
async def test_a_command_that_cannot_be_written_is_an_error_and_changes_nothing(
    bench: Bench, type: str, payload: dict[str, Any]
) -> None:
    await bench.client.request("new_session", name="old")
    before = await bench.client.request("get_state")
    bench.disk.is_broken = True
    check_session_error(await bench.client.refusal(type, **payload))
    bench.disk.is_broken = False
    assert await bench.client.request("get_state") == before
    await bench.client.request(type, **(payload | {"wait": False} if type == "prompt" else payload))


@pytest.mark.parametrize("has_session", [False, True])
async def test_a_setting_that_cannot_be_written_is_no_default_of_new_sessions(
    bench: Bench, has_session: bool
) -> None:
    if has_session:
        await bench.client.request("new_session")
    bench.disk.is_broken = True
    check_session_error(await bench.client.refusal("set_steering_mode", mode="all"))
    bench.disk.is_broken = False
    await bench.client.request("new_session")
    assert (await bench.client.request("get_state"))["steering_mode"] == "one-at-a-time"


async def test_the_first_prompt_of_all_may_fail_and_come_again(bench: Bench) -> None:
    bench.disk.is_broken = True
    payload = {"text": "x", "wait": False, "client_message_id": "m1"}
    check_session_error(await bench.client.refusal("prompt", **payload))
    assert (await bench.client.request("get_state"))["session_id"] == ""
    bench.disk.is_broken = False
    await bench.client.request("prompt", **payload)
    bench.provider.answer(says("hello"))
    assert types(await bench.events.run()).count("agent_start") == 1
    assert len((await bench.client.request("list_sessions"))["sessions"]) == 1


async def test_two_new_sessions_that_fail_together_leave_the_active_one(bench: Bench) -> None:
    active = (await bench.client.request("new_session"))["session_id"]
    other = await bench.daemon.connect()
    bench.disk.is_broken = True
    for request_id, client in [(await c.ask("new_session"), c) for c in (bench.client, other)]:
        check_session_error((await client.answer(request_id))["error"])
    bench.disk.is_broken = False
    assert (await bench.client.request("get_state"))["session_id"] == active
    await bench.run_to_end()


async def test_a_session_whose_deletion_failed_is_still_there(bench: Bench) -> None:
    session_id = (await bench.client.request("new_session"))["session_id"]
    bench.disk.is_broken = True
    check_session_error(await bench.client.refusal("delete_session", session_id=session_id))
    bench.disk.is_broken = False
    await bench.client.request("switch_session", session_id=session_id)
    await bench.client.request("delete_session", session_id=session_id)


async def test_other_sessions_do_not_notice(bench: Bench) -> None:
    first = (await bench.client.request("new_session"))["session_id"]
    await bench.start_run()
    await bench.client.request("new_session")
    bench.disk.fail_once()
    check_session_error(await bench.client.refusal("rename_session", name="x"))
    bench.provider.answer(says("all well"))
    end = await bench.events.until("agent_end")
    assert (end["payload"]["session_id"], end["payload"]["status"]) == (first, "completed")


# --- runs ------------------------------------------------------------------------------------


async def test_an_input_that_cannot_be_written_stops_its_run_with_an_end_in_the_log(
    bench: Bench,
) -> None:
    await bench.start_run()
    await bench.client.request("follow_up", text="kept")
    bench.disk.fail_once()
    check_session_error(await bench.client.refusal("steer", text="lost"))
    bench.provider.answer(says("too late"))
    run = await bench.events.run()
    assert run[-1]["payload"]["status"] == "interrupted"
    assert "lost" not in str(run)
    queue = await bench.client.request("get_queue")
    assert [item["text"] for item in queue["inputs"]] == ["kept"]
    bench.provider.answer(says("resumed"))
    await bench.client.request("resume")
    assert of_type(await bench.events.run(), "agent_end")[0]["status"] == "completed"


@pytest.mark.parametrize("good_commits", range(8))
async def test_a_commit_of_a_run_may_fail_anywhere_and_the_run_still_ends_once(
    bench: Bench, good_commits: int
) -> None:
    await bench.client.request("new_session")
    bench.disk.fail_once(after=good_commits)
    bench.provider.answer(asks_for_tools(1), says("one ", "two"))
    bench.tool.finish(gives())
    answer = await bench.client.answer(await bench.client.ask("prompt", text="go"))
    if good_commits == 0:
        check_session_error(answer["error"])
    else:
        assert answer["payload"]["status"] in ("interrupted", "completed")
        await bench.events.until("agent_end", status=answer["payload"]["status"])
    await bench.run_to_end()


async def test_a_failing_run_that_cannot_write_its_error_is_closed_as_interrupted(
    bench: Bench,
) -> None:
    await bench.start_run()
    bench.disk.fail_once()
    bench.provider.answer(fails(ProviderError("no")))
    assert (await bench.events.run())[-1]["payload"]["status"] == "interrupted"
    await bench.run_to_end()


async def test_an_aborted_run_that_cannot_write_its_end_is_closed_as_interrupted(
    bench: Bench,
) -> None:
    await bench.start_run()
    bench.disk.fail_once()
    check_session_error(await bench.client.refusal("abort"))
    assert (await bench.events.run())[-1]["payload"]["status"] == "interrupted"
    await bench.run_to_end()


async def test_while_the_disk_stays_broken_a_waited_for_run_is_an_error_and_ends_afterwards(
    bench: Bench,
) -> None:
    request_id = await bench.client.ask("prompt", text="go")
    await bench.events.until("message_start", role="user")
    bench.disk.is_broken = True
    bench.provider.answer(says("unheard"))
    answer = await bench.client.answer(request_id)
    assert answer["error"]["code"] == "session_error"
    run_id = answer["error"]["details"]["run_id"]
    for type in ("get_state", "get_queue", "resume"):
        check_session_error(await bench.client.refusal(type))
    bench.disk.is_broken = False
    assert (await bench.client.request("get_state"))["run_state"] == "idle"
    await bench.events.until("agent_end", run_id=run_id, status="interrupted")
    await bench.run_to_end()


async def test_nothing_that_was_decided_behind_a_failed_commit_ever_happens(bench: Bench) -> None:
    await bench.start_run()
    clients = [await bench.daemon.connect() for _ in range(4)]
    bench.disk.fail_once()
    asked = [(await c.ask("steer", text=f"steer {n}"), c) for n, c in enumerate(clients)]
    for request_id, client in asked:
        answer = await client.answer(request_id)
        check_session_error(answer["error"])
    await wait_all_tasks_blocked()
    bench.provider.answer(says("x"))
    await bench.events.until("agent_end", status="interrupted")
    assert (await bench.client.request("get_queue"))["inputs"] == []


async def test_a_shutdown_on_a_broken_disk_comes_to_an_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with trio.fail_after(60):
        async with broken_disk_bench(tmp_path) as bench:
            await bench.start_run()
            bench.disk.fail_once()
