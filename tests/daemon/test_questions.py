"""Questions of tools: what the user sees, valid answers, and how waiting ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from nousd.wire.events.tools import ToolCallEvent
from tests.daemon.asking_bench import Bench, asking_daemon, calls
from tests.daemon.scripted import Outcome
from tests.harness.daemon import Event, Payload, of_type, types

COLOUR: dict[str, Any] = {
    "question": "Which colour?",
    "header": "Colour",
    "options": [{"label": "Red", "description": "warm"}, {"label": "Blue"}],
}
SIZES: dict[str, Any] = {
    "question": "Which sizes?",
    "options": [{"label": "S"}, {"label": "M"}, {"label": "L"}],
    "multiple": True,
}
NAME: dict[str, Any] = {"question": "Which name?"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with asking_daemon(tmp_path) as bench:
        yield bench


def question_call(*questions: dict[str, Any]) -> Outcome:
    return calls(("question", json.dumps({"questions": questions})))


async def ask_user(bench: Bench, *questions: dict[str, Any]) -> Payload:
    """Start a run whose model asks the questions; return the ``question_asked`` payload."""
    await bench.start(question_call(*questions))
    payload: Payload = (await bench.events.until("question_asked"))["payload"]
    return payload


def result(run: list[Event]) -> Payload:
    [end] = of_type(run, "tool_execution_end")
    return end


@pytest.mark.behaviour("a_tool_asks_and_waits")
async def test_a_question_reaches_the_user_and_its_answer_reaches_the_model(bench: Bench) -> None:
    shown = await ask_user(bench, COLOUR, SIZES, NAME)
    [started] = of_type(bench.events.seen, "tool_call_started")
    of_call = {field.name for field in msgspec.structs.fields(ToolCallEvent)} & started.keys()
    assert {key: shown[key] for key in of_call} == {key: started[key] for key in of_call}
    assert {"session_id", "run_id", "turn_id", "tool_call_id", "attempt", "input_hash"} <= of_call
    assert shown["questions"] == [COLOUR, SIZES, NAME]
    status = (await bench.events.until("status"))["payload"]["message"]
    assert json.loads(status.removeprefix("question_asked: ")) == shown
    answers = [{"chosen": ["Blue"]}, {"chosen": ["S", "L"], "text": "no M"}, {"text": "Ada"}]
    response = await bench.client.request(
        "answer_question", question_id=shown["question_id"], answers=answers
    )
    assert response == {"command": "answer_question"}
    run = await bench.events.run()
    [answered] = of_type(run, "question_answered")
    assert (answered["question_id"], answered["answers"]) == (shown["question_id"], answers)
    assert result(run)["result"] == (
        "Which colour?\nChosen: Blue\n\n"
        "Which sizes?\nChosen: S\nChosen: L\nAnswer: no M\n\n"
        "Which name?\nAnswer: Ada"
    )
    assert not result(run)["is_error"]
    assert "Chosen: Blue" in str(bench.provider.requests[1].messages[-1])


async def test_a_question_needs_no_permission_even_in_mode_ask(tmp_path: Path) -> None:
    async with asking_daemon(tmp_path, mode="ask") as bench:
        shown = await ask_user(bench, NAME)
        await bench.client.request("reject_question", question_id=shown["question_id"])
        assert of_type(await bench.events.run(), "permission_requested") == []


@pytest.mark.behaviour("a_rejected_question_is_a_result")
@pytest.mark.parametrize(
    ("more", "reason"),
    [({}, "the user does not want to answer"), ({"reason": "ask Bob"}, "ask Bob")],
)
async def test_a_rejection_reaches_the_model_with_its_reason(
    bench: Bench, more: dict[str, str], reason: str
) -> None:
    shown = await ask_user(bench, NAME)
    await bench.client.request("reject_question", question_id=shown["question_id"], **more)
    run = await bench.events.run()
    [rejected] = of_type(run, "question_rejected")
    assert (rejected["by"], rejected["reason"]) == ("user", reason)
    assert result(run)["result"] == f"tool_error: the user did not answer: {reason}"
    assert run[-1]["payload"]["status"] == "completed"


@pytest.mark.behaviour("an_answer_fits_its_question")
@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([], "answers must have 2 items, one for each question"),
        ([{"chosen": ["Red"]}], "answers must have 2 items, one for each question"),
        (
            [{"chosen": ["Green"]}, {"text": "x"}],
            "answers[0].chosen must name options of the question",
        ),
        ([{}, {"text": "x"}], "answers[0] must choose an option or have a text"),
        ([{"chosen": ["Red"]}, {"text": " "}], "answers[1] must choose an option or have a text"),
        ([{"chosen": ["Red", "Red"]}, {"text": "x"}], "answers[0].chosen must name an option once"),
        (
            [{"chosen": ["Red", "Blue"]}, {"text": "x"}],
            "answers[0].chosen must name one option: the question takes no more",
        ),
    ],
)
async def test_an_invalid_answer_is_refused_and_leaves_the_question_pending(
    bench: Bench, answers: list[dict[str, Any]], message: str
) -> None:
    shown = await ask_user(bench, COLOUR, NAME)
    named = {"question_id": shown["question_id"]}
    error = await bench.client.refusal("answer_question", **named, answers=answers)
    assert (error["code"], error["message"]) == ("invalid_payload", message)
    listed = await bench.client.request("list_questions")
    assert listed["questions"] == [shown]
    fitting = [{"chosen": ["Red"]}, {"text": "x"}]
    await bench.client.request("answer_question", **named, answers=fitting)
    await bench.events.run()


@pytest.mark.behaviour("the_first_answer_to_a_question_wins")
@pytest.mark.parametrize("second", ["answer_question", "reject_question"])
async def test_the_second_answer_is_refused_as_already_answered(bench: Bench, second: str) -> None:
    other = await bench.daemon.connect()
    shown = await ask_user(bench, NAME)
    named = {"question_id": shown["question_id"]}
    answers = {"answers": [{"text": "Ada"}]}
    mine = await bench.client.ask("answer_question", **named, **answers)
    theirs = await other.ask(second, **named, **(answers if "answer" in second else {}))
    assert (await bench.client.answer(mine))["ok"]
    error = (await other.answer(theirs))["error"]
    assert (error["code"], error["message"]) == ("command_rejected", "already_answered")
    assert error["details"]["outcome"] == "answered"
    run = await bench.events.run()
    assert types(run).count("question_answered") == 1
    assert "question_rejected" not in types(run)
    error = await other.refusal("reject_question", question_id="ques-0")
    assert error["message"] == "question_not_found"


async def test_an_unanswered_question_times_out_and_the_run_completes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with asking_daemon(
        tmp_path, approval_timeout_seconds=900.0, stale_seconds=30.0, tools=[]
    ) as bench:
        shown = await ask_without_thread(bench)
        await trio.sleep(901)
        run = await bench.events.run()
        [rejected] = of_type(run, "question_rejected")
        assert (rejected["by"], rejected["question_id"]) == ("timeout", shown["question_id"])
        assert run[-1]["payload"]["status"] == "completed"
        assert "nobody answered within 900 seconds" in result(run)["result"]


async def ask_without_thread(bench: Bench) -> Payload:
    """Ask from a tool without a thread, because a mock clock does not wait for threads."""
    bench.fetched.asks = True
    await bench.client.request(
        "set_permission_mode", mode="yolo", session_id=await new_session(bench)
    )
    await bench.start()
    payload: Payload = (await bench.events.until("question_asked"))["payload"]
    return payload


async def new_session(bench: Bench) -> str:
    session_id: str = (await bench.client.request("new_session"))["session_id"]
    return session_id


async def test_a_question_fails_at_once_if_no_client_can_be_asked(tmp_path: Path) -> None:
    async with asking_daemon(tmp_path, subscription={"types": "all"}) as bench:
        run = await bench.run(question_call(NAME))
        assert of_type(run, "question_asked", "question_rejected") == []
        expected = "tool_error: the user did not answer: no connected client can be asked"
        assert result(run)["result"] == expected


@pytest.mark.behaviour("abort_resolves_what_waits")
async def test_an_abort_rejects_the_pending_question(bench: Bench) -> None:
    shown = await ask_user(bench, NAME)
    await bench.client.request("abort")
    run = await bench.events.run()
    [rejected] = of_type(run, "question_rejected")
    assert (rejected["by"], rejected["question_id"]) == ("stop", shown["question_id"])
    [completed] = of_type(run, "tool_call_completed")
    assert completed["stop_reason"] == "aborted"
    assert (await bench.client.request("list_questions"))["questions"] == []
    error = await bench.client.refusal(
        "answer_question", question_id=shown["question_id"], answers=[{"text": "x"}]
    )
    assert (error["message"], error["details"]["by"]) == ("already_answered", "stop")


@pytest.mark.behaviour("questions_that_wait_are_listed")
async def test_a_question_is_listed_for_its_session_until_it_is_resolved(bench: Bench) -> None:
    shown = await ask_user(bench, NAME)
    other = await new_session(bench)
    listed = await bench.client.request("list_questions", session_id=shown["session_id"])
    assert listed["questions"] == [shown]
    assert (await bench.client.request("list_questions", session_id=other))["questions"] == []
    await bench.client.request("reject_question", question_id=shown["question_id"])
    assert (await bench.client.request("list_questions"))["questions"] == []
    await bench.events.run()


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"questions": []},
        {"questions": [NAME] * 5},
        {"questions": [{"question": " "}]},
        {"questions": [{"question": "x", "options": [{"label": "a"}] * 17}]},
    ],
)
async def test_a_question_call_with_invalid_arguments_is_refused(
    bench: Bench, args: dict[str, Any]
) -> None:
    run = await bench.run(calls(("question", json.dumps(args))))
    assert of_type(run, "warning")[0]["code"] == "tool_validation_error"
    assert of_type(run, "question_asked") == []
