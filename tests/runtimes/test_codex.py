"""What the runtime ``codex`` does in ways of its own, tried with a scripted program."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.machine.context.prompt_sections import SourceText, of_file
from nousd.machine.policy.rules import Rule
from nousd.runtimes.agents.codex.agent import Codex
from nousd.runtimes.agents.interface import AgentTool, OwnTools, Resume, Start
from nousd.store.memory import store as memory
from tests.harness.daemon import Event, FakeClock, of_type, users
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, runtime_bench, said
from tests.runtimes.scripted_adapter import ENVIRONMENT, scripted_program

READ = ["workspace.read", {"path": "notes.txt"}]
WRITE = ["workspace.write", {"path": "never", "content": "x"}]


needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")


class Place:
    """The folders of a program and of its session."""

    def __init__(self, folder: Path) -> None:
        self.memory, self.work = folder / "memory", folder / "work"
        self.work.mkdir()
        (self.work / "notes.txt").write_text("what is noted")
        variables = {**ENVIRONMENT, "CODEX_HOME": str(self.memory)}
        self.agent = Codex("codex", scripted_program("fake_codex"), variables)

    def sent(self, method: str) -> list[Any]:
        """Return the parameters of the requests that the program was sent."""
        lines = (self.memory / "sent.ndjson").read_text().splitlines()
        messages = [json.loads(line) for line in lines]
        return [message["params"] for message in messages if message.get("method") == method]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
async def bench(place: Place) -> AsyncIterator[RuntimeBench]:
    async with runtime_bench(place.work, place.agent) as bench:
        yield bench


def begun(run: list[Event]) -> list[Event]:
    return [note for note in of_type(run, "agent_session") if "resume" in note]


async def test_the_program_gets_our_tools_and_none_of_its_own(
    bench: RuntimeBench, place: Place
) -> None:
    await bench.run({"say": "a"})
    (thread,) = place.sent("thread/start")
    names = [tool["name"] for tool in thread["dynamicTools"]]
    assert names[:3] == ["workspace_read", "workspace_write", "patch_apply"]
    assert thread["config"] == {"mcp_servers": {"planted": {"enabled": False}}}
    (turn,) = place.sent("turn/start")
    assert thread["environments"] == turn["environments"] == []


@pytest.mark.parametrize(
    ("own_tools", "has"),
    [
        ("off", set()),
        ("ask", {"shell_tool", "unified_exec"}),
        ("on", {"shell_tool", "unified_exec", "view_image", "web_search"}),
    ],
)
def test_the_program_has_the_tools_of_its_own_that_the_settings_allow(
    place: Place, own_tools: OwnTools, has: set[str]
) -> None:
    start = Start(workdir=place.work, model="", instructions="", tools=(), own_tools=own_tools)
    words = place.agent.command(start, Resume("new"))
    settings = tomllib.loads("\n".join(word for word in words if "=" in word))
    features = ("shell_tool", "unified_exec", "view_image")
    there = {name for name in features if settings["features"].get(name, True)}
    assert there | ({"web_search"} - {name for name in settings if name == "web_search"}) == has
    started = {"plugins", "hooks", "apps", "multi_agent"}
    assert not any(settings["features"][name] for name in started)


@pytest.mark.slow
@needs_bubblewrap
async def test_a_patch_of_its_own_is_judged_by_its_paths(place: Place) -> None:
    rules = (Rule("deny", "*(never.txt)", "the test"),)
    async with runtime_bench(place.work, place.agent, rules=rules, own_tools="ask") as bench:
        run = await bench.run(
            {"change": "never.txt"}, {"change": "made.txt"}, {"say_results": True}
        )
    assert said(run) == ["decline | accept"]


def test_nothing_of_the_workspace_configures_the_program(place: Place) -> None:
    start = Start(workdir=Path('/a "b"'), model="", instructions="", tools=())
    words = place.agent.command(start, Resume("new"))
    settings = tomllib.loads("\n".join(word for word in words if "=" in word))
    assert settings["projects"] == {'/a "b"': {"trust_level": "untrusted"}}
    assert settings["project_root_markers"] == settings["notify"] == []
    assert settings["agents"] == {"enabled": False}
    off = ("plugins", "hooks", "shell_tool", "unified_exec")
    assert [settings["features"][name] for name in off] == [False] * 4


@pytest.mark.slow
async def test_a_new_thread_is_told_calls_and_results_as_such(
    bench: RuntimeBench, place: Place
) -> None:
    await bench.run({"say": "first"}, {"call": READ}, {"say": "second"}, {"die": 1})
    run = await bench.run({"say": "third"})
    assert [note["resume"] for note in begun(run)] == ["reconstruct"]
    (told,) = place.sent("thread/inject_items")
    user, first, call, result, second = told["items"]
    assert [user["role"], first["role"], second["role"]] == ["user", "assistant", "assistant"]
    assert first["content"] == [{"type": "output_text", "text": "first"}]
    assert (call["type"], call["name"]) == ("function_call", "workspace_read")
    assert json.loads(call["arguments"]) == READ[1]
    assert result["call_id"] == call["call_id"]
    assert result["output"] == "what is noted"


class Lives:
    """One daemon after another, on one log."""

    def __init__(self, place: Place, store: Any) -> None:
        self._place, self._store, self._clock = place, store, FakeClock()
        self._session: dict[str, str] = {}

    async def run(self, *acts: Any, **options: Any) -> list[Event]:
        """Return the events of a run in the same session, of a new daemon."""
        place = self._place
        async with runtime_bench(
            place.work, place.agent, store=self._store, clock=self._clock, **options
        ) as bench:
            self._session = self._session or {"session_id": bench.session_id}
            return await bench.run(*acts, **self._session)


@asynccontextmanager
async def lives(place: Place) -> AsyncIterator[Lives]:
    async with memory.open_store() as store:
        yield Lives(place, store)


@pytest.mark.slow
async def test_a_new_daemon_goes_on_with_the_thread(place: Place) -> None:
    async with lives(place) as daemons:
        await daemons.run({"say": "one"})
        run = await daemons.run({"say": "two"})
        assert [note["resume"] for note in begun(run)] == ["native"]
        (usage,) = of_type(run, "usage_reported")
        assert usage["usage"] == {"input": 3, "output": 2, "total": 5, "cache_read": 1}
        assert place.sent("thread/inject_items") == []


@pytest.mark.slow
async def test_a_thread_that_is_gone_is_told_anew(place: Place) -> None:
    async with lives(place) as daemons:
        (thread, _) = begun_and_noted = of_type(await daemons.run({"say": "one"}), "agent_session")
        assert len(begun_and_noted) == 2
        (place.memory / thread["agent_session_id"]).unlink()
        (note,) = begun(await daemons.run({"say": "two"}))
        assert note["resume"] == "reconstruct"
        assert "no rollout found" in note["reason"]


@pytest.mark.slow
async def test_other_instructions_make_a_new_thread(place: Place) -> None:
    async def instructions(*_: object) -> tuple[SourceText, ...]:
        return (of_file("project_instructions", "AGENTS.md", "Be brief."),)

    async with lives(place) as daemons:
        await daemons.run({"say": "one"})
        run = await daemons.run({"say": "two"}, read_instructions=instructions)
        assert [note["resume"] for note in begun(run)] == ["reconstruct"]
        assert "Be brief." in place.sent("thread/start")[-1]["developerInstructions"]


def test_a_thread_is_bound_to_its_tools(place: Place) -> None:
    def basis(*tools: AgentTool) -> str:
        return place.agent.session_basis(
            Start(workdir=place.work, model="", instructions="", tools=tools)
        )

    one, other = AgentTool("a", "does a", {}), AgentTool("a", "does b", {})
    assert len({basis(), basis(one), basis(other)}) == 3


async def test_a_steer_skips_the_call_that_comes_next_and_goes_on_in_the_turn(
    bench: RuntimeBench, place: Place, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    with trio.fail_after(WAIT_SECONDS):
        await bench.start({"say": "first"}, {"until": str(flag)}, {"call": WRITE}, {"say": "never"})
        await bench.events.until("message_end", text="first")
        await bench.client.request("steer", text='[{"say": "steered"}]')
        flag.touch()
        run = await bench.events.run()
    assert not (place.work / "never").exists()
    assert [denied["by"] for denied in of_type(run, "tool_call_denied")] == ["steer"]
    assert [kind for kind, _ in users(run)] == ["prompt", "steer"]
    assert said(run) == ["first", "steered"]
    assert len(of_type(run, "turn_start")) == 1


async def test_a_steer_does_not_cut_a_text(
    bench: RuntimeBench, place: Place, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    with trio.fail_after(WAIT_SECONDS):
        await bench.start({"say": "a"}, {"until": str(flag)}, {"call_in_text": WRITE})
        await bench.events.until("message_end", text="a")
        await bench.client.request("steer", text='[{"say": "steered"}]')
        flag.touch()
        run = await bench.events.run()
    assert place.sent("turn/steer") == []
    assert "".join(said(run)) == "awhole textsteered"
    assert [kind for kind, _ in users(run)] == ["prompt", "steer"]
    assert len(of_type(run, "turn_start")) == 2


async def test_a_message_that_broke_off_is_followed_by_the_whole_one(bench: RuntimeBench) -> None:
    run = await bench.run({"again_said": "whole"})
    assert said(run) == ["w", "whole"]
    reasons = [end.get("stop_reason") for end in of_type(run, "message_end")]
    assert reasons == [None, "error", "stop"]
    assert of_type(run, "agent_end")[0]["status"] == "completed"


async def test_a_change_by_a_tool_of_its_own_is_denied(bench: RuntimeBench) -> None:
    run = await bench.run({"change": "a.txt"}, {"say_results": True})
    (denied,) = of_type(run, "tool_call_denied")
    assert denied["tool_name"] == "apply_patch"
    assert said(run) == ["decline"]


async def test_files_are_pictures_or_text(bench: RuntimeBench, place: Place) -> None:
    picture, text = place.work / "a.png", place.work / "b.md"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    text.write_text("in the file")
    files = [{"path": str(picture)}, {"path": str(text)}]
    await bench.run({"say": "a"}, attachments=files)
    (turn,) = place.sent("turn/start")
    first, second = turn["input"]
    assert first["text"].endswith("Attached file b.md:\n\nin the file")
    assert second == {"type": "image", "url": "data:image/png;base64,iVBORw0KGgo="}
