"""The normalized view on the event socket and in pages, with the real daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nousd.daemon.eventlog import normalized
from nousd.daemon.transport import feed
from nousd.store.memory import store as memory
from nousd.views.normalized.transcript import transcript_of
from tests.daemon.asking_bench import naming
from tests.daemon.scripted import ScriptedProvider, asks_for_tools, breaks, fails, gives, says
from tests.daemon.test_attempts import Bench, open_bench
from tests.daemon.test_overlapping_calls import at_once
from tests.harness.daemon import Client, Daemon, Events, memory_daemon
from tests.harness.normalized import TERMINAL, Frame, NormalizedJudge, frames_in, lines_of


async def page(client: Client, **wanted: Any) -> list[Frame]:
    """Return all frames of the log from a position on, read in pages."""
    frames: list[Frame] = []
    answer = await client.request("get_events", view="normalized", **wanted)
    wanted.pop("after_seq", None)
    while answer["events"]:
        frames += answer["events"]
        answer = await client.request(
            "get_events", view="normalized", **wanted | {"after": answer["next"]}
        )
    assert answer["next"] == answer["head"]
    return frames


async def followed(daemon: Daemon, count: int, **wanted: Any) -> list[Frame]:
    """Return the next frames of a subscription."""
    events = await daemon.watch(view="normalized", **wanted)
    frames = [msgspec.json.decode(await events.receive_line()) for _ in range(count)]
    await events.aclose()
    return frames


def types_of(frames: list[Frame]) -> list[str]:
    return [frame["type"] for frame in frames]


def of_type(frames: list[Frame], type: str) -> list[Any]:
    return [frame["payload"] for frame in frames if frame["type"] == type]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path) as bench:
        yield bench


async def with_two_runs(bench: Bench) -> list[Frame]:
    """Return the frames of a log with two runs and a call of a client."""
    bench.work.finish(gives("worked"))
    await bench.run(asks_for_tools(), says("one", "two"))
    await bench.run(says("three"))
    session = (await bench.client.request("get_state"))["session_id"]
    bench.work.finish(gives("called"))
    await bench.client.request("call_tool", session_id=session, tool="work", args={})
    return frames_in(await lines_of(bench.daemon.services.store))


@pytest.mark.slow
@pytest.mark.behaviour("normalized_events_are_the_same_from_every_position")
async def test_a_subscriber_and_pages_get_the_same_frames_from_every_position(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await with_two_runs(bench)
    assert [frame["seq"] for frame in whole] == sorted({frame["seq"] for frame in whole})
    assert await page(bench.client, after="evt-0") == whole
    assert await page(bench.client, after="evt-0", limit=1) == whole
    monkeypatch.setattr(normalized, "THREADS_MAX", 1)
    monkeypatch.setattr(feed, "PAGE_BYTES", 100)
    for at, frame in enumerate(whole[:-1]):
        rest = whole[at + 1 :]
        assert await followed(bench.daemon, len(rest), after_seq=frame["seq"]) == rest
        assert await page(bench.client, after_seq=frame["seq"]) == rest


async def test_a_run_and_a_session_are_followed_by_themselves(bench: Bench) -> None:
    whole = await with_two_runs(bench)
    run = next(frame["trace"]["task_id"] for frame in whole if frame["type"] == "task.completed")
    of_run = [frame for frame in whole if frame["trace"].get("task_id") == run]
    assert await page(bench.client, run_id=run) == of_run
    assert await followed(bench.daemon, len(of_run), after="evt-0", run_id=run) == of_run
    assert await page(bench.client, session_id="sess-none") == []


async def test_frames_come_live_to_a_reader_that_joins_in_the_middle(tmp_path: Path) -> None:
    async with at_once(tmp_path) as bench:
        await bench.start(running="ab")
        early = await page(bench.client, after="evt-0")
        watch = Live(await bench.daemon.watch(view="normalized"))
        await bench.finish("b", gives("of b"))
        completed = await watch.until("tool.call.completed")
        assert completed["payload"]["result_preview"] == "of b"
        assert completed["runtime"]["name"] == "at-once"
        await bench.finish("a", gives("of a"))
        await watch.until("task.completed")
        assert early + watch.seen == await page(bench.client, after="evt-0")


class Live:
    """A subscription to the view, from now on."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.seen: list[Frame] = []

    async def until(self, type: str) -> Frame:
        while True:
            frame: Frame = msgspec.json.decode(await self._events.receive_line())
            self.seen.append(frame)
            if frame["type"] == type:
                return frame


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"view": "normalized", "types": "all"}, "types"),
        ({"after_seq": 3}, "after_seq"),
        ({"view": "normalized", "after_seq": 3, "after": "evt-0"}, "after_seq"),
        ({"view": "normalized", "after_seq": 10**6}, "cursor_beyond_head"),
        ({"view": "other"}, "view"),
    ],
)
async def test_a_view_is_refused_with_types_or_an_impossible_position(
    bench: Bench, wanted: dict[str, Any], message: str
) -> None:
    refused = await bench.client.refusal("get_events", **wanted)
    assert message in refused["message"]


# --- what another implementation gets wrong --------------------------------------------------


@pytest.mark.behaviour("normalized_tasks_begin_and_end_once")
async def test_a_run_that_is_stopped_before_anything_happens_has_an_end_of_its_own(
    bench: Bench,
) -> None:
    await bench.run(says("done"))
    await bench.client.request("prompt", text="again", wait=False)
    await bench.client.request("abort")
    await bench.events.until("agent_end", status="cancelled")
    frames = await page(bench.client, after="evt-0")
    tasks = [frame["trace"]["task_id"] for frame in frames if frame["type"] in TERMINAL]
    assert len(tasks) == len(set(tasks)) == 2
    assert types_of(frames)[-1] == "task.stopped"


async def test_a_tool_that_breaks_ends_its_call_and_the_task(bench: Bench) -> None:
    bench.work.finish(breaks(ValueError("boom")))
    await bench.run(asks_for_tools())
    frames = await page(bench.client, after="evt-0")
    [completed] = of_type(frames, "tool.call.completed")
    assert (completed["is_error"], completed["cut_off"]) == (True, "error")
    [failed] = of_type(frames, "task.failed")
    assert failed["code"] == "INTERNAL"
    assert types_of(frames)[-1] == "task.failed"


async def test_a_runtime_that_fails_at_once_has_a_task_with_a_failure(bench: Bench) -> None:
    await bench.run(fails(RuntimeError("broken")))
    frames = await page(bench.client, after="evt-0")
    of_task = [frame["type"] for frame in frames if "task_id" in frame["trace"]]
    assert of_task[0] == "task.started"
    assert of_task[-1] == "task.failed"
    [failed] = of_type(frames, "task.failed")
    assert failed.keys() >= {"code", "retryable", "message", "hint"}


@pytest.mark.behaviour("normalized_calls_have_one_decision")
async def test_calls_that_wait_for_an_approval_are_denied_when_their_task_is_stopped(
    tmp_path: Path,
) -> None:
    async with at_once(tmp_path, "ab", mode="auto") as bench:
        await bench.client.request("prompt", text="go", wait=False)
        for _ in "ab":
            await bench.events.until("permission_requested")
        await bench.client.request("abort")
        await bench.events.until("agent_end", status="cancelled")
        frames = await page(bench.client, after="evt-0")
        denied = of_type(frames, "tool.call.denied")
        assert [call["policy_snapshot"]["decision"] for call in denied] == ["deny", "deny"]
        assert types_of(frames)[-1] == "task.stopped"


async def test_an_answer_of_the_user_is_an_opinion_and_then_the_decision(tmp_path: Path) -> None:
    async with at_once(tmp_path, "ab", mode="auto") as bench:
        await bench.client.request("prompt", text="go", wait=False)
        one = (await bench.events.until("permission_requested"))["payload"]
        other = (await bench.events.until("permission_requested"))["payload"]
        await bench.client.request("confirm_tool", **naming(one, "once"))
        await bench.client.request("confirm_tool", **naming(other, "deny"))
        await bench.finish("a", gives("of a"))
        await bench.events.until("agent_end", status="completed")
        frames = await page(bench.client, after="evt-0")
        said = [
            (payload["source"], payload["result"])
            for payload in of_type(frames, "tool.call.policy_evaluated")
            if payload["tool_call_id"] == one["tool_call_id"]
        ]
        assert said[-2:] == [("nousd", "ask"), ("user", "allow")]
        [approved] = of_type(frames, "tool.call.approved")
        assert (approved["source"], approved["input_hash"]) == ("user", one["input_hash"])
        told = [message for message in transcript_of(frames) if message["role"] == "tool"]
        assert [block["content"][0].get("is_error", False) for block in told] == [True, False]


@pytest.mark.behaviour("normalized_events_are_the_same_from_every_position")
async def test_a_restarted_daemon_tells_the_same_frames(tmp_path: Path) -> None:
    async with memory.open_store() as store:
        for text in ("one", "two"):
            provider = ScriptedProvider()
            async with memory_daemon(workdir=tmp_path, provider=provider, store=store) as daemon:
                client, events = await daemon.connect(), await daemon.watch()
                before = await page(client, after="evt-0")
                provider.answer(says(text))
                await client.request("prompt", text="go", wait=False)
                await events.run()
                frames = await page(client, after="evt-0")
                assert frames[: len(before)] == before
        judge = NormalizedJudge()
        for frame in frames:
            judge.take(frame)
        judge.finish()
        assert len(of_type(frames, "task.completed")) == 2
