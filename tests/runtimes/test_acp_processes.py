"""A program of the Agent Client Protocol under a real daemon: its socket, its guest, kills."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.daemon.process_harness import Place
from tests.harness.daemon import of_type
from tests.runtimes.bench import WAIT_SECONDS, said
from tests.runtimes.scripted_adapter import scripted_program
from tests.runtimes.test_agent_processes import (
    AgentPlace,
    new_session,
    placed,
    resumed,
    talking,
)

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")

READ = ["workspace.read", {"path": "notes.txt"}]


class AcpPlace(AgentPlace):
    """One with a runtime of the kind ``acp``."""

    runtime = "acp"
    home = "FAKE_MEMORY"

    def __post_init__(self) -> None:
        Place.__post_init__(self)
        settings = self.folder / "nousd"
        settings.mkdir(exist_ok=True)
        self.temporary.mkdir(exist_ok=True)
        words = json.dumps([*scripted_program("fake_acp"), str(self.memory), "{}"])
        (settings / "config.toml").write_text(
            f'[runtimes.acp]\nkind = "acp"\ncommand = {words}\nenv = ["PYTHONPATH", "{self.home}"]\n'
        )

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(TMPDIR=str(self.temporary), **more)

    def sockets(self) -> list[str]:
        """Return the folders of the sockets of lives."""
        return [path.name for path in self.temporary.glob("nousd-tools-*")]


@pytest.fixture
def place() -> Iterator[AcpPlace]:
    with placed(AcpPlace) as place:
        assert isinstance(place, AcpPlace)
        yield place


async def test_our_tools_reach_a_program_in_its_guest(place: AcpPlace) -> None:
    (place.work / "notes.txt").write_text("what is noted")
    async with talking(place) as talk:
        session_id = await new_session(talk, "acp")
        run = await talk.run(session_id, {"call": READ}, {"say_results": True})
        assert said(run) == ["what is noted"]
        (completed,) = of_type(run, "tool_call_completed")
        assert completed["executed_by"] == "nousd"
        assert len(place.sockets()) == 1
        assert await talk.process.stop() == 0
    assert place.sockets() == []


@pytest.mark.slow
async def test_a_killed_daemon_leaves_neither_sockets_nor_programs(place: AcpPlace) -> None:
    async with talking(place) as talk:
        session_id = await new_session(talk, "acp")
        await talk.run(session_id, {"say": "one"})
        await talk.process.kill()
    (left,) = place.sockets()
    async with talking(place) as talk:
        run = await talk.run(session_id, {"say": "two"})
        assert resumed(run) == ["native"]
        assert said(run) == ["two"]
        assert left not in place.sockets()
        await talk.start(session_id, {"say": "here"}, {"deaf": True})
        with trio.fail_after(WAIT_SECONDS):
            await talk.events.until("message_update", delta="here")
        assert place.programs()
        await talk.process.kill()
    with trio.fail_after(WAIT_SECONDS):
        while place.programs():
            await trio.lowlevel.checkpoint()
