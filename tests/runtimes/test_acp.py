"""Programs of the Agent Client Protocol: what only they do, and the published schema as a judge."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
from jsonschema_rs import Draft202012Validator
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.daemon.workspace.instructions import no_instructions
from nousd.errors import AgentFailed
from nousd.machine.context.prompt_sections import SourceText, of_file
from nousd.runtimes.agents import agent_turn
from nousd.runtimes.agents.acp import messages
from nousd.runtimes.agents.acp.agent import Acp
from nousd.runtimes.agents.acp.life import AcpLife
from nousd.runtimes.agents.guest import Guest
from nousd.runtimes.agents.interface import AgentCall, AgentTool, Resume, Start
from nousd.runtimes.agents.tools.call_reports import ToolCall
from nousd.runtimes.agents.tools.reported_calls import ReportedCalls
from tests.harness.daemon import Event, of_type
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, runtime_bench, said
from tests.runtimes.scripted_adapter import ENVIRONMENT, scripted_program

SCHEMA = Path(__file__).parents[2] / "fixtures" / "schemas" / "agent-client-protocol-1.json"
IMAGE = {"data": "iVBORw0KGgo=", "media_type": "image/png"}
READ = ["workspace.read", {"path": "notes.txt"}]

Message = dict[str, Any]


class AcpBench:
    """A daemon whose sessions are served by the scripted program."""

    def __init__(self, bench: RuntimeBench, memory: Path) -> None:
        self.bench, self.client, self.events = bench, bench.client, bench.events
        self.run = bench.run
        self._memory = memory

    def received(self, method: str = "") -> list[Message]:
        """Return the messages that the program has received, or those of one method."""
        text = (self._memory / "received.ndjson").read_text()
        messages = [json.loads(line) for line in text.splitlines()]
        return [each for each in messages if method in ("", each.get("method"))]

    def prompts(self) -> list[list[str]]:
        """Return the texts of each prompt."""
        return [
            [part["text"] for part in each["params"]["prompt"] if part["type"] == "text"]
            for each in self.received("session/prompt")
        ]

    async def end_life(self) -> None:
        """Let the program end, because a next one would be started in another way."""
        await self.client.request("set_active_tools", tools=["read"])


@asynccontextmanager
async def acp_bench(
    tmp_path: Path, *, options: dict[str, Any] | None = None, **manner: Any
) -> AsyncIterator[AcpBench]:
    workdir, memory = tmp_path / "work", tmp_path / "memory"
    workdir.mkdir()
    (workdir / "notes.txt").write_text("what is noted")
    program = [*scripted_program("fake_acp"), str(memory), json.dumps(manner)]
    agent = Acp("acp", program, ENVIRONMENT)
    async with runtime_bench(workdir, agent, **options or {}) as bench:
        yield AcpBench(bench, memory)


def failure(run: list[Event]) -> Message:
    """Return the failure with which a run has ended."""
    (failed,) = of_type(run, "error")
    return failed


def begun(run: list[Event]) -> list[tuple[str, str]]:
    """Return how the lives began that a run has needed, and why not otherwise."""
    notes = of_type(run, "agent_session")
    return [(note["resume"], note.get("reason", "")) for note in notes if "resume" in note]


# --- the published schema ----------------------------------------------------------------------


@cache
def published() -> Message:
    schema: Message = json.loads(SCHEMA.read_text())
    return schema


@cache
def definition(method: str, side: str) -> str:
    """Return the name of the parameters that a method of a side has."""
    kinds = ("Request", "Notification")
    (name,) = [
        name
        for name, said in published()["$defs"].items()
        if (said.get("x-method"), said.get("x-side")) == (method, side) and name.endswith(kinds)
    ]
    return str(name)


def check(name: str, value: Any) -> None:
    """Assert that a value is what the published schema calls by a name."""
    schema = {"$defs": published()["$defs"], "$ref": f"#/$defs/{name}"}
    faults = [fault.message for fault in Draft202012Validator(schema).iter_errors(value)]
    assert faults == [], f"{name}: {value}"


def check_message(message: Message) -> None:
    """Assert that a message of ours to a program is as published."""
    assert message["jsonrpc"] == "2.0"
    if "method" in message:
        check(definition(message["method"], "agent"), message["params"])
        assert ("id" in message) != (message["method"] == "session/cancel")
    elif "error" in message:
        check("Error", message["error"])
    else:
        check("RequestPermissionResponse", message["result"])


def test_the_judge_refuses_what_is_not_as_published() -> None:
    with pytest.raises(AssertionError, match="NewSessionRequest"):
        check_message({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/"}})


@pytest.mark.slow
@pytest.mark.parametrize("resumes", [False, True])
async def test_all_that_we_send_is_as_published(tmp_path: Path, resumes: bool) -> None:
    async with acp_bench(tmp_path, resumes=resumes, modes=["auto", "default"]) as bench:
        await bench.run({"say": "a"}, attachments=[IMAGE])
        await bench.run({"call": READ}, {"own": ["Bash", {"command": "ls"}]}, {"fetches": True})
        await bench.end_life()
        await bench.run({"say": "b"})
        with trio.fail_after(WAIT_SECONDS):
            await bench.bench.start({"say": "c"}, {"hold": True})
            await bench.events.until("message_update", delta="c")
            await bench.client.request("abort")
            await bench.events.run()
        messages = bench.received()
    for message in messages:
        check_message(message)
    back = "session/resume" if resumes else "session/load"
    assert {each["method"] for each in messages if "method" in each} == {
        *("initialize", "session/new", "session/prompt", "session/cancel", "session/set_mode"),
        back,
    }


# --- how a life begins -------------------------------------------------------------------------


async def test_another_version_of_the_protocol_is_refused(tmp_path: Path) -> None:
    async with acp_bench(tmp_path, version=2) as bench:
        assert "version 2" in failure(await bench.run({"say": "a"}))["cause"]


async def test_a_program_that_is_not_logged_in_says_what_to_do(tmp_path: Path) -> None:
    async with acp_bench(tmp_path, auth=True) as bench:
        failed = failure(await bench.run({"say": "a"}))
    assert "not logged in" in failed["cause"]
    assert "Run `fake login` in a terminal" in failed["hint"]


async def test_files_and_terminals_of_ours_are_not_offered(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"fetches": True}, {"say_results": True})
        assert said(run) == ["-32601 | -32601"]
        (asked,) = bench.received("initialize")
    assert asked["params"]["clientCapabilities"] == {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
    }


async def test_a_program_is_put_into_the_mode_in_which_it_asks(tmp_path: Path) -> None:
    async with acp_bench(tmp_path, modes=["yolo", "default"]) as bench:
        await bench.run({"say": "a"})
        (chosen,) = bench.received("session/set_mode")
    assert chosen["params"]["modeId"] == "default"


@pytest.mark.slow
async def test_instructions_are_told_with_the_first_words_of_a_session(tmp_path: Path) -> None:
    async def instructions() -> Sequence[SourceText]:
        _, project = await no_instructions()
        return (of_file("user", "u.md", "be brief"), project)

    options = {"read_instructions": instructions}
    async with acp_bench(tmp_path, options=options) as bench:
        await bench.run({"say": "a"})
        await bench.run({"say": "b"})
        await bench.end_life()
        await bench.run({"say": "c"})
        told = [texts[:-1] for texts in bench.prompts()]
    assert told == [["be brief"], [], []]


@pytest.mark.slow
@pytest.mark.parametrize(("resumes", "method"), [(False, "session/load"), (True, "session/resume")])
async def test_a_new_life_goes_on_with_the_programs_session_and_repeats_nothing(
    tmp_path: Path, resumes: bool, method: str
) -> None:
    async with acp_bench(tmp_path, resumes=resumes) as bench:
        await bench.run({"say": "first"})
        await bench.end_life()
        run = await bench.run({"say": "second"})
        assert begun(run) == [("native", "")]
        assert said(run) == ["second"]
        assert len(bench.received(method)) == 1
        assert len(bench.prompts()[-1]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("manner", [{"lost": True}, {"loads": False}])
async def test_a_session_that_is_lost_is_told_anew(tmp_path: Path, manner: Message) -> None:
    async with acp_bench(tmp_path, **manner) as bench:
        await bench.run({"say": "first"})
        await bench.end_life()
        run = await bench.run({"say": "second"})
        ((kind, reason),) = begun(run)
        assert kind == "reconstruct"
        assert reason
        assert "[assistant]\nfirst" in bench.prompts()[-1][0]


class _Answers:
    """A program that answers at once: with these results, by method."""

    def __init__(self, **results: Message) -> None:
        self.received: list[Message] = []
        self._results = results
        self.life: AcpLife | None = None

    async def write(self, line: bytes) -> None:
        message = json.loads(line)
        self.received.append(message)
        if "method" not in message:
            return
        result = self._results.get(message["method"].replace("/", "_"), {})
        assert self.life is not None
        await self.life.take(json.dumps({"id": message["id"], "result": result}).encode())


async def begin_with_model(model: str, **opened: Any) -> list[Message]:
    """Return what a program receives that begins a session in this way."""
    program = _Answers(
        initialize={"protocolVersion": 1}, session_new={"sessionId": "one", **opened}
    )
    start = Start(workdir=Path("/"), model=model, instructions="", tools=())
    failed: AgentFailed | None = None
    async with trio.open_nursery() as nursery:
        program.life = AcpLife(start, Resume("new"), program.write, nursery)
        try:
            await program.life.begin()
        except AgentFailed as failure:
            failed = failure
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return program.received


OPTION = {"id": "m", "name": "Model", "category": "model", "options": [{"value": "a/large"}]}
GROUPED = {**OPTION, "options": [{"group": "g", "options": [{"value": "a/large"}]}]}


@pytest.mark.parametrize(
    ("opened", "method", "params"),
    [
        (
            {"configOptions": [OPTION]},
            "session/set_config_option",
            {"configId": "m", "value": "a/large"},
        ),
        (
            {"configOptions": [GROUPED]},
            "session/set_config_option",
            {"configId": "m", "value": "a/large"},
        ),
        (
            {"models": {"availableModels": [{"modelId": "a/large"}]}},
            "session/set_model",
            {"modelId": "a/large"},
        ),
    ],
)
async def test_the_sessions_model_is_chosen_as_the_program_offers_it(
    opened: Message, method: str, params: Message
) -> None:
    *_, chosen = await begin_with_model("a/large", **opened)
    assert chosen["method"] == method
    assert chosen["params"] == {"sessionId": "one", **params}


async def test_a_model_that_the_program_does_not_have_is_refused() -> None:
    with pytest.raises(AgentFailed, match="no model a/small; it has: a/large"):
        await begin_with_model("a/small", configOptions=[OPTION])


# --- calls -------------------------------------------------------------------------------------


async def test_a_call_of_ours_that_the_program_reports_is_one_call(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"call": READ}, {"say_results": True})
    (requested,) = of_type(run, "tool_call_requested")
    assert requested["tool_name"] == "workspace.read"
    assert requested["runtime_tool_call_id"].startswith("call-")
    assert said(run) == ["what is noted"]


async def test_a_turn_that_the_program_ends_because_a_call_was_denied_has_not_failed(
    tmp_path: Path,
) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"own": ["Bash", {"command": "ls"}]}, {"stops": "cancelled"})
        assert of_type(run, "agent_end")[0]["status"] == "completed"
        run = await bench.run({"say": "a"}, {"stops": "cancelled"})
        assert of_type(run, "agent_end")[0]["status"] == "error"


def of_a_server(**meta: bool) -> ToolCall:
    """Return a call of a tool of ours as a program tells it that shows calls of servers as commands."""
    called = {"server": "nousd", "tool": "workspace_read", "arguments": {"path": "notes.txt"}}
    told = {"toolCallId": "call-1", "kind": "execute", "rawInput": called, "_meta": meta}
    return msgspec.convert(told, ToolCall)


async def test_a_call_that_the_program_marks_as_one_of_a_server_is_ours_by_server_and_tool() -> (
    None
):
    reported = ReportedCalls((AgentTool("workspace.read", "", {}),))
    assert reported.take(of_a_server(is_mcp_tool_call=True)) is None
    assert reported.is_ours(ToolCall("call-1", kind="execute", status="pending"))
    assert await reported.id_of("workspace.read", {"path": "notes.txt"}, "") == "call-1"


async def test_the_same_arguments_without_the_mark_are_the_models_own_words() -> None:
    reported = ReportedCalls((AgentTool("workspace.read", "", {}),))
    assert not reported.is_ours(of_a_server())
    assert reported.begin_judgement(of_a_server()).name == "execute"


async def test_figures_that_a_program_leaves_out_do_not_hide_why_its_turn_failed() -> None:
    told = b'{"stopReason": "end_turn", "_meta": {"quota": {"token_count": null}}}'
    assert msgspec.json.decode(told, type=messages.PromptEnded).stop_reason == "end_turn"


async def test_a_report_that_comes_after_its_call_names_it(tmp_path: Path) -> None:
    args = {"path": "notes.txt"}
    reported = ReportedCalls((AgentTool("workspace.read", "", {}),))
    said = {"toolCallId": "1", "title": "nousd_workspace_read", "kind": "other", "rawInput": args}
    found: list[str] = []

    async def call() -> None:
        found.append(await reported.id_of("workspace.read", args, ""))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        assert reported.take(msgspec.convert(said, ToolCall)) is None
    assert found == ["1"]


async def test_a_program_that_reports_nothing_is_waited_for_once(
    autojump_clock: MockClock,
) -> None:
    reported = ReportedCalls((AgentTool("workspace.read", "", {}),))
    waited = []
    for _ in range(3):
        begun = trio.current_time()
        assert await reported.id_of("workspace.read", {}, "") == ""
        waited.append(round(trio.current_time() - begun))
    assert waited == [2, 0, 0]


async def test_a_tool_that_the_agent_runs_unasked_is_observed(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"say": "now"}, {"runs": ["Read", {"path": "x"}]}, {"say": "done"})
        entries = (await bench.client.request("get_messages"))["messages"]
    (requested,) = of_type(run, "tool_call_requested")
    assert (requested["tool_name"], requested["args"]) == ("Read", {"path": "x"})
    (approved,) = of_type(run, "tool_call_approved")
    assert approved["by"] == "runtime"
    for event in of_type(run, "tool_call_started", "tool_call_completed"):
        assert (event["executed_by"], event["gated"]) == ("runtime", False)
    assert [entry["text"] for entry in entries][1:] == ["now", "Read gave this", "done"]


@pytest.mark.slow(keep=1)
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
@pytest.mark.parametrize("decision", ["once", "deny"])
async def test_a_tool_of_its_own_is_asked_about_where_these_are_on_request(
    tmp_path: Path, decision: str
) -> None:
    options = {"mode": "auto", "own_tools": "ask"}
    async with acp_bench(tmp_path, options=options) as bench:
        with trio.fail_after(WAIT_SECONDS):
            await bench.bench.start({"own": ["Bash", {"command": "make"}]}, {"say_results": True})
            asked = (await bench.events.until("permission_requested"))["payload"]
            named = {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}
            await bench.client.request("confirm_tool", decision=decision, **named)
            run = await bench.events.run()
    assert (asked["tool_name"], asked["args"]) == ("Bash", {"command": "make"})
    assert len(of_type(run, "tool_call_requested")) == 1
    completed = [(end["result"], end["executed"]) for end in of_type(run, "tool_execution_end")]
    if decision == "once":
        assert completed == [("did it", True)]
        assert said(run) == ["once"]
    else:
        assert [executed for _, executed in completed] == [False]
        assert said(run) == ["no"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
async def test_a_question_that_is_open_at_an_abort_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_turn, "INTERRUPT_SECONDS", WAIT_SECONDS)
    options = {"mode": "auto", "own_tools": "ask"}
    async with acp_bench(tmp_path, options=options) as bench:
        with trio.fail_after(WAIT_SECONDS):
            await bench.bench.start({"own": ["Bash", {"command": "make"}]}, {"hold": True})
            await bench.events.until("permission_requested")
            await bench.client.request("abort")
            await bench.events.run()
        *_, answer, cancelled = bench.received()
    assert answer["result"] == {"outcome": {"outcome": "cancelled"}}
    assert cancelled["method"] == "session/cancel"


async def test_a_name_of_ours_lets_the_agent_reach_no_tool_of_ours(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"own": READ}, {"say_results": True})
    (denied,) = of_type(run, "tool_call_denied")
    assert denied["reason"] == "tool_not_found: workspace_read"
    assert said(run) == ["no"]


async def test_a_tool_of_the_agents_own_without_an_end_is_observed(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"leaves": ["fetch", {"url": "u"}]}, {"say": "done"})
    (ended,) = of_type(run, "tool_execution_end")
    assert (ended["tool_name"], ended["is_error"], ended["executed"]) == ("fetch", True, True)


async def test_a_command_in_the_name_of_a_tool_of_ours_is_denied(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"disguised": ["workspace.read", "touch x"]}, {"say_results": True})
    (denied,) = of_type(run, "tool_call_denied")
    assert denied["tool_name"] == "execute"
    assert said(run) == ["no"]


@pytest.mark.slow
async def test_calls_after_a_steer_are_skipped_and_the_second_ends_the_turn(
    tmp_path: Path,
) -> None:
    async with acp_bench(tmp_path) as bench:
        with trio.fail_after(WAIT_SECONDS):
            await bench.bench.start({"say": "first"}, {"hold": True})
            await bench.events.until("tool_call_completed")
            await bench.client.request("steer", text='[{"say": "steered"}]')
            run = await bench.events.run()
        assert len(bench.received("session/cancel")) == 1
    skipped = [denied for denied in of_type(run, "tool_call_denied") if denied["by"] == "steer"]
    assert len(skipped) == 2
    assert said(run) == ["first", "steered"]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
async def test_what_a_program_would_obey_in_the_workspace_is_empty_for_it(tmp_path: Path) -> None:
    options = {"guest": Guest(lambda: shutil.which("bwrap"), ())}
    async with acp_bench(tmp_path, options=options) as bench:
        work = tmp_path / "work"
        for name in (".opencode", ".claude", ".gemini", ".codex"):
            (work / name).mkdir(parents=True)
            (work / name / "settings.json").write_text("planted")
        for name in (".mcp.json", "CLAUDE.md"):
            (work / name).write_text("{}")
        (tmp_path / "opencode.json").write_text("{}")
        places = [work / name for name in (".opencode", ".gemini", ".mcp.json", "CLAUDE.md")]
        run = await bench.run(
            *({"look": str(place)} for place in (*places, tmp_path / "opencode.json"))
        )
        assert said(run) == ["folder []", "folder []", *["file of 0"] * 3]


async def test_instructions_of_the_workspace_need_no_guest_because_they_start_no_code(
    tmp_path: Path,
) -> None:
    async with acp_bench(tmp_path) as bench:
        (tmp_path / "work" / "CLAUDE.md").write_text("be brief")
        assert said(await bench.run({"say": "a"})) == ["a"]


async def test_without_a_guest_no_program_starts_that_might_obey_the_workspace(
    tmp_path: Path,
) -> None:
    async with acp_bench(tmp_path) as bench:
        (tmp_path / "work" / ".claude").mkdir(parents=True)
        (failure,) = of_type(await bench.run({"say": "a"}), "error")
    assert ".claude" in failure["cause"]


async def test_a_long_result_of_the_programs_own_is_cut() -> None:
    reported = ReportedCalls(())
    said = {"toolCallId": "1", "title": "Read", "status": "completed", "rawOutput": "x" * 100_000}
    observed = reported.take(msgspec.convert(said, ToolCall))
    assert observed is not None
    assert len(observed.result.text) < 70_000
    assert observed.result.text.endswith("[100000 characters; the rest is left out]")


@pytest.mark.slow
async def test_messages_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"think": "hm"}, {"say": "one"}, {"think": "so"}, {"say": "two"})
    assert said(run) == ["one", "two"]


async def test_a_question_that_the_program_withdraws_is_answered_so() -> None:
    program = _Answers(initialize={"protocolVersion": 1}, session_new={"sessionId": "one"})
    start = Start(workdir=Path("/"), model="", instructions="", tools=())
    listener = _Hesitant()
    async with trio.open_nursery() as nursery:
        life = program.life = AcpLife(start, Resume("new"), program.write, nursery)
        await life.begin()
        life.listener = cast("Any", listener)
        call = {"toolCallId": "1", "title": "ls", "kind": "execute"}
        asked = {"sessionId": "one", "toolCall": call, "options": []}
        await _take(life, id=7, method="session/request_permission", params=asked)
        await listener.is_asked.wait()
        await _take(life, method="$/cancel_request", params={"requestId": 7})
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert program.received[-1]["id"] == 7
    assert program.received[-1]["error"]["code"] == -32800


async def _take(life: AcpLife, **message: Any) -> None:
    await life.take(json.dumps({"jsonrpc": "2.0", **message}).encode())


class _Hesitant:
    """A listener that never decides."""

    def __init__(self) -> None:
        self.is_asked = trio.Event()

    async def confirm_delivery(self, message_id: str = "") -> None: ...

    async def find_refusal(self, _call: AgentCall) -> str | None:
        self.is_asked.set()
        await trio.sleep_forever()


# --- the socket of our tools -------------------------------------------------------------------


async def call_tool(server: Message, *, token: str | None = None) -> Message | None:
    """Return what a life's MCP server answers to a call that another program makes; None if it hangs
    up.
    """
    given = {each["name"]: each["value"] if token is None else token for each in server["env"]}
    params = {"name": "workspace_read", "arguments": {"path": "notes.txt"}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    process = await trio.lowlevel.open_process(
        [server["command"], *server["args"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **given},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    received = b""
    with trio.fail_after(WAIT_SECONDS):
        async with process.stdin, process.stdout:
            await process.stdin.send_all(json.dumps(call).encode() + b"\n")
            while not received.endswith(b"\n") and (data := await process.stdout.receive_some()):
                received += data
        await process.wait()
    return json.loads(received) if received else None


def server_of(bench: AcpBench) -> Message:
    """Return how the program was told to start our MCP server."""
    (told,) = bench.received("session/new")
    (server,) = told["params"]["mcpServers"]
    found: Message = server
    return found


@pytest.mark.slow
async def test_a_call_outside_of_a_turn_is_refused(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        await bench.run({"say": "a"})
        answer = await call_tool(server_of(bench))
        denied = await bench.events.until("tool_call_denied")
    assert answer is not None
    assert answer["result"]["isError"]
    assert answer["result"]["content"][0]["text"].startswith("no_active_run")
    assert denied["payload"]["reason"].startswith("no_active_run")


@pytest.mark.slow
async def test_who_does_not_know_the_token_is_not_answered(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        await bench.run({"say": "a"})
        assert await call_tool(server_of(bench), token="guessed") is None


async def test_the_socket_is_the_users_alone_and_goes_with_the_life(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        await bench.run({"say": "a"})
        folder = Path(server_of(bench)["args"][-1]).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        assert server_of(bench)["env"][0]["value"] not in " ".join(server_of(bench)["args"])
    assert not folder.exists()


# --- how a turn ends ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("refusal", "the agent's model refuses to go on"),
        ("max_turn_requests", "the agent made as many model calls as it may"),
        ("cancelled", "the agent cancelled its turn"),
    ],
)
async def test_a_turn_that_the_program_breaks_off_fails(
    tmp_path: Path, reason: str, message: str
) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"say": "a"}, {"stops": reason})
        assert failure(run)["message"] == message
        assert said(await bench.run({"say": "again"})) == ["again"]


async def test_a_message_that_was_cut_says_so(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"say": "a"}, {"stops": "max_tokens"})
    assert of_type(run, "message_end")[-1]["stop_reason"] == "length"


async def test_usage_is_that_of_the_turn(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        runs = [await bench.run({"say": "a"}, {"costs": amount}) for amount in (0.25, 0.75)]
        reported = [event for run in runs for event in of_type(run, "usage_reported")]
    assert [event["cost_usd"] for event in reported] == [0.25, 0.5]
    usage = {"input": 5, "output": 2, "total": 7, "cache_read": 2}
    assert [event["usage"] for event in reported] == [usage, usage]


async def test_an_image_goes_only_to_a_program_that_takes_images(tmp_path: Path) -> None:
    async with acp_bench(tmp_path, images=False) as bench:
        run = await bench.run({"say": "a"}, attachments=[IMAGE])
        assert failure(run)["message"] == "the agent takes no images"
        assert bench.received("session/prompt") == []


async def test_a_plan_is_the_sessions_todo_list(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"plans": ["look", "x" * 5000]}, {"plans": ["look"]}, {"say": "a"})
        now = await bench.client.request("get_todos")
    first, second = of_type(run, "todo_updated")
    assert [todo["content"][:4] for todo in first["todos"]] == ["look", "xxxx"]
    assert second["todos"] == now["todos"]
    assert now["todos"] == [{"id": "1", "content": "look", "status": "pending", "priority": "high"}]


async def test_what_the_agent_says_besides_text_is_kept(tmp_path: Path) -> None:
    async with acp_bench(tmp_path) as bench:
        run = await bench.run({"picture": True}, {"say": "a"})
    (kept,) = of_type(run, "warning")
    assert "image" in kept["message"]
    assert said(run) == ["a"]


# --- where it runs -----------------------------------------------------------------------------


async def test_a_program_with_tools_that_cannot_be_off_is_not_started_uncovered(
    tmp_path: Path,
) -> None:
    uncovered = Guest(lambda: None, (tmp_path,))
    async with acp_bench(tmp_path, options={"guest": uncovered}) as bench:
        failed = failure(await bench.run({"say": "a"}))
    assert "no bubblewrap" in failed["cause"]
    assert "install bubblewrap" in failed["hint"]
