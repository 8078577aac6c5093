"""Clients that name no session: what they see and what they can touch is one set of runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from nousd.daemon.eventlog import hub as hub_module
from nousd.store.records import EventFilter
from nousd.wire.events import FROZEN_EVENTS
from tests.daemon.scripted import ScriptedProvider, says
from tests.harness.daemon import (
    Client,
    Daemon,
    Events,
    RequestRefused,
    decoded,
    memory_daemon,
    of_type,
    types,
)
from tests.harness.stub_model import Gate, StubModel, text_reply, tool_reply


async def new_session(client: Client, *, activate: bool = True) -> str:
    created = await client.request("new_session", activate=activate)
    session_id: str = created["session_id"]
    return session_id


async def start_in(daemon: Daemon, client: Client, stub: StubModel, session_id: str) -> Gate:
    """Start a run that stands in the middle of its answer until the gate opens."""
    watching = await daemon.watch(session_id=session_id)
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    await client.request("prompt", text="go", wait=False, session_id=session_id)
    await watching.until("message_update")
    return gate


async def pass_event(client: Client, bare: Events, stub: StubModel) -> list[dict[str, Any]]:
    """Make a run in the active session, and return all that a bare client has received up to its end."""
    stub.script(text_reply("marker"))
    accepted = await client.request("prompt", text="mark", wait=False)
    return await bare.run(accepted["run_id"])


@pytest.mark.behaviour("bare_clients_see_the_v1_scope")
async def test_a_bare_subscriber_does_not_see_the_runs_of_other_sessions(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    await new_session(client)
    bare = await daemon.listen()
    foreign = await new_session(client, activate=False)
    gate = await start_in(daemon, client, stub, foreign)
    gate.open()
    seen = await pass_event(client, bare, stub)
    assert [event["payload"]["session_id"] for event in seen if foreign in str(event)] == []
    assert types(seen)[0] == "agent_start"
    assert types(seen)[-1] == "agent_end"


async def test_a_subscriber_of_the_frozen_types_sees_every_session(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    await new_session(client)
    watching = await daemon.watch(types="v1")
    foreign = await new_session(client, activate=False)
    gate = await start_in(daemon, client, stub, foreign)
    gate.open()
    run = await watching.run()
    assert {event["payload"]["session_id"] for event in run} == {foreign}


@pytest.mark.behaviour("bare_clients_see_a_run_from_its_entrance")
async def test_a_foreign_run_is_seen_from_the_moment_when_its_session_becomes_active(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    home = await new_session(client)
    bare = await daemon.listen()
    foreign = await new_session(client, activate=False)
    gate = await start_in(daemon, client, stub, foreign)
    await client.request("switch_session", session_id=foreign)
    # Back at once: a run that entered the scope stays in it to its end.
    await client.request("switch_session", session_id=home)
    gate.open()
    seen = await bare.run()
    assert {event["payload"]["session_id"] for event in seen} == {foreign}
    assert "agent_start" not in types(seen)
    assert "".join(update["delta"] for update in of_type(seen, "message_update")) == "two"


async def test_a_client_that_connects_during_a_run_sees_the_rest_of_it(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    gate = await start_in(daemon, client, stub, await new_session(client))
    bare = await daemon.listen()
    await new_session(client)
    gate.open()
    seen = [type_ for type_ in types(await bare.run()) if type_ != "status"]
    assert seen == ["message_update", "message_end", "turn_end", "agent_end"]


async def test_a_bare_client_far_behind_sees_the_same_from_the_log(
    daemon: Daemon, client: Client, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "WINDOW_EVENTS_MAX", 4)
    monkeypatch.setattr(hub_module, "PAGE_BYTES", 300)
    home = await new_session(client)
    stalled = await daemon.listen()
    foreign = await new_session(client, activate=False)
    gate = await start_in(daemon, client, stub, foreign)
    hidden = await start_in(daemon, client, stub, await new_session(client, activate=False))
    await client.request("switch_session", session_id=foreign)
    await client.request("switch_session", session_id=home)
    hidden.open()
    gate.open()
    seen = await pass_event(client, stalled, stub)
    runs = [event["payload"]["session_id"] for event in seen if event["type"] == "agent_end"]
    assert set(runs) <= {foreign, home}
    assert {event["payload"]["session_id"] for event in seen} == {foreign, home}


async def test_the_run_of_a_task_is_neither_seen_nor_reached(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    session = await new_session(client)
    bare = await daemon.listen()
    gate = Gate()
    tasks = {"tasks": [{"prompt": "look"}]}
    stub.script(tool_reply(("task", tasks)), text_reply("child ", gate, "done"), text_reply("end"))
    await client.request("prompt", text="go", wait=False)
    await gate.reached()
    child = next(
        run["session_id"]
        for run in (await client.request("get_state"))["runs"]
        if run["session_id"] != session
    )
    await client.request("switch_session", session_id=child)
    parent_run = (await client.request("get_state"))["run_id"]
    assert (await client.request("steer", text="hello"))["run_id"] == parent_run
    await client.request("clear_queue", session_id=session)
    gate.open()
    assert {event["payload"]["session_id"] for event in await bare.run(parent_run)} == {session}


async def test_the_run_of_a_task_is_not_reached_in_its_own_session_either(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    await new_session(client)
    parent = await new_session(client, activate=False)
    gate = Gate()
    tasks = {"tasks": [{"prompt": "look"}]}
    stub.script(tool_reply(("task", tasks)), text_reply("child ", gate, "done"), text_reply("end"))
    await client.request("prompt", text="go", wait=False, session_id=parent)
    await gate.reached()
    runs = (await client.request("get_state"))["runs"]
    child = next(run["session_id"] for run in runs if run["session_id"] != parent)
    await client.request("switch_session", session_id=child)
    assert (await client.refusal("steer", text="hello"))["message"] == "no_active_run"
    state = await client.request("get_state")
    assert (state["session_id"], state["run_state"], state["run_id"]) == (child, "idle", "")
    named = await client.request("get_state", session_id=child)
    assert named["run_state"] == "running"
    gate.open()


@pytest.mark.parametrize("is_active_before", [True, False])
async def test_a_later_run_in_the_session_of_an_ended_task_is_the_users_own(
    daemon: Daemon, client: Client, stub: StubModel, *, is_active_before: bool
) -> None:
    parent = await new_session(client)
    tasks = {"tasks": [{"prompt": "look"}]}
    stub.script(tool_reply(("task", tasks)), text_reply("child"), text_reply("end"))
    await client.request("prompt", text="go", wait=True, session_id=parent)
    sessions = (await client.request("list_sessions", children=True))["sessions"]
    child = next(each["session_id"] for each in sessions if each["session_id"] != parent)
    if is_active_before:
        await client.request("switch_session", session_id=child)
    gate = await start_in(daemon, client, stub, child)
    if not is_active_before:
        await client.request("switch_session", session_id=child)
    state = await client.request("get_state")
    assert (state["session_id"], state["run_state"]) == (child, "running")
    assert [run.get("origin") for run in state["runs"]] == [None]
    assert (await client.request("abort"))["run_id"] == state["run_id"]
    gate.open()


@pytest.mark.behaviour("bare_commands_reach_the_v1_scope")
@pytest.mark.parametrize(
    ("command", "payload"), [("steer", {"text": "x"}), ("follow_up", {"text": "x"}), ("abort", {})]
)
async def test_a_command_without_a_target_reaches_no_foreign_run(
    daemon: Daemon, client: Client, stub: StubModel, command: str, payload: dict[str, str]
) -> None:
    await new_session(client)
    foreign = await new_session(client, activate=False)
    gate = await start_in(daemon, client, stub, foreign)
    assert (await client.refusal(command, **payload))["message"] == "no_active_run"
    state = await client.request("get_state")
    assert (state["run_state"], state["run_id"]) == ("idle", "")
    assert len(state["runs"]) == 1
    gate.open()


async def test_get_state_without_a_session_shows_the_run_that_a_steer_would_reach(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    first = await new_session(client)
    gate = await start_in(daemon, client, stub, first)
    second = await new_session(client)
    await client.request("follow_up", text="later")
    state = await client.request("get_state")
    assert state["session_id"] == second
    assert (state["run_state"], state["pending_counts"]) == (
        "running",
        {"steer": 0, "follow_up": 1},
    )
    assert (await client.request("steer", text="now"))["run_id"] == state["run_id"]
    named = await client.request("get_state", session_id=second)
    assert (named["run_state"], named["pending_counts"]) == ("idle", {"steer": 0, "follow_up": 0})
    stub.script(text_reply("steered"), text_reply("followed"))
    gate.open()
    await events.until("agent_end")
    assert (await client.request("get_state"))["run_state"] == "idle"


@pytest.mark.behaviour("abort_without_a_run_clears_the_queue")
async def test_an_abort_without_a_run_gives_back_what_waits_in_the_active_session(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    session = await new_session(client)
    gate = await start_in(daemon, client, stub, session)
    await client.request("follow_up", text="later")
    await client.request("abort", keep_queue=True)
    await events.run()
    assert (await client.refusal("abort", keep_queue=True))["message"] == "no_active_run"
    wrong = await client.refusal("abort", expected_run_id="run-unknown")
    assert wrong["message"] == "no_active_run"
    answer = await client.request("abort")
    assert [queued["text"] for queued in answer["cleared"]] == ["later"]
    assert "run_id" not in answer
    assert (await client.request("get_queue"))["inputs"] == []
    assert (await client.refusal("abort"))["message"] == "no_active_run"
    gate.open()


# --- any interleaving ------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ("new", "apart", "switch", "prompt", "prompt_in", "answer", "listen", "steer", "abort")
        ),
        st.integers(0, 3),
    ),
    min_size=5,
    max_size=40,
)


class Scope:
    """What the log says of the v1 scope: only from the order of activations and runs."""

    def __init__(self) -> None:
        self.active: str | None = None
        self.sessions: dict[str, str] = {}
        self.runs: set[str] = set()

    def note(self, type_: str, payload: dict[str, Any]) -> None:
        if type_ == "session_activated":
            self.active = payload["session_id"]
            self.runs |= {run for run, session in self.sessions.items() if session == self.active}
        elif type_ == "agent_start":
            self.sessions[payload["run_id"]] = payload["session_id"]
            if payload["session_id"] == self.active:
                self.runs.add(payload["run_id"])

    def has(self, payload: dict[str, Any]) -> bool:
        if "run_id" in payload:
            return payload["run_id"] in self.runs
        return payload["session_id"] in ("", self.active)

    def end(self, run_id: str) -> None:
        del self.sessions[run_id]
        self.runs.discard(run_id)


class Player:
    """Plays operations on a daemon, and compares what is seen and reached with the log."""

    def __init__(
        self, daemon: Daemon, provider: ScriptedProvider, client: Client, nursery: trio.Nursery
    ) -> None:
        self._daemon = daemon
        self._provider = provider
        self._client = client
        self._nursery = nursery
        self.sessions: list[str] = []
        self.readers: list[tuple[int, list[str]]] = []

    async def play(self, name: str, number: int) -> None:
        client = self._client
        session = self.sessions[number % len(self.sessions)] if self.sessions else None
        match name:
            case "new" | "apart":
                self.sessions.append(await new_session(client, activate=name == "new"))
            case "switch" if session:
                await client.request("switch_session", session_id=session)
            case "prompt":
                await self._may_be_refused("prompt", text="go", wait=False)
            case "prompt_in" if session:
                await self._may_be_refused("prompt", text="go", wait=False, session_id=session)
            case "answer":
                await self.answer()
            case "listen" if len(self.readers) < 4:
                head, ids = self._daemon.services.hub.head, list[str]()
                self._nursery.start_soon(collect, await self._daemon.listen(), ids)
                self.readers.append((head, ids))
            case "steer" | "abort":
                text = {"text": "x"} if name == "steer" else {}
                expected = await self._reached()
                answer = await self._may_be_refused(name, **text)
                assert (answer or {}).get("run_id") == expected, (name, answer)
        await wait_all_tasks_blocked()

    async def answer(self) -> None:
        await wait_all_tasks_blocked()
        if self._provider.waiting:
            self._provider.answer(says("hello"))
            await wait_all_tasks_blocked()

    async def _may_be_refused(self, type: str, **payload: Any) -> dict[str, Any] | None:
        try:
            return dict(await self._client.request(type, **payload))
        except RequestRefused:
            return None

    async def _reached(self) -> str | None:
        scope = await self.scope()
        of_active = [run for run in scope.runs if scope.sessions[run] == scope.active]
        found = of_active or list(scope.runs)
        if len(found) != 1:
            return None
        return found[0]

    async def scope(self) -> Scope:
        scope = Scope()
        for _, type_, payload in await logged(self._daemon):
            scope.note(type_, payload)
            if type_ == "agent_end":
                scope.end(payload["run_id"])
        return scope


async def logged(daemon: Daemon) -> list[tuple[int, str, dict[str, Any]]]:
    store = daemon.services.store
    stored = await store.events_after(0, EventFilter(), limit=100_000, bytes_max=1 << 30)
    return [(event.seq, event.type, decoded(event.line)["payload"]) for event in stored]


async def collect(bare: Events, ids: list[str]) -> None:
    """Note the ids of all events that a client receives, until its connection is closed."""
    with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
        while line := await bare.receive_line():
            ids.append(decoded(line)["id"])


def expected_after(head: int, log: list[tuple[int, str, dict[str, Any]]]) -> list[str]:
    """Return the ids of the events that a bare client receives that joined at ``head``."""
    scope, expected = Scope(), []
    for seq, type_, payload in log:
        scope.note(type_, payload)
        if seq > head and type_ in FROZEN_EVENTS and scope.has(payload):
            expected.append(f"evt-{seq}")
        if type_ == "agent_end":
            scope.end(payload["run_id"])
    return expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS, page_bytes=st.sampled_from((1, 400, 1 << 17)))
async def test_what_bare_clients_see_and_reach_follows_from_the_log_in_any_interleaving(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operations: list[tuple[str, int]],
    page_bytes: int,
) -> None:
    monkeypatch.setattr(hub_module, "PAGE_BYTES", page_bytes)
    provider = ScriptedProvider()
    async with (
        memory_daemon(workdir=tmp_path, provider=provider) as daemon,
        trio.open_nursery() as nursery,
    ):
        player = Player(daemon, provider, await daemon.connect(), nursery)
        for name, number in operations:
            await player.play(name, number)
        while provider.waiting:
            await player.answer()
        log = await logged(daemon)
        for head, ids in player.readers:
            assert ids == expected_after(head, log)
        nursery.cancel_scope.cancel()
