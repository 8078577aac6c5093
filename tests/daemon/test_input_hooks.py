"""Hooks before an input is accepted: changed and handled inputs, and failures of hooks."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from nousd.daemon import replies
from nousd.daemon.app import shut_down
from nousd.extensions.hooks import (
    ChangeInput,
    HandleInput,
    InputGiven,
)
from tests.daemon.hooks_bench import failing, open_bench
from tests.daemon.scripted import says
from tests.extensions.registering import on
from tests.harness.daemon import of_type


@pytest.mark.behaviour("an_extension_may_change_an_input")
async def test_an_input_changed_by_a_hook_is_accepted_as_changed(tmp_path: Path) -> None:
    seen: list[InputGiven] = []

    def expand(given: InputGiven) -> ChangeInput:
        seen.append(given)
        return ChangeInput(given.text.replace("@team", "Ann and Bo"))

    async with open_bench(tmp_path, on("input", expand)) as bench:
        run = await bench.run(says("ok"), text="greet @team")
    [given] = seen
    assert (given.session_id, given.run_id, given.kind) == ("", "", "prompt")
    [accepted, _] = of_type(run, "queue_update")
    [queued] = accepted["inputs"]
    assert (queued["text"], queued["changed_by"]) == ("greet Ann and Bo", ["one"])
    [start] = (each for each in of_type(run, "message_start") if each["role"] == "user")
    assert start["text"] == "greet Ann and Bo"


@pytest.mark.behaviour("an_extension_may_deal_with_an_input")
async def test_an_input_handled_by_a_hook_starts_no_run_and_no_session(
    tmp_path: Path,
) -> None:
    def handle(given: InputGiven) -> HandleInput | None:
        return HandleInput("42 lines") if given.text == "/count" else None

    async with open_bench(tmp_path, on("input", handle)) as bench:
        answer = await bench.client.request("prompt", text="/count", wait=False)
        nothing = {"command": "prompt", "run_id": "", "session_id": ""}
        assert answer == {**nothing, "handled_by": "one", "reply": "42 lines"}
        handled = await bench.events.until("input_handled")
        assert handled["payload"] == {
            "session_id": "",
            "kind": "prompt",
            "text": "/count",
            "extension": "one",
            "reply": "42 lines",
        }
        assert (await bench.client.request("list_sessions"))["sessions"] == []
        waited = await bench.client.request("prompt", text="/count", wait=True)
        assert waited == {
            "output": "42 lines",
            "events": [],
            "session_id": "",
            "run_id": "",
            "status": "completed",
            "handled_by": "one",
        }


async def test_a_steer_or_follow_up_handled_by_a_hook_is_not_queued(tmp_path: Path) -> None:
    seen: list[InputGiven] = []

    def handle(given: InputGiven) -> HandleInput | None:
        seen.append(given)
        return None if given.kind == "prompt" else HandleInput("noted")

    async with open_bench(tmp_path, on("input", handle)) as bench:
        begun = await bench.client.request("prompt", text="go", wait=False)
        for kind in ("steer", "follow_up"):
            answer = await bench.client.request(kind, text="later")
            assert (answer["handled_by"], answer["reply"]) == ("one", "noted")
            assert answer["session_id"] == begun["session_id"]
        assert (await bench.client.request("get_queue"))["inputs"] == []
        bench.provider.answer(says("ok"))
        await bench.events.run()
    assert [given.run_id for given in seen] == ["", begun["run_id"], begun["run_id"]]


async def test_hooks_change_and_handle_appended_messages_too(
    tmp_path: Path,
) -> None:
    def change(given: InputGiven) -> HandleInput | ChangeInput:
        if given.text.startswith("/"):
            return HandleInput("done")
        return ChangeInput(f"{given.text}!")

    async with open_bench(tmp_path, on("input", change)) as bench:
        answer = await bench.client.request("append_message", text="/rules")
        assert (answer["command"], answer["handled_by"]) == ("append_message", "one")
        appended = await bench.client.request("append_message", text="hello")
        prompted = await bench.client.request(
            "prompt", text="hello", wait=False, reuse_appended=True
        )
        assert prompted["entry_id"] == appended["entry_id"]
        (entry,) = (await bench.client.request("get_messages"))["messages"]
        assert entry["text"] == "hello!"


async def test_an_input_resent_while_a_hook_runs_is_handled_once(
    tmp_path: Path,
) -> None:
    running: list[str] = []
    both_run = trio.Event()

    async def handle(given: InputGiven) -> HandleInput:
        running.append(given.text)
        if len(running) == 2:
            both_run.set()
        await both_run.wait()
        return HandleInput("done")

    async with open_bench(tmp_path, on("input", handle)) as bench:
        other = await bench.daemon.connect()
        prompt = {"text": "/do", "wait": False, "client_message_id": "m1"}
        requests = [(each, await each.ask("prompt", **prompt)) for each in (bench.client, other)]
        answers = [(await each.answer(request))["payload"] for each, request in requests]
        assert [answer.get("repeated") for answer in answers].count(True) == 1
        events = (await bench.client.request("get_events", types=["input_handled"]))["events"]
        assert len(events) == 1


async def test_a_resent_input_does_not_reach_hooks_again(tmp_path: Path) -> None:
    seen: list[str] = []

    def handle(given: InputGiven) -> HandleInput | None:
        seen.append(given.text)
        return HandleInput("done") if given.text.startswith("/") else None

    async with open_bench(tmp_path, on("input", handle)) as bench:
        await bench.run(says("ok"))
        for text, message_id in (("/do", "m1"), ("go on", "m2")):
            bench.provider.answer(says("ok"))
            first = await bench.client.request(
                "prompt", text=text, wait=False, client_message_id=message_id
            )
            again = await bench.client.request(
                "prompt", text=text, wait=False, client_message_id=message_id
            )
            assert again == {**first, "repeated": True}
    assert seen == ["go", "/do", "go on"]


async def test_only_the_newest_handled_inputs_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "_REPLIES_KEPT", 2)
    seen: list[str] = []

    def handle(given: InputGiven) -> HandleInput:
        seen.append(given.text)
        return HandleInput()

    async with open_bench(tmp_path, on("input", handle)) as bench:
        for text in ("1", "2", "3", "3", "2", "1"):
            await bench.client.request("prompt", text=text, wait=False, client_message_id=text)
    assert seen == ["1", "2", "3", "1"]


async def test_an_input_held_by_a_hook_while_the_daemon_stops_is_refused(
    tmp_path: Path,
) -> None:
    hook_called = trio.Event()
    stopping = trio.Event()

    async def hold(_given: InputGiven) -> None:
        hook_called.set()
        await stopping.wait()

    async with open_bench(tmp_path, on("input", hold)) as bench:
        request_id = await bench.client.ask("prompt", text="go", wait=False)
        await hook_called.wait()
        await shut_down(bench.daemon.services)
        stopping.set()
        answer = await bench.client.answer(request_id)
    assert "the daemon is stopping" in str(answer["error"])


@pytest.mark.behaviour("a_failing_hook_outside_of_runs_is_told_in_the_answer")
async def test_a_failing_input_hook_is_reported_in_the_answer_and_the_input_is_accepted(
    tmp_path: Path,
) -> None:
    warnings = [{"code": "extension_hook_error", "message": "one: input: ValueError: no idea"}]
    async with open_bench(tmp_path, on("input", failing)) as bench:
        bench.provider.answer(says("ok"), says("ok"))
        answer = await bench.client.request("prompt", text="go", wait=False)
        assert answer["warnings"] == warnings
        await bench.events.run()
        waited = await bench.client.request("prompt", text="go", wait=True)
        assert (waited["output"], waited["warnings"]) == ("ok", warnings)


async def test_inputs_of_one_connection_keep_their_order_while_a_hook_is_slow(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def think(given: InputGiven) -> None:
        await trio.sleep(3 if given.text == "first" else 0)

    async with open_bench(tmp_path, on("input", think)) as bench:
        await bench.client.request("prompt", text="go", wait=False)
        ids = [await bench.client.ask("follow_up", text=text) for text in ("first", "second")]
        for request_id in ids:
            await bench.client.answer(request_id)
        queued = (await bench.client.request("get_queue"))["inputs"]
        assert [each["text"] for each in queued] == ["first", "second"]
        bench.provider.answer(says("1"), says("2"), says("3"))
        await bench.events.run()
