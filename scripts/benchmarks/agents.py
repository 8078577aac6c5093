"""Agent programs through the daemon, beside the same programs driven bare over their own protocols."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from tests.daemon.process_harness import running
from tests.runtimes.contracted import RealPlace
from tests.runtimes.real_programs import (
    PROGRAMS,
    RealProgram,
    Surroundings,
    binaries,
    node_folder,
)

from .client import READ_BYTES, commands, subscription
from .programs import PYTHON, folder, in_turns, process
from .report import Row

_ROUNDS: Final = 7
_FLOOD: Final = 5_000
_FIRST: Final = [{"say": "words that are no secret and that nobody has to look for. " * 4}]

Lines = AsyncIterator[bytes]


class Dialect(NamedTuple):
    """How a kind of program is driven by itself, with as little work as possible.

    Args:
        words: the command line after that of the program.
        delta: stands in every line with a piece of text.
        end: stands in the line that ends a turn.
    """

    words: Sequence[str]
    delta: bytes
    end: bytes


_DIALECTS: Final = {
    "claude": Dialect(
        (
            *("-p", "--input-format", "stream-json", "--output-format", "stream-json"),
            *("--verbose", "--include-partial-messages"),
        ),
        b'"text_delta"',
        b'"type":"result"',
    ),
    "codex": Dialect(("app-server",), b"item/agentMessage/delta", b'"turn/completed"'),
    "acp": Dialect((), b"agent_message_chunk", b'"stopReason"'),
}


class _Bare:
    """A program that runs, and one session of it."""

    def __init__(self, program: RealProgram, around: Surroundings, running: trio.Process) -> None:
        self._kind, self._around, self._running = program.kind, around, running
        self._rest = b""
        self._id = 0
        self._session = ""

    async def begin(self) -> None:
        work = str(self._around.work)
        if self._kind == "claude":
            request = {"subtype": "initialize", "hooks": None}
            await self._send(type="control_request", request_id="r", request=request)
            await self._line_with(b"control_response")
        elif self._kind == "codex":
            info = {"name": "bench", "title": "bench", "version": "1"}
            await self._call("initialize", clientInfo=info, capabilities={})
            await self._send(method="initialized", params={})
            begun = await self._call("thread/start", cwd=work)
            self._session = begun["thread"]["id"]
        else:
            await self._call("initialize", protocolVersion=1, clientCapabilities={})
            self._session = (await self._call("session/new", cwd=work, mcpServers=[]))["sessionId"]

    async def prompt(self, text: str) -> None:
        """Send a text, which begins a turn."""
        said = [{"type": "text", "text": text}]
        if self._kind == "claude":
            await self._send(type="user", message={"role": "user", "content": said}, session_id="")
        elif self._kind == "codex":
            await self._ask("turn/start", threadId=self._session, input=said)
        else:
            await self._ask("session/prompt", sessionId=self._session, prompt=said)

    async def seconds(self, text: str) -> tuple[float, float]:
        """Return the time from a prompt to its first delta, and to the end of its turn."""
        dialect = _DIALECTS[self._kind]
        begun = time.perf_counter()
        await self.prompt(text)
        await self._line_with(dialect.delta)
        first = time.perf_counter() - begun
        await self._line_with(dialect.end)
        return first, time.perf_counter() - begun

    async def _call(self, method: str, **params: Any) -> Any:
        await self._ask(method, **params)
        answer = json.loads(await self._line_with(f'"id":{self._id},'.encode(), b'"result"'))
        return answer["result"]

    async def _ask(self, method: str, **params: Any) -> None:
        self._id += 1
        await self._send(jsonrpc="2.0", id=self._id, method=method, params=params)

    async def _send(self, **message: Any) -> None:
        assert self._running.stdin is not None
        await self._running.stdin.send_all(json.dumps(message).encode() + b"\n")

    async def _line_with(self, *parts: bytes) -> bytes:
        """Read until a line has these parts, in any order; return it."""
        assert self._running.stdout is not None
        while True:
            lines, found, self._rest = self._rest.rpartition(b"\n")
            if found:
                for place, line in enumerate(whole := lines.split(b"\n")):
                    if all(part in line or part in line.replace(b": ", b":") for part in parts):
                        self._rest = b"\n".join([*whole[place + 1 :], self._rest])
                        return line
            chunk = await self._running.stdout.receive_some(READ_BYTES)
            if not chunk:
                raise RuntimeError("the program has ended")
            self._rest += bytes(chunk)


@asynccontextmanager
async def _bare(program: RealProgram, around: Surroundings) -> AsyncIterator[_Bare]:
    around.work.mkdir()
    program.prepare(around)
    path = os.pathsep.join([str(binaries(node_folder())), os.environ["PATH"]])
    words = [str(program.path), *program.words(around), *_DIALECTS[program.kind].words]
    running = await trio.lowlevel.open_process(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=around.work,
        env={**program.variables(around), "PATH": path, "HOME": str(around.home)},
    )
    try:
        bare = _Bare(program, around, running)
        await bare.begin()
        yield bare
    finally:
        running.kill()
        await running.wait()


class _Ours:
    """A session of the program in a daemon."""

    def __init__(self, place: RealPlace) -> None:
        self._place = place

    async def seconds(self, text: str) -> tuple[float, float]:
        """Return the time from a prompt to its first delta, and to the end of its run."""
        async with (
            commands(self._place.socket) as client,
            subscription(self._place.events_socket, types="all") as events,
        ):
            begun = time.perf_counter()
            await client.ask("prompt", text=text, wait=False)
            seen, first = b"", 0.0
            while b'"type":"agent_end"' not in seen:
                chunk = await events.receive_some(READ_BYTES)
                seen = seen[-64:] + bytes(chunk)
                if not first and b'"type":"message_update"' in seen:
                    first = time.perf_counter() - begun
            return first, time.perf_counter() - begun


async def _measured(program: RealProgram, origin: str, place: Path) -> list[Row]:
    around = Surroundings(place / "bare", place / "bare" / "work", origin, has_own_tools=True)
    around.home.mkdir()
    workspace, ours = place / "work", place / "ours"
    workspace.mkdir()
    ours.mkdir()
    real = RealPlace(ours, program=program, origin=origin, workspace=workspace)
    async with _bare(program, around) as bare, running(real):
        async with commands(real.socket) as client:
            await client.ask("new_session", runtime=program.name)
        both = (_Ours(real).seconds, bare.seconds)
        first, flood = json.dumps(_FIRST), json.dumps([{"flood": _FLOOD}])
        await in_turns(1, *(partial(_part, measure, first, 0) for measure in both))
        firsts = await in_turns(_ROUNDS, *(partial(_part, each, first, 0) for each in both))
        floods = await in_turns(_ROUNDS, *(partial(_part, each, flood, 1) for each in both))
    name = f"{program.name} {program.version}"
    return [
        Row(f"{name}, first delta", firsts[0] * 1e3, firsts[1] * 1e3, "ms", "the program, bare"),
        Row(f"{name}, {_FLOOD:,} deltas", floods[0] * 1e3, floods[1] * 1e3, "ms", "the same"),
    ]


Measure = Callable[[str], Any]


async def _part(measure: Measure, text: str, part: int) -> float:
    return float((await measure(text))[part])


async def rows() -> list[Row]:
    """From a prompt to its first delta, and to the end of a flood: through the daemon, and over the
    program's own protocol, in turns in one run. Programs that are not installed are named.
    """
    found: list[Row] = []
    with process(PYTHON, "-m", "tests.runtimes.acting_model") as model:
        assert model.stdout is not None
        origin = model.stdout.readline().strip()
        for program in PROGRAMS.values():
            if not program.path.exists():
                print(f"{program.name} is not installed: scripts/runtimes", file=sys.stderr)
                continue
            with folder() as place:
                found += await _measured(program, origin, place)
                shutil.rmtree(place / "bare", ignore_errors=True)
    return found
