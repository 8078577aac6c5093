"""Agent programs of a real daemon: kills of either, and what a program can reach."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.daemon.process_harness import Place, Process, running
from tests.harness.daemon import Client, Event, Events, of_type
from tests.runtimes.bench import WAIT_SECONDS, said
from tests.runtimes.scripted_adapter import ENVIRONMENT, scripted_program


class AgentPlace(Place):
    """The folder of a daemon, one runtime of which is a scripted program."""

    runtime = "claude"
    home = "CLAUDE_CONFIG_DIR"
    """The variable that names the folder in which the program keeps its sessions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = self.folder / "nousd"
        settings.mkdir(exist_ok=True)
        words, name = json.dumps(scripted_program(f"fake_{self.runtime}")), self.runtime
        (settings / "config.toml").write_text(
            f'[runtimes.{name}]\nkind = "{name}"\ncommand = {words}\nenv = ["PYTHONPATH"]\n'
        )

    @property
    def memory(self) -> Path:
        return self.folder / "memory"

    def environment(self, **more: str) -> dict[str, str]:
        own = {**ENVIRONMENT, self.home: str(self.memory)}
        return super().environment(**own, **more)

    def programs(self) -> list[int]:
        """Return the processes of the program that live."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes()
                    environment = (folder / "environ").read_bytes()
                except OSError:
                    continue
                if (
                    f"fake_{self.runtime}".encode() in words
                    and str(self.memory).encode() in environment
                ):
                    found.append(int(folder.name))
        return found

    def variables(self, program: int) -> bytes:
        """Return the environment of a process."""
        return Path(f"/proc/{program}/environ").read_bytes()


class CodexPlace(AgentPlace):
    """One with the runtime ``codex``."""

    runtime = "codex"
    home = "CODEX_HOME"


class OpencodePlace(AgentPlace):
    """One with the runtime ``opencode``."""

    runtime = "opencode"
    home = "XDG_DATA_HOME"


class Talk:
    """A started daemon, a client of it, and a subscriber."""

    def __init__(self, process: Process, client: Client, events: Events) -> None:
        self.process, self.client, self.events = process, client, events

    async def start(self, session_id: str, *acts: Any) -> str:
        accepted = await self.client.request(
            "prompt", session_id=session_id, text=json.dumps(acts), wait=False
        )
        run_id: str = accepted["run_id"]
        return run_id

    async def run(self, session_id: str, *acts: Any) -> list[Event]:
        with trio.fail_after(WAIT_SECONDS):
            return await self.events.run(await self.start(session_id, *acts))


@contextmanager
def placed(kind: type[AgentPlace]) -> Iterator[AgentPlace]:
    # Unix sockets need short paths.
    folder = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    yield kind(folder)
    shutil.rmtree(folder)


@pytest.fixture
def place() -> Iterator[AgentPlace]:
    with placed(AgentPlace) as place:
        yield place


@asynccontextmanager
async def talking(place: Place) -> AsyncIterator[Talk]:
    async with running(place) as process:
        yield Talk(process, await place.connect(), await place.watch(types="all"))


async def new_session(talk: Talk, runtime: str = AgentPlace.runtime) -> str:
    created = await talk.client.request("new_session", runtime=runtime)
    session_id: str = created["session_id"]
    return session_id


def resumed(run: list[Event]) -> list[str]:
    return [note["resume"] for note in of_type(run, "agent_session") if "resume" in note]


@pytest.mark.slow
async def test_a_killed_daemons_session_goes_on_with_the_programs_own(place: AgentPlace) -> None:
    async with talking(place) as talk:
        session_id = await new_session(talk)
        await talk.run(session_id, {"say": "one"})
        await talk.process.kill()
    async with talking(place) as talk:
        run = await talk.run(session_id, {"say": "two"})
    assert resumed(run) == ["native"]
    (kept,) = place.memory.iterdir()
    assert [json.loads(text) for text in msgspec.json.decode(kept.read_bytes())] == [
        [{"say": "one"}],
        [{"say": "two"}],
    ]


@pytest.mark.slow
async def test_a_turn_that_a_kill_ended_is_told_and_not_run_again(place: AgentPlace) -> None:
    call = {"call": ["workspace.write", {"path": "once", "content": "x"}]}
    async with talking(place) as talk:
        session_id = await new_session(talk)
        await talk.start(session_id, call, {"say": "written"}, {"hold": True})
        with trio.fail_after(WAIT_SECONDS):
            await talk.events.until("message_end", text="written")
        await talk.process.kill()
    (place.work / "once").unlink()
    async with talking(place) as talk:
        run = await talk.run(session_id, {"say": "next"})
        assert resumed(run) == ["reconstruct"]
        assert said(run) == ["next"]
        assert not (place.work / "once").exists()
        entries = (await talk.client.request("get_messages", session_id=session_id))["messages"]
    assert [entry["role"] for entry in entries].count("tool") == 1


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
async def test_a_program_sees_nothing_of_the_daemons(place: AgentPlace) -> None:
    async with talking(place) as talk:
        session_id = await new_session(talk)
        looks = [place.state, place.folder / "nousd", place.socket, place.events_socket]
        run = await talk.run(session_id, *({"look": str(path)} for path in looks))
        assert said(run) == ["folder []", "folder []", "file of 0", "file of 0"]


class PlacedWithKeys(AgentPlace):
    """One whose daemon has keys of model providers."""

    key = "sk-ant-api03-planted-0123456789abcdef0123456789"
    other = "sk-proj-planted-0123456789abcdef0123456789"

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(ANTHROPIC_API_KEY=self.key, OPENAI_API_KEY=self.other, **more)


@pytest.mark.slow
async def test_a_key_that_the_program_says_is_in_no_event_and_others_it_has_not() -> None:
    key = PlacedWithKeys.key

    def line(**message: str | bool) -> str:
        # The text of the user, which has these lines, must not have the key itself.
        return json.dumps(message).replace("sk-ant", "sk-\\u0061nt")

    init = line(
        type="system", subtype="init", session_id=key, model=key, claude_code_version=f"v{key}"
    )
    failed = line(type="result", is_error=True, result=f"refused: {key}")
    with placed(PlacedWithKeys) as place:
        async with talking(place) as talk:
            session_id = await new_session(talk)
            run = await talk.run(session_id, {"raw": [init]}, {"say": "a"})
            (program, *_) = place.programs()
            variables = place.variables(program)
            run += await talk.run(session_id, {"raw": [failed]})
    assert "refused" in of_type(run, "error")[0]["cause"]
    assert [event["type"] for event in run if key in json.dumps(event)] == []
    assert PlacedWithKeys.other.encode() not in variables


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
async def test_a_program_of_root_cannot_take_the_covers_away(place: AgentPlace) -> None:
    async with talking(place) as talk:
        session_id = await new_session(talk)
        run = await talk.run(session_id, {"uncover": str(place.state)})
        assert said(run) == ["folder []"]


@pytest.mark.slow
async def test_a_program_ends_with_its_session(place: AgentPlace) -> None:
    async with talking(place) as talk:
        session_id = await new_session(talk)
        await talk.run(session_id, {"say": "one"})
        assert place.programs()
        await talk.client.request("delete_session", session_id=session_id)
        with trio.fail_after(WAIT_SECONDS):
            while place.programs():
                await trio.lowlevel.checkpoint()


@pytest.mark.slow
async def test_nothing_of_a_program_outlives_the_daemon(place: AgentPlace) -> None:
    async with talking(place) as talk:
        session_id = await new_session(talk)
        await talk.start(session_id, {"say": "here"}, {"deaf": True})
        with trio.fail_after(WAIT_SECONDS):
            await talk.events.until("message_end", text="here")
        assert place.programs()
        await talk.process.kill()
    with trio.fail_after(WAIT_SECONDS):
        while place.programs():
            await trio.lowlevel.checkpoint()
