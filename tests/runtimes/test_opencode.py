"""The runtime ``opencode``: what only it does, with the scripted program."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.daemon.workspace.instructions import no_instructions
from nousd.errors import AgentFailed
from nousd.machine.context.prompt_sections import SourceText, of_file
from nousd.machine.policy.rules import Rule
from nousd.runtimes.agents.guest import Guest
from nousd.runtimes.agents.interface import AgentCall, AgentTool, Resume, Start, UserText
from nousd.runtimes.agents.opencode.agent import Opencode
from nousd.runtimes.agents.opencode.calls import facts_of
from nousd.runtimes.agents.opencode.told import prompt, rules
from nousd.runtimes.agents.tools.own_tools import Facts
from tests.harness.daemon import Event, of_type, users
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, runtime_bench, said
from tests.runtimes.scripted_adapter import ENVIRONMENT, scripted_program

IMAGE = {"data": "iVBORw0KGgo=", "media_type": "image/png"}
READ = ["workspace.read", {"path": "notes.txt"}]
MIB = 1024 * 1024

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")

Message = dict[str, Any]


class OpencodeBench:
    """A daemon whose sessions are served by the scripted program."""

    def __init__(self, bench: RuntimeBench, memory: Path) -> None:
        self.bench, self.client, self.events = bench, bench.client, bench.events
        self.run, self.start = bench.run, bench.start
        self._memory = memory

    def received(self, end: str) -> list[Message]:
        """Return the bodies of the requests whose paths end like this."""
        text = (self._memory / "received.ndjson").read_text()
        requests = [json.loads(line) for line in text.splitlines()]
        return [each["body"] for each in requests if each["path"].endswith(end)]

    async def end_life(self) -> None:
        """Let the program end, because a next one would be started in another way."""
        await self.client.request("set_active_tools", tools=["read"])

    async def answer(self, decision: str) -> Message:
        """Answer the next question about a call; return it."""
        with trio.fail_after(WAIT_SECONDS):
            asked: Message = (await self.events.until("permission_requested"))["payload"]
            named = {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}
            await self.client.request("confirm_tool", decision=decision, **named)
        return asked


@asynccontextmanager
async def opencode_bench(
    tmp_path: Path, *, options: Message | None = None, **manner: Any
) -> AsyncIterator[OpencodeBench]:
    workdir, memory = tmp_path / "work", tmp_path / "memory"
    workdir.mkdir()
    (workdir / "notes.txt").write_text("what is noted")
    program = [*scripted_program("fake_opencode"), json.dumps(manner)]
    agent = Opencode("opencode", program, {**ENVIRONMENT, "XDG_DATA_HOME": str(memory)})
    async with runtime_bench(workdir, agent, **options or {}) as bench:
        yield OpencodeBench(bench, memory)


def failure(run: list[Event]) -> Message:
    """Return the failure with which a run has ended."""
    (failed,) = of_type(run, "error")
    return failed


def begun(run: list[Event]) -> list[tuple[str, str]]:
    """Return how the lives began that a run has needed, and why not otherwise."""
    notes = of_type(run, "agent_session")
    return [(note["resume"], note.get("reason", "")) for note in notes if "resume" in note]


def started(tmp_path: Path, **more: Any) -> Start:
    tools = (AgentTool("workspace.read", "reads", {}),)
    return Start(workdir=tmp_path, **{"model": "", "instructions": "", "tools": tools, **more})


def opencode() -> Opencode:
    return Opencode("opencode", ["opencode"], {})


# --- how a life begins -------------------------------------------------------------------------


def test_each_life_has_a_password_that_no_command_line_shows(tmp_path: Path) -> None:
    agent, start = opencode(), started(tmp_path)
    one, other = (agent.variables(start)["OPENCODE_SERVER_PASSWORD"] for _ in range(2))
    assert one != other
    assert len(one) > 40
    assert one not in " ".join(agent.command(start, Resume("new")))


def test_the_users_variables_do_not_replace_ours(tmp_path: Path) -> None:
    agent = Opencode("opencode", ["opencode"], {"OPENCODE_PURE": "", "OPENCODE_API_KEY": "key"})
    variables = agent.variables(started(tmp_path))
    assert (variables["OPENCODE_PURE"], variables["OPENCODE_API_KEY"]) == ("1", "key")


def test_own_tools_are_denied_or_asked_about_and_ours_allowed_by_name(tmp_path: Path) -> None:
    def action(name: str, start: Start) -> str:
        fits = [rule for rule in rules(start) if rule["permission"] in ("*", name)]
        return fits[-1]["action"]

    off, ask = started(tmp_path), started(tmp_path, own_tools="ask")
    on = [rule["permission"] for rule in rules(started(tmp_path, own_tools="on"))]
    assert "*" not in on
    assert {"task", "question", "nousd_workspace_read"} <= set(on)
    names = ("bash", "nousd_workspace_read", "nousd_workspace_exec", "task", "question")
    assert [action(name, off) for name in names] == ["deny", "allow", "deny", "deny", "deny"]
    assert [action(name, ask) for name in names] == ["ask", "allow", "ask", "deny", "deny"]


@pytest.mark.slow
async def test_tools_that_do_not_reach_the_program_end_the_run(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path, mcp="failed") as bench:
        assert "our tools do not reach it" in failure(await bench.run({"say": "a"}))["cause"]


@pytest.mark.slow
async def test_instructions_are_told_with_each_text(tmp_path: Path) -> None:
    async def instructions() -> Sequence[SourceText]:
        _, project = await no_instructions()
        return (of_file("user", "u.md", "be brief"), project)

    options = {"read_instructions": instructions}
    async with opencode_bench(tmp_path, options=options) as bench:
        await bench.run({"say": "a"})
        await bench.run({"say": "b"})
        prompts = bench.received("/prompt_async")
    assert [each["system"] for each in prompts] == ["be brief", "be brief"]


def test_a_model_is_sent_in_the_programs_form(tmp_path: Path) -> None:
    said = UserText(message_id="m", text="go")
    chosen = prompt(started(tmp_path, model="lab/org/large"), said, "")
    assert chosen["model"] == {"providerID": "lab", "modelID": "org/large"}
    assert "model" not in prompt(started(tmp_path), said, "")
    assert prompt(started(tmp_path, thinking="high"), said, "")["variant"] == "high"
    with pytest.raises(AgentFailed, match="PROVIDER/MODEL"):
        prompt(started(tmp_path, model="large"), said, "")


@pytest.mark.slow
async def test_a_new_life_goes_on_with_the_programs_session(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path) as bench:
        await bench.run({"say": "first"})
        await bench.end_life()
        run = await bench.run({"say": "second"})
        prompts = bench.received("/prompt_async")
    assert begun(run) == [("native", "")]
    assert [len(each["parts"]) for each in prompts] == [1, 1]


@pytest.mark.slow
async def test_a_session_that_is_lost_is_told_anew(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path, lost=True) as bench:
        await bench.run({"say": "first"})
        await bench.end_life()
        run = await bench.run({"say": "second"})
        told = bench.received("/prompt_async")[-1]["parts"][0]["text"]
    ((kind, reason),) = begun(run)
    assert kind == "reconstruct"
    assert "Session not found" in reason
    assert "[assistant]\nfirst" in told


def test_a_session_keeps_its_folder_and_its_model(tmp_path: Path) -> None:
    def basis(**more: Any) -> str:
        return opencode().session_basis(started(more.pop("folder", tmp_path), **more))

    assert basis() == basis(instructions="others", tools=())
    assert basis(model="a/b") == basis(model="c/d")
    others = {basis(model="a/b"), basis(folder=tmp_path / "sub"), basis(thinking="low")}
    assert len(others | {basis()}) == 4


# --- what it would obey ------------------------------------------------------------------------


@pytest.mark.slow
@needs_bubblewrap
async def test_what_the_program_would_obey_is_empty_for_it(tmp_path: Path) -> None:
    work = tmp_path / "work"
    options = {"guest": Guest(lambda: shutil.which("bwrap"), ())}
    async with opencode_bench(tmp_path, options=options) as bench:
        (work / ".opencode" / "plugins").mkdir(parents=True)
        (work / ".opencode" / "plugins" / "p.js").write_text("planted")
        (work / "opencode.json").write_text("{}")
        (tmp_path / "opencode.jsonc").write_text("{}")
        places = [work / ".opencode", work / "opencode.json", tmp_path / "opencode.jsonc"]
        run = await bench.run(*({"look": str(place)} for place in places))
        assert said(run) == ["folder []", "file of 0", "file of 0"]


async def test_without_a_guest_nothing_starts_that_would_obey_the_workspace(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path) as bench:
        (tmp_path / "work" / "opencode.json").write_text("{}")
        failed = failure(await bench.run({"say": "a"}))
    assert "opencode.json" in failed["cause"]
    assert "bubblewrap" in failed["hint"]


# --- a turn ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_picture_is_a_part_of_the_message(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path) as bench:
        await bench.run({"say": "a"}, attachments=[IMAGE])
        text, picture = bench.received("/prompt_async")[0]["parts"]
    assert text["type"] == "text"
    assert picture["url"] == f"data:image/png;base64,{IMAGE['data']}"
    assert (picture["type"], picture["mime"]) == ("file", "image/png")


@pytest.mark.slow
async def test_only_what_the_model_says_to_the_user_is_shown(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path) as bench:
        run = await bench.run(
            {"elsewhere": "of another session"}, {"summary": "for itself"}, {"whole": "at once"}
        )
    assert said(run) == ["at once"]
    usages = [reported["usage"] for reported in of_type(run, "usage_reported")]
    counts = {"input": 6, "output": 3, "total": 9, "cache_read": 2, "cache_write": 1}
    assert usages == [{**counts, "reasoning": 1}] * 2
    assert [reported["cost_usd"] for reported in of_type(run, "usage_reported")] == [0.25, 0.25]


async def test_what_was_said_before_a_model_call_is_repeated_is_void(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path) as bench:
        run = await bench.run({"say": "half"}, {"retry": True}, {"say": "whole"})
    reasons = [end["stop_reason"] for end in of_type(run, "message_end") if "stop_reason" in end]
    assert said(run) == ["half", "whole"]
    assert reasons == ["error", "stop"]


@pytest.mark.slow
async def test_a_text_that_it_does_not_take_ends_the_run_with_its_words(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path) as bench:
        failed = failure(await bench.run({"refuse": "no such picture"}))
        assert failed["cause"] == "no such picture"
        assert said(await bench.run({"say": "again"})) == ["again"]


@pytest.mark.slow
async def test_a_steer_that_it_does_not_take_begins_the_next_turn(tmp_path: Path) -> None:
    call = {"call": ["workspace.write", {"path": "asked", "content": "x"}]}
    async with opencode_bench(tmp_path, options={"mode": "ask"}) as bench:
        await bench.start(call, {"say": "goes on"})
        await bench.events.until("permission_requested")
        await bench.client.request("steer", text='[{"refuse": "no such picture"}]')
        with trio.fail_after(WAIT_SECONDS):
            run = await bench.events.run()
    assert said(run) == ["goes on"]
    assert len(of_type(run, "turn_start")) == 2
    assert failure(run)["cause"] == "no such picture"


@pytest.mark.slow
async def test_its_plan_is_the_todo_list(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path) as bench:
        run = await bench.run({"todos": ["look", "act"]})
    (updated,) = of_type(run, "todo_updated")
    assert [todo["content"] for todo in updated["todos"]] == ["look", "act"]


@pytest.mark.slow
async def test_a_call_that_it_does_not_report_is_made_all_the_same(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path) as bench:
        run = await bench.run({"silent": True}, {"call": READ}, {"say_results": True})
    assert said(run) == ["what is noted"]


@pytest.mark.slow
async def test_a_steer_reaches_the_program_before_the_result_of_a_call(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path) as bench:
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"say": "first"}, {"hold": True})
            await bench.events.until("message_end", text="first")
            await bench.client.request("steer", text='[{"say": "steered"}]')
            run = await bench.events.run()
    assert users(run) == [("prompt", users(run)[0][1]), ("steer", '[{"say": "steered"}]')]
    assert len(of_type(run, "turn_start")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("act", [{"big": 17 * MIB}, {"raw": ["[" * 250_000]}])
async def test_an_event_beyond_the_bounds_ends_the_program(tmp_path: Path, act: Message) -> None:
    async with opencode_bench(tmp_path) as bench:
        run = await bench.run({"say": "a"}, act, {"deaf": True})
        assert "event" in failure(run)["cause"]
        assert said(await bench.run({"say": "b"})) == ["b"]


# --- its own tools -----------------------------------------------------------------------------

ASK: Message = {"mode": "auto", "own_tools": "ask"}


@pytest.mark.slow(keep=1)
@needs_bubblewrap
@pytest.mark.parametrize("decision", ["once", "deny"])
async def test_its_own_call_is_asked_about_and_a_denial_does_not_end_its_turn(
    tmp_path: Path, decision: str
) -> None:
    async with opencode_bench(tmp_path, options=ASK) as bench:
        await bench.start({"own": ["bash", {"command": "make it"}]}, {"say_results": True})
        asked = await bench.answer(decision)
        with trio.fail_after(WAIT_SECONDS):
            run = await bench.events.run()
        (reply,) = bench.received("/reply")
    assert (asked["tool_name"], asked["args"]) == ("bash", {"command": "make it"})
    allowed = decision == "once"
    assert [done["executed_by"] for done in of_type(run, "tool_call_completed")] == (
        ["runtime"] if allowed else []
    )
    assert said(run)[0].startswith("allowed") == allowed
    assert (reply["reply"], bool(reply.get("message"))) == (
        ("once", False) if allowed else ("reject", True)
    )


@pytest.mark.slow
@needs_bubblewrap
async def test_a_rule_about_paths_binds_its_own_tools(tmp_path: Path) -> None:
    options = {"rules": (Rule("deny", "*(secret.txt)", "the test"),), "own_tools": "ask"}
    async with opencode_bench(tmp_path, options=options) as bench:
        run = await bench.run(
            {"own": ["read", {"filePath": str(tmp_path / "work" / "secret.txt")}]},
            {"own": ["read", {"filePath": str(tmp_path / "work" / "notes.txt")}]},
            {"say_results": True},
        )
    assert len(of_type(run, "tool_call_denied")) == 1
    assert said(run)[0].endswith("allowed: did it")


@needs_bubblewrap
@pytest.mark.slow
async def test_an_answer_beyond_the_bounds_ends_the_program(tmp_path: Path) -> None:
    async with opencode_bench(tmp_path, options={"own_tools": "ask"}) as bench:
        own = {"own": ["read", {"filePath": "notes.txt"}]}
        run = await bench.run({"answers": 5 * MIB}, own, {"deaf": True})
    assert "more than 4194304 bytes" in failure(run)["cause"]


@pytest.mark.parametrize(
    ("name", "args", "facts"),
    [
        ("read", {"filePath": "/a"}, Facts(frozenset({"read"}), ("/a",))),
        ("glob", {"pattern": "*"}, Facts(frozenset({"read"}), (".",))),
        ("edit", {"filePath": "/a"}, Facts(frozenset({"read", "write"}), ("/a",))),
        ("bash", {"command": "ls"}, Facts(command="ls")),
        ("webfetch", {"url": "https://h/x"}, Facts(frozenset({"network"}), hosts=("h",))),
        ("read", {"filePath": ["/a"]}, Facts()),
        ("apply_patch", {"patchText": "x"}, Facts()),
    ],
)
def test_what_a_call_may_do_is_read_off_its_arguments(
    name: str, args: Message, facts: Facts
) -> None:
    assert facts_of(AgentCall(agent_call_id="1", name=name, args=args)) == facts
