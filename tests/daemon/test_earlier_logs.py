"""A whole daemon on the log that an earlier version left behind when it was killed.

``schema-1`` holds a session with a branch, a compaction, reasoning, tool calls, an aborted run, and a
run that was killed in the middle of its answer while a steer and a follow-up waited; and the tombstone
of a deleted session.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nousd.wire.lifting import EVENT_SCHEMA_VERSION
from tests.daemon.process_harness import Place, running
from tests.daemon_harness import Client, Event, Payload, of_type, types
from tests.earlier_stores import stored_lines, unpack
from tests.lifecycle import LifecycleChecker

MAIN = "sess-0660c5f6f019259e45eb44"
BRANCH = "sess-0660c5f6f3267369cc943d"
DELETED = "sess-0660c5f6f33f59b963be69"
KILLED = "run-0660c5f6ffb40d459b890f"
BRANCHED_AT = "msg-0660c5f6f317e84331c90a"
LAST_SEQ = 250

TRANSCRIPT = [
    ("user", "[[think 12]] [[say 40]]"),
    ("assistant", " ".join(f"word{number}" for number in range(1, 41))),
    ("user", '[[text Looking.]] [[tool read {"path":"a.txt"}]] [[tool bash {"command":"for n in 1'),
    ("assistant", "Looking."),
    ("tool", "alpha"),
    ("tool", "line 1\nline 2\nline 3"),
    ("assistant", " ".join(f"word{number}" for number in range(1, 21))),
    ("compaction", "mock summary (messages: 1)"),
    ("user", "after the compaction [[say 3]]"),
    ("assistant", "word1 word2 word3"),
    ("user", "[[slow 100]] [[say 500]]"),
    ("assistant", "word1 word2 word3 word4 "),
    ("user", "[[slow 60]] [[say 2000]]"),
    ("assistant", "word1 word2 "),
]
"""(role, how the text begins) of what the session says, with the partial answer of the killed run."""


@pytest.fixture
def place(short_folder: Path) -> Place:
    place = Place(short_folder)
    unpack("schema-1", place.state / "nousd.db")
    return place


@pytest.fixture
async def client(place: Place) -> AsyncIterator[Client]:
    """A client of a daemon that was started on the log."""
    async with running(place):
        yield await place.connect()


async def replayed(place: Place, client: Client) -> list[Event]:
    """Returns the whole log as a subscription replays it."""
    head = (await client.request("get_state"))["cursor"]
    events = await place.watch(after="evt-0", types="all")
    log = [await events.next()]
    while log[-1]["id"] != head:
        log.append(await events.next())
    return log


async def paged(client: Client) -> list[Event]:
    """Returns the whole log as ``get_events`` gives it."""
    log: list[Event] = []
    after = "evt-0"
    while page := await client.request("get_events", after=after, types="all", limit=50):
        if not page["events"]:
            return log
        log += page["events"]
        after = page["next"]
    return log


def shown(entry: Payload) -> tuple[str, str]:
    if entry["type"] == "compaction":
        return "compaction", entry["summary"]
    return entry["role"], entry["text"]


# Each event is checked against the schemas when it is read.


@pytest.mark.behaviour("logs_of_earlier_versions_are_read")
async def test_the_whole_log_can_be_replayed_and_paged(place: Place, client: Client) -> None:
    log = await replayed(place, client)
    assert log == await paged(client)
    kept = {event["id"] for event in log}
    for seq, (_, type_, _) in stored_lines(place.state / "nousd.db").items():
        # Old deltas may have been joined.
        assert f"evt-{seq}" in kept or type_.endswith("_update")
    assert {
        event["payload"]["attempt"] for event in log if event["type"] == "tool_call_started"
    } == {1}


async def test_every_run_in_it_is_balanced_and_the_killed_one_is_closed(
    place: Place, client: Client
) -> None:
    checker = LifecycleChecker(complete_after=LAST_SEQ)
    log = await replayed(place, client)
    for event in log:
        checker.feed(json.dumps(event).encode())
    checker.finish()
    assert checker.ended_runs == 6
    new = [event for event in log if int(event["id"].removeprefix("evt-")) > LAST_SEQ]
    assert types(new) == ["message_end", "entry_appended", "turn_end", "agent_end"]
    assert {event["payload"].get("run_id") for event in new} == {KILLED}
    assert new[-1]["payload"]["status"] == "interrupted"
    statuses = [end["status"] for end in of_type(log, "agent_end")]
    assert statuses == [*["completed"] * 4, "cancelled", "interrupted"]


async def test_the_transcript_and_the_tree_are_as_they_were(client: Client) -> None:
    answer = await client.request("get_messages")
    told = [shown(entry) for entry in answer["messages"]]
    assert answer["session_id"] == MAIN
    assert [role for role, _ in told] == [role for role, _ in TRANSCRIPT]
    for (_, text), (_, beginning) in zip(told, TRANSCRIPT, strict=True):
        assert text.startswith(beginning)
    thinking, partial = answer["messages"][1], answer["messages"][-1]
    assert thinking["reasoning"].startswith("word1")
    assert (partial["stop_reason"], partial["run_id"]) == ("interrupted", KILLED)
    tree = await client.request("get_tree")
    assert [node["id"] for node in tree["nodes"]] == [entry["id"] for entry in answer["messages"]]
    branch = await client.request("get_messages", session_id=BRANCH)
    shared = [entry["id"] for entry in answer["messages"]].index(BRANCHED_AT) + 1
    assert branch["messages"][:shared] == answer["messages"][:shared]
    assert [shown(entry) for entry in branch["messages"][shared:]] == [
        ("user", "on the branch [[tool nosuch {}]] [[then]] [[say 5]]"),
        ("assistant", ""),
        ("tool", "tool_error: tool_not_found: nosuch"),
        ("assistant", "word1 word2 word3 word4 word5"),
    ]


async def test_sessions_and_their_settings_are_as_they_were(client: Client) -> None:
    listed = (await client.request("list_sessions"))["sessions"]
    assert {row["session_id"]: row.get("name") for row in listed} == {
        MAIN: "written by schema version 1",
        BRANCH: None,
    }
    assert (await client.refusal("get_messages", session_id=DELETED))["code"] == "session_not_found"
    state = await client.request("get_state", session_id=BRANCH)
    assert (state["steering_mode"], state["run_state"]) == ("all", "idle")


async def test_what_waited_still_waits_and_is_run_by_resume_the_steer_first(
    place: Place, client: Client
) -> None:
    queue = await client.request("get_queue")
    assert [(item["kind"], item["text"]) for item in queue["inputs"]] == [
        ("steer", "a steer that waits"),
        ("follow_up", "a follow-up that waits"),
    ]
    again = await client.request("follow_up", text="sent again", client_message_id="c-2")
    assert (again["run_id"], again["input_id"]) == (KILLED, queue["inputs"][1]["input_id"])
    events = await place.watch(types="all")
    await client.request("resume")
    run = await events.run()
    assert [
        (start["turn_kind"], start["text"])
        for start in of_type(run, "message_start")
        if start["role"] == "user"
    ] == [("steer", "a steer that waits"), ("follow_up", "a follow-up that waits")]
    assert run[-1]["payload"]["status"] == "completed"
    first, _ = of_type(run, "model_input")
    # The summary, the five entries it kept, six behind it, and the steer.
    assert (first["entries"], first["messages"]) == (13, 13)
    assert (await client.request("get_queue"))["inputs"] == []
    check_complete(run)


def check_complete(run: list[Event]) -> None:
    checker = LifecycleChecker(complete_after=LAST_SEQ)
    for event in run:
        checker.feed(json.dumps(event).encode())
    checker.finish()


async def test_ids_go_on_growing_and_what_is_new_has_the_present_version(
    place: Place, client: Client
) -> None:
    before: dict[int, Any] = stored_lines(place.state / "nousd.db")
    await client.request("prompt", text="[[tool ls {}]][[then]][[say 1]]", session_id=BRANCH)
    after = stored_lines(place.state / "nousd.db")
    new = {seq: after[seq] for seq in after.keys() - before.keys()}
    assert min(new) > max(before)
    assert {version for version, _, _ in new.values()} == {EVENT_SCHEMA_VERSION}
    assert "tool_call_completed" in {type_ for _, type_, _ in new.values()}
    # Old deltas may have been joined, which writes them anew.
    kept = {seq: row for seq, row in before.items() if not row[1].endswith("_update")}
    assert {version for seq, (version, _, _) in kept.items() if seq <= LAST_SEQ} == {1}
