"""A failing disk: the client receives an error, the session is reloaded, and the daemon continues."""

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

from nousd.daemon.eventlog.hub import Hub
from nousd.daemon.eventlog.log import Log
from nousd.errors import ProviderError, StoreError, StoreFull, WriteFailed
from nousd.providers.interface import Receive, TextDelta
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.wire import events
from tests.daemon.scripted import ScriptedProvider, ScriptedTool, asks_for_tools, fails, gives, says
from tests.harness.daemon import Client, Daemon, Events, FakeClock, memory_daemon, of_type, types


class Disk:
    """A disk that fails every commit while ``is_broken``, or a single one after ``good_commits``.

    ``trouble``: the error while it is broken. A full disk has a reserve for closing events.
    """

    def __init__(self) -> None:
        self.is_broken = False
        self.trouble: type[StoreError] = WriteFailed
        self.good_commits = math.inf

    def fail_once(self, *, after: int = 0) -> None:
        self.good_commits = after

    def stay_whole(self) -> None:
        """Let nothing fail any more that has not failed yet."""
        self.good_commits = math.inf

    def before_commit(self) -> None:
        if self.good_commits == 0:
            self.good_commits = math.inf
            raise WriteFailed("an error of a moment")
        self.good_commits -= 1
        if self.is_broken:
            raise self.trouble("the disk says no")


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
        """Check that the session works as if nothing had failed."""
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
        watcher = await daemon.watch(types="all")
        yield Bench(daemon, disk, provider, tool, await daemon.connect(), watcher)
        disk.is_broken = False


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with broken_disk_bench(tmp_path) as bench:
        yield bench


def check_session_error(error: dict[str, Any], reason: str = "disk_error") -> None:
    assert error["code"] == "session_error"
    assert error["details"] == {"reason": reason}
    assert error["message"].endswith("nothing was accepted")


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
async def test_a_setting_that_cannot_be_written_does_not_become_the_default(
    bench: Bench, has_session: bool
) -> None:
    if has_session:
        await bench.client.request("new_session")
    bench.disk.is_broken = True
    check_session_error(await bench.client.refusal("set_steering_mode", mode="all"))
    bench.disk.is_broken = False
    await bench.client.request("new_session")
    assert (await bench.client.request("get_state"))["steering_mode"] == "one-at-a-time"


async def test_a_first_prompt_that_cannot_be_written_can_be_sent_again(bench: Bench) -> None:
    bench.disk.is_broken = True
    payload = {"text": "x", "wait": False, "client_message_id": "m1"}
    check_session_error(await bench.client.refusal("prompt", **payload))
    assert (await bench.client.request("get_state"))["session_id"] == ""
    bench.disk.is_broken = False
    await bench.client.request("prompt", **payload)
    bench.provider.answer(says("hello"))
    assert types(await bench.events.run()).count("agent_start") == 1
    assert len((await bench.client.request("list_sessions"))["sessions"]) == 1


async def test_two_new_sessions_that_fail_together_keep_the_active_session(bench: Bench) -> None:
    active = (await bench.client.request("new_session"))["session_id"]
    other = await bench.daemon.connect()
    bench.disk.is_broken = True
    for request_id, client in [(await c.ask("new_session"), c) for c in (bench.client, other)]:
        check_session_error((await client.answer(request_id))["error"])
    bench.disk.is_broken = False
    assert (await bench.client.request("get_state"))["session_id"] == active
    await bench.run_to_end()


async def test_a_session_whose_deletion_failed_still_exists(bench: Bench) -> None:
    session_id = (await bench.client.request("new_session"))["session_id"]
    bench.disk.is_broken = True
    check_session_error(await bench.client.refusal("delete_session", session_id=session_id))
    bench.disk.is_broken = False
    await bench.client.request("switch_session", session_id=session_id)
    await bench.client.request("delete_session", session_id=session_id)


async def test_a_failed_commit_does_not_affect_the_run_of_another_session(bench: Bench) -> None:
    first = (await bench.client.request("new_session"))["session_id"]
    await bench.start_run()
    await bench.client.request("new_session")
    bench.disk.fail_once()
    check_session_error(await bench.client.refusal("rename_session", name="x"))
    bench.provider.answer(says("all well"))
    end = await bench.events.until("agent_end")
    assert (end["payload"]["session_id"], end["payload"]["status"]) == (first, "completed")


# --- runs ------------------------------------------------------------------------------------


async def test_an_input_that_cannot_be_written_interrupts_its_run_but_keeps_the_queue(
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


@pytest.mark.parametrize("good_commits", range(7))
async def test_a_run_ends_whichever_of_its_commits_fails(bench: Bench, good_commits: int) -> None:
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
    # How many commits a run takes depends on what comes at once.
    bench.disk.stay_whole()
    await bench.run_to_end()


@pytest.mark.parametrize("good_commits", range(1, 6))
async def test_a_later_model_call_contains_only_tool_calls_that_were_stored(
    bench: Bench, good_commits: int
) -> None:
    """The id of the interrupted answer is still in the log, in its closing events."""
    await bench.client.request("new_session")
    bench.disk.fail_once(after=good_commits)
    bench.provider.answer(asks_for_tools(1), says("one ", "two"))
    bench.tool.finish(gives())
    await bench.client.request("prompt", text="go")
    bench.disk.stay_whole()
    bench.provider.calls.forget()
    await bench.client.request("clear_queue")
    bench.provider.answer(says("done"))
    await bench.client.request("prompt", text="again")
    stored = (await bench.client.request("get_messages"))["messages"][:-2]
    calls = [call["tool_call_id"] for entry in stored for call in entry.get("tool_calls", ())]
    messages = bench.provider.requests[-1].messages
    sent = [call.id for message in messages for call in getattr(message, "tool_calls", ())]
    assert sent == calls


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


READS: list[tuple[str, dict[str, Any]]] = [
    ("get_state", {}),
    ("get_messages", {}),
    ("get_tree", {}),
    ("get_queue", {}),
    ("get_events", {"types": "all"}),
    ("list_sessions", {}),
    ("list_runs", {}),
]


@pytest.mark.behaviour("disk_trouble_serves_reads")
async def test_a_broken_disk_serves_reads_and_its_run_is_closed_after_the_repair(
    bench: Bench,
) -> None:
    request_id = await bench.client.ask("prompt", text="go")
    await bench.events.until("message_start", role="user")
    bench.disk.is_broken = True
    bench.provider.answer(says("unheard"))
    answer = await bench.client.answer(request_id)
    assert answer["error"]["code"] == "session_error"
    run_id = answer["error"]["details"]["run_id"]
    for type, payload in READS:
        await bench.client.request(type, **payload)
    check_session_error(await bench.client.refusal("resume"))
    assert (await bench.client.request("get_run", run_id=run_id))["run"]["status"] == "running"
    bench.disk.is_broken = False
    assert (await bench.client.request("get_state"))["run_state"] == "idle"
    await bench.events.until("agent_end", run_id=run_id, status="interrupted")
    await bench.run_to_end()


@pytest.mark.behaviour("disk_trouble_stops_runs")
@pytest.mark.behaviour("disk_trouble_refuses_inputs")
@pytest.mark.parametrize("wait", [False, True])
async def test_a_full_disk_writes_the_end_of_a_run_from_its_reserve_and_refuses_inputs(
    bench: Bench, wait: bool
) -> None:
    request_id = await bench.client.ask("prompt", text="go", wait=wait)
    await bench.events.until("message_start", role="user")
    bench.disk.trouble = StoreFull
    bench.disk.is_broken = True
    bench.provider.answer(says("unheard"))
    end = await bench.events.until("agent_end", status="interrupted")
    answer = await bench.client.answer(request_id)
    if wait:
        assert answer["payload"]["status"] == "interrupted"
    for type, payload in READS:
        await bench.client.request(type, **payload)
    run = (await bench.client.request("get_run", run_id=end["payload"]["run_id"]))["run"]
    assert run["status"] == "interrupted"
    check_session_error(await bench.client.refusal("prompt", text="more"), "disk_full")
    check_session_error(await bench.client.refusal("new_session"), "disk_full")
    bench.disk.is_broken = False
    await bench.run_to_end()


@pytest.mark.parametrize("trouble", [WriteFailed, StoreFull])
async def test_a_daemon_starts_on_a_broken_disk_and_serves_reads(
    tmp_path: Path, trouble: type[StoreError]
) -> None:
    disk, provider = Disk(), ScriptedProvider()
    disk.trouble = trouble
    async with memory.open_store(before_commit=disk.before_commit) as store:
        await leave_an_open_run(store)
        disk.is_broken = True
        async with memory_daemon(workdir=tmp_path, provider=provider, store=store) as daemon:
            client, watcher = await daemon.connect(), await daemon.watch(after="evt-0")
            for type, payload in READS:
                await client.request(type, **payload)
            status = (await client.request("get_run", run_id="run-1"))["run"]["status"]
            assert status == ("interrupted" if trouble is StoreFull else "running")
            assert (await client.refusal("prompt", text="more"))["code"] == "session_error"
            disk.is_broken = False
            provider.answer(says("done"))
            run_id = (await client.request("prompt", text="more"))["run_id"]
            ended = [(await watcher.until("agent_end"))["payload"] for _ in range(2)]
            assert [(end["run_id"], end["status"]) for end in ended] == [
                ("run-1", "interrupted"),
                (run_id, "completed"),
            ]


async def leave_an_open_run(store: Store) -> None:
    """Write the log of a killed process."""
    log = Log(store, Hub(store), FakeClock())
    started = (
        events.SessionCreated(
            session_id="s", created_at="2026-01-01T00:00:00Z", contract_version="1"
        ),
        events.SessionActivated(session_id="s"),
        events.AgentStart(session_id="s", run_id="run-1", runtime="native", model="m"),
        events.TurnStart(session_id="s", run_id="run-1", turn_id="1"),
    )
    await log.submit(log.encode(started)).wait_committed()


async def test_inputs_queued_after_a_failed_commit_are_refused_and_never_run(bench: Bench) -> None:
    await bench.start_run()
    clients = [await bench.daemon.connect() for _ in range(4)]
    bench.disk.fail_once()
    requests = [(await c.ask("steer", text=f"steer {n}"), c) for n, c in enumerate(clients)]
    for request_id, client in requests:
        answer = await client.answer(request_id)
        check_session_error(answer["error"])
    await wait_all_tasks_blocked()
    bench.provider.answer(says("x"))
    await bench.events.until("agent_end", status="interrupted")
    assert (await bench.client.request("get_queue"))["inputs"] == []


async def test_a_shutdown_with_a_failing_commit_finishes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with trio.fail_after(60):
        async with broken_disk_bench(tmp_path) as bench:
            await bench.start_run()
            bench.disk.fail_once()


async def test_a_commit_that_fails_in_a_nursery_of_the_provider_interrupts_the_run(
    bench: Bench,
) -> None:
    request_id = await bench.client.ask("prompt", text="go")
    await bench.events.until("message_start", role="user")
    bench.disk.fail_once()

    async def write_when_cancelled(receive: Receive) -> None:
        try:
            await trio.sleep_forever()
        finally:
            await receive(TextDelta("too late"))

    async def fail_in_a_nursery(receive: Receive) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_when_cancelled, receive)
            nursery.start_soon(trio.sleep_forever)
            await receive(TextDelta("never written"))

    bench.provider.answer(fail_in_a_nursery)
    assert (await bench.client.answer(request_id))["payload"]["status"] == "interrupted"
    await bench.run_to_end()
