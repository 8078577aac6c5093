"""Weaknesses seen in the field, when many clients used a daemon for months."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.providers.interface import Provider
from nousd.providers.mock.provider import MockProvider
from nousd.runtimes.native.loop import NativeSettings
from tests.daemon.process_harness import Place, running
from tests.harness.daemon import (
    WAIT_SECONDS,
    Client,
    Daemon,
    Events,
    memory_daemon,
    of_type,
    socket_daemon,
)
from tests.harness.stub_model import StubModel, burst_reply, text_reply, tool_reply


def deltas(run: list[dict[str, Any]]) -> str:
    return "".join(update["delta"] for update in of_type(run, "message_update"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.behaviour("stalled_subscribers_lose_nothing")
async def test_subscribers_that_do_not_read_are_never_dropped_and_lose_nothing(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    """Neither a burst nor a sleeping reader makes any reader lose an event."""
    stalled = [await daemon.watch() for _ in range(4)]
    stub.script(burst_reply(5000))
    run_id = (await client.request("prompt", text="go", wait=False))["run_id"]
    live = await events.run(run_id)
    assert deltas(live) == "word " * 5000
    for late in stalled:
        assert await late.run(run_id) == live


@pytest.mark.slow
async def test_a_subscriber_far_behind_the_memory_window_reads_from_the_log(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    """Events that left memory come from the disk, in order and without a gap."""
    asleep = await daemon.watch()
    big = "x" * 500_000
    live = []
    for _ in range(6):
        stub.script(text_reply(big, big, big, big))
        await client.request("prompt", text="go", wait=False)
        live += await events.run()
    seen: list[dict[str, Any]] = []
    for _ in range(6):
        seen += await asleep.run()
    assert seen == live


async def test_a_session_continues_after_a_very_long_line(client: Client, stub: StubModel) -> None:
    """Texts of hundreds of kilobytes are stored, read back and sent to the model completely."""
    question, answer = "q" * 150_000, "a" * 150_000
    stub.script(text_reply(answer))
    assert (await client.request("prompt", text=question))["output"] == answer
    assert (await client.request("prompt", text="and again"))["status"] == "completed"
    texts = [entry["text"] for entry in (await client.request("get_messages"))["messages"]]
    assert texts == [question, answer, "and again", "stub-reply"]
    assert len((await client.request("get_tree"))["nodes"]) == 4
    contents = [message["content"] for message in stub.requests[1].json["messages"]]
    assert contents == [question, answer, "and again"]


@pytest.mark.slow
async def test_summaries_stay_bounded_over_hundreds_of_turns(
    tmp_path: Path,
) -> None:
    """Compaction works any number of times: its summaries are bounded and each call succeeds."""
    provider = MockProvider(context_window_tokens=2000)
    settings = NativeSettings(context_window=2000, keep_recent_tokens=500)
    async with memory_daemon(workdir=tmp_path, provider=provider, native=settings) as daemon:
        client = await daemon.connect()
        # The definitions of all tools would fill such a window.
        await client.request("set_active_tools", tools=["read"])
        for number in range(250):
            result = await client.request("prompt", text=f"{number} " + "x" * 500)
            assert result["status"] == "completed"
        entries = (await client.request("get_messages"))["messages"]
        summaries = [entry["summary"] for entry in entries if entry["type"] == "compaction"]
        assert len(summaries) > 20
        assert max(map(len, summaries)) < 2000
        told = (await client.request("get_messages", compacted=True))["messages"]
        assert len(told) < 20


async def test_every_accepted_prompt_of_a_rapid_series_runs(
    client: Client, daemon: Daemon, stub: StubModel
) -> None:
    """A prompt at the end of a run is either run or refused, never accepted and forgotten."""
    everything = await daemon.watch(types=["message_start", "agent_end"])
    request_ids = [await client.ask("prompt", text=f"p{n}", wait=False) for n in range(300)]
    answers = [await client.answer(request_id) for request_id in request_ids]
    accepted = [answer["payload"]["run_id"] for answer in answers if answer["ok"]]
    assert accepted
    ended: dict[str, str] = {}
    while len(ended) < len(accepted):
        event = await everything.next()
        if event["type"] == "agent_end":
            ended[event["payload"]["run_id"]] = event["payload"]["status"]
    assert ended == dict.fromkeys(accepted, "completed")
    assert len(stub.requests) == len(accepted)
    refused = {answer["error"]["message"] for answer in answers if not answer["ok"]}
    assert refused <= {"run_in_progress"}


@pytest.mark.behaviour("an_input_at_the_end_of_a_run_is_run_or_refused")
@pytest.mark.slow
async def test_every_accepted_follow_up_is_consumed_by_the_run_that_accepted_it(
    client: Client, daemon: Daemon
) -> None:
    """An input at the very end of a run is either run or refused, never accepted and forgotten."""
    events, other = await daemon.watch(), await daemon.connect()
    outcomes = set()
    for _ in range(10):
        run_id = (await client.request("prompt", text="go", wait=False))["run_id"]
        accepted = []
        for number in itertools.count():
            answer = await other.answer(await other.ask("follow_up", text=f"f{number}"))
            outcomes.add(answer["ok"])
            if not answer["ok"]:
                assert answer["error"]["message"] == "no_active_run"
                break
            accepted.append(answer["payload"]["input_id"])
            if number == 3:
                break
        starts = of_type(await events.run(run_id), "message_start")
        consumed = [id_ for start in starts for id_ in start.get("input_ids", [])]
        assert consumed[1:] == accepted
    assert True in outcomes


@pytest.mark.behaviour("the_active_session_survives_restarts")
async def test_the_active_session_and_its_leaf_survive_a_restart(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    """After a restart work continues at the same leaf, and siblings stay separate."""
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        await client.request("new_session")
        await client.request("prompt", text="one")
        home = await client.request("get_state")
        await client.request("prompt", text="two")
        await client.request("set_leaf", leaf_id=home["leaf_id"])
        await client.request("set_steering_mode", mode="all")
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        state = await client.request("get_state")
        assert (state["session_id"], state["leaf_id"]) == (home["session_id"], home["leaf_id"])
        assert state["steering_mode"] == "all"
        await client.request("prompt", text="sibling")
        texts = [entry["text"] for entry in (await client.request("get_messages"))["messages"]]
        assert texts == ["one", "stub-reply", "sibling", "stub-reply"]
        assert [message["content"] for message in stub.requests[-1].json["messages"]] == [
            *("one", "stub-reply", "sibling"),
        ]


@pytest.mark.parametrize("session_id", ["../outside", "/etc/passwd", ".", "a/../../outside", "%00"])
async def test_a_session_id_is_never_used_as_a_path(
    session_id: str, short_folder: Path, client: Client
) -> None:
    """A path as an id is an unknown session, and no file is created or deleted."""
    before = names(short_folder)
    for command, payload in (
        ("get_messages", {}),
        ("switch_session", {}),
        ("branch_session", {}),
        ("get_tree", {}),
        ("delete_session", {}),
        ("compact_session", {}),
        ("set_leaf", {"leaf_id": "x"}),
        ("prompt", {"text": "x"}),
    ):
        error = await client.refusal(command, session_id=session_id, **payload)
        assert error["code"] == "session_not_found", command
        assert str(short_folder) not in str(error)
    assert names(short_folder) == before


@pytest.mark.behaviour("unknown_leaves_are_refused")
async def test_an_unknown_leaf_is_refused_and_changes_nothing(client: Client) -> None:
    """No command accepts an entry that the session does not have."""
    await client.request("prompt", text="one")
    elsewhere = (await client.request("get_state"))["leaf_id"]
    await client.request("new_session")
    await client.request("prompt", text="two")
    before = await client.request("get_tree")
    for leaf_id in ("no-such-leaf", elsewhere):
        for command, payload in (
            ("prompt", {"text": "x"}),
            ("set_leaf", {}),
            ("get_messages", {}),
        ):
            error = await client.refusal(command, leaf_id=leaf_id, **payload)
            assert (error["code"], error["message"]) == ("command_rejected", "leaf_not_found")
    assert await client.request("get_tree") == before


async def test_a_first_prompt_with_an_unknown_leaf_creates_no_session(client: Client) -> None:
    """A refused first prompt has no effect."""
    error = await client.refusal("prompt", text="hello", leaf_id="no-such-leaf")
    assert error["message"] == "leaf_not_found"
    assert (await client.request("list_sessions"))["sessions"] == []


async def test_a_replay_contains_nothing_of_a_deleted_session(
    client: Client, daemon: Daemon
) -> None:
    """A deleted session can be read back neither from the log nor from memory."""
    session_id = (await client.request("prompt", text="secret words"))["session_id"]
    await client.request("delete_session", session_id=session_id)
    replay = await daemon.watch(after="evt-0", types="all")
    assert (await replay.next())["type"] == "session_deleted"


async def test_a_stream_may_last_for_hours_while_it_sends_text(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Only silence is limited, not the duration of a stream."""
    async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
        events, client = await daemon.watch(), await daemon.connect()
        began = trio.current_time()
        await client.request("prompt", text="[[slow 30000]][[say 340]]", wait=False)
        run = await events.run()
        assert trio.current_time() - began >= 10_000
        assert run[-1]["payload"]["status"] == "completed"
        assert len(deltas(run).split()) == 340


async def test_file_tools_cannot_leave_the_workspace(
    short_folder: Path, client: Client, stub: StubModel
) -> None:
    """A path outside the workspace is neither written nor read."""
    stub.script(
        tool_reply(
            ("write", {"path": "../escaped.txt", "content": "x"}),
            ("write", {"path": str(short_folder / "escaped.txt"), "content": "x"}),
            ("read", {"path": "/etc/hostname"}),
            ("read", {"path": "../nousd.db"}),
        )
    )
    await client.request("prompt", text="go")
    entries = (await client.request("get_messages"))["messages"]
    assert [entry["is_error"] for entry in entries if entry["role"] == "tool"] == [True] * 4
    assert "escaped.txt" not in names(short_folder)


@pytest.mark.slow
async def test_calls_of_unknown_tools_leave_no_descriptor_open(
    client: Client, stub: StubModel
) -> None:
    """Two thousand calls of unknown tools leave as many open files as there were before."""
    calls = tool_reply(*[(f"unknown{number}", {}) for number in range(20)])
    stub.script(calls)
    await client.request("prompt", text="go")
    before = len(names(Path("/proc/self/fd")))
    for _ in range(100):
        stub.script(calls)
        await client.request("prompt", text="go")
        await client.request("new_session")
    assert len(names(Path("/proc/self/fd"))) <= before + 2
    assert stub.connections_open <= 1


@pytest.mark.slow
async def test_closed_connections_and_endless_lines_hold_no_descriptors_or_memory(
    short_folder: Path,
) -> None:
    """Neither hundreds of connections nor hundreds of megabytes without a line feed are kept."""
    # What the daemon opens for itself once it has answered, its fork server's sockets among it.
    own = 20
    place = Place(short_folder)
    async with running(place) as process:
        client = await place.connect()
        await client.request("ping")
        descriptors, memory = process.descriptors(), process.resident_bytes()
        for _ in range(200):
            for path in (place.socket, f"{place.socket}.events"):
                stream = await trio.open_unix_socket(path)
                await stream.aclose()
        with trio.fail_after(WAIT_SECONDS):
            while process.descriptors() > descriptors + own:
                await client.request("ping")
        piece = b"x" * 2**20
        for _ in range(300):
            await client.send(piece)
            assert process.resident_bytes() - memory < 100 * 2**20
        await client.send(b'\n{"id":"after","type":"ping"}\n')
        error, pong = await client.receive(), await client.receive()
        assert (error["id"], error["error"]["code"]) == ("", "invalid_command")
        assert error["error"]["message"].startswith("line_too_long")
        assert (pong["id"], pong["ok"]) == ("after", True)
