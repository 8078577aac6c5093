"""Check the whole daemon against the queue rules under random interleavings of clients, model and tools.

Each example is a list of operations on a daemon in memory. The test waits for some of them to finish,
and for others only a few turns of the event loop, so that commands, model answers and tool results
interleave at any point. Sometimes the daemon is killed and restarted on the same log. The rules are
checked against the log (``queue_model``).
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.errors import ProviderError, StoreError, ToolError
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.records import Batch, EventFilter, StoredEvent
from tests.daemon.queue_model import QueueModel
from tests.daemon.scripted import (
    Outcome,
    ScriptedProvider,
    ScriptedTool,
    ToolOutcome,
    asks_for_tools,
    breaks,
    fails,
    gives,
    says,
)
from tests.harness.daemon import Daemon, FakeClock, memory_daemon
from tests.suites import examples

# --- a daemon that can be killed -------------------------------------------------------------


class KillableStore:
    """The store of one process: after the process is killed, none of its writes reaches the log.

    The disk may pause. Batches submitted meanwhile are committed when it resumes; a kill loses them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_dead = False
        self._held: list[Batch] = []
        self._released = trio.lowlevel.ParkingLot()
        self.is_paused = False

    def pause(self) -> None:
        self.is_paused = True

    def write_held(self) -> None:
        """Commit the batches that wait now; a paused disk stays paused."""
        held, self._held = self._held, []
        for batch in held:
            self._submit(batch)
        self._released.unpark_all()

    def go_on(self) -> None:
        self.is_paused = False
        self.write_held()

    def kill(self) -> None:
        self._is_dead = True
        self.go_on()

    def submit(self, batch: Batch) -> None:
        if self.is_paused:
            self._held.append(batch)
        else:
            self._submit(batch)

    def _submit(self, batch: Batch) -> None:
        if self._is_dead:
            token = trio.lowlevel.current_trio_token()
            token.run_sync_soon(batch.on_failure, StoreError("killed"))
        else:
            self._store.submit(batch)

    async def flush(self) -> None:
        while self._held:
            await self._released.park()
        await self._store.flush()

    async def events_after(
        self, after: int, event_filter: EventFilter, **bounds: Any
    ) -> tuple[StoredEvent, ...]:
        if self._is_dead:
            return ()
        return await self._store.events_after(after, event_filter, **bounds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@dataclass
class World:
    """A log, the daemon that currently runs on it, and the responses that its clients received."""

    log: Store
    workdir: Path
    clock: FakeClock = field(default_factory=FakeClock)
    model: QueueModel = field(default_factory=QueueModel)
    acknowledged: list[str] = field(default_factory=list)
    given_back: list[str] = field(default_factory=list)
    edited: list[str] = field(default_factory=list)
    """New texts of acknowledged edits."""
    revisions: list[int] = field(default_factory=list)
    """The revisions in the responses to changes."""
    stored: list[str] = field(default_factory=list)
    """Ids of entries in the responses to appended messages."""
    provider: ScriptedProvider = field(default_factory=ScriptedProvider)
    tool: ScriptedTool = field(default_factory=ScriptedTool)
    texts: Any = field(default_factory=lambda: map("text {}".format, itertools.count(1)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[_Life]:
        """Start the daemon; leaving the block kills it."""
        self.provider, self.tool = ScriptedProvider(), ScriptedTool()
        mortal = KillableStore(self.log)
        async with (
            memory_daemon(
                workdir=self.workdir,
                provider=self.provider,
                store=mortal,
                clock=self.clock,
                tools=[self.tool.tool],
            ) as daemon,
            trio.open_nursery() as clients,
        ):
            yield _Life(self, daemon, mortal, clients)
            mortal.kill()
            clients.cancel_scope.cancel()

    async def read_log(self) -> None:
        """Feed the new events of the log to the model."""
        await self.log.flush()
        while page := await self.log.events_after(
            self.model.seq, EventFilter(), limit=1000, bytes_max=2**24
        ):
            for stored in page:
                self.model.feed(stored.line)


@dataclass
class _Life:
    """One life of the daemon, from its start to its kill.

    Args:
        is_quiet: True if everything begun so far has ended or waits for the test.
        is_alone: True if the operation began in quiet and is awaited, so that its outcome is certain.
    """

    world: World
    daemon: Daemon
    disk: KillableStore
    clients: trio.Nursery
    is_quiet: bool = True
    is_alone: bool = True

    async def operate(self, name: str, ticks: int | None = None) -> None:
        """Perform an operation, then run the loop for ``ticks`` turns; None waits for its effects."""
        self.is_alone, self.is_quiet = self.is_quiet and ticks is None, False
        await OPERATIONS[name](self)
        for _ in range(ticks or 0):
            await trio.lowlevel.checkpoint()
        if ticks is None:
            await self.settle()

    async def settle(self) -> None:
        await wait_all_tasks_blocked()
        await self.world.read_log()
        self.is_quiet = not self.disk.is_paused

    def send(
        self, type: str, expected: str | None, check: Callable[[Any], None], **payload: Any
    ) -> None:
        """Send a command on a connection of its own.

        Args:
            expected: The message of its refusal; None if it must be accepted. A command that is not
                sent alone may have either outcome.
        """
        expectation = (expected,) if self.is_alone else None

        async def ask() -> None:
            client = await self.daemon.connect()
            answer = await client.answer(await client.ask(type, **payload))
            refused = None if answer["ok"] else answer["error"]["message"]
            assert expectation in (None, (refused,)), f"{type}: {answer}, not {expectation}"
            assert refused in (None, *REFUSALS), answer
            if answer["ok"]:
                check(answer["payload"])
            await client.aclose()

        self.clients.start_soon(ask)


REFUSALS = (
    "run_in_progress",
    "no_active_run",
    "nothing_to_resume",
    "input_not_found",
    "input_not_promotable",
    "run_mismatch",
    "input_delivered",
    "input_not_movable",
    "queue_changed",
)

# --- operations ------------------------------------------------------------------------------

Operation = Callable[[_Life], Awaitable[None]]


def send_input(kind: str) -> Operation:
    async def operate(life: _Life) -> None:
        world, model = life.world, life.world.model
        if kind == "prompt":
            expected = "run_in_progress" if model.run_id else None
        else:
            expected = None if model.run_id else "no_active_run"
        life.send(
            kind,
            expected,
            lambda payload: world.acknowledged.append(payload["input_id"]),
            text=next(world.texts),
            **({"wait": False} if kind == "prompt" else {}),
        )

    return operate


async def append_message(life: _Life) -> None:
    world = life.world
    life.send(
        "append_message",
        None,
        lambda payload: world.stored.append(payload["entry_id"]),
        text=next(world.texts),
    )


def prompt_with_leaf_text(life: _Life) -> Awaitable[None]:
    """Send a prompt with the leaf's text, which reuses the leaf if it was appended."""
    world = life.world
    leaf = world.model.leaf or {}

    async def operate() -> None:
        life.send(
            "prompt",
            "run_in_progress" if world.model.run_id else None,
            lambda payload: world.acknowledged.append(payload["input_id"]),
            text=leaf.get("text") or next(world.texts),
            wait=False,
            reuse_appended=True,
        )

    return operate()


async def abort_stale_run(life: _Life) -> None:
    """Abort a run that ended long ago, which must have no effect."""
    expected = "run_mismatch" if life.world.model.run_id else "no_active_run"
    life.send("abort", expected, lambda _: None, expected_run_id="run-of-yesterday")


async def get_messages(life: _Life) -> None:
    """Read the transcript, which must contain all stored messages."""
    stored = list(life.world.stored)

    def check(answer: Any) -> None:
        listed = [entry["id"] for entry in answer["messages"]]
        assert set(stored) <= set(listed), f"{stored} are not all in {listed}"
        assert len(listed) == len(set(listed))

    life.send("get_messages", None, check)


def clear_inputs(type: str, **payload: Any) -> Operation:
    async def operate(life: _Life) -> None:
        model = life.world.model
        expected = None
        if type == "abort" and not model.run_id:
            # Without a run it takes back what waits, unless it is told to keep that.
            waits = any(item["kind"] != "message" for item in model.pending)
            expected = None if waits and not payload.get("keep_queue") else "no_active_run"

        def check(answer: Any) -> None:
            life.world.given_back.extend(item["input_id"] for item in answer["cleared"])

        life.send(type, expected, check, **payload)

    return operate


def promote(index: int) -> Operation:
    async def operate(life: _Life) -> None:
        pending = life.world.model.pending
        if index < len(pending):
            item = pending[index]
            expected = None if item["kind"] == "follow_up" else "input_not_promotable"
            life.send("promote", expected, lambda _: None, input_id=item["input_id"])
        else:
            life.send("promote", "input_not_found", lambda _: None, input_id="nobody's")

    return operate


def change_queued(type: str, index: int, before: int | None = None, *, seen: str = "") -> Operation:
    """Change the pending input with this index, as it was seen.

    Args:
        before: index of the input to move it in front of.
        seen: ``now`` names the queue's revision, ``before`` an older one.
    """

    async def operate(life: _Life) -> None:
        world, model = life.world, life.world.model
        item = model.pending[index] if index < len(model.pending) else {"input_id": "nobody's"}
        payload: dict[str, Any] = {"input_id": item["input_id"]}
        expected = None if item.get("kind") in ("steer", "prompt", "follow_up") else NOT_FOUND
        if seen:
            payload["queue_revision"] = model.revision
        if seen == "before":
            payload["queue_revision"] = model.revision - 1 if model.revision else 1
            expected = expected or "queue_changed"
        if type == "edit_queued":
            payload["text"] = next(world.texts)
        if before is not None and before < len(model.pending):
            other = model.pending[before]
            payload["before_input_id"] = other["input_id"]
            is_peer = other["kind"] == item.get("kind") and other is not item
            expected = expected or (None if is_peer else "input_not_movable")

        def check(answer: Any) -> None:
            world.revisions.append(answer["queue_revision"])
            world.given_back.extend(taken["input_id"] for taken in answer.get("cleared", ()))
            if "text" in payload:
                world.edited.append(payload["text"])

        life.send(type, expected, check, **payload)

    return operate


def change_delivered(type: str, **more: Any) -> Operation:
    """Change an input that a turn has taken, or one that was removed."""

    async def operate(life: _Life) -> None:
        model = life.world.model
        for gone, word in ((model.consumed, "input_delivered"), (model.cleared, NOT_FOUND)):
            if gone:
                life.send(type, word, lambda _: None, input_id=gone[-1], **more)

    return operate


NOT_FOUND = "input_not_found"


def set_mode(which: str, mode: str) -> Operation:
    async def operate(life: _Life) -> None:
        life.send(which, None, lambda _: None, mode=mode)

    return operate


async def resume(life: _Life) -> None:
    model = life.world.model
    expected = None if model.in_order or model.unanswered else "nothing_to_resume"
    life.send("resume", "run_in_progress" if model.run_id else expected, lambda _: None)


async def get_queue(life: _Life) -> None:
    """Read the queue, which must match the log if nothing else happens."""
    is_alone, expected = life.is_alone, life.world.model.in_order
    revision = life.world.model.revision

    def check(answer: Any) -> None:
        listed = [item["input_id"] for item in answer["inputs"]]
        assert not is_alone or listed == expected
        assert not is_alone or answer["queue_revision"] == revision

    life.send("get_queue", None, check)


def model_does(outcome: Outcome) -> Operation:
    async def operate(life: _Life) -> None:
        if life.world.provider.waiting:
            life.world.provider.answer(outcome)

    return operate


def tool_does(outcome: ToolOutcome) -> Operation:
    async def operate(life: _Life) -> None:
        if life.world.tool.waiting:
            life.world.tool.finish(outcome)

    return operate


async def disk_pauses(life: _Life) -> None:
    life.disk.pause()


async def disk_writes(life: _Life) -> None:
    life.disk.write_held()


async def disk_goes_on(life: _Life) -> None:
    life.disk.go_on()


OPERATIONS: dict[str, Operation] = {
    "prompt": send_input("prompt"),
    "steer": send_input("steer"),
    "follow_up": send_input("follow_up"),
    "append": append_message,
    "prompt_of_appended": prompt_with_leaf_text,
    "get_messages": get_messages,
    "abort": clear_inputs("abort"),
    "abort_keep": clear_inputs("abort", keep_queue=True),
    "abort_stale": abort_stale_run,
    "clear": clear_inputs("clear_queue"),
    "clear_steers": clear_inputs("clear_queue", kind="steer"),
    "clear_follow_ups": clear_inputs("clear_queue", kind="follow_up"),
    "promote_0": promote(0),
    "promote_1": promote(1),
    "promote_2": promote(2),
    "edit_0": change_queued("edit_queued", 0),
    "edit_1": change_queued("edit_queued", 1, seen="now"),
    "edit_stale": change_queued("edit_queued", 0, seen="before"),
    "edit_delivered": change_delivered("edit_queued", text="too late"),
    "move_0": change_queued("move_queued", 0),
    "move_1_0": change_queued("move_queued", 1, 0),
    "move_2_0": change_queued("move_queued", 2, 0, seen="now"),
    "move_0_2": change_queued("move_queued", 0, 2),
    "move_stale": change_queued("move_queued", 1, 0, seen="before"),
    "move_delivered": change_delivered("move_queued"),
    "remove_0": change_queued("remove_queued", 0),
    "remove_1": change_queued("remove_queued", 1, seen="now"),
    "remove_stale": change_queued("remove_queued", 0, seen="before"),
    "remove_delivered": change_delivered("remove_queued"),
    "steers_all": set_mode("set_steering_mode", "all"),
    "steers_one": set_mode("set_steering_mode", "one-at-a-time"),
    "follow_ups_all": set_mode("set_follow_up_mode", "all"),
    "follow_ups_one": set_mode("set_follow_up_mode", "one-at-a-time"),
    "resume": resume,
    "get_queue": get_queue,
    "model_says": model_does(says("some ", "words")),
    "model_says_nothing": model_does(says()),
    "model_wants_1": model_does(asks_for_tools(1)),
    "model_wants_3": model_does(asks_for_tools(3)),
    "model_fails": model_does(fails(ProviderError("no"))),
    "model_fails_late": model_does(fails(ProviderError("no"), "half an ans")),
    "tool_works": tool_does(gives()),
    "tool_fails": tool_does(breaks(ToolError("no"))),
    "disk_pauses": disk_pauses,
    "disk_writes": disk_writes,
    "disk_goes_on": disk_goes_on,
}

OFTEN = ("prompt", "steer", "follow_up", "append", "tool_works", "disk_writes")
MODEL = ("model_says", "model_wants_1", "model_wants_3")

Steps = list[tuple[str, int | None]]
"""Operations, each with the number of loop turns after it (``_Life.operate``)."""

NAMES = st.sampled_from([*OPERATIONS, *3 * OFTEN, *3 * MODEL])
STEPS = st.lists(st.tuples(NAMES, st.none() | st.integers(0, 12)), min_size=2, max_size=30)

LIVES = st.lists(STEPS, min_size=1, max_size=3)
"""The daemon is killed between two lives."""


# --- the property ----------------------------------------------------------------------------


async def live(lives: list[Steps], workdir: Path) -> World:
    async with memory.open_store() as log:
        world = World(log, workdir)
        for number, steps in enumerate(lives):
            async with world.running() as life:
                if number == 0:
                    await (await daemon_client(life)).request("new_session")
                await life.settle()
                await check_restart(life, is_first=number == 0)
                for name, ticks in steps:
                    await life.operate(name, ticks)
                if number == len(lives) - 1:
                    await finish(life)
            await world.read_log()
        world.model.lifecycle.finish()
        check_accounts(world)
    return world


async def daemon_client(life: _Life) -> Any:
    return await life.daemon.connect()


async def check_restart(life: _Life, *, is_first: bool) -> None:
    """Assert that nothing runs by itself and that the queue matches the log."""
    model = life.world.model
    assert model.run_id is None
    assert not life.world.provider.requests
    if not is_first:
        client = await daemon_client(life)
        listed = await client.request("get_queue")
        assert [item["input_id"] for item in listed["inputs"]] == model.in_order
        state = await client.request("get_state")
        assert state["run_state"] == "idle"
        assert listed["queue_revision"] == state["queue_revision"] == model.revision


async def finish(life: _Life) -> None:
    """Run until every accepted input is consumed."""
    model = life.world.model
    await life.operate("disk_goes_on")
    for _ in range(500):
        if model.run_id is None and not model.in_order:
            return
        if model.run_id is None:
            await life.operate("resume")
        await life.operate("model_says")
        await life.operate("tool_works")
    raise AssertionError(f"this never ends: {model}")


def check_accounts(world: World) -> None:
    """Assert that each input was accepted once, and consumed or cleared once."""
    model = world.model
    assert sorted(model.consumed + model.cleared) == sorted(model.accepted)
    assert not model.pending
    # A kill may prevent the response to a committed input, but no response precedes its commit.
    assert set(world.acknowledged) <= set(model.accepted)
    assert len(set(world.acknowledged)) == len(world.acknowledged)
    assert set(world.given_back) <= set(model.cleared)
    assert set(world.edited) <= set(model.edited)
    assert len(set(world.revisions)) == len(world.revisions), "two changes had one revision"
    assert set(world.stored) <= set(model.appended)
    assert model.placed == len(model.appended)
    assert not model.waiting


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workdir")


def quietly(*names: str) -> Steps:
    return [(name, None) for name in names]


def at_once(*names: str) -> Steps:
    return [(name, 0) for name in names]


ALMOST_OVER = ("prompt", "disk_pauses", "model_says", "disk_writes")
"""Afterwards a run has decided to end, but its end is not on disk yet."""


@settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(LIVES)
@example([quietly("prompt", "steer", "follow_up", "model_says", "model_says", "model_says")])
@example([quietly("prompt", "model_wants_3", "steer", "tool_works", "model_says")])
@example([quietly("prompt", "model_wants_1", "steer", "tool_works", "model_says")])
@example([quietly("prompt", "follow_up", "follow_up", "promote_1", "model_wants_1", "model_says")])
@example([quietly("prompt", "steers_all", "steer", "steer", "model_says", "model_fails", "resume")])
@example([quietly("prompt", "steer", "model_fails", "prompt", "model_wants_1", "tool_works")])
@example([at_once("prompt", "abort"), at_once("prompt", "steer"), quietly("resume", "clear")])
@example([quietly("prompt", "follow_up", "follow_up", "edit_0", "move_1_0", "edit_1", "remove_0")])
@example([quietly("prompt", "steer", "steer", "follow_up", "move_0", "edit_stale", "move_stale")])
@example(
    [
        quietly("prompt", "follow_up", "follow_up", "follow_up", "move_2_0", "edit_1", "promote_1"),
        quietly("edit_0", "move_0_2", "get_queue", "edit_delivered", "resume", "model_says"),
        quietly("follow_ups_all", "move_1_0", "remove_delivered", "resume", "model_says"),
    ]
)
@example([[*quietly("prompt", "follow_up"), *at_once("model_says", "edit_0", "remove_0", "steer")]])
@example([[*quietly("prompt", "steer", "steer", "steers_all"), *at_once("move_1_0", "model_says")]])
@example([quietly("prompt", "steer", "follow_up"), quietly("resume", "get_queue")])
@example([quietly(*ALMOST_OVER, "prompt", "disk_goes_on", "abort")])
@example([quietly(*ALMOST_OVER, "steer", "follow_up"), quietly("resume", "model_says")])
@example([quietly("disk_pauses", "prompt", "disk_writes"), quietly("resume", "model_says")])
@example([quietly("prompt", "append", "get_messages", "model_wants_1", "append", "tool_works")])
@example([quietly("disk_pauses", "prompt", "abort_keep", "disk_goes_on", "resume")])
@example([quietly("append", "prompt_of_appended", "model_says", "append", "append", "resume")])
@example([quietly("prompt", "append"), quietly("get_messages", "resume", "append", "abort")])
@example([quietly("prompt", "steer", "append", "abort_keep", "resume", "abort_stale")])
@example(
    [[*quietly(*ALMOST_OVER), *at_once("append", "abort", "abort_keep"), *quietly("disk_goes_on")]]
)
@example([[*quietly("prompt"), *at_once("model_says", "abort", "append", "abort_keep", "prompt")]])
@example([[*quietly("prompt"), *at_once("model_says", "follow_up", "steer", "prompt", "abort")]])
def test_each_accepted_input_is_consumed_or_cleared_once_and_in_order(
    workdir: Path, lives: list[Steps]
) -> None:
    trio.run(live, lives, workdir, clock=MockClock(autojump_threshold=0))
