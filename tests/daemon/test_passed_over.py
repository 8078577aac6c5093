"""A steer instead of an answer: requests that wait for the user end; the run goes on with the steer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from tests.daemon.asking_bench import FETCHES, Bench, Fetched, asking_daemon, calls, naming
from tests.daemon.scripted import says
from tests.daemon.task_bench import of_run, result_of, task_daemon, tasks
from tests.harness.daemon import Event, of_type, types, users

TWO = calls(("fetch", '{"url": "https://a.org"}'), ("fetch", '{"url": "https://b.org"}'))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with asking_daemon(tmp_path) as bench:
        yield bench


def check_skipped(run: list[Event], count: int) -> None:
    """Check that this many calls ended like calls that a steer skipped."""
    warnings = [
        each for each in of_type(run, "warning") if each["code"] == "tool_execution_skipped"
    ]
    assert len(warnings) == count
    for end in of_type(run, "tool_execution_end"):
        assert end["result"] == "tool_error: Skipped due to queued user message."
        assert (end["is_error"], end["executed"]) == (True, False)
    updates = [each["delta"] for each in of_type(run, "tool_execution_update")]
    assert updates == ["tool_error: Skipped due to queued user message."] * count
    assert [each["by"] for each in of_type(run, "tool_call_denied")] == ["steer"] * count
    assert "tool_call_started" not in types(run)


@pytest.mark.behaviour("a_steer_withdraws_requests")
async def test_a_steer_during_an_approval_skips_the_call_and_moves_the_run(bench: Bench) -> None:
    request = await bench.asked(TWO)
    await bench.client.request("steer", text="something else")
    run = await bench.events.run()
    check_skipped(run, 2)
    assert users(run) == [("prompt", "go"), ("steer", "something else")]
    assert bench.fetched.urls == []
    assert await bench.pending() == []
    late = await bench.client.refusal("confirm_tool", **naming(request, "once"))
    assert late["message"] == "already_decided"
    assert late["details"]["by"] == "steer"


async def test_a_promoted_follow_up_withdraws_requests_like_a_steer(bench: Bench) -> None:
    await bench.asked()
    follow_up = await bench.client.request("follow_up", text="now")
    assert len(await bench.pending()) == 1
    await bench.client.request("promote", input_id=follow_up["input_id"])
    run = await bench.events.run()
    check_skipped(run, 1)
    assert users(run)[-1] == ("steer", "now")


async def test_a_steer_of_another_session_withdraws_nothing(bench: Bench) -> None:
    bench.provider.answer(FETCHES)
    await bench.client.request("prompt", text="go", wait=False)
    request = (await bench.events.until("permission_requested"))["payload"]
    other = (await bench.client.request("new_session"))["session_id"]
    await bench.client.request("prompt", text="go", wait=False, session_id=other)
    await bench.client.request("steer", text="x", session_id=other)
    assert [each["tool_call_id"] for each in await bench.pending()] == [request["tool_call_id"]]


@pytest.mark.behaviour("a_question_ends_when_the_user_steers")
async def test_a_steer_during_a_question_tells_the_model_that_the_user_spoke_instead(
    bench: Bench,
) -> None:
    bench.fetched.asks = True
    request = await bench.asked()
    await bench.client.request("confirm_tool", **naming(request, "once"))
    question = (await bench.events.until("question_asked"))["payload"]
    await bench.client.request("steer", text="stop asking")
    run = await bench.events.run()
    [rejected] = of_type(run, "question_rejected")
    assert rejected["by"] == "steer"
    [end] = of_type(run, "tool_execution_end")
    assert "they sent a message instead" in end["result"]
    assert users(run)[-1] == ("steer", "stop asking")
    late = await bench.client.refusal(
        "answer_question", question_id=question["question_id"], answers=[{"text": "yes"}]
    )
    assert late["message"] == "already_answered"


async def test_a_steer_of_a_run_skips_the_call_that_waits_in_its_task(tmp_path: Path) -> None:
    async with task_daemon(
        tmp_path, fetched=Fetched(), permissions=RulePermissions("auto")
    ) as bench:
        await bench.events.subscribe(types="all", confirms=True)
        bench.on("go", tasks({"prompt": "look"}), says("done"))
        # It tries again, and nobody is asked again.
        bench.on("look", FETCHES, FETCHES, says("given up"))
        parent = await bench.start()
        child = await bench.child()
        await bench.events.until("permission_requested", run_id=parent["run_id"])
        await bench.client.request("steer", text="leave it", session_id=parent["session_id"])
        run = await bench.events.run(parent["run_id"])
    assert users(of_run(run, parent["run_id"]))[-1] == ("steer", "leave it")
    of_child = [event for event in run if event["payload"]["session_id"] == child["session_id"]]
    check_skipped(of_child, 2)
    assert len(of_type(of_child, "permission_requested")) == 1
    assert "given up" in result_of(run)["result"]
