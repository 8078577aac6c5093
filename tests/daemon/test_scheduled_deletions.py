"""Deletions that are scheduled: hidden, without work, restored or deleted in time, over restarts."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from nousd.daemon.clock import Clock
from nousd.providers.mock.provider import MockProvider
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.tools.arguments import struct_arguments
from nousd.tools.function_tool import touches_nothing
from nousd.tools.interface import ToolContext, ToolResult
from tests.daemon.overrides_bench import WallClock
from tests.daemon.scripted import WithoutThread, says
from tests.daemon.task_bench import children_of, task_daemon, tasks
from tests.harness.daemon import Client, Daemon, Payload, memory_daemon
from tests.suites import examples

pytestmark = pytest.mark.behaviour("a_deletion_can_be_undone")

SECONDS: Final = 600


@asynccontextmanager
async def open_daemon(folder: Path, store: Store, clock: Clock) -> AsyncIterator[Daemon]:
    async with memory_daemon(
        workdir=folder, provider=MockProvider(), store=store, clock=clock
    ) as daemon:
        yield daemon


async def listed(client: Client, **wanted: Any) -> list[str]:
    rows = (await client.request("list_sessions", **wanted))["sessions"]
    return [row["session_id"] for row in rows]


async def record(client: Client, session_id: str) -> Payload:
    session: Payload = (await client.request("get_session", session_id=session_id))["session"]
    return session


async def schedule(client: Client, session_id: str, seconds: int = SECONDS) -> str:
    answer = await client.request("delete_session", session_id=session_id, undo_seconds=seconds)
    assert answer["deleted"] is False
    delete_at: str = answer["delete_at"]
    return delete_at


WORK: Final[dict[str, Payload]] = {
    "prompt": {"text": "go"},
    "append_message": {"text": "go"},
    "switch_session": {},
    "branch_session": {},
    "rename_session": {"name": "new"},
    "update_session": {"archived": True},
    "set_leaf": {"leaf_id": "$leaf"},
    "set_model": {"model": "mock/mock-model"},
    "set_thinking": {"level": "low"},
    "set_permission_mode": {"mode": "ask"},
    "set_active_tools": {"tools": []},
    "set_steering_mode": {"mode": "all"},
    "set_follow_up_mode": {"mode": "all"},
    "clear_queue": {},
    "compact_session": {},
    "call_tool": {"tool": "ls", "args": {}},
    "override_workspace": {"ttl_seconds": 60},
    "resume": {},
}


async def _waiting(client: Client) -> str:
    """Return a session with a transcript, a follow-up that waits and no run."""
    started = await client.request("prompt", text="[[text ok]][[hang]]", wait=False)
    await client.request("follow_up", text="more")
    await client.request("abort", keep_queue=True)
    session_id: str = started["session_id"]
    while (await record(client, session_id))["run_state"] != "idle":
        await trio.testing.wait_all_tasks_blocked()
    return session_id


async def test_a_session_that_is_to_be_deleted_keeps_its_content_and_does_no_work(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory.open_store() as store, open_daemon(tmp_path, store, WallClock()) as daemon:
        client = await daemon.connect()
        session_id = await _waiting(client)
        before = await record(client, session_id)
        delete_at = await schedule(client, session_id)
        for type_, payload in WORK.items():
            values = {
                key: before["leaf_id"] if key == "leaf_id" else payload[key] for key in payload
            }
            error = await client.refusal(type_, session_id=session_id, **values)
            assert (error["code"], error["message"]) == (
                "command_rejected",
                "deletion_scheduled",
            ), type_
            assert error["details"] == {"delete_at": delete_at}, type_
        assert await record(client, session_id) == {
            **before,
            "active": False,
            "delete_at": delete_at,
        }
        assert len((await client.request("get_queue", session_id=session_id))["inputs"]) == 1
        assert (await client.request("get_messages", session_id=session_id))["messages"]
        assert await listed(client) == []
        assert await listed(client, deletion_scheduled=True) == [session_id]
        found = await client.request("search_sessions", query="text ok")
        assert found["matches"] == []
        assert (await client.request("get_state"))["session_id"] == ""
        await client.request("restore_session", session_id=session_id)
        assert await record(client, session_id) == {**before, "active": False}
        await client.request("prompt", session_id=session_id, text="go on")


async def test_a_session_is_deleted_at_its_time_and_not_before(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory.open_store() as store, open_daemon(tmp_path, store, WallClock()) as daemon:
        client, events = await daemon.connect(), await daemon.watch(types=["session_deleted"])
        late = (await client.request("new_session"))["session_id"]
        soon = (await client.request("new_session"))["session_id"]
        began = trio.current_time()
        await schedule(client, late, 86_400)
        await schedule(client, soon, SECONDS)
        assert (await events.next(seconds=2 * SECONDS))["payload"] == {"session_id": soon}
        assert trio.current_time() - began == pytest.approx(SECONDS, abs=1)
        assert (await client.refusal("restore_session", session_id=soon))[
            "code"
        ] == "session_not_found"
        await client.request("restore_session", session_id=late)
        await trio.sleep(2 * 86_400)
        assert await listed(client) == [late]


@pytest.mark.parametrize("down_seconds", [1, SECONDS - 1, SECONDS, 10 * SECONDS])
async def test_a_time_that_passed_while_no_daemon_ran_is_made_up_for(
    down_seconds: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory.open_store() as store:
        clock = WallClock()
        async with open_daemon(tmp_path, store, clock) as daemon:
            client = await daemon.connect()
            session_id = (await client.request("new_session"))["session_id"]
            await schedule(client, session_id)
        await trio.sleep(down_seconds)
        async with open_daemon(tmp_path, store, clock) as daemon:
            client = await daemon.connect()
            await trio.sleep(0.1)
            is_over = down_seconds >= SECONDS
            assert (await listed(client, deletion_scheduled=True) == []) is is_over
            await trio.sleep(SECONDS)
            assert await listed(client, deletion_scheduled=True) == []
            error = await client.refusal("get_session", session_id=session_id)
            assert error["code"] == "session_not_found"


async def test_a_clock_that_is_set_forward_is_noticed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    clock = WallClock()
    async with memory.open_store() as store, open_daemon(tmp_path, store, clock) as daemon:
        client = await daemon.connect()
        session_id = (await client.request("new_session"))["session_id"]
        await schedule(client, session_id)
        clock.ahead = float(SECONDS)
        await trio.sleep(11)
        assert await listed(client, deletion_scheduled=True) == []


async def test_a_later_time_replaces_an_earlier_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory.open_store() as store, open_daemon(tmp_path, store, WallClock()) as daemon:
        client = await daemon.connect()
        session_id = (await client.request("new_session"))["session_id"]
        await schedule(client, session_id, 10)
        await schedule(client, session_id, 100)
        await trio.sleep(50)
        assert await listed(client, deletion_scheduled=True) == [session_id]
        await trio.sleep(51)
        assert await listed(client, deletion_scheduled=True) == []


async def test_a_run_refuses_a_deletion_or_is_stopped_first(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory.open_store() as store, open_daemon(tmp_path, store, WallClock()) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        session_id = (await client.request("prompt", text="[[hang]]", wait=False))["session_id"]
        wanted = {"session_id": session_id, "undo_seconds": SECONDS}
        error = await client.refusal("delete_session", **wanted)
        assert error["message"] == "run_in_progress"
        answer = await client.request("delete_session", **wanted, abort=True)
        assert (answer["deleted"], "run" in answer, "delete_at" in answer) == (False, True, False)
        await events.run()
        await schedule(client, session_id)


async def test_the_sessions_of_tasks_share_the_fate_of_theirs(
    tmp_path: Path,
) -> None:
    async with task_daemon(tmp_path) as bench:
        client = bench.client
        bench.on("go", tasks({"prompt": "a"}), says("done"))
        bench.on("a", says("told"))
        [made] = children_of(await bench.run())
        parent, child = made["origin"]["session_id"], made["session_id"]
        await schedule(client, parent)
        hidden = await listed(client, deletion_scheduled=True, children=True)
        assert sorted(hidden) == sorted([parent, child])
        assert await listed(client, children=True) == []
        await client.request("restore_session", session_id=parent)
        assert sorted(await listed(client, children=True)) == sorted([parent, child])


async def _hang(_: Any, __: ToolContext) -> ToolResult:
    await trio.sleep_forever()
    raise AssertionError


HANG = WithoutThread(
    name="hang",
    description="Hangs.",
    source="builtin",
    arguments=struct_arguments(msgspec.defstruct("Nothing", [])),
    function=_hang,
    access_of=touches_nothing,
)


async def test_a_tool_call_of_a_client_is_stopped_and_ended(tmp_path: Path) -> None:
    async with memory_daemon(workdir=tmp_path, provider=MockProvider(), tools=[HANG]) as daemon:
        client = await daemon.connect()
        events = await daemon.watch(types=["tool_call_started", "tool_call_completed"])
        session_id = (await client.request("new_session"))["session_id"]
        await client.request("call_tool", session_id=session_id, tool="hang")
        await events.until("tool_call_started")
        await schedule(client, session_id)
        ended = await events.until("tool_call_completed")
        assert ended["payload"]["stop_reason"] == "aborted"


# --- in any order ------------------------------------------------------------------------------

Kind = Literal["new", "schedule", "restore", "delete", "append", "sleep", "restart"]
kinds: st.SearchStrategy[Kind] = st.sampled_from(
    ["new", "schedule", "schedule", "restore", "delete", "append", "sleep", "restart"]
)
times = st.sampled_from([1, 7, 30, 100])
steps = st.lists(st.tuples(kinds, st.integers(0, 3), times), max_size=24)


class Known(msgspec.Struct):
    """A session of the model: when it is deleted, and how many messages it has."""

    session_id: str
    delete_at: float | None = None
    messages: int = 0


class Model:
    """The sessions that there should be, by a clock that runs as trio's."""

    def __init__(self) -> None:
        self.sessions: list[Known] = []

    def at(self, position: int) -> Known | None:
        """Return one of the sessions that are not deleted yet."""
        now = trio.current_time()
        self.sessions = [
            one for one in self.sessions if one.delete_at is None or one.delete_at > now
        ]
        return self.sessions[position % len(self.sessions)] if self.sessions else None


async def _take(client: Client, model: Model, kind: Kind, position: int, seconds: int) -> None:
    if kind == "new":
        answer = await client.request("new_session", activate=False)
        model.sessions.append(Known(answer["session_id"]))
        return
    known = model.at(position)
    if known is None:
        return
    wanted = {"session_id": known.session_id}
    if kind == "schedule":
        known.delete_at = trio.current_time() + seconds
        await schedule(client, known.session_id, seconds)
    elif kind == "restore":
        await client.request("restore_session", **wanted)
        known.delete_at = None
    elif kind == "delete":
        assert (await client.request("delete_session", **wanted))["deleted"]
        model.sessions.remove(known)
    elif known.delete_at is None:
        await client.request("append_message", **wanted, text="one")
        known.messages += 1
    else:
        error = await client.refusal("append_message", **wanted, text="one")
        assert error["message"] == "deletion_scheduled"


async def _check(client: Client, model: Model) -> None:
    model.at(0)
    for is_scheduled in (False, True):
        right = {
            one.session_id: one.messages
            for one in model.sessions
            if (one.delete_at is not None) is is_scheduled
        }
        shown = await listed(client, deletion_scheduled=is_scheduled)
        assert sorted(shown) == sorted(right)
        for session_id, messages in right.items():
            page = await client.request("get_messages", session_id=session_id)
            assert len(page["messages"]) == messages


async def _play(played: list[tuple[Kind, int, int]], folder: Path) -> None:
    model, clock = Model(), WallClock()
    waiting = iter(played)
    async with memory.open_store() as store:
        for _ in itertools.count():
            async with open_daemon(folder, store, clock) as daemon:
                client = await daemon.connect()
                await trio.sleep(0.1)
                await _check(client, model)
                for kind, position, seconds in waiting:
                    if kind == "restart":
                        break
                    if kind == "sleep":
                        await trio.sleep(seconds)
                    else:
                        await _take(client, model, kind, position, seconds)
                    # Beside the whole seconds at which deletions are due.
                    await trio.sleep(0.1)
                    await _check(client, model)
                else:
                    return
            await trio.sleep(seconds)


@settings(max_examples=examples(40), deadline=None)
@given(steps)
def test_deletions_agree_with_a_model_in_any_order_over_restarts(
    played: list[tuple[Kind, int, int]],
) -> None:
    trio.run(_play, played, Path.cwd(), clock=MockClock(autojump_threshold=0))
