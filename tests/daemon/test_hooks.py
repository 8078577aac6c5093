"""Hooks of extensions in a whole daemon: what they see and change, and what the log says of it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from nousd.daemon.app import shut_down
from nousd.daemon.commands import hooked
from nousd.daemon.permissions import RulePermissions
from nousd.extensions.api import ExtensionApi
from nousd.extensions.hooks import (
    AddInstructions,
    BlockCall,
    Cancel,
    ChangeArgs,
    ChangeInput,
    ChangeResult,
    HandleInput,
    InputGiven,
    RunEnded,
    SessionForking,
    SessionSwitching,
    Told,
    ToolCalled,
    ToolReturned,
)
from nousd.machine.rules import rules_of
from nousd.providers.interface import Finished, Receive, ToolCallPiece
from nousd.runtimes.calls.admission import input_hash
from nousd.store import memory
from nousd.wire.limits import INSTRUCTIONS_BYTES_MAX, TOOL_PREVIEW_CHARS_MAX
from tests.daemon.scripted import Outcome, ScriptedProvider, ScriptedTool, gives, says
from tests.daemon_harness import Client, Daemon, Event, Events, memory_daemon, of_type
from tests.extensions.registering import Register, hooks, on


def failing(_told: object) -> None:
    raise ValueError("no idea")


async def asleep(_told: object) -> None:
    await trio.sleep_forever()


def calls(name: str, args: str) -> Outcome:
    async def play(receive: Receive) -> None:
        await receive(ToolCallPiece("own-0", name, args))
        await receive(Finished("tool_use"))

    return play


class Bench:
    """A daemon with hooks whose model says what the test says, and who asked for every event."""

    def __init__(
        self, daemon: Daemon, client: Client, events: Events, provider: ScriptedProvider
    ) -> None:
        self.daemon = daemon
        self.client = client
        self.events = events
        self.provider = provider

    async def run(self, *outcomes: Outcome, text: str = "go") -> list[Event]:
        self.provider.answer(*outcomes)
        await self.client.request("prompt", text=text, wait=False)
        return await self.events.run()


@asynccontextmanager
async def open_bench(workdir: Path, *registers: Register, **options: Any) -> AsyncIterator[Bench]:
    provider, tool = ScriptedProvider(), ScriptedTool()
    tool.finish(gives("worked"))
    async with memory_daemon(
        workdir=workdir,
        provider=provider,
        tools=[tool.tool],
        hooks=hooks(*registers),
        **options,
    ) as daemon:
        events, client = await daemon.watch(types="all"), await daemon.connect()
        yield Bench(daemon, client, events, provider)


def warnings(events: list[Event]) -> list[tuple[str, str]]:
    return [(said["code"], said["message"]) for said in of_type(events, "warning")]


# --- input ---------------------------------------------------------------------------------------


@pytest.mark.behaviour("an_extension_may_change_an_input")
async def test_a_text_that_is_changed_is_accepted_as_the_extension_left_it(tmp_path: Path) -> None:
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
    [told] = (said for said in of_type(run, "message_start") if said["role"] == "user")
    assert told["text"] == "greet Ann and Bo"


@pytest.mark.behaviour("an_extension_may_deal_with_an_input")
async def test_a_text_that_an_extension_dealt_with_starts_no_run_and_no_session(
    tmp_path: Path,
) -> None:
    def handle(given: InputGiven) -> HandleInput | None:
        return HandleInput("42 lines") if given.text == "/count" else None

    async with open_bench(tmp_path, on("input", handle)) as bench:
        answer = await bench.client.request("prompt", text="/count", wait=False)
        nothing = {"command": "prompt", "run_id": "", "session_id": ""}
        assert answer == {**nothing, "handled_by": "one", "reply": "42 lines"}
        told = await bench.events.until("input_handled")
        assert told["payload"] == {
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


async def test_a_steer_that_an_extension_dealt_with_is_not_queued(tmp_path: Path) -> None:
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


async def test_a_message_that_is_appended_is_changed_or_answered_like_any_text(
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


async def test_a_text_that_is_sent_again_while_a_hook_looks_at_it_is_dealt_with_once(
    tmp_path: Path,
) -> None:
    looking: list[str] = []
    both_look = trio.Event()

    async def handle(given: InputGiven) -> HandleInput:
        looking.append(given.text)
        if len(looking) == 2:
            both_look.set()
        await both_look.wait()
        return HandleInput("done")

    async with open_bench(tmp_path, on("input", handle)) as bench:
        other = await bench.daemon.connect()
        prompt = {"text": "/do", "wait": False, "client_message_id": "m1"}
        asked = [(each, await each.ask("prompt", **prompt)) for each in (bench.client, other)]
        answers = [(await each.answer(request))["payload"] for each, request in asked]
        assert [answer.get("repeated") for answer in answers].count(True) == 1
        events = (await bench.client.request("get_events", types=["input_handled"]))["events"]
        assert len(events) == 1


async def test_a_text_that_is_sent_again_is_shown_to_no_hook_again(tmp_path: Path) -> None:
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


async def test_the_newest_texts_that_extensions_dealt_with_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooked, "_REMEMBERED_MAX", 2)
    seen: list[str] = []

    def handle(given: InputGiven) -> HandleInput:
        seen.append(given.text)
        return HandleInput()

    async with open_bench(tmp_path, on("input", handle)) as bench:
        for text in ("1", "2", "3", "3", "2", "1"):
            await bench.client.request("prompt", text=text, wait=False, client_message_id=text)
    assert seen == ["1", "2", "3", "1"]


async def test_a_text_that_a_hook_holds_while_the_daemon_stops_starts_no_run(
    tmp_path: Path,
) -> None:
    asked = trio.Event()
    stopping = trio.Event()

    async def hold(_given: InputGiven) -> None:
        asked.set()
        await stopping.wait()

    async with open_bench(tmp_path, on("input", hold)) as bench:
        request_id = await bench.client.ask("prompt", text="go", wait=False)
        await asked.wait()
        await shut_down(bench.daemon.core)
        stopping.set()
        answer = await bench.client.answer(request_id)
    assert "the daemon is stopping" in str(answer["error"])


@pytest.mark.behaviour("a_failing_hook_outside_of_runs_is_told_in_the_answer")
async def test_an_input_hook_that_fails_is_told_in_the_answer_and_the_text_is_accepted(
    tmp_path: Path,
) -> None:
    said = [{"code": "extension_hook_error", "message": "one: input: ValueError: no idea"}]
    async with open_bench(tmp_path, on("input", failing)) as bench:
        bench.provider.answer(says("ok"), says("ok"))
        answer = await bench.client.request("prompt", text="go", wait=False)
        assert answer["warnings"] == said
        await bench.events.run()
        waited = await bench.client.request("prompt", text="go", wait=True)
        assert (waited["output"], waited["warnings"]) == ("ok", said)


async def test_inputs_of_one_connection_keep_their_order_while_a_hook_thinks(
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


# --- runs and turns ------------------------------------------------------------------------------


@pytest.mark.behaviour("an_extension_may_add_instructions_to_a_run")
async def test_what_is_added_before_a_run_stands_in_its_system_prompt_alone(tmp_path: Path) -> None:
    runs: list[str] = []

    def add(beginning: Any) -> AddInstructions | None:
        runs.append(beginning.run_id)
        assert (beginning.kind, beginning.model) == ("prompt", "scripted-model")
        return AddInstructions("Say please.") if len(runs) == 1 else None

    async with open_bench(tmp_path, on("before_run", add)) as bench:
        first, second = [await bench.run(says("ok")) for _ in range(2)]
        assert runs == [of_type(run, "agent_start")[0]["run_id"] for run in (first, second)]
        systems = [request.system for request in bench.provider.requests]
    assert systems[0] == "# Instructions of an extension (one)\n\nSay please."
    assert systems[1] == ""
    [told] = of_type(first, "model_input")
    assert told["sources"][-1].items() >= {"kind": "extension", "extension": "one"}.items()
    assert told["sources"][-1]["bytes"] == len("Say please.")


async def test_what_extensions_add_to_a_run_is_bounded(tmp_path: Path) -> None:
    half = AddInstructions("x" * (INSTRUCTIONS_BYTES_MAX // 2))
    several = [on("before_run", lambda _: half) for _ in range(3)]
    async with open_bench(tmp_path, *several) as bench:
        [told] = of_type(await bench.run(says("ok")), "model_input")
    reasons = [source.get("reason") for source in told["sources"] if source["kind"] == "extension"]
    assert reasons == [None, None, "no_room"]


@pytest.mark.behaviour("extensions_are_told_of_runs_and_turns")
async def test_a_run_is_told_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    told: list[Told] = []
    names = ("before_run", "turn_start", "turn_end")
    registers = [on(name, told.append) for name in names]
    async with open_bench(tmp_path, *registers) as bench:
        await bench.client.request("prompt", text="go", wait=False)
        await bench.client.request("follow_up", text="and then")
        bench.provider.answer(says("1"), says("2"))
        await bench.events.run()
    assert [type(each).__name__ for each in told] == [
        "RunBeginning",
        *["TurnStarted", "TurnEnding"] * 2,
    ]
    assert [getattr(each, "text", None) for each in told[1::2]] == ["go", "and then"]
    assert [each.turn_id for each in told[1:]] == ["1", "1", "2", "2"]  # type: ignore[attr-defined]


async def test_the_end_of_a_run_is_told_when_it_is_durable(tmp_path: Path) -> None:
    send, receive = trio.open_memory_channel[RunEnded](1)
    async with open_bench(tmp_path, on("run_end", send.send)) as bench:
        await bench.run(says("ok"))
        with trio.fail_after(10):
            end = await receive.receive()
        assert (end.status, end.error) == ("completed", "")
        begun = await bench.client.request("prompt", text="go", wait=False)
        await bench.client.request("abort")
        with trio.fail_after(10):
            end = await receive.receive()
        assert (end.run_id, end.status) == (begun["run_id"], "cancelled")


async def test_a_hook_that_fails_after_a_run_is_in_the_daemons_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_bench(tmp_path, on("run_end", failing)) as bench:
        assert warnings(await bench.run(says("ok"))) == []
    assert "extension_hook_error: one: run_end: ValueError: no idea" in caplog.text


async def test_the_next_run_waits_for_nobody_who_is_told_of_an_end(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_bench(tmp_path, on("run_end", asleep, timeout_seconds=1000)) as bench:
        for _ in range(2):
            await bench.run(says("ok"))
        assert trio.current_time() == 0


async def test_the_end_of_the_daemon_waits_only_briefly_for_those_who_are_told(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_bench(tmp_path, on("run_end", asleep, timeout_seconds=1000)) as bench:
        await bench.client.request("prompt", text="go", wait=False)
    assert trio.current_time() < 5


@pytest.mark.behaviour("a_failing_hook_is_a_warning")
@pytest.mark.parametrize(
    "name", ["before_run", "turn_start", "turn_end", "tool_call", "tool_result"]
)
@pytest.mark.parametrize(
    ("handler", "code", "why"),
    [
        (failing, "extension_hook_error", "ValueError: no idea"),
        (asleep, "extension_timeout", "did not return within 0.01 seconds"),
    ],
)
async def test_a_hook_that_fails_is_a_warning_and_the_run_goes_on(
    name: str,
    handler: Callable[..., Any],
    code: str,
    why: str,
    tmp_path: Path,
) -> None:
    limit = 0.01 if handler is asleep else 20
    async with open_bench(tmp_path, on(name, handler, timeout_seconds=limit)) as bench:
        run = await bench.run(calls("work", "{}"), says("done"))
    assert warnings(run) == [(code, f"one: {name}: {why}")]
    assert of_type(run, "agent_end")[0]["status"] == "completed"
    assert of_type(run, "tool_execution_end")[0]["executed"] is True


async def test_a_hook_that_takes_its_time_makes_no_run_stale(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def think(_told: object) -> None:
        await trio.sleep(10)

    def register(api: ExtensionApi) -> None:
        for name in ("before_run", "turn_start", "turn_end"):
            on(name, think, timeout_seconds=20)(api)

    async with open_bench(tmp_path, register, stale_seconds=3) as bench:
        run = await bench.run(says("done"))
        assert trio.current_time() == 30
    assert of_type(run, "agent_end")[0]["status"] == "completed"
    assert warnings(run) == []


async def test_an_abort_does_not_wait_for_a_hook(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_bench(tmp_path, on("turn_start", asleep, timeout_seconds=500)) as bench:
        await bench.client.request("prompt", text="go", wait=False)
        await bench.events.until("turn_start")
        await bench.client.request("abort")
        run = await bench.events.run()
        assert trio.current_time() == 0
    assert of_type(run, "agent_end")[0]["status"] == "cancelled"


# --- calls ---------------------------------------------------------------------------------------


WRITE = calls("write", '{"path":"a.txt","content":"x"}')


def evaluated(run: list[Event]) -> list[tuple[str, str]]:
    return [
        (said["source"], said["decision"]) for said in of_type(run, "tool_call_policy_evaluated")
    ]


BEFORE_EXTENSIONS = [
    ("registry", "allow"),
    ("session", "allow"),
    ("arguments", "allow"),
    ("rules", "abstain"),
    ("mode", "allow"),
    ("runtime", "abstain"),
]


@pytest.mark.behaviour("extensions_are_a_source_of_policy")
async def test_a_call_that_a_hook_blocks_does_not_run(tmp_path: Path) -> None:
    seen: list[ToolCalled] = []

    def guard(call: ToolCalled) -> BlockCall:
        seen.append(call)
        return BlockCall("a.txt is made by the build")

    async with open_bench(tmp_path, on("tool_call", guard)) as bench:
        run = await bench.run(WRITE, says("I see"))
        told = bench.provider.requests[-1].messages[-1]
    assert not (tmp_path / "a.txt").exists()
    assert seen[0].tool == "write"
    assert seen[0].args.items() >= {"path": "a.txt", "content": "x"}.items()
    assert evaluated(run) == [*BEFORE_EXTENSIONS, ("extension", "deny")]
    [denied] = of_type(run, "tool_call_denied")
    assert denied["by"] == "extension"
    assert denied["reason"] == "tool_blocked: one: a.txt is made by the build"
    assert warnings(run) == [("tool_blocked", denied["reason"])]
    assert denied["reason"] in told.text
    assert of_type(run, "tool_call_started") == []


async def test_a_hook_that_has_no_objection_is_told_and_decides_nothing(tmp_path: Path) -> None:
    registers = [on("tool_call", lambda call: None), on("tool_call", lambda call: None)]
    async with open_bench(tmp_path, *registers) as bench:
        run = await bench.run(WRITE, says("done"))
    assert (tmp_path / "a.txt").read_text() == "x"
    assert evaluated(run) == [*BEFORE_EXTENSIONS, *[("extension", "abstain")] * 2]
    reasons = [said["reason"] for said in of_type(run, "tool_call_policy_evaluated")[-2:]]
    assert reasons == ["one: has no objection", "two: has no objection"]
    assert of_type(run, "tool_call_approved")[0]["by"] == "policy"
    [completed] = of_type(run, "tool_call_completed")
    sources = [said["source"] for said in completed["policy_snapshot"]["sources"]]
    assert sources[-2:] == ["extension", "extension"]


@pytest.mark.behaviour("extensions_change_calls_before_they_are_judged")
async def test_what_a_hook_makes_of_the_arguments_is_judged_hashed_and_run(tmp_path: Path) -> None:
    def elsewhere(call: ToolCalled) -> ChangeArgs:
        return ChangeArgs({**call.args, "path": "b.txt"})

    async with open_bench(tmp_path, on("tool_call", elsewhere)) as bench:
        run = await bench.run(WRITE, says("done"))
    assert not (tmp_path / "a.txt").exists()
    assert (tmp_path / "b.txt").read_text() == "x"
    [requested] = of_type(run, "tool_call_requested")
    assert requested["args"]["path"] == "a.txt"
    said = of_type(run, "tool_call_policy_evaluated")[-1]
    assert (said["source"], said["reason"]) == ("extension", "one: changed the arguments")
    assert said["args"]["path"] == "b.txt"
    hashes = {event["payload"].get("input_hash") for event in run if "tool_" in event["type"]}
    assert hashes == {input_hash("write", said["args"])}


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_rule_judges_what_a_hook_made_of_a_call_and_both_are_told(
    tmp_path: Path, blocks: bool
) -> None:
    registers = [on("tool_call", lambda call: ChangeArgs({**call.args, "path": "b.txt"}))]
    if blocks:
        registers.append(on("tool_call", lambda call: BlockCall("not now")))
    rules = rules_of("deny", ("write(b.txt)",), "the settings")
    permissions = RulePermissions("yolo", rules)
    async with open_bench(tmp_path, *registers, permissions=permissions) as bench:
        run = await bench.run(WRITE, says("done"))
    assert not any((tmp_path / name).exists() for name in ("a.txt", "b.txt"))
    told = [("rules", "deny"), ("extension", "abstain")]
    assert evaluated(run)[3:] == (told if not blocks else [*told, ("extension", "deny")])
    assert of_type(run, "tool_call_denied")[0]["by"] == "policy"


async def test_a_guard_that_fails_blocks_if_it_said_so(tmp_path: Path) -> None:
    async with open_bench(tmp_path, on("tool_call", failing, on_error="block")) as bench:
        run = await bench.run(WRITE, says("done"))
    assert not (tmp_path / "a.txt").exists()
    assert of_type(run, "tool_call_denied")[0]["by"] == "extension"
    assert warnings(run) == [
        ("extension_hook_error", "one: tool_call: ValueError: no idea"),
        ("tool_blocked", "tool_blocked: one: tool_call: ValueError: no idea"),
    ]


async def test_long_arguments_that_a_hook_made_are_an_artifact(tmp_path: Path) -> None:
    long = {"path": "a.txt", "content": "y" * 100_000}
    async with open_bench(tmp_path, on("tool_call", lambda call: ChangeArgs(long))) as bench:
        run = await bench.run(WRITE, says("done"))
        said = of_type(run, "tool_call_policy_evaluated")[-1]
        assert said["args_bytes"] > 100_000
        kept = await bench.client.request("get_artifact", artifact_id=said["args_ref"])
        assert kept["size_bytes"] == said["args_bytes"]
    assert (tmp_path / "a.txt").stat().st_size == 100_000


@pytest.mark.behaviour("an_extension_may_change_a_result")
async def test_a_result_that_a_hook_changed_is_told_and_the_whole_output_is_kept(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("the word is swordfish\n")
    seen: list[ToolReturned] = []

    def redact(returned: ToolReturned) -> ChangeResult:
        seen.append(returned)
        return ChangeResult(returned.text.replace("swordfish", "[hidden]"))

    async with open_bench(tmp_path, on("tool_result", redact)) as bench:
        run = await bench.run(calls("read", '{"path":"a.txt"}'), says("done"))
        told = bench.provider.requests[-1].messages[-1]
        [end] = of_type(run, "tool_execution_end")
        kept = await bench.client.request("get_artifact", artifact_id=end["artifact_id"])
    assert "swordfish" in seen[0].text
    assert seen[0].args["path"] == "a.txt"
    assert "[hidden]" in told.text
    assert "swordfish" not in told.text
    assert (end["changed_by"], end["is_error"]) == (["one"], False)
    assert "swordfish" not in end["result"]
    assert of_type(run, "tool_call_completed")[0]["changed_by"] == ["one"]
    assert b"swordfish" in base64.b64decode(kept["data"])


async def test_a_failed_call_is_shown_as_well_and_may_become_a_success(tmp_path: Path) -> None:
    seen: list[ToolReturned] = []

    def soften(returned: ToolReturned) -> ChangeResult:
        seen.append(returned)
        return ChangeResult("there is no such file yet", is_error=False)

    async with open_bench(tmp_path, on("tool_result", soften)) as bench:
        run = await bench.run(calls("read", '{"path":"none.txt"}'), says("done"))
    assert seen[0].is_error
    [end] = of_type(run, "tool_execution_end")
    assert (end["result"], end["is_error"]) == ("there is no such file yet", False)


async def test_a_result_that_a_hook_made_too_long_is_cut(tmp_path: Path) -> None:
    async with open_bench(
        tmp_path, on("tool_result", lambda _: ChangeResult("x" * 1_000_000))
    ) as bench:
        run = await bench.run(calls("ls", "{}"), says("done"))
        told = bench.provider.requests[-1].messages[-1]
    [end] = of_type(run, "tool_execution_end")
    assert len(end["result"]) == TOOL_PREVIEW_CHARS_MAX
    assert len(told.text) < 60_000


async def test_calls_that_do_not_fit_are_shown_to_no_hook(tmp_path: Path) -> None:
    seen: list[Told] = []
    registers = [on("tool_call", seen.append), on("tool_result", seen.append)]
    async with open_bench(tmp_path, *registers) as bench:
        run = await bench.run(calls("write", "{}"), calls("none", "{}"), says("done"))
    assert seen == []
    assert len(of_type(run, "tool_call_denied")) == 2


async def test_a_call_of_a_clients_own_goes_through_the_same_hooks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[ToolCalled] = []

    def guard(call: ToolCalled) -> BlockCall | None:
        seen.append(call)
        return BlockCall("not that file") if call.args["path"] == "a.txt" else None

    registers = [on("tool_call", guard), on("tool_result", failing)]
    async with open_bench(tmp_path, *registers) as bench:
        await bench.client.request("new_session")
        for path, outcome in (("a.txt", "tool_call_denied"), ("b.txt", "tool_call_completed")):
            args = {"path": path, "content": "x"}
            call = await bench.client.request("call_tool", tool="write", args=args)
            told = await bench.events.until(outcome, tool_call_id=call["tool_call_id"])
            assert told["payload"].get("by") == ("extension" if path == "a.txt" else None)
    assert (tmp_path / "b.txt").exists()
    assert not (tmp_path / "a.txt").exists()
    assert [(call.run_id, call.turn_id, call.tool) for call in seen] == [("", "", "write")] * 2
    assert "two: tool_result: ValueError: no idea" in caplog.text


async def test_a_task_goes_through_the_same_hooks(tmp_path: Path) -> None:
    seen: list[ToolCalled] = []

    def guard(call: ToolCalled) -> BlockCall | None:
        seen.append(call)
        return BlockCall("not here") if call.tool == "write" else None

    task = '{"tasks": [{"prompt": "write it", "description": "w"}]}'
    async with open_bench(tmp_path, on("tool_call", guard)) as bench:
        await bench.run(calls("task", task), WRITE, says("I could not"), says("done"))
    assert [call.tool for call in seen] == ["task", "write"]
    assert seen[0].session_id != seen[1].session_id
    assert not (tmp_path / "a.txt").exists()


# --- sessions ------------------------------------------------------------------------------------


@pytest.mark.behaviour("an_extension_may_keep_a_session")
async def test_a_switch_or_a_fork_that_is_cancelled_does_not_happen(tmp_path: Path) -> None:
    told: list[Told] = []

    def cancel(facts: SessionSwitching | SessionForking) -> Cancel:
        told.append(facts)
        return Cancel("finish this first")

    provider = ScriptedProvider()
    async with memory.open_store() as store:
        async with memory_daemon(workdir=tmp_path, provider=provider, store=store) as daemon:
            client = await daemon.connect()
            one = (await client.request("new_session"))["session_id"]
            two = (await client.request("new_session"))["session_id"]
        registers = [on("session_before_switch", cancel), on("session_before_fork", cancel)]
        async with open_bench(tmp_path, *registers, store=store) as bench:
            refusals = [
                await bench.client.refusal("switch_session", session_id=one),
                await bench.client.refusal("new_session"),
                await bench.client.refusal("branch_session", session_id=one),
            ]
            assert len((await bench.client.request("list_sessions"))["sessions"]) == 2
            assert (await bench.client.request("get_state"))["session_id"] == two
    assert refusals == [
        {
            "code": "command_rejected",
            "message": "cancelled_by_extension",
            "cause": f"{name}: finish this first",
        }
        for name in ("one", "one", "two")
    ]
    assert told == [
        SessionSwitching(session_id=two, to_session_id=one),
        SessionSwitching(session_id=two, to_session_id=""),
        SessionForking(session_id=one, leaf_id=""),
    ]


async def test_a_switch_whose_hook_fails_happens_and_says_so(tmp_path: Path) -> None:
    registers = [on("session_before_switch", failing), on("session_before_fork", failing)]
    async with open_bench(tmp_path, *registers) as bench:
        one = await bench.client.request("new_session")
        again = await bench.client.request("switch_session", session_id=one["session_id"])
        branch = await bench.client.request("branch_session", session_id=one["session_id"])
    messages = [answer["warnings"][0]["message"] for answer in (one, again, branch)]
    assert messages == [
        "one: session_before_switch: ValueError: no idea",
        "one: session_before_switch: ValueError: no idea",
        "two: session_before_fork: ValueError: no idea",
    ]
