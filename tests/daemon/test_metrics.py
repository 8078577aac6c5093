"""Metrics of the process: current gauges, and counters since the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from nousd.cli.render.metric_lines import render_metrics as lines_of
from nousd.daemon.policy.permissions import RulePermissions
from nousd.providers.interface import Provider
from nousd.store.memory import store as memory
from tests.harness.daemon import WAIT_SECONDS, Client, Daemon, Payload, memory_daemon, socket_daemon
from tests.harness.stub_model import StubModel, hanging_reply, text_reply, tool_reply


async def metrics(client: Client) -> Payload:
    return await client.request("get_metrics")


@pytest.mark.behaviour("metrics_are_of_this_process")
async def test_log_counters_match_the_written_events_and_restart_at_zero(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client, events = await daemon.connect(), await daemon.watch(types="all")
        stub.script(text_reply("Hello"))
        await client.request("prompt", text="hi")
        run = await events.run()
        after = await metrics(client)
        assert after["cursor"] == run[-1]["id"]
        assert after["log"]["events"] == len(run) == after["window"]["events"]
        assert after["log"]["bytes"] == after["window"]["bytes"] > 0
        assert after["log"]["synced_commits"] == sum(after["log"]["sync_seconds"]["counts"]) > 0
        assert after["sessions"] == 1
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        again = await metrics(client)
        assert (again["log"]["events"], again["log"]["bytes"]) == (0, 0)
        assert (again["sessions"], again["window"]) == (0, {"events": 0, "bytes": 0})
        assert again["cursor"] == after["cursor"]
        assert again["started_at"] > after["started_at"]


async def test_an_idle_daemon_counts_only_the_callers_connection(daemon: Daemon) -> None:
    figures = await metrics(await daemon.connect())
    assert (figures["command_connections"], figures["subscribers"]) == (1, 0)
    for name in ("sessions", "runs", "waiting_permissions", "waiting_questions", "confirmers"):
        assert figures[name] == 0, name
    assert figures["mcp_servers"] == {}
    assert not any(figures["pending_inputs"].values())


async def test_connections_are_counted_while_they_are_open(daemon: Daemon) -> None:
    client, another = await daemon.connect(), await daemon.connect()
    await another.request("ping")
    events, confirming = await daemon.watch(), await daemon.watch(confirms=True)
    figures = await metrics(client)
    assert (figures["command_connections"], figures["subscribers"]) == (2, 2)
    assert figures["confirmers"] == 1
    for wire in (another, events, confirming):
        await wire.aclose()
    with trio.fail_after(WAIT_SECONDS):
        while True:
            figures = await metrics(client)
            if (figures["command_connections"], figures["subscribers"]) == (1, 0):
                break
    assert figures["confirmers"] == 0


async def test_runs_and_pending_inputs_are_counted_over_all_sessions(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    events = await daemon.watch()
    sessions = []
    for _ in range(2):
        session_id = (await client.request("new_session"))["session_id"]
        sessions.append(session_id)
        stub.script(hanging_reply())
        await client.request("prompt", text="go", session_id=session_id, wait=False)
        await stub.next_request()
        await client.request("steer", text="left", session_id=session_id)
        await client.request("follow_up", text="then", session_id=session_id)
    await client.request("follow_up", text="and then", session_id=sessions[0])
    figures = await metrics(client)
    assert (figures["runs"], figures["sessions"]) == (2, 2)
    pending = {"prompt": 0, "steer": 2, "follow_up": 3, "message": 0, "truncated": False}
    assert figures["pending_inputs"] == pending
    for session_id in sessions:
        await client.request("abort", session_id=session_id)
    for session_id in sessions:
        await events.until("agent_end", session_id=session_id)
    with trio.fail_after(WAIT_SECONDS):
        while (figures := await metrics(client))["runs"]:
            pass
    assert not any(figures["pending_inputs"].values())


async def test_a_pending_approval_is_counted_until_the_user_decides(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    permissions = RulePermissions("ask")
    async with socket_daemon(short_folder, provider=provider, permissions=permissions) as daemon:
        client = await daemon.connect()
        events = await daemon.watch(types="all", confirms=True)
        stub.script(tool_reply(("write", {"path": "a", "text": "b"})), text_reply("done"))
        await client.request("prompt", text="go", wait=False)
        asked = (await events.until("permission_requested"))["payload"]
        assert (await metrics(client))["waiting_permissions"] == 1
        named = {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}
        await client.request("confirm_tool", **named, decision="deny")
        assert (await metrics(client))["waiting_permissions"] == 0
        await events.until("agent_end")


async def test_uptime_is_measured_by_the_monotonic_clock(
    provider: Provider, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client = await daemon.connect()
        before = await metrics(client)
        await trio.sleep(1000)
        after = await metrics(client)
    assert after["uptime_seconds"] - before["uptime_seconds"] == pytest.approx(1000)
    assert after["started_at"] == before["started_at"]


async def test_metrics_are_answered_while_the_log_cannot_be_written(
    provider: Provider, tmp_path: Path
) -> None:
    from nousd.errors import StoreFull

    full = False

    def before_commit() -> None:
        if full:
            raise StoreFull("the disk is full")

    async with (
        memory.open_store(before_commit=before_commit) as store,
        memory_daemon(workdir=tmp_path, provider=provider, store=store) as daemon,
    ):
        client = await daemon.connect()
        full = True
        await client.refusal("new_session")
        assert (await metrics(client))["log"]["failed_commits"] == 1
        full = False


async def test_repeated_get_metrics_writes_no_events_and_changes_no_gauges(
    daemon: Daemon, client: Client
) -> None:
    first = await metrics(client)
    for _ in range(100):
        last = await metrics(client)
    unchanging = ("cursor", "sessions", "pending_inputs", "subscribers", "window")
    assert {key: last[key] for key in unchanging} == {key: first[key] for key in unchanging}
    assert last["log"]["events"] == first["log"]["events"]


async def test_the_metrics_of_an_idle_daemon_fit_in_4096_characters(
    daemon: Daemon, client: Client
) -> None:
    assert len(json.dumps(await metrics(client))) < 4096


async def test_the_cli_renders_one_line_per_group_of_metrics(
    daemon: Daemon, client: Client
) -> None:
    await client.request("new_session")
    shown = "\n".join(lines_of(await metrics(client)))
    assert "sessions     1 in memory, 0 with a run" in shown
    assert "written      2 events, " in shown
    assert "pending      0 prompt, 0 steer, 0 follow_up, 0 message" in shown


def test_durations_render_as_average_median_bound_and_99_percent_bound() -> None:
    from nousd.cli.render.metric_lines import durations

    given = {"bounds": [0.001, 0.01], "counts": [5, 4, 1], "sum": 0.1}
    shown = "10.00 ms on average, half within 1 ms, 99 % within more than 10 ms"
    assert durations(given) == shown
    assert durations({"bounds": [0.001], "counts": [0, 0], "sum": 0.0}) == "-"
