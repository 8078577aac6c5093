"""Recordings of real programs: what they wrote and were sent in a scene, and what came of it in the log.

A recording is ``fixtures/runtimes/NAME-VERSION/SCENE.ndjson``: lines of ``programs/recorder.py``, then
the events of the log (``event``), with ids and times made alike. ``scripts/runtimes --record`` makes
them, and ``test_recordings.py`` plays them through the adapter and compares the events.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio
from trio.testing import wait_all_tasks_blocked

from nousd.machine.policy.rules import Rule
from nousd.runtimes.agents.acp.agent import Acp
from nousd.runtimes.agents.claude.agent import Claude
from nousd.runtimes.agents.codex.agent import Codex
from nousd.runtimes.agents.interface import Agent
from nousd.runtimes.agents.opencode.agent import Opencode
from nousd.runtimes.agents.tools._tools_main import TOKEN_VARIABLE
from tests.harness.daemon import Event
from tests.harness.stub_model import stub_model
from tests.runtimes.acting_model import acting
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, runtime_bench
from tests.runtimes.programs import http_player, http_recorder, player, recorder
from tests.runtimes.real_programs import RealProgram, Surroundings, binaries, node_folder, write

FOLDER: Final = Path(__file__).resolve().parents[2] / "fixtures" / "runtimes"
BYTES_MAX: Final = 256 * 1024
"""Of one recording."""

RULES: Final = (
    Rule("allow", "read", "the scene"),
    Rule("deny", "write(secret*)", "the scene"),
)

_KINDS: Final[dict[str, Callable[..., Agent]]] = {
    "acp": Acp,
    "claude": Claude,
    "codex": Codex,
    "opencode": Opencode,
}
_OVER_HTTP: Final = frozenset({"opencode"})
"""The kinds whose programs are servers."""

_WORK: Final = "/recorded/work"
_HOME: Final = "/recorded/user"
_ORIGIN: Final = "http://model.recorded"

Mark = Callable[[str], Awaitable[None]]
"""Returns when the program has said all that it says before something that is done to it."""

_QUIET_SECONDS: Final = 1.0
_BLOCKED_SECONDS: Final = 0.1


# --- scenes ----------------------------------------------------------------------------------


async def _talk(bench: RuntimeBench, mark: Mark) -> None:
    await bench.run({"think": "hm"}, {"say": "hello"})
    await bench.run({"say": "again"})


async def _calls(bench: RuntimeBench, mark: Mark) -> None:
    await bench.run(
        {"say": "reading"},
        {"call": ["workspace.read", {"path": "notes.txt"}]},
        {"call": ["workspace.write", {"path": "secret.txt", "content": "x"}]},
        {"say_results": True},
    )


_ASKED: Final = {"call": ["workspace.write", {"path": "asked.txt", "content": "x"}]}
"""A call that waits for the user, and the program for it: nothing else happens meanwhile."""


async def _steer(bench: RuntimeBench, mark: Mark) -> None:
    with trio.fail_after(WAIT_SECONDS):
        await bench.start({"say": "first"}, _ASKED, {"say": "stopped"})
        await bench.events.until("permission_requested")
        await mark("steer")
        await bench.client.request("steer", text='[{"say": "steered"}]')
        await bench.events.run()


async def _abort(bench: RuntimeBench, mark: Mark) -> None:
    with trio.fail_after(WAIT_SECONDS):
        await bench.start({"say": "first"}, _ASKED, {"say": "late"})
        await bench.events.until("permission_requested")
        await mark("abort")
        await bench.client.request("abort")
        await bench.events.run()
    await bench.run({"say": "again"})


async def _failure(bench: RuntimeBench, mark: Mark) -> None:
    await bench.run({"fail": "no such model"})


SCENES: Final[dict[str, Callable[[RuntimeBench, Mark], Awaitable[None]]]] = {
    "talk": _talk,
    "calls": _calls,
    "steer": _steer,
    "abort": _abort,
    "failure": _failure,
}


# --- recording and playing -------------------------------------------------------------------


@asynccontextmanager
async def _bench(work: Path, agent: Agent) -> AsyncIterator[RuntimeBench]:
    write(work / "notes.txt", "what is noted")
    async with runtime_bench(work, agent, mode="ask", rules=RULES) as bench:
        yield bench


async def _events(bench: RuntimeBench) -> list[Event]:
    """Return everything in the log."""
    events = await bench.daemon.watch(after="evt-0", types="all")
    seen = [await events.next()]
    while seen[-1]["id"] != events.head:
        seen.append(await events.next())
    return seen


def path_of(program: RealProgram, scene: str) -> Path:
    """Return the file of a recording."""
    return FOLDER / f"{program.name}-{program.version}" / f"{scene}.ndjson"


async def record(program: RealProgram, scene: str) -> Path:
    """Record a scene with the real program; return the file."""
    folder = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    file, work = folder / "recorded", folder / "work"
    async with stub_model(acting) as stub:
        around = Surroundings(folder, work, stub.origin)
        program.prepare(around)
        path = os.pathsep.join([str(binaries(node_folder())), os.environ["PATH"]])
        own = {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder)}
        variables = {**program.variables(around), **own}
        between = http_recorder if program.kind in _OVER_HTTP else recorder
        words = [sys.executable, "-I", "-S", between.__file__, str(file), str(program.path)]
        agent = _KINDS[program.kind](program.name, [*words, *program.words(around)], variables)
        async with _bench(work, agent) as bench:

            async def mark(name: str) -> None:
                await trio.sleep(_QUIET_SECONDS)
                with file.open("a") as lines:
                    lines.write(json.dumps({"mark": name}) + "\n")

            await SCENES[scene](bench, mark)
            events = alike(await _events(bench), work)
        text = file.read_text() + "".join(json.dumps({"event": event}) + "\n" for event in events)
        scrubbed = _scrubbed(text, around, program)
    shutil.rmtree(folder)
    if len(scrubbed.encode()) > BYTES_MAX:
        raise ValueError(f"the recording {scene} of {program.name} is too long")
    target = path_of(program, scene)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(scrubbed)
    return target


def _scrubbed(text: str, around: Surroundings, program: RealProgram) -> str:
    """Return a recording without paths, addresses and keys of the machine on which it was made."""
    for found, instead in {
        str(around.work): _WORK,
        str(around.home): _HOME,
        str(around.work)[1:]: _WORK[1:],
        str(around.home).replace("/", "-"): "-recorded-user",
        around.origin: _ORIGIN,
        str(program.folder): "/recorded/program",
        str(Path(recorder.__file__).parents[3]): "/recorded/nousd",
        sys.executable: "/recorded/python",
    }.items():
        text = text.replace(found, instead)
    text = re.sub(r'"[^"]*/nousd-tools-[^"]+"', '"/recorded/tools/socket"', text)
    token = rf'({TOKEN_VARIABLE}"(?:, "value")?: ")[^"]+'
    return re.sub(token, r"\1token-of-the-tools", text)


async def play(file: Path, kind: str, folder: Path) -> tuple[list[Event], list[Event]]:
    """Play a recording through the adapter; return the events of then and those of now."""
    work, marks = folder / "work", folder / "marks"
    marks.mkdir()
    instead = http_player if kind in _OVER_HTTP else player
    words = [sys.executable, "-I", "-S", instead.__file__, str(file), str(marks)]
    agent = _KINDS[kind](file.parent.name.rpartition("-")[0], words, {})
    async with _bench(work, agent) as bench:

        async def mark(name: str) -> None:
            while not (marks / name).exists():
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked(_BLOCKED_SECONDS)

        await SCENES[file.stem](bench, mark)
        now = alike(await _events(bench), work)
    return [entry["event"] for entry in _entries(file) if "event" in entry], now


def _entries(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


# --- what is compared ------------------------------------------------------------------------

_ID: Final = re.compile(
    r"(?:sess|run|msg|in|evt|prm|call|cor|toolu|item)[-_][0-9a-f]{8,}(?:\.\d+)?(?:\.result)?"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|sha256:[0-9a-f]{64}"
)
_PASSED_OVER: Final = frozenset({"model_input"})
"""Events that are about us and not about what the program says."""

_VARYING: Final = frozenset({"created_at", "accepted_at", "duration_ms", "ttft_ms", "cost_usd"})
_DELTAS: Final = frozenset({"message_update", "reasoning_update", "tool_execution_update"})


def alike(events: Sequence[Event], work: Path) -> list[Event]:
    """Return the type and payload of events, as they are each time: ids are numbered, times left out,
    and adjacent deltas joined.
    """
    ids: dict[str, str] = {}
    told = [
        {"type": event["type"], "payload": _constant(event["payload"])}
        for event in _joined(events)
        if event["type"] not in _PASSED_OVER
    ]
    text = json.dumps(told).replace(str(work), _WORK)
    numbered = _ID.sub(lambda found: ids.setdefault(found[0], f"id-{len(ids)}"), text)
    result: list[Event] = json.loads(numbered)
    return result


def _constant(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _constant(each) for key, each in value.items() if key not in _VARYING}
    return [_constant(each) for each in value] if isinstance(value, list) else value


def _joined(events: Sequence[Event]) -> Iterator[Event]:
    pending: Event | None = None
    for event in events:
        payload = event["payload"]
        if pending is not None:
            if pending["type"] == event["type"]:
                joined = {**payload, "delta": pending["payload"]["delta"] + payload["delta"]}
                pending = {**event, "payload": joined}
                continue
            yield pending
            pending = None
        if event["type"] in _DELTAS:
            pending = event
        else:
            yield event
    if pending is not None:
        yield pending
