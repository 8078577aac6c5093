"""A whole daemon on the log that each earlier version left behind when it was killed.

``tests.harness.earlier_stores`` describes the contents of the logs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION
from tests.daemon.process_harness import Place, running
from tests.harness.daemon import Client, Event, Payload, of_type, types
from tests.harness.earlier_stores import (
    EARLIER,
    HELD,
    Held,
    Said,
    stored_inputs,
    stored_lines,
    unpack,
)
from tests.harness.lifecycle import LifecycleChecker


@pytest.fixture(params=EARLIER)
def name(request: pytest.FixtureRequest) -> str:
    """The name of the log of each earlier version."""
    name: str = request.param
    return name


@pytest.fixture
def held(name: str) -> Held:
    """The expected contents of that log."""
    return HELD[name]


@pytest.fixture
def place(name: str, short_folder: Path) -> Place:
    """The folder of a daemon with that log. It joins no old deltas: whether a log has any depends on
    today's date.
    """
    place = Place(short_folder, options=("--delta-retention-days", "0"))
    unpack(name, place.state / "nousd.db")
    return place


@pytest.fixture
async def client(place: Place, held: Held) -> AsyncIterator[Client]:
    """A client of a daemon that was started on the log and has closed what was open."""
    async with running(place):
        events = await place.watch(after=f"evt-{held.last_seq}", types="all")
        for other in held.others:
            for type_ in other.owed:
                await events.until(type_, session_id=other.session_id)
        yield await place.connect()


async def replay(place: Place, client: Client) -> list[Event]:
    """Return the whole log as a subscription replays it."""
    head = (await client.request("get_state"))["cursor"]
    events = await place.watch(after="evt-0", types="all")
    log = [await events.next()]
    while log[-1]["id"] != head:
        log.append(await events.next())
    return log


async def read_pages(client: Client, **wanted: str) -> list[Event]:
    """Return the events that ``get_events`` gives page by page."""
    log: list[Event] = []
    after = "evt-0"
    while page := await client.request("get_events", after=after, types="all", limit=50, **wanted):
        if not page["events"]:
            return log
        log += page["events"]
        after = page["next"]
    return log


def role_and_text(entry: Payload) -> tuple[str, str]:
    if entry["type"] == "compaction":
        return "compaction", entry["summary"]
    return entry["role"], entry["text"]


# The client checks each event against the schemas.


@pytest.mark.slow
@pytest.mark.behaviour("logs_of_earlier_versions_are_read")
async def test_the_whole_log_can_be_replayed_and_paged(place: Place, client: Client) -> None:
    log = await replay(place, client)
    assert log == await read_pages(client)
    kept = {event["id"] for event in log}
    assert {f"evt-{seq}" for seq in stored_lines(place.state / "nousd.db")} <= kept
    assert {
        event["payload"]["attempt"] for event in log if event["type"] == "tool_call_started"
    } == {1}


@pytest.mark.slow
async def test_every_run_is_balanced_and_the_killed_one_is_closed(
    place: Place, client: Client, held: Held
) -> None:
    checker = LifecycleChecker(complete_after=held.last_seq)
    log = await replay(place, client)
    for event in log:
        checker.feed(json.dumps(event).encode())
    checker.finish()
    assert checker.ended_runs == len(held.ended) + 1
    new = [event for event in log if int(event["id"].removeprefix("evt-")) > held.last_seq]
    for other in held.others:
        assert types(of_session(new, other.session_id)) == [*other.owed]
    new = of_session(new, held.main)
    # Runs report their usage from the version on that records model inputs.
    counted = ["usage_reported"] if held.version >= 3 else []
    assert types(new) == [*counted, "message_end", "entry_appended", "turn_end", "agent_end"]
    assert {event["payload"].get("run_id") for event in new} == {held.killed}
    assert new[-1]["payload"]["status"] == "interrupted"
    statuses = [end["status"] for end in of_type(log, "agent_end")]
    assert statuses == [*held.ended, "interrupted"]


def of_session(events: list[Event], session_id: str) -> list[Event]:
    return [event for event in events if event["payload"]["session_id"] == session_id]


@pytest.mark.slow
async def test_filters_by_session_and_run_return_their_events_in_log_order(
    place: Place, client: Client
) -> None:
    log = await read_pages(client)
    sessions = {event["payload"]["session_id"] for event in log}
    for session_id in sessions:
        mine = of_session(log, session_id)
        assert await read_pages(client, session_id=session_id) == mine
        watched = await place.watch(after="evt-0", types="all", session_id=session_id)
        assert [await watched.next() for _ in mine] == mine
    for run_id in {run_of(event) for event in log} - {None}:
        mine = [event for event in log if run_of(event) == run_id]
        assert await read_pages(client, run_id=run_id) == mine
        for session_id in sessions:
            both = await read_pages(client, run_id=run_id, session_id=session_id)
            assert both == of_session(mine, session_id)


def run_of(event: Event) -> Any:
    """Return the run of an event, or the call that a client made."""
    payload = event["payload"]
    return payload.get("run_id", payload.get("tool_call_id"))


@pytest.mark.slow(keep=1)
async def test_the_transcript_and_the_tree_are_unchanged(client: Client, held: Held) -> None:
    answer = await client.request("get_messages")
    assert answer["session_id"] == held.main
    check_messages(answer["messages"], held.said)
    thinking, partial = answer["messages"][1], answer["messages"][-1]
    assert thinking["reasoning"].startswith("word1")
    assert (partial["stop_reason"], partial["run_id"]) == ("interrupted", held.killed)
    tree = await client.request("get_tree")
    assert [node["id"] for node in tree["nodes"]] == [entry["id"] for entry in answer["messages"]]
    branch = await client.request("get_messages", session_id=held.branch)
    shared = [entry["id"] for entry in answer["messages"]].index(held.branched_at) + 1
    assert branch["messages"][:shared] == answer["messages"][:shared]
    check_messages(branch["messages"][shared:], held.said_in_branch)


def check_messages(entries: list[Payload], said: Said) -> None:
    found = [role_and_text(entry) for entry in entries]
    assert [role for role, _ in found] == [role for role, _ in said]
    for (_, text), (_, beginning) in zip(found, said, strict=True):
        assert text.startswith(beginning)


@pytest.mark.slow
async def test_sessions_and_their_settings_are_unchanged(
    place: Place, client: Client, held: Held
) -> None:
    workspace = held.workspace or str(place.work)
    expected = {
        held.main: (held.name, workspace, None, False),
        held.branch: (None, workspace, None, False),
    }
    assert await session_rows(client) == expected | expected_rows(held, of_tasks=False)
    assert await session_rows(client, children=True) == (
        expected | expected_rows(held, of_tasks=False) | expected_rows(held, of_tasks=True)
    )
    gone = await client.refusal("get_messages", session_id=held.deleted)
    assert gone["code"] == "session_not_found"
    branch = await client.request("get_state", session_id=held.branch)
    assert (branch["steering_mode"], branch["run_state"]) == (held.branch_mode, "idle")
    assert (await client.request("get_state"))["model"] == held.model


async def session_rows(client: Client, **wanted: bool) -> dict[str, tuple[Any, ...]]:
    """Return the name, workspace and source of each session in a list, and whether it is archived."""
    rows = (await client.request("list_sessions", **wanted))["sessions"]
    return {
        row["session_id"]: (row.get("name"), row["workspace"], row.get("source"), row["archived"])
        for row in rows
    }


def expected_rows(held: Held, *, of_tasks: bool) -> dict[str, tuple[Any, ...]]:
    return {
        other.session_id: (other.name, other.workspace, other.source, other.is_archived)
        for other in held.others
        if other.is_of_task == of_tasks
    }


async def settle_in(place: Place, client: Client, held: Held) -> None:
    """Attach sessions whose workspace was on another machine to a folder of this one."""
    if held.workspace is not None:
        for session_id in (held.main, held.branch):
            await client.request("attach_session", workspace=str(place.work), session_id=session_id)


@pytest.mark.slow
async def test_the_queued_inputs_of_each_session_are_unchanged(client: Client, held: Held) -> None:
    waiting = {other.session_id: other.waiting for other in held.others}
    waiting |= {held.main: held.waiting, held.branch: ()}
    for session_id, expected in waiting.items():
        queue = await client.request("get_queue", session_id=session_id)
        assert tuple((item["kind"], item["text"]) for item in queue["inputs"]) == expected
        assert queue["pending_counts"] == {
            kind: [each for each, _ in expected].count(kind) for kind in ("steer", "follow_up")
        }


@pytest.mark.slow
async def test_a_resent_input_is_recognized_in_any_state(place: Place, client: Client) -> None:
    inputs = [
        each
        for each in stored_inputs(place.state / "nousd.db")
        if each.client_message_id is not None
    ]
    assert inputs
    for each in inputs:
        again = await client.request(
            "prompt",
            text="sent again",
            session_id=each.session_id,
            client_message_id=each.client_message_id,
            wait=False,
        )
        assert (again["input_id"], again["repeated"]) == (each.input_id, True)


@pytest.mark.slow
async def test_client_calls_are_recognized_and_readable_with_their_outcomes(
    client: Client, held: Held
) -> None:
    calls = [(other.session_id, *call) for other in held.others for call in other.client_calls]
    made = await client.request("list_tool_calls")
    for session_id, client_call_id, end in calls:
        ids = {"session_id": session_id, "client_call_id": client_call_id}
        again = await client.request("call_tool", tool="ls", **ids)
        answer = await client.request("get_tool_call", tool_call_id=again["tool_call_id"])
        call = answer["call"]
        assert {key: call[key] for key in ids} == ids
        assert call.get("stop_reason", call["state"]) == end
    assert await client.request("list_tool_calls") == made


@pytest.mark.slow
async def test_deleted_sessions_leave_only_tombstones_even_after_a_restart(
    place: Place, held: Held
) -> None:
    of_tasks = {other.session_id for other in held.others if other.is_of_task}
    sessions = {held.main, held.branch, *(other.session_id for other in held.others)}
    async with running(place):
        client = await place.connect()
        for session_id in sessions - of_tasks:
            await client.request("delete_session", session_id=session_id)
        assert await session_rows(client, children=True) == {}
        log = await read_pages(client)
    assert set(types(log)) == {"session_deleted"}
    assert {event["payload"]["session_id"] for event in log} == {*sessions, held.deleted}
    async with running(place):
        client = await place.connect()
        assert await read_pages(client) == log
        assert await session_rows(client, children=True) == {}
    assert stored_inputs(place.state / "nousd.db") == []


@pytest.mark.slow
async def test_resume_runs_the_queued_inputs_in_the_order_of_the_queue(
    place: Place, client: Client, held: Held
) -> None:
    queue = await client.request("get_queue")
    assert tuple((item["kind"], item["text"]) for item in queue["inputs"]) == held.waiting
    message_id, index = held.sent
    kind, _ = held.waiting[index]
    again = await client.request(kind, text="sent again", client_message_id=message_id)
    assert (again["run_id"], again["input_id"]) == (held.killed, queue["inputs"][index]["input_id"])
    await settle_in(place, client, held)
    events = await place.watch(types="all")
    await client.request("resume")
    run = await events.run()
    assert (
        tuple(
            (start["turn_kind"], start["text"])
            for start in of_type(run, "message_start")
            if start["role"] == "user"
        )
        == held.waiting
    )
    assert run[-1]["payload"]["status"] == "completed"
    first, _ = of_type(run, "model_input")
    assert (first["entries"], first["messages"]) == (held.context, held.context)
    assert (await client.request("get_queue"))["inputs"] == []
    check_complete(run, held)


def check_complete(run: list[Event], held: Held) -> None:
    checker = LifecycleChecker(complete_after=held.last_seq)
    for event in run:
        checker.feed(json.dumps(event).encode())
    checker.finish()


@pytest.mark.slow
async def test_new_events_have_growing_ids_and_the_current_schema_version(
    place: Place, client: Client, held: Held
) -> None:
    await settle_in(place, client, held)
    before = stored_lines(place.state / "nousd.db")
    await client.request("prompt", text="[[tool ls {}]][[then]][[say 1]]", session_id=held.branch)
    after = stored_lines(place.state / "nousd.db")
    new = {seq: after[seq] for seq in after.keys() - before.keys()}
    assert min(new) > max(before)
    assert {version for version, _, _ in new.values()} == {EVENT_SCHEMA_VERSION}
    assert "tool_call_completed" in {type_ for _, type_, _ in new.values()}
    # The daemon may have joined old deltas, which writes them again.
    kept = {seq: row for seq, row in before.items() if not row[1].endswith("_update")}
    assert {version for seq, (version, _, _) in kept.items() if seq <= held.last_seq} == {
        held.version
    }
