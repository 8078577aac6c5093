"""The eight cases at the end of Tandem's contract document."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from nousd.providers.interface import Provider
from tests.bridge.harness import Bridge, bridge_to, text
from tests.harness.daemon import socket_daemon
from tests.harness.stub_model import Gate, StubModel, text_reply


@pytest.mark.behaviour("http_messages_never_wait_for_a_run")
async def test_append_during_active_run_via_message_succeeds(
    bridge: Bridge, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"), text_reply("second"))
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        await bridge.http.post(f"/session/{session}/prompt_async", json={"parts": text("go")})
        await gate.reached()
        message = await bridge.post(f"/session/{session}/message", parts=text("by the way"))
        assert message["info"]["role"] == "user"
        assert message["parts"] == text("by the way")
        assert (await bridge.get(f"/session/{session}/run"))["active"] is not None
        gate.open()
        await frames.until("session.run.finished")
    told = await bridge.get(f"/session/{session}/message")
    assert message["info"]["id"] in {item["info"]["id"] for item in told}


@pytest.mark.behaviour("http_a_second_run_is_a_conflict")
async def test_concurrent_same_session_prompt_async_gives_one_success_and_one_409(
    bridge: Bridge, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    replies = []

    async def prompt(words: str) -> None:
        body = {"parts": text(words)}
        replies.append(await bridge.http.post(f"/session/{session}/prompt_async", json=body))

    async with bridge.events(sessionID=session) as frames:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt, "one")
            nursery.start_soon(prompt, "two")
        good, conflict = sorted(replies, key=lambda reply: reply.status_code)
        run_id = good.headers["x-tandem-run-id"]
        assert (good.status_code, conflict.status_code) == (204, 409)
        body = conflict.json()
        assert body["code"] == "SESSION_RUN_CONFLICT"
        assert body["sessionID"] == session
        assert body["activeRun"]["runID"] == run_id
        assert body["activeRun"]["startedAtMs"] <= body["activeRun"]["lastActivityAtMs"]
        assert body["activeRun"]["clientID"] is None
        assert body["retryAfterMs"] == 500
        assert body["attachEventStream"] == f"/event?sessionID={session}&runID={run_id}"
        told = await frames.until("session.run.conflict")
        assert told[-1].properties["runID"] == run_id
        gate.open()
        await frames.until("session.run.finished")


@pytest.mark.behaviour("http_run_ids_are_the_servers")
async def test_return_run_gives_202_with_a_usable_run_id(bridge: Bridge, stub: StubModel) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    reply = await bridge.http.post(
        f"/session/{session}/prompt_async", params={"return": "run"}, json={"parts": text("go")}
    )
    assert reply.status_code == 202
    run_id = reply.json()["runID"]
    assert reply.headers["x-tandem-run-id"] == run_id
    async with bridge.events(sessionID=session, runID=run_id) as frames:
        gate.open()
        told = await frames.until("session.run.finished")
    assert told[-1].properties["runID"] == run_id


@pytest.mark.behaviour("http_a_run_can_be_met_again")
async def test_get_run_supports_reconnect_and_recovery(bridge: Bridge, stub: StubModel) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    assert await bridge.get(f"/session/{session}/run") == {"active": None}
    await bridge.http.post(f"/session/{session}/prompt_async", json={"parts": text("go")})
    await gate.reached()
    now = await bridge.get(f"/session/{session}/run")
    assert now["contextRunID"] == f"session-{session}"
    async with bridge.events(sessionID=session, runID=now["active"]["runID"]) as frames:
        gate.open()
        told = await frames.until("session.run.finished")
    assert told[-1].properties["status"] == "completed"
    assert "".join(frame.properties.get("delta", "") for frame in told).endswith("Hello")
    assert await bridge.get(f"/session/{session}/run") == {"active": None}


@pytest.mark.slow
@pytest.mark.behaviour("http_stale_runs_end")
async def test_stale_run_timeout_clears_the_lock_and_emits_finished_with_timeout(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    stub.script(text_reply("Hel", Gate(), "lo"), text_reply("again"))
    async with (
        socket_daemon(short_folder, provider=provider, stale_seconds=1.0) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        async with bridge.events(sessionID=session) as frames:
            await bridge.http.post(f"/session/{session}/prompt_async", json={"parts": text("go")})
            told = await frames.until("session.run.finished")
        assert told[-1].properties["status"] == "timeout"
        assert told[-1].properties["failureCategory"] == "timeout"
        assert await bridge.get(f"/session/{session}/run") == {"active": None}
        await bridge.post(f"/session/{session}/prompt_sync", parts=text("once more"))


@pytest.mark.behaviour("http_prompt_sync_streams_a_run")
async def test_prompt_sync_sse_mode_streams_incrementally(bridge: Bridge, stub: StubModel) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    async with bridge.stream_of(
        "POST", f"/session/{session}/prompt_sync", json={"parts": text("go")}
    ) as frames:
        before = []
        async for frame in frames:
            before.append(frame)
            if frame.properties.get("delta") == "Hel":
                break
        gate.open()
        after = [frame async for frame in frames]
    assert before[0].type == "session.run.started"
    assert after[-1].type == "session.run.finished", "the end is forwarded, and ends the stream"
    run_id = before[0].properties["runID"]
    assert {frame.properties["runID"] for frame in [*before, *after]} == {run_id}
    assert {frame.properties["channel"] for frame in [*before, *after]} <= {"system", "assistant"}


@pytest.mark.behaviour("http_streams_are_filtered_by_the_server")
async def test_event_filtering_on_the_server_reduces_other_traffic(
    bridge: Bridge, stub: StubModel
) -> None:
    mine, other = await bridge.new_session(), await bridge.new_session()
    async with bridge.events(sessionID=mine) as frames:
        for session in (other, mine):
            await bridge.post(f"/session/{session}/prompt_sync", parts=text("go"))
        told = await frames.until("session.run.finished")
    assert {frame.properties.get("sessionID", mine) for frame in told} == {mine}


@pytest.mark.behaviour("http_cancels_by_session_and_by_run")
async def test_cancel_by_session_and_by_run_id_both_work(bridge: Bridge, stub: StubModel) -> None:
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        for path in ("cancel", "run/{run_id}/cancel"):
            stub.script(text_reply("Hel", Gate(), "lo"))
            reply = await bridge.http.post(
                f"/session/{session}/prompt_async", json={"parts": text("go")}
            )
            run_id = reply.headers["x-tandem-run-id"]
            other = await bridge.post(f"/session/{session}/run/run-other/cancel")
            assert other == {"ok": True, "cancelled": False}
            stopped = await bridge.post(f"/session/{session}/{path.format(run_id=run_id)}")
            assert stopped == {"ok": True, "cancelled": True, "closedBrowserSessions": 0}
            told = await frames.until("session.run.finished")
            assert told[-1].properties["status"] == "cancelled"
            assert told[-1].properties["runID"] == run_id
    again = await bridge.post(f"/session/{session}/cancel")
    assert again == {"ok": True, "cancelled": False, "closedBrowserSessions": 0}
