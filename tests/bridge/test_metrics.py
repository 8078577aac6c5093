"""``GET /metrics``: exact values after runs, access, and formats."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)

from nousd.bridge import run as bridge_run
from nousd.bridge.metrics.meters import Meters
from nousd.client.answers import ReceivedEvent
from nousd.daemon.policy.permissions import RulePermissions
from nousd.providers.interface import Provider
from nousd.wire import events
from nousd.wire.events import EVENT_TYPES, Event
from nousd.wire.objects.entries import Usage
from tests.bridge.harness import TOKEN, Bridge, Frames, bridge_alone, bridge_to, text
from tests.bridge.scrapes import Scrape
from tests.daemon.process_harness import Place, running
from tests.harness.daemon import WAIT_SECONDS, Daemon, socket_daemon
from tests.harness.stub_model import (
    StubModel,
    burst_reply,
    error_reply,
    hanging_reply,
    text_reply,
    tool_reply,
)


async def scrape(bridge: Bridge) -> Scrape:
    reply = await bridge.http.get("/metrics")
    assert reply.status_code == 200, reply.text
    return Scrape(reply.text)


async def run_to_end(bridge: Bridge, frames: Frames, session: str, words: str = "go") -> None:
    await bridge.post(f"/session/{session}/prompt_async", parts=text(words))
    await frames.until("session.run.finished")


# --- counts ----------------------------------------------------------------------------------


async def test_runs_with_tools_failures_and_an_abort_are_counted_exactly(
    bridge: Bridge, stub: StubModel
) -> None:
    stub.script(
        tool_reply(("ls", {"path": "."}), ("read", {"path": "missing"}), ("no_such", {})),
        text_reply("done"),
        hanging_reply(),
        error_reply(400, "no"),
    )
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        await run_to_end(bridge, frames, session)
        await bridge.post(f"/session/{session}/prompt_async", parts=text("go"))
        for _ in range(3):
            await stub.next_request()
        assert (await scrape(bridge)).value("nousd_runs_active") == 1
        await bridge.post(f"/session/{session}/cancel")
        await frames.until("session.run.finished")
        await run_to_end(bridge, frames, session)
    told = await scrape(bridge)
    assert told.value("nousd_runs_active") == 0
    assert told.value("nousd_runs_started_total") == 3
    ended = {"completed": 1, "cancelled": 1, "error": 1}
    assert told.by("nousd_runs_total", "status") == ended
    assert told.by("nousd_run_seconds_count", "status") == ended
    assert told.value("nousd_turns_total") == told.value("nousd_events_total", type="turn_start")
    assert told.value("nousd_new_sessions_total") == 1
    assert told.by("nousd_inputs_total", "kind") == {"prompt": 3}
    assert told.by("nousd_tool_calls_total", "tool", "outcome") == {
        ("ls", "ok"): 1,
        ("read", "error"): 1,
        ("other", "denied"): 1,
    }
    assert told.by("nousd_tool_call_seconds_count", "tool", "outcome") == {
        ("ls", "ok"): 1,
        ("read", "error"): 1,
    }
    decisions = told.by("nousd_tool_decisions_total", "decision", "by")
    assert decisions == {("approved", "policy"): 2, ("denied", "policy"): 1}
    assert told.by("nousd_errors_total", "code") == {"provider_error": 1}
    model = {"provider": "openai", "model": "stub-model"}
    calls = told.by("nousd_model_calls_total", "provider", "model", "purpose")
    assert calls == {("openai", "stub-model", "answer"): 2}
    assert told.value("nousd_model_call_seconds_count", **model) == 2
    # The stub reports 7 and 5 tokens for each call with usage.
    tokens = told.by("nousd_model_tokens_total", "kind")
    assert tokens == {"input": 14, "output": 10}


@pytest.mark.slow
async def test_permission_requests_and_decisions_are_counted(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    # A denial creates a rule for that file.
    writes = [tool_reply(("write", {"path": path, "text": "b"})) for path in ("no", "yes")]
    stub.script(*writes, text_reply("done"))
    permissions = RulePermissions("ask")
    async with (
        socket_daemon(short_folder, provider=provider, permissions=permissions) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        async with bridge.events(sessionID=session) as frames:
            await bridge.post(f"/session/{session}/prompt_async", parts=text("go"))
            for reply in ("deny", "once"):
                asked = (await frames.until("permission.asked"))[-1].properties["requestID"]
                assert (await scrape(bridge)).value("nousd_permissions_waiting") == 1
                await bridge.post(f"/permission/{asked}/reply", reply=reply)
            await frames.until("session.run.finished")
        told = await scrape(bridge)
    assert told.value("nousd_permissions_waiting") == 0
    assert told.value("nousd_permission_requests_total") == 2
    decisions = told.by("nousd_tool_decisions_total", "decision", "by")
    assert decisions == {("denied", "user"): 1, ("approved", "user"): 1}
    assert told.value("nousd_tool_calls_total", tool="write", outcome="ok") == 1


async def test_http_requests_are_counted_by_route_and_status(bridge: Bridge) -> None:
    session = await bridge.new_session()
    await bridge.get(f"/session/{session}")
    assert (await bridge.http.get("/session/nobody")).status_code == 404
    assert (await bridge.http.get("/nothing/here")).status_code == 404
    mcp = (await bridge.http.delete("/mcp")).status_code
    stranger = await bridge.http.get("/session", headers={"authorization": "Bearer wrong"})
    assert stranger.status_code == 401
    async with bridge.events() as frames:
        await anext(frames)
        told = await scrape(bridge)
        assert told.by("nousd_http_streams", "route") == {"/event": 1}
    with trio.fail_after(WAIT_SECONDS):
        while (told := await scrape(bridge)).by("nousd_http_streams", "route"):
            await trio.lowlevel.checkpoint()
    requests = told.by("nousd_http_requests_total", "method", "route", "status")
    assert requests.pop(("GET", "/metrics", "200")) >= 1
    assert requests == {
        ("POST", "/session", "200"): 1,
        ("GET", "/session/{id}", "200"): 1,
        ("GET", "/session/{id}", "404"): 1,
        ("GET", "other", "404"): 1,
        ("GET", "other", "401"): 1,
        ("GET", "/event", "200"): 1,
        ("DELETE", "/mcp", str(mcp)): 1,
    }
    assert told.value("nousd_http_request_seconds_count", route="/event") == 1
    assert told.value("nousd_http_received_bytes_total") == len("{}")
    assert told.value("nousd_http_sent_bytes_total") > len(told.text)


async def test_the_metrics_of_the_daemon_equal_the_response_to_get_metrics(
    bridge: Bridge, daemon: Daemon, stub: StubModel
) -> None:
    stub.script(text_reply("Hello"))
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        await run_to_end(bridge, frames, session)
        figures = await (await daemon.connect()).request("get_metrics")
        told = await scrape(bridge)
    log = figures["log"]
    assert told.value("nousd_up") == 1
    assert told.value("nousd_log_events_total") == log["events"]
    assert told.value("nousd_log_bytes_total") == log["bytes"]
    assert told.value("nousd_log_head") == int(figures["cursor"].removeprefix("evt-"))
    assert told.value("nousd_log_commits_total", durability="synced") == log["synced_commits"]
    assert told.value("nousd_log_sync_seconds_count") == log["synced_commits"]
    assert told.value("nousd_log_sync_seconds_sum") == pytest.approx(log["sync_seconds"]["sum"])
    buckets = {given["le"]: value for given, value in told.samples("nousd_log_sync_seconds_bucket")}
    assert buckets["+Inf"] == log["synced_commits"]
    assert [float(bound) for bound in buckets] == [*log["sync_seconds"]["bounds"], math.inf]
    assert told.value("nousd_window_events") == figures["window"]["events"]
    assert told.value("nousd_events_total", type="agent_end") == 1


@pytest.mark.slow
async def test_counters_never_decrease_in_scrapes_during_a_fast_run(
    bridge: Bridge, stub: StubModel
) -> None:
    stub.script(burst_reply(3000))
    session = await bridge.new_session()
    seen = [await scrape(bridge)]
    async with bridge.events(sessionID=session) as frames, trio.open_nursery() as nursery:
        ended = trio.Event()

        async def look() -> None:
            while not ended.is_set():
                seen.append(await scrape(bridge))

        nursery.start_soon(look)
        await run_to_end(bridge, frames, session)
        ended.set()
    seen.append(await scrape(bridge))
    assert len(seen) > 3
    name = "nousd_events_total"
    deltas = [told.value(name, type="message_update") for told in seen]
    assert deltas == sorted(deltas)
    assert [told.value("nousd_up") for told in seen] == [1] * len(seen)
    totals = {name for name in seen[0].names if name.endswith(("_total", "_count", "_bucket"))}
    for before, after in pairwise(seen):
        for name in totals:
            known = {tuple(given.items()): value for given, value in after.samples(name)}
            assert all(
                known[tuple(given.items())] >= value for given, value in before.samples(name)
            )


# --- restarts --------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_bridge_keeps_its_counts_over_a_crash_of_the_daemon(
    short_folder: Path, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_run, "PATIENCE_SECONDS", 0.0)
    place = Place(short_folder, stub)
    stub.script(text_reply("one"), hanging_reply())
    async with bridge_alone(place.socket) as bridge:
        async with running(place) as process:
            with trio.fail_after(WAIT_SECONDS):
                while not (await bridge.http.post("/session", json={})).is_success:
                    await trio.lowlevel.checkpoint()
            session = await bridge.new_session()
            async with bridge.events(sessionID=session) as frames:
                await run_to_end(bridge, frames, session)
                before = await scrape(bridge)
                await bridge.post(f"/session/{session}/prompt_async", parts=text("two"))
                for _ in range(2):
                    await stub.next_request()
                await process.kill()
        gone = await scrape(bridge)
        assert gone.value("nousd_up") == 0
        assert "nousd_log_events" not in gone.families
        assert gone.value("nousd_runs_total", status="completed") == 1
        async with running(place):
            with trio.fail_after(WAIT_SECONDS):
                while True:
                    after = await scrape(bridge)
                    if after.by("nousd_runs_total", "status").get("interrupted"):
                        break
                    await trio.lowlevel.checkpoint()
    assert after.value("nousd_up") == 1
    assert after.by("nousd_runs_total", "status") == {"completed": 1, "interrupted": 1}
    assert after.value("nousd_runs_started_total") == 2
    assert after.value("nousd_log_events_total") < before.value("nousd_log_events_total")
    assert after.value("nousd_start_time_seconds") > before.value("nousd_start_time_seconds")


async def test_before_the_first_daemon_there_are_no_metrics(short_folder: Path) -> None:
    async with bridge_alone(short_folder / "nowhere.sock") as bridge:
        assert (await bridge.http.get("/metrics")).status_code == 503


# --- access and formats ----------------------------------------------------------------------


async def test_metrics_need_the_token(bridge: Bridge) -> None:
    for headers in ({"authorization": ""}, {"authorization": "Bearer wrong"}):
        reply = await bridge.http.get("/metrics", headers=headers)
        assert reply.status_code == 401
        assert "nousd_up" not in reply.text
    assert (await bridge.http.post("/metrics")).status_code == 405


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain;version=0.0.4;q=0.3,*/*;q=0.1", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain;version=nonsense", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;version=1.x", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
async def test_metrics_are_plain_text_by_default(
    bridge: Bridge, accept: str, content_type: str
) -> None:
    reply = await bridge.http.get("/metrics", headers={"accept": accept})
    assert (reply.status_code, reply.headers["content-type"]) == (200, content_type)
    assert Scrape(reply.text).value("nousd_up") == 1


async def test_a_client_that_accepts_openmetrics_receives_it(bridge: Bridge) -> None:
    # The header that Prometheus sends.
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3"
    reply = await bridge.http.get("/metrics", headers={"accept": accept})
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert reply.text.endswith("# EOF\n")
    parsed = openmetrics_families(reply.text)  # type: ignore[no-untyped-call]
    families = {family.name: family for family in parsed}
    assert families["nousd_runs"].type == "counter"


_UNITS = ("_seconds", "_bytes", "_dollars")


async def test_metric_names_and_help_texts_follow_prometheus_conventions(bridge: Bridge) -> None:
    told = await scrape(bridge)
    assert told.families
    for name in told.ours:
        family = told.families[name]
        assert re.fullmatch(r"nousd(_[a-z]+)+", name)
        assert not name.endswith(("_created", "_bucket", "_sum", "_total")), name
        assert family.documentation.endswith("."), name
        assert not re.search(r"milli|_ms\b|_kb\b|_count\b|_minutes", name)
        if family.type == "histogram":
            assert name.endswith(_UNITS), name
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)


# --- labels ----------------------------------------------------------------------------------


async def test_metrics_contain_no_text_and_no_id_and_no_path(
    bridge: Bridge, stub: StubModel, short_folder: Path
) -> None:
    stub.script(
        tool_reply(("read", {"path": "/etc/marmalade"}), ("marmalade tool", {})),
        text_reply("marmalade"),
    )
    session = await bridge.new_session(title="marmalade")
    async with bridge.events(sessionID=session) as frames:
        await run_to_end(bridge, frames, session, "marmalade")
        await bridge.http.get("/marmalade", params={"q": "marmalade"})
        await bridge.http.get("/session/marmalade")
        told = (await scrape(bridge)).text
    for secret in (
        "marmalade",
        session,
        "sess-",
        "run-",
        "sess_",
        "run_",
        str(short_folder),
        TOKEN,
    ):
        named = told.replace("nousd_run_", "")
        named = re.sub(r'type="[a-z_]+"', "", named)
        assert secret not in named, secret


def count_events(meters: Meters, *happened: Event) -> None:
    for event in happened:
        payload: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(event))
        ts = "2026-01-01T00:00:00.000Z"
        meters.events.count(ReceivedEvent("evt-1", EVENT_TYPES[type(event)], payload, ts, b""))


def exposition_of(meters: Meters) -> Scrape:
    return Scrape(meters.expose(None, "").data.decode())


def completed_call(tool: str, **more: Any) -> events.ToolCallCompleted:
    where: dict[str, Any] = {"session_id": "s", "tool_call_id": "c", "attempt": 1}
    return events.ToolCallCompleted(**where, tool_name=tool, is_error=False, **more)


def usage_report(provider: str, model: str, **more: Any) -> events.UsageReported:
    return events.UsageReported(session_id="s", provider=provider, model=model, **more)


def test_the_labels_of_a_thousand_tools_and_models_and_codes_are_bounded() -> None:
    meters = Meters()
    count_events(meters, *(completed_call(f"tool{n}", duration_ms=n) for n in range(1000)))
    count_events(
        meters, *(usage_report(f"p{n % 3}", f"model{n}", duration_ms=n) for n in range(1000))
    )
    for n in range(1000):
        count_events(meters, events.Warning(session_id="s", run_id="r", code=f"c{n}", message="m"))
    told = exposition_of(meters)
    tools = told.by("nousd_tool_calls_total", "tool")
    assert (len(tools), tools["other"]) == (101, 900)
    models = told.by("nousd_model_calls_total", "provider", "model")
    assert (len(models), models["other", "other"]) == (51, 950)
    codes = told.by("nousd_warnings_total", "code")
    assert (len(codes), codes["other"]) == (51, 950)
    assert len(told.text) < 256 * 1024


@pytest.mark.parametrize(
    "name",
    [
        "/home/me/models/secret.gguf",
        "../secret",
        "file:///secret",
        "C:\\secret",
        "a secret",
        "secret\n",
        'secret"} 1',
        "",
        "secret" * 20,
        "s/e/c/r/et",
        "geheimniß",
    ],
)
def test_a_name_that_is_not_plain_becomes_other(name: str) -> None:
    meters = Meters()
    count_events(meters, completed_call(name), usage_report("p", name))
    told = exposition_of(meters)
    assert told.by("nousd_tool_calls_total", "tool") == {"other": 1}
    assert told.by("nousd_model_calls_total", "provider", "model") == {("other", "other"): 1}
    assert "secret" not in told.text


@pytest.mark.parametrize(
    "name", ["gpt-5", "meta-llama/Llama-4:free", "accounts/x/models/y", "mcp__files__read", "a.b@1"]
)
def test_plain_names_of_models_and_tools_are_labels(name: str) -> None:
    meters = Meters()
    count_events(meters, completed_call(name), usage_report("p", name))
    assert exposition_of(meters).by("nousd_tool_calls_total", "tool") == {name: 1}
    assert exposition_of(meters).by("nousd_model_calls_total", "model") == {name: 1}


def test_a_denied_call_uses_only_an_existing_label() -> None:
    meters = Meters()
    call: dict[str, Any] = {"session_id": "s", "tool_call_id": "c", "attempt": 1}
    denied = events.ToolCallDenied(**call, tool_name="bash", by="user", reason="no")
    count_events(meters, denied, completed_call("bash", stop_reason="timeout"), denied)
    assert exposition_of(meters).by("nousd_tool_calls_total", "tool", "outcome") == {
        ("other", "denied"): 1,
        ("bash", "stopped_timeout"): 1,
        ("bash", "denied"): 1,
    }
    assert not exposition_of(meters).by("nousd_tool_call_seconds_count", "tool")


def test_the_kinds_of_tokens_do_not_overlap() -> None:
    meters = Meters()
    usage = Usage(input=10, output=8, total=18, cache_read=4, cache_write=1, reasoning=3)
    count_events(meters, usage_report("p", "m", usage=usage, cost_usd=0.5, first_token_ms=40))
    wanted = {"input": 5, "cache_read": 4, "cache_write": 1, "output": 5, "reasoning": 3}
    assert exposition_of(meters).by("nousd_model_tokens_total", "kind") == wanted
    assert exposition_of(meters).by("nousd_model_cost_dollars_total", "model") == {"m": 0.5}
    assert exposition_of(meters).by("nousd_model_first_token_seconds_sum", "model") == {"m": 0.04}
    odd = Usage(input=1, output=1, total=2, cache_read=4, reasoning=3)
    count_events(meters, usage_report("p", "m", usage=odd))
    wanted |= {"cache_read": 8, "reasoning": 6}
    assert exposition_of(meters).by("nousd_model_tokens_total", "kind") == wanted


def test_a_limited_number_of_unfinished_runs_is_remembered() -> None:
    meters = Meters()
    for n in range(1025):
        count_events(
            meters, events.AgentStart(session_id="s", run_id=f"r{n}", runtime="n", model="m")
        )
    for n in (0, 1, 1024):
        count_events(meters, events.AgentEnd(session_id="s", run_id=f"r{n}", status="completed"))
    told = exposition_of(meters)
    assert told.value("nousd_runs_total", status="completed") == 3
    assert told.value("nousd_run_seconds_count", status="completed") == 2


def test_an_unknown_event_type_is_counted_as_other() -> None:
    meters = Meters()
    meters.events.count(ReceivedEvent("evt-1", "of_tomorrow", {}, "", b""))
    assert exposition_of(meters).by("nousd_events_total", "type") == {"other": 1}


def test_two_bridges_of_one_process_count_separately() -> None:
    one, another = Meters(), Meters()
    count_events(one, completed_call("ls"))
    assert exposition_of(another).by("nousd_tool_calls_total", "tool") == {}
