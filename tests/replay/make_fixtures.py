"""Makes ``fixtures/runs``: a real daemon with ``--record`` calls a stub of each dialect's server.

::

    .venv/bin/python -m tests.replay.make_fixtures [FOLDER]

Only missing fixtures are made: existing ones stay as the version that made them wrote them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from nousd.wire.objects.entries import Usage
from tests.daemon.asking_bench import naming
from tests.daemon.process_harness import REPOSITORY, Place, running
from tests.harness.daemon import Client, Events
from tests.harness.stub_model import Gate, Reply, StubModel, stub_model
from tests.providers.conformance import Dialect, Scene
from tests.providers.dialects import DIALECTS

FOLDER = REPOSITORY / "fixtures" / "runs"

USAGE = Usage(input=30, output=12, total=42)
ToolUse = tuple[str, dict[str, Any]]
READ: ToolUse = ("read", {"path": "a.txt"})
LS: ToolUse = ("ls", {})
MISSING: ToolUse = ("read", {"path": "missing.txt"})
FETCH: ToolUse = ("web_fetch", {"url": "https://example.org/"})
TELL_AGENTS: ToolUse = ("write", {"path": "AGENTS.md", "content": "Be brief.\n"})
UNKNOWN: ToolUse = ("teleport", {"to": "Mars"})

Act = Callable[[Client, Events], Awaitable[None]]


async def nothing(_: Client, __: Events) -> None:
    pass


async def steer(client: Client, events: Events) -> None:
    await events.until("message_update")
    await client.request("steer", text="Say it in French.")


async def abort(client: Client, events: Events) -> None:
    await events.until("message_update")
    await client.request("follow_up", text="This will be given back.")
    await client.request("abort")


async def answer(client: Client, events: Events) -> None:
    for decision in ("deny", "once"):
        request = (await events.until("permission_requested"))["payload"]
        await client.request("confirm_tool", **naming(request, decision))


async def follow_up(client: Client, events: Events) -> None:
    await events.until("message_update")
    await client.request("follow_up", text="And then?")


@dataclass(frozen=True)
class Story:
    """A run: the server's reply to each call, and the client's actions meanwhile.

    Args:
        gate: opened when ``act`` is done, unless the run is over by then.
    """

    replies: Callable[[Dialect, Gate], tuple[Reply, ...]]
    act: Act = nothing
    gate: Gate = field(default_factory=Gate)


def story(*scenes: Scene) -> Callable[[Dialect, Gate], tuple[Reply, ...]]:
    return lambda dialect, _: tuple(dialect.reply(scene) for scene in scenes)


def held(first: Scene, *scenes: Scene) -> Callable[[Dialect, Gate], tuple[Reply, ...]]:
    """Return replies of which the first waits at the gate after its text."""

    def replies(dialect: Dialect, gate: Gate) -> tuple[Reply, ...]:
        begun = Scene(text=first.text, calls=first.calls, usage=first.usage, then=(gate,))
        return tuple(dialect.reply(scene) for scene in (begun, *scenes))

    return replies


HELLO = Scene(text="Hello there.", usage=USAGE)
ASKED = Scene(text="May I?", calls=(FETCH, TELL_AGENTS), usage=USAGE)
TOOLS = Scene(text="I will look.", calls=(READ, LS, MISSING, UNKNOWN), usage=USAGE)

STORIES: dict[str, Callable[[], Story]] = {
    "text": lambda: Story(story(HELLO)),
    "thinking": lambda: Story(
        story(
            Scene(reasoning="Let me see.", signature="c2lnbmVk", calls=(READ,), usage=USAGE),
            Scene(text="It says alpha.", usage=USAGE),
        )
    ),
    "tools": lambda: Story(story(TOOLS, Scene(text="There is one file.", usage=USAGE))),
    "steer": lambda: Story(held(TOOLS, Scene(text="Bonjour.", usage=USAGE)), steer),
    "follow_up": lambda: Story(held(HELLO, Scene(text="Nothing more.", usage=USAGE)), follow_up),
    "abort": lambda: Story(held(HELLO), abort),
    "asked": lambda: Story(story(ASKED, Scene(text="Done.", usage=USAGE)), answer),
    "refused": lambda: Story(lambda dialect, _: (dialect.refuse(401, "no such key"),)),
    "broken": lambda: Story(
        lambda dialect, _: (
            dialect.reply(Scene(text="Half an ans", then=(dialect.fault(503, "overloaded"),))),
        )
    ),
    "retried": lambda: Story(
        lambda dialect, _: (dialect.refuse(503, "overloaded"), dialect.reply(HELLO))
    ),
}


async def make(name: str, dialect: Dialect, story: Story, folder: Path) -> None:
    """Record one run and make a fixture of it."""
    with tempfile.TemporaryDirectory(prefix="nousd-", dir="/tmp") as scratch:
        async with stub_model() as stub:
            stub.script(*story.replies(dialect, story.gate))
            place = place_of(Path(scratch), dialect, stub)
            (place.work / "a.txt").write_text("alpha\n")
            async with running(place) as process:
                run_id = await play_story(place, story)
                await process.stop()
        options = {
            "--from": place.folder / "raw",
            "--output": folder / name,
            "--state-dir": place.state,
            "--workdir": place.work,
        }
        command = [sys.executable, "-m", "nousd", "record", run_id]
        command += [str(word) for option in options.items() for word in option]
        await trio.run_process(command, env=place.environment(), cwd=REPOSITORY)


def place_of(folder: Path, dialect: Dialect, stub: StubModel) -> Place:
    where = ("--provider", dialect.name, "--api-base", stub.origin + dialect.api_path)
    return Place(
        folder,
        options=(*where, "--model", "test-model", "--record", str(folder / "raw")),
        allow_exec=False,
        permission_mode="auto",
    )


async def play_story(place: Place, story: Story) -> str:
    client, events = await place.connect(), await place.watch(types="all", confirms=True)
    accepted = await client.request("prompt", text="What is in a.txt?", wait=False)
    await story.act(client, events)
    story.gate.open()
    await events.run(accepted["run_id"])
    run_id: str = accepted["run_id"]
    return run_id


async def main(folder: Path) -> None:
    for dialect in DIALECTS:
        for story, make_story in STORIES.items():
            name = f"{dialect.name}-{story}"
            if not (folder / name).exists():
                await make(name, dialect, make_story(), folder)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
