"""Event streams over HTTP: start, filters and end."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from nousd.providers.mock.provider import MockProvider
from nousd.store.sqlite import store as sqlite
from tests.bridge.harness import TOKEN, Bridge, Frame, Frames, bridge_alone, bridge_to, text
from tests.bridge.raw_http import exchange, opened, request
from tests.daemon.test_recovery import Bench, started
from tests.harness.daemon import WAIT_SECONDS, Daemon, socket_daemon
from tests.harness.stub_model import Gate, StubModel, error_reply, text_reply


async def run_to_end(bridge: Bridge, session: str, words: str = "go") -> list[Frame]:
    """Start a run and return the frames of its session stream."""
    async with bridge.events(sessionID=session) as frames:
        await bridge.post(f"/session/{session}/prompt_async", parts=text(words))
        return await frames.until("session.run.finished")


def port_of(bridge: Bridge) -> int:
    return int(bridge.base.rpartition(":")[2])


def final_statuses(frames: list[Frame]) -> list[str]:
    return [f.properties["status"] for f in frames if f.type == "session.run.finished"]


# --- the beginning of a stream ---------------------------------------------------------------


@pytest.mark.parametrize("path", ["/event", "/global/event"])
async def test_a_client_cut_off_after_the_greeting_resumes_without_a_gap(
    bridge: Bridge, path: str
) -> None:
    session = await bridge.new_session()
    async with bridge.events(path) as frames:
        connected, ready = await frames.until("engine.lifecycle.ready")
    assert (connected.type, connected.id, connected.envelope) == ("server.connected", "", {})
    assert ready.properties["transport"] == "sse"
    assert ready.envelope == {}
    told = await run_to_end(bridge, session)
    async with bridge.events(path, headers={"last-event-id": ready.id}) as frames:
        again = await frames.until("session.run.finished")
    assert [f.id for f in again if f.id] == [f.id for f in told[2:]]
    assert all(f.id == "" for f in again[:2]), "the greeting does not move the position"


@pytest.mark.parametrize("path", ["/event", "/run/{}/events"])
async def test_a_head_request_for_a_stream_returns_its_headers_and_ends(
    bridge: Bridge, path: str
) -> None:
    session = await bridge.new_session()
    run_id = (await run_to_end(bridge, session))[-1].properties["runID"]
    asked = request("HEAD", path.format(run_id), "accept: text/event-stream", token=TOKEN)
    told = await exchange(port_of(bridge), asked)
    assert told.startswith(b"HTTP/1.1 200 ")
    assert b"content-type: text/event-stream" in told
    assert told.endswith(b"\r\n\r\n"), "no body"


async def test_a_stream_that_ends_closes_its_connection_on_request(bridge: Bridge) -> None:
    session = await bridge.new_session()
    run_id = (await run_to_end(bridge, session))[-1].properties["runID"]
    sse = "accept: text/event-stream"
    asked = request("GET", f"/run/{run_id}/events", sse, token=TOKEN)
    for version in (b"HTTP/1.0", b"HTTP/1.1"):
        told = await exchange(port_of(bridge), asked.replace(b"HTTP/1.1", version, 1))
        assert told.count(b'"session.run.finished"') == 1


@pytest.mark.parametrize("after", ["", "x", "-1", "evt-", "evt-99999999", "99999999999", "1" * 30])
async def test_an_invalid_after_position_is_refused(bridge: Bridge, after: str) -> None:
    reply = await bridge.http.get("/event", params={"after": after})
    assert reply.status_code == 400
    assert reply.json()["code"] == "BAD_REQUEST"
    assert "after" in reply.json()["error"]


async def test_a_position_in_an_event_that_is_not_in_the_log_yet_is_refused(bridge: Bridge) -> None:
    session = await bridge.new_session()
    await run_to_end(bridge, session)
    async with bridge.events() as frames:
        (*_, newest) = await frames.until("engine.lifecycle.ready")
    for after, status in ((int(newest.id), 200), (int(newest.id) + 1, 400)):
        built = bridge.http.build_request("GET", "/event", params={"after": str(after)})
        async with opened(built) as reply:
            assert reply.status == status


@pytest.mark.parametrize("last", ["x", "99999999999", "evt-1", "1" * 30])
async def test_a_last_event_id_that_is_not_in_this_log_starts_at_the_newest_event(
    bridge: Bridge, last: str
) -> None:
    session = await bridge.new_session()
    await run_to_end(bridge, session)
    async with bridge.events(headers={"last-event-id": last}) as frames:
        greeted = await frames.until("engine.lifecycle.ready")
        assert greeted[-1].id
        await bridge.post(f"/session/{session}/prompt_async", parts=text("again"))
        told = await frames.until("session.run.finished")
    assert len(final_statuses(told)) == 1


async def test_after_accepts_a_frame_id_and_a_cursor_of_the_socket_protocol(
    bridge: Bridge, daemon: Daemon
) -> None:
    session = await bridge.new_session()
    told = (await run_to_end(bridge, session))[2:]
    middle = len(told) // 2
    for after in (told[middle].id, f"evt-{int(told[middle].id) // 8}"):
        async with bridge.events(after=after) as frames:
            rest = await frames.until("session.run.finished")
        behind = [f.id for f in rest[2:]]
        assert behind == [f.id for f in told[middle + 1 :]][-len(behind) :]
        assert int(behind[0]) > int(told[middle].id)


async def test_an_event_source_whose_address_has_a_position_is_not_sent_frames_twice(
    bridge: Bridge,
) -> None:
    session = await bridge.new_session()
    told = (await run_to_end(bridge, session))[2:]
    for after, last, seen in (
        (told[0].id, told[2].id, 3),
        (told[2].id, told[0].id, 3),
        (told[2].id, "99999999999", 3),
        (told[2].id, "x", 3),
    ):
        async with bridge.events(headers={"last-event-id": last}, after=after) as frames:
            rest = await frames.until("session.run.finished")
        assert [f.id for f in rest[2:]] == [f.id for f in told[seen:]]


# --- filters ---------------------------------------------------------------------------------


async def test_a_stream_of_a_session_that_does_not_exist_is_404(bridge: Bridge) -> None:
    reply = await bridge.http.get("/event", params={"sessionID": "nope"})
    assert (reply.status_code, reply.json()["code"]) == (404, "SESSION_NOT_FOUND")


async def test_a_stream_is_filtered_by_session_and_by_run(bridge: Bridge, stub: StubModel) -> None:
    gate = Gate()
    stub.script(text_reply("one", gate), text_reply("two"))
    first, second = await bridge.new_session(), await bridge.new_session()
    async with (
        bridge.events(sessionID=first) as of_first,
        bridge.events() as of_all,
    ):
        begun = await bridge.http.post(f"/session/{first}/prompt_async", json={"parts": text("a")})
        run_id = begun.headers["x-tandem-run-id"]
        await gate.reached()
        await run_to_end(bridge, second, "b")
        async with (
            bridge.events(runID=run_id) as of_run,
            bridge.events(sessionID=first, runID=run_id) as of_both,
        ):
            await bridge.http.patch(f"/session/{first}", json={"title": "new"})
            gate.open()
            one = await of_first.until("session.run.finished")
            run = await of_run.until("session.run.finished")
            both = await of_both.until("session.run.finished")
            everything = await of_all.until("session.run.finished")
            everything += await of_all.until("session.run.finished")
    assert {f.properties["sessionID"] for f in one[2:]} == {first}
    assert {f.properties["sessionID"] for f in everything[2:]} == {first, second}
    assert {f.properties["runID"] for f in run[2:]} == {run_id}
    titled = [f for f in both if f.properties.get("title") == "new"]
    assert len(titled) == 1, "an event without a run belongs to the session"
    assert not [f for f in run if f.properties.get("title") == "new"]
    for frame in run[2:]:
        assert {"tenantContext", "agentID", "channel"} <= frame.properties.keys()
    assert [f.id for f in run[2:]] == [f.id for f in both[2:] if f not in titled]


async def test_an_empty_filter_counts_as_absent(bridge: Bridge) -> None:
    session = await bridge.new_session()
    async with bridge.events(sessionID="", runID="") as frames:
        await bridge.post(f"/session/{session}/prompt_async", parts=text("go"))
        assert final_statuses(await frames.until("session.run.finished")) == ["completed"]


# --- the stream of a run ---------------------------------------------------------------------


async def test_a_run_stream_begins_and_ends_with_its_run(bridge: Bridge) -> None:
    session = await bridge.new_session()
    told = await run_to_end(bridge, session)
    run_id = told[-1].properties["runID"]
    async with bridge.events(f"/run/{run_id}/events") as frames:
        connected, *of_run = [frame async for frame in frames]
    assert (connected.type, connected.properties) == ("run.stream.connected", {"runID": run_id})
    assert of_run[0].type == "session.run.started"
    assert final_statuses(of_run) == ["completed"]
    listed = await bridge.get(f"/run/{run_id}/events")
    assert [f.properties for f in of_run] == [f["properties"] for f in listed]


async def test_a_run_stream_resumed_after_the_end_of_the_run_ends_at_once(bridge: Bridge) -> None:
    session = await bridge.new_session()
    last = (await run_to_end(bridge, session))[-1]
    path = f"/run/{last.properties['runID']}/events"
    async with bridge.events(path, headers={"last-event-id": last.id}) as frames:
        assert [frame.type async for frame in frames] == ["run.stream.connected"]


async def test_deleting_a_session_is_announced_and_its_run_stream_is_not_found(
    bridge: Bridge,
) -> None:
    session = await bridge.new_session()
    told = await run_to_end(bridge, session)
    path = f"/run/{told[-1].properties['runID']}/events"
    async with bridge.events(sessionID=session) as frames:
        assert (await bridge.http.delete(f"/session/{session}")).is_success
        assert (await frames.until("session.deleted"))[-1].properties["sessionID"] == session
    assert (await bridge.http.get(path)).status_code == 404


async def test_prompt_sync_streams_a_run_while_it_is_active_until_its_end(
    bridge: Bridge, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    path = f"/session/{session}/prompt_sync"
    async with bridge.stream_of("POST", path, json={"parts": text("go")}) as frames:
        told = await frames.until("session.run.started")
        assert told[0].type == "session.run.started"
        while told[-1].properties.get("delta") != "Hel":
            told.append(await anext(frames))
        gate.open()
        told += [frame async for frame in frames]
    assert told[-1].type == "session.run.finished"
    assert final_statuses(told) == ["completed"]
    assert all("channel" in frame.properties for frame in told)


# --- every run ends once ---------------------------------------------------------------------


async def test_each_end_of_a_run_is_sent_once(bridge: Bridge, stub: StubModel) -> None:
    gate = Gate()
    stub.script(text_reply("fine"), error_reply(400, "no"), text_reply("a", gate), text_reply("b"))
    session = await bridge.new_session()
    async with bridge.events() as frames:
        told = []
        for _ in range(2):
            await bridge.post(f"/session/{session}/prompt_async", parts=text("go"))
            told += await frames.until("session.run.finished")
        await bridge.post(f"/session/{session}/prompt_async", parts=text("go"))
        await gate.reached()
        cancelled = await bridge.post(f"/session/{session}/cancel")
        assert cancelled["cancelled"] is True
        told += await frames.until("session.run.finished")
        await bridge.post(f"/session/{session}/prompt_async", parts=text("go"))
        told += await frames.until("session.run.finished")
    assert final_statuses(told) == ["completed", "error", "cancelled", "completed"]
    runs = [f.properties["runID"] for f in told if f.type == "session.run.finished"]
    assert len(set(runs)) == 4
    for run_id in runs:
        listed = await bridge.get(f"/run/{run_id}/events")
        assert [f["type"] for f in listed].count("session.run.finished") == 1
        assert listed[-1]["type"] == "session.run.finished"


async def test_the_end_of_a_run_left_by_a_killed_daemon_is_sent_once(short_folder: Path) -> None:
    async with sqlite.open_store(short_folder / "nousd.db") as store:
        await Bench(store).write(started())
    for _ in range(2):
        async with (
            socket_daemon(short_folder, provider=MockProvider()) as daemon,
            bridge_to(daemon) as bridge,
            bridge.events(after="evt-0") as frames,
        ):
            told = await frames.until("session.run.finished")
            told += await run_to_end(bridge, await bridge.new_session())
    ends = [f for f in told if f.type == "session.run.finished"]
    assert [f.properties["status"] for f in ends if f.properties["runID"] == "run-s"] == ["error"]


# --- daemons that come back ------------------------------------------------------------------


async def test_readers_of_a_standalone_bridge_continue_across_a_restart(
    short_folder: Path,
) -> None:
    async with bridge_alone(short_folder / "nous.sock") as bridge:
        async with socket_daemon(short_folder, provider=MockProvider()):
            session = await _once_there(bridge)
            stream = bridge.events(sessionID=session)
            frames: Frames = await stream.__aenter__()
            await bridge.post(f"/session/{session}/prompt_async", parts=text("one"))
            told = await frames.until("session.run.finished")
        async with socket_daemon(short_folder, provider=MockProvider()):
            await bridge.post(f"/session/{session}/prompt_async", parts=text("two"))
            told += await frames.until("session.run.finished")
            async with bridge.events(sessionID=session, after=told[2].id) as again:
                repeated = await again.until("session.run.finished")
                repeated += await again.until("session.run.finished")
        await stream.__aexit__(None, None, None)
    assert final_statuses(told) == ["completed", "completed"]
    assert [f.id for f in repeated if f.envelope] == [f.id for f in told[3:] if f.envelope]


@pytest.mark.behaviour("http_health_says_whether_the_daemon_is_there")
async def test_a_standalone_bridge_is_ready_only_while_its_daemon_is_there(
    short_folder: Path,
) -> None:
    async with bridge_alone(short_folder / "nous.sock") as bridge:
        await _until_ready(bridge, is_ready=False)
        for _ in range(2):
            async with socket_daemon(short_folder, provider=MockProvider()):
                await _until_ready(bridge, is_ready=True)
            await _until_ready(bridge, is_ready=False)


async def _until_ready(bridge: Bridge, *, is_ready: bool) -> None:
    with trio.fail_after(WAIT_SECONDS):
        while (health := await bridge.get("/global/health"))["ready"] is not is_ready:
            await trio.lowlevel.checkpoint()
    assert health["healthy"] is is_ready


async def _once_there(bridge: Bridge) -> str:
    with trio.fail_after(WAIT_SECONDS):
        while True:
            reply = await bridge.http.post("/session", json={})
            if reply.is_success:
                return str(reply.json()["id"])
            assert reply.status_code == 503
            await trio.lowlevel.checkpoint()
