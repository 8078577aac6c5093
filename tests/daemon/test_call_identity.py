"""The identity of a call: id, attempt, and hash of the arguments that are shown and that run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nousd.runtimes.calls.admission import input_hash
from nousd.tools.builtin.bash import BASH
from nousd.tools.builtin.read import READ
from tests.daemon.asking_bench import Bench, asking_daemon, calls, naming
from tests.daemon.scripted import says
from tests.harness.daemon import Event, of_type

CALL_EVENTS = ("tool_call_", "tool_execution_", "permission_requested")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with asking_daemon(tmp_path) as bench:
        yield bench


def hash_of(tool: Any, **args: Any) -> str:
    """Return the hash of a call with these arguments, validated by its tool."""
    return input_hash(tool.name, msgspec.to_builtins(tool.validate(args)))


def of_calls(events: list[Event]) -> list[dict[str, Any]]:
    return [event["payload"] for event in events if event["type"].startswith(CALL_EVENTS)]


def test_equivalent_arguments_have_the_same_hash() -> None:
    assert hash_of(READ, path="a.txt") == hash_of(READ, file_path="a.txt")
    assert hash_of(BASH, command="ls") == hash_of(BASH, command="ls", network=False)


@pytest.mark.parametrize(
    "changed",
    [{"command": "ls "}, {"network": True}, {"unsandboxed": True}, {"timeout": 7}],
    ids=str,
)
def test_every_argument_of_bash_changes_the_hash(changed: dict[str, Any]) -> None:
    assert hash_of(BASH, command="ls") != hash_of(BASH, **{"command": "ls", **changed})


def test_the_hash_includes_the_name_of_the_tool() -> None:
    assert input_hash("read", {"path": "a"}) != input_hash("write", {"path": "a"})


@pytest.mark.behaviour("what_is_approved_is_what_runs")
async def test_an_approved_call_runs_with_the_shown_arguments_including_defaults(
    bench: Bench,
) -> None:
    request = await bench.asked(calls(("fetch", "{}")))
    [requested] = [
        event["payload"]
        for event in (await bench.client.request("get_events", types=["tool_call_requested"]))[
            "events"
        ]
    ]
    assert requested["args"] == {}
    assert request["args"] == {"url": "https://example.org"}
    assert request["input_hash"] == input_hash("fetch", request["args"])
    await bench.client.request("confirm_tool", **naming(request, "once"))
    run = await bench.events.run()
    assert bench.fetched.urls == [request["args"]["url"]]
    assert {call["input_hash"] for call in of_calls(run)} == {request["input_hash"]}


async def test_an_answer_for_one_call_does_not_approve_another(bench: Bench) -> None:
    request = await bench.asked(calls(("fetch", '{"url":"https://a.org"}')))
    other = input_hash("fetch", {"url": "https://b.org"})
    refused = await bench.client.refusal(
        "confirm_tool", **{**naming(request, "once"), "input_hash": other}
    )
    assert refused["message"] == "input_hash_mismatch"
    assert bench.fetched.urls == []
    assert [each["tool_call_id"] for each in await bench.pending()] == [request["tool_call_id"]]
    await bench.client.request("confirm_tool", **naming(request, "deny"))
    await bench.events.run()
    assert bench.fetched.urls == []


async def test_every_event_of_a_call_names_it_by_id_attempt_and_hash(bench: Bench) -> None:
    """A call may run, be refused, or be aborted while it waits."""
    run = await bench.run(calls(("ls", "{}"), ("nope", "{}"), ("read", "{}")))
    request = await bench.asked(calls(("fetch", "{}")))
    await bench.client.request("abort")
    run += await bench.events.run()
    payloads = of_calls(run)
    assert {call["tool_name"] for call in payloads} == {"ls", "nope", "read", "fetch"}
    assert all(call["attempt"] == 1 for call in payloads)
    by_call: dict[str, set[str]] = {}
    for call in payloads:
        by_call.setdefault(call["tool_call_id"], set()).add(call["input_hash"])
    assert len(by_call) == 4
    assert all(len(hashes) == 1 for hashes in by_call.values())
    assert by_call[request["tool_call_id"]] == {request["input_hash"]}


async def test_a_call_id_is_entry_and_index_and_the_models_own_id_is_recorded_too(
    bench: Bench,
) -> None:
    run = await bench.run(calls(("ls", "{}"), ("ls", "{}")), says("done"))
    [message] = [
        entry["entry"] for entry in of_type(run, "entry_appended") if "tool_calls" in entry["entry"]
    ]
    requested = of_type(run, "tool_call_requested")
    assert [call["tool_call_id"] for call in requested] == [
        f"{message['id']}.0",
        f"{message['id']}.1",
    ]
    assert [call["runtime_tool_call_id"] for call in requested] == ["own-0", "own-1"]


async def test_a_failing_tool_leaves_balanced_events_and_the_run_continues(bench: Bench) -> None:
    run = await bench.run(calls(("read", '{"path":"nothing.txt"}'), ("ls", "{}")))
    kinds = [event["type"] for event in run]
    assert kinds.count("tool_call_started") == kinds.count("tool_call_completed") == 2
    assert kinds.count("tool_execution_start") == kinds.count("tool_execution_end") == 2
    assert run[-1]["payload"]["status"] == "completed"


async def test_an_abort_denies_the_waiting_call_and_runs_nothing(bench: Bench) -> None:
    request = await bench.asked(calls(("fetch", "{}"), ("fetch", "{}")))
    await bench.client.request("abort")
    run = await bench.events.run()
    [denied] = of_type(run, "tool_call_denied")
    assert (denied["by"], denied["tool_call_id"]) == ("stop", request["tool_call_id"])
    assert await bench.pending() == []
    assert bench.fetched.urls == []
