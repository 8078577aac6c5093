"""Tokens, times and cost of model calls, and their sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio.testing

from nousd.errors import ProviderError
from nousd.machine.context.model_input import ModelChoice
from nousd.providers.interface import Finished, Receive, Retrying, TextDelta, UsageSoFar
from nousd.providers.mock.provider import MockProvider
from nousd.providers.models.catalog import ModelFacts, Models
from nousd.providers.models.prices import Price
from nousd.runtimes.native.loop import NativeSettings
from nousd.wire.objects.entries import Usage
from tests.daemon.scripted import Outcome, ScriptedProvider, fails, says
from tests.harness.daemon import Client, Payload, memory_daemon, of_type

Clock = trio.testing.MockClock
USAGE = Usage(input=1000, output=20, total=1020, cache_read=400, cache_write=100)
PRICE = Price(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)
COST = (500 * 3.0 + 400 * 0.3 + 100 * 3.75 + 20 * 15.0) / 1_000_000


def priced_models(provider: ScriptedProvider | MockProvider) -> Models:
    choice = ModelChoice(provider.name, provider.default_model)
    facts = {f"{choice.provider}/{choice.model}": ModelFacts(price=PRICE)}
    return Models({provider.name: lambda: provider}, choice, facts=facts)


def answers(*pieces: Any, error: Exception | None = None) -> Outcome:
    async def play(receive: Receive) -> None:
        for piece in pieces:
            await receive(piece)
        if error is not None:
            raise error

    return play


async def usage_of_run(
    workdir: Path, *outcomes: Outcome, **options: Any
) -> tuple[list[Payload], Payload]:
    """Run the model calls; return the usage reports and the record of the run."""
    provider = ScriptedProvider()
    provider.answer(*outcomes)
    async with memory_daemon(workdir=workdir, provider=provider, **options) as daemon:
        events, client = await daemon.watch(types="all"), await daemon.connect()
        accepted = await client.request("prompt", text="hello", wait=False)
        run = await events.run()
        record = await client.request("get_run", run_id=accepted["run_id"])
        return of_type(run, "usage_reported"), record["run"]


async def session_usage(client: Client) -> Payload:
    [session] = (await client.request("list_sessions"))["sessions"]
    usage: Payload = session["usage"]
    assert (await client.request("get_state"))["usage"] == usage
    return usage


async def test_times_cover_only_the_successful_attempt(
    tmp_path: Path,
    autojump_clock: Clock,
) -> None:
    async def play(receive: Receive) -> None:
        await trio.sleep(7)
        await receive(Retrying(1, 3, "http 503", 2.0))
        await trio.sleep(2.0)
        await trio.sleep(0.4)
        await receive(TextDelta("a"))
        await trio.sleep(1.1)
        await receive(Finished("stop", USAGE))

    [report], run = await usage_of_run(tmp_path, play)
    assert (report["first_token_ms"], report["duration_ms"]) == (400, 1500)
    assert run["usage"]["duration_ms"] == 1500


async def test_the_cost_includes_fresh_cached_and_written_tokens(tmp_path: Path) -> None:
    provider = ScriptedProvider()
    provider.answer(answers(TextDelta("a"), Finished("stop", USAGE)))
    models = priced_models(provider)
    async with memory_daemon(workdir=tmp_path, provider=provider, models=models) as daemon:
        events, client = await daemon.watch(types="all"), await daemon.connect()
        await client.request("prompt", text="hello", wait=False)
        [report] = of_type(await events.run(), "usage_reported")
        assert report["cost_usd"] == pytest.approx(COST)
        assert (report["provider"], report["model"]) == ("scripted", "scripted-model")
        usage = await session_usage(client)
        assert usage["cost_usd"] == pytest.approx(COST)
        assert "unpriced_calls" not in usage


async def test_a_call_without_usage_has_its_times_and_counts_as_uncounted(tmp_path: Path) -> None:
    [report], run = await usage_of_run(tmp_path, says("hello"))
    assert "usage" not in report
    assert "cost_usd" not in report
    assert report["duration_ms"] >= report["first_token_ms"] >= 0
    assert (run["usage"]["calls"], run["usage"]["uncounted_calls"]) == (1, 1)


BROKEN = ProviderError("the stream broke")


async def test_a_failed_call_reports_its_usage_so_far(tmp_path: Path) -> None:
    failing = answers(UsageSoFar(USAGE), TextDelta("a"), error=BROKEN)
    [report], run = await usage_of_run(tmp_path, failing)
    assert report["usage"] == {
        "input": 1000,
        "output": 20,
        "total": 1020,
        "cache_read": 400,
        "cache_write": 100,
    }
    assert run["status"] == "error"
    assert run["usage"]["input"] == 1000


async def test_a_call_that_fails_without_output_is_not_reported(tmp_path: Path) -> None:
    reports, run = await usage_of_run(tmp_path, fails(BROKEN))
    assert reports == []
    assert "usage" not in run


async def test_the_usage_of_a_retried_attempt_is_not_reported(
    tmp_path: Path,
) -> None:
    again = answers(
        UsageSoFar(USAGE), Retrying(1, 3, "http 503", 0.0), TextDelta("a"), error=BROKEN
    )
    [report], _ = await usage_of_run(tmp_path, again)
    assert "usage" not in report


async def test_an_aborted_call_is_reported_once_within_its_run(
    tmp_path: Path,
    autojump_clock: Clock,
) -> None:
    async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
        events, client = await daemon.watch(types="all"), await daemon.connect()
        await client.request("prompt", text="[[usage 7]] [[say 3]] [[hang]]", wait=False)
        await events.until("message_update")
        await client.request("abort")
        run = await events.run()
        [report] = of_type(run, "usage_reported")
        assert (report["usage"]["input"], report["turn_id"]) == (7, "1")
        [ended] = [event for event in run if event["type"] == "message_end"][-1:]
        assert report["message_id"] == ended["payload"]["message_id"]


async def test_a_summary_made_during_a_run_counts_in_the_usage_of_the_run(tmp_path: Path) -> None:
    native = NativeSettings(context_window=1000, compact_at=0.5, keep_recent_tokens=200)
    async with memory_daemon(workdir=tmp_path, provider=MockProvider(), native=native) as daemon:
        events, client = await daemon.watch(types="all"), await daemon.connect()
        await client.request("set_active_tools", tools=[])
        reports: list[Payload] = []
        while not any(report["purpose"] == "summary" for report in reports):
            result = await client.request("prompt", text=f"[[say 3]] {'x' * 400}")
            reports = of_type(await events.run(), "usage_reported")
        record = (await client.request("get_run", run_id=result["run_id"]))["run"]
        assert {report["run_id"] for report in reports} == {record["run_id"]}
        assert [report["purpose"] for report in reports] == ["summary", "answer"]
        assert record["usage"]["calls"] == 2
        assert record["usage"]["total"] == sum(report["usage"]["total"] for report in reports)


async def test_a_discarded_summary_counts_in_the_usage_of_the_session(tmp_path: Path) -> None:
    provider = ScriptedProvider()
    provider.answer(says("one"), says("two"))
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client, other = await daemon.connect(), await daemon.connect()
        for _ in range(2):
            await client.request("prompt", text="hello")
        assert (await session_usage(client))["calls"] == 2
        tree = await client.request("get_tree")
        request_id = await client.ask("compact_session")
        await provider.calls.wait_waiting()
        await other.request("set_leaf", leaf_id=tree["nodes"][0]["id"])
        provider.answer(answers(TextDelta("summary"), Finished("stop", USAGE)))
        answer = await client.receive()
        assert (answer["id"], answer["error"]["message"]) == (request_id, "session_changed")
        usage = await session_usage(client)
        assert (usage["calls"], usage["input"]) == (3, 1000)
        assert all(
            run["usage"]["calls"] == 1 for run in (await client.request("list_runs"))["runs"]
        )
