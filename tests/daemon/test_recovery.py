"""Recovery after a kill: everything open in the log is closed once, and nothing else changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from nousd.daemon.eventlog import log_walk
from nousd.daemon.eventlog.hub import Hub
from nousd.daemon.eventlog.log import Log
from nousd.daemon.runs.recovery import close_open_work
from nousd.machine.session.queue import pending_counts
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.records import EventFilter
from nousd.store.sqlite import store as sqlite
from nousd.wire import events
from nousd.wire.codec.envelope import decode_event
from nousd.wire.objects.entries import MessageEntry
from nousd.wire.objects.inputs import QueuedInput
from tests.harness.daemon import FakeClock, check_log

Events = list[events.Event]


class Bench:
    """The log that a killed process left."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = FakeClock()
        self.log = Log(store, Hub(store), self.clock)

    async def write(self, happened: Sequence[events.Event]) -> None:
        await self.log.submit(self.log.encode(happened)).wait_committed()

    async def recover(self, **session: str) -> int:
        return await close_open_work(self.store, self.log, self.clock, **session)

    async def types_after(self, seq: int) -> list[str]:
        stored = await self.store.events_after(seq, EventFilter(), limit=1000, bytes_max=2**20)
        return [event.type for event in stored]

    async def leaf(self, session_id: str) -> MessageEntry:
        row = await self.store.session(session_id)
        assert row is not None
        assert row.leaf_id is not None
        entry = await self.store.entry(session_id, row.leaf_id)
        assert isinstance(entry, MessageEntry)
        return entry


@pytest.fixture(params=["memory", "sqlite"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    if request.param == "memory":
        async with memory.open_store() as store:
            yield Bench(store)
    else:
        async with sqlite.open_store(tmp_path / "log.db") as store:
            yield Bench(store)


# --- logs of killed processes ------------------------------------------------------------------


def run_key(session: str) -> Any:
    return {"session_id": session, "run_id": f"run-{session}"}


def started(session: str = "s") -> Events:
    """Return the events of a session with a prompt and a run that has just started."""
    prompt = QueuedInput(
        input_id=f"in-{session}", kind="prompt", text="go", run_id=f"run-{session}"
    )
    return [
        events.SessionCreated(session_id=session, created_at="t", contract_version="1"),
        events.QueueUpdate(
            **run_key(session),
            change="accepted",
            inputs=(prompt,),
            pending_counts=pending_counts((prompt,)),
        ),
        events.AgentStart(**run_key(session), runtime="native", model="m"),
    ]


def turn(session: str = "s") -> Events:
    """Return the events of a turn up to the user's message."""
    where: Any = run_key(session) | {"turn_id": "1"}
    entry = MessageEntry(
        id=f"user-{session}",
        role="user",
        text="go",
        run_id=f"run-{session}",
        turn_kind="prompt",
        created_at="t",
    )
    return [
        events.TurnStart(**where),
        events.MessageStart(
            **where, message_id=entry.id, role="user", text="go", turn_kind="prompt"
        ),
        events.EntryAppended(session_id=session, run_id=f"run-{session}", entry=entry),
        events.MessageEnd(**where, message_id=entry.id, text="go"),
    ]


def message(session: str = "s", deltas: int = 2) -> Events:
    """Return the events of an answer that has begun to stream."""
    where: Any = run_key(session) | {"turn_id": "1", "message_id": f"answer-{session}"}
    return [
        events.MessageStart(**where, role="assistant"),
        *[events.MessageUpdate(**where, delta=f"{number} ") for number in range(deltas)],
    ]


def model_input(session: str = "s") -> Events:
    """Return the event of the model input before the answer."""
    where: Any = run_key(session) | {"turn_id": "1"}
    return [
        events.ModelInput(
            **where,
            model="asked",
            provider="p",
            entries=1,
            messages=1,
            tokens_estimated=1,
            tools=(),
            omitted_count=0,
        )
    ]


def usage(session: str = "s") -> Events:
    """Return the event of the usage of that answer."""
    where: Any = run_key(session) | {"turn_id": "1", "message_id": f"answer-{session}"}
    return [events.UsageReported(**where, model="asked", provider="p", purpose="answer")]


def tool(session: str = "s") -> Events:
    """Return the events of a tool call that may have had an effect."""
    shown: Any = run_key(session) | {"turn_id": "1", "tool_call_id": "c.0", "tool_name": "bash"}
    return [*tool_request(session), events.ToolExecutionUpdate(**shown, delta="output")]


def tool_request(session: str = "s", *, decided: bool = True) -> Events:
    """Return the events of a requested tool call, approved and started if ``decided``."""
    shown: Any = run_key(session) | {"turn_id": "1", "tool_call_id": "c.0", "tool_name": "bash"}
    call = shown | {"attempt": 2}
    requested: Events = [
        events.ToolExecutionStart(**shown, args={}),
        events.ToolCallRequested(**call, args={}),
        events.ToolCallPolicyEvaluated(**call, source="mode", decision="ask", reason="r"),
    ]
    if not decided:
        return requested
    return [
        *requested,
        events.ToolCallApproved(**call, by="user", reason="r"),
        events.ToolCallStarted(**call),
    ]


def earlier_tool(session: str = "s") -> Events:
    """Return the events of the same tool call in version 1."""
    shown: Any = run_key(session) | {"turn_id": "1", "tool_call_id": "c.0", "tool_name": "bash"}
    return [
        events.ToolExecutionStart(**shown, args={}),
        events.ToolCallStarted(**shown, attempt=1),
        events.ToolExecutionUpdate(**shown, delta="output"),
    ]


def abort() -> Events:
    return [events.RunAborting(**run_key("s"))]


LEFT: dict[str, tuple[Events, list[str]]] = {
    "just started": (started(), ["agent_end"]),
    "in a turn": (started() + turn(), ["turn_end", "agent_end"]),
    "in an answer": (
        started() + turn() + message(),
        ["message_end", "entry_appended", "turn_end", "agent_end"],
    ),
    "in an answer of a model that is known": (
        started() + turn() + model_input() + message(),
        ["usage_reported", "message_end", "entry_appended", "turn_end", "agent_end"],
    ),
    "in an answer that is counted": (
        started() + turn() + model_input() + message() + usage(),
        ["message_end", "entry_appended", "turn_end", "agent_end"],
    ),
    "before an answer": (started() + turn() + model_input(), ["turn_end", "agent_end"]),
    "in a tool call": (
        started() + turn() + tool(),
        ["tool_call_completed", "tool_execution_end", "entry_appended", "turn_end", "agent_end"],
    ),
    "in a tool call of an earlier version": (
        started() + turn() + earlier_tool(),
        ["tool_call_completed", "tool_execution_end", "entry_appended", "turn_end", "agent_end"],
    ),
    "in a tool call that waits for a decision": (
        started() + turn() + tool_request(decided=False),
        ["tool_call_denied", "tool_execution_end", "entry_appended", "turn_end", "agent_end"],
    ),
    "being aborted": (
        started() + turn() + message() + abort(),
        ["message_end", "entry_appended", "turn_end", "agent_end"],
    ),
}


@pytest.mark.parametrize(("left", "owed"), LEFT.values(), ids=LEFT)
async def test_everything_open_is_closed_as_interrupted(
    left: Events, owed: list[str], bench: Bench
) -> None:
    await bench.write(left)
    head = bench.store.head
    assert await bench.recover() == 1
    assert await bench.types_after(head) == owed
    await check_log(bench.store)
    record = await bench.store.run("run-s")
    assert record is not None
    assert record.status == "interrupted"
    assert await bench.store.open_runs() == ()


async def test_a_second_recovery_changes_nothing(bench: Bench) -> None:
    await bench.write(started() + turn())
    assert await bench.recover() == 1
    head = bench.store.head
    assert await bench.recover() == 0
    assert bench.store.head == head


async def test_the_recovery_of_an_empty_log_changes_nothing(bench: Bench) -> None:
    assert await bench.recover() == 0
    assert bench.store.head == 0


async def test_a_partial_answer_becomes_the_leaf_of_its_session(bench: Bench) -> None:
    await bench.write(started() + turn() + message())
    await bench.recover()
    leaf = await bench.leaf("s")
    assert (leaf.id, leaf.parent_id) == ("answer-s", "user-s")
    assert (leaf.text, leaf.stop_reason, leaf.turn_kind) == ("0 1 ", "interrupted", "prompt")


async def test_an_interrupted_tool_call_gets_an_error_result_marked_as_executed(
    bench: Bench,
) -> None:
    await bench.write(started() + turn() + tool())
    await bench.recover()
    leaf = await bench.leaf("s")
    assert (leaf.id, leaf.parent_id) == ("c.0.result.2", "user-s")
    assert (leaf.text, leaf.is_error, leaf.executed) == ("tool_error: interrupted", True, True)


async def test_an_unconsumed_input_stays_pending(bench: Bench) -> None:
    await bench.write(started())
    await bench.recover()
    assert [item.input_id for item in await bench.store.pending_inputs("s")] == ["in-s"]


async def test_the_open_runs_of_all_sessions_are_closed(bench: Bench) -> None:
    for session in ("a", "b", "c"):
        await bench.write(started(session) + turn(session) + message(session))
    assert await bench.recover() == 3
    await check_log(bench.store)
    for session in ("a", "b", "c"):
        assert (await bench.leaf(session)).id == f"answer-{session}"


async def test_the_open_run_of_one_session_can_be_closed_alone(bench: Bench) -> None:
    await bench.write([*started("a"), *started("b")])
    assert await bench.recover(session_id="b") == 1
    assert [run.run_id for run in await bench.store.open_runs()] == ["run-a"]


async def test_a_run_longer_than_a_page_of_the_log_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_walk, "_PAGE_EVENTS", 7)
    await bench.write(started() + turn() + message(deltas=100))
    await bench.write(started("other") + turn("other"))
    assert await bench.recover() == 2
    assert (await bench.leaf("s")).text == "".join(f"{number} " for number in range(100))


async def test_closing_events_belong_to_their_session_and_run(bench: Bench) -> None:
    await bench.write(started() + turn())
    head = bench.store.head
    await bench.recover()
    *_, last = await bench.store.events_after(head, EventFilter(), limit=10, bytes_max=10_000)
    assert last.seq == bench.store.head
    assert (last.session_id, last.run_id) == ("s", "run-s")
    assert decode_event(last.line).type == "agent_end"


async def test_an_interrupted_model_call_counts_in_the_usage_of_its_run(bench: Bench) -> None:
    await bench.write(started() + turn() + model_input() + message())
    await bench.recover()
    run = await bench.store.run("run-s")
    assert run is not None
    assert run.usage is not UNSET
    assert (run.usage.calls, run.usage.uncounted_calls, run.usage.unpriced_calls) == (1, 1, 1)


# --- calls of clients --------------------------------------------------------------------------

CALL: Any = {"session_id": "s", "tool_call_id": "call-1", "attempt": 1, "tool_name": "ls"}
REQUESTED = events.ToolCallRequested(**CALL, args={})
APPROVED = events.ToolCallApproved(**CALL, by="policy", reason="")
STARTED = events.ToolCallStarted(**CALL)
ASKED = events.PermissionRequested(
    **CALL, input_hash="h", args={}, reason="", expires_at="2026-01-01T00:00:00Z"
)
DENIED, COMPLETED = "tool_call_denied", "tool_call_completed"


@pytest.mark.parametrize(
    ("left", "end"),
    [
        ([REQUESTED], DENIED),
        ([REQUESTED, ASKED], DENIED),
        ([REQUESTED, APPROVED], COMPLETED),
        ([REQUESTED, APPROVED, STARTED], COMPLETED),
    ],
)
async def test_an_open_call_of_a_client_is_closed_once(
    bench: Bench, left: list[events.Event], end: str
) -> None:
    created = events.SessionCreated(session_id="s", created_at="then", contract_version="1")
    await bench.write([created, *left])
    head = bench.store.head
    assert await bench.recover() == 1
    assert await bench.recover() == 0
    assert await bench.types_after(head) == [end]
    row = await bench.store.tool_call("call-1", None)
    assert row is not None
    assert row.is_error is True
    assert row.started is (STARTED in left)


async def test_a_completed_call_of_a_client_stays_unchanged(bench: Bench) -> None:
    created = events.SessionCreated(session_id="s", created_at="then", contract_version="1")
    completed = events.ToolCallCompleted(**CALL, is_error=False, duration_ms=1, result="r")
    await bench.write([created, REQUESTED, APPROVED, STARTED, completed])
    assert await bench.recover() == 0


async def test_the_recovery_of_one_session_closes_only_its_client_calls(
    bench: Bench,
) -> None:
    other: Any = {**CALL, "session_id": "t", "tool_call_id": "call-2"}
    for session_id in ("s", "t"):
        await bench.write(
            [events.SessionCreated(session_id=session_id, created_at="then", contract_version="1")]
        )
    await bench.write([REQUESTED, events.ToolCallRequested(**other, args={})])
    assert await bench.recover(session_id="s") == 1
    [left] = await bench.store.open_client_calls()
    assert left.tool_call_id == "call-2"
