"""Tool calls that are not alone, or not our own: of eight sessions at once, in a workspace of 50,000
files, and of an MCP server.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
from mcp import ClientSession, StdioServerParameters, stdio_client

from nousd.tools.sandbox.detect import Detector
from nousd.tools.sandbox.visible_paths import SandboxChoices

from .calling import Caller, bare_command, small_workspace
from .client import commands, subscription
from .programs import Measure, daemon, folder, helper, in_turns, model_flags
from .report import Row, at_least, at_most
from .yardsticks import bare_commits

_ROUNDS: Final = 30
_AT_ONCE: Final = 8
_CALLS_OF_EACH: Final = 10
_GAIN_ROUNDS: Final = 5
_FOLDERS: Final = 100
_FILES_OF_EACH: Final = 500
_BASH_MORE_MS: Final = 10.0
_MCP_MORE_MS: Final = 2.0
_TRUE: Final = {"command": "true"}

_TIME_SERVER: Final = (sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC")
_TIME: Final = "get_current_time"
_UTC: Final = {"timezone": "UTC"}

_YOLO: Final = ("--allow-exec", "--permission-mode", "yolo")


async def rows() -> list[Row]:
    """What eight sessions at once gain over one, beside what as many bare bubblewraps gain; ``bash
    true`` among 50,000 files; a call of an MCP server over stdio, beside the SDK's own client.
    """
    made = [await _mcp()]
    if Detector("bubblewrap", SandboxChoices())() is not None:
        made += [await _gain(), await _many_files()]
    return made


# --- at once ---------------------------------------------------------------------------------


async def _gain() -> Row:
    with folder() as place, helper("model_stub") as api_base, ExitStack() as held:
        work = small_workspace(place)
        bare = [
            partial(
                trio.to_thread.run_sync,
                trio.run,
                held.enter_context(bare_command("bubblewrap", work)),
            )
            for _ in range(_AT_ONCE)
        ]
        flags = (*model_flags(api_base), *_YOLO, "--sandbox", "bubblewrap", "--workdir", str(work))
        async with daemon(place, *flags) as running, AsyncExitStack() as stack:
            ours: list[Callable[[], Awaitable[object]]] = []
            for _ in range(_AT_ONCE):
                connection = await stack.enter_async_context(commands(running.socket))
                session = (await connection.ask("new_session"))["session_id"]
                text = f"call bash {json.dumps(_TRUE)}"
                ours.append(partial(connection.ask, "prompt", text=text, session_id=session))
            await _rate(ours)
            one, all_, bare_one, bare_all = await in_turns(
                _GAIN_ROUNDS,
                partial(_rate, ours[:1]),
                partial(_rate, ours),
                partial(_rate, bare[:1]),
                partial(_rate, bare),
            )
    return Row(
        f"gain of {_AT_ONCE} sessions, bubblewrap",
        all_ / one,
        bare_all / bare_one,
        "times",
        "the gain of bare bwrap + bash",
        at_least(0.8),
    )


async def _rate(calls: Sequence[Callable[[], Awaitable[object]]]) -> float:
    """Return calls per second of callers that each make some, one after the other."""

    async def some(call: Callable[[], Awaitable[object]]) -> None:
        for _ in range(_CALLS_OF_EACH):
            await call()

    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(some, call)
    return len(calls) * _CALLS_OF_EACH / (time.perf_counter() - start)


# --- among many files ------------------------------------------------------------------------


async def _many_files() -> Row:
    with folder() as place, helper("model_stub") as api_base:
        work = small_workspace(place)
        for number in range(_FOLDERS):
            inner = work / f"folder-{number}"
            inner.mkdir()
            for file in range(_FILES_OF_EACH):
                (inner / f"file-{file}.txt").touch()
        flags = (*model_flags(api_base), *_YOLO, "--sandbox", "bubblewrap", "--workdir", str(work))
        async with _caller(place, *flags) as caller:
            with (
                bare_commits(place, at_once=1) as commit_us,
                bare_command("bubblewrap", work) as bare_ms,
            ):
                call = partial(caller.call_ms, "bash", _TRUE)
                await in_turns(2, call)
                committed, bare, took = await in_turns(_ROUNDS, commit_us, bare_ms, call)
    return Row(
        f"bash true among {_FOLDERS * _FILES_OF_EACH:,} files",
        took,
        bare + 2 * committed / 1e3 + _BASH_MORE_MS,
        "ms",
        f"bare bwrap + bash + 2 commits + {_BASH_MORE_MS:g} ms",
        at_most(1),
    )


# --- an MCP server ---------------------------------------------------------------------------


async def _mcp() -> Row:
    with folder() as place, helper("model_stub") as api_base:
        config = place / "config.toml"
        config.write_text(f"[mcp.time]\ncommand = {json.dumps(_TIME_SERVER)}\n")
        flags = (*model_flags(api_base), "--permission-mode", "yolo", "--config", str(config))
        async with _caller(place, *flags) as caller, _bare_mcp_client() as bare_ms:
            await caller.until_offered(f"mcp__time__{_TIME}")
            with bare_commits(place, at_once=1) as commit_us:
                call = partial(caller.call_ms, f"mcp__time__{_TIME}", _UTC)
                await in_turns(2, call, bare_ms)
                committed, bare, took = await in_turns(_ROUNDS, commit_us, bare_ms, call)
    return Row(
        "call of an MCP server, stdio",
        took,
        bare + 2 * committed / 1e3 + _MCP_MORE_MS,
        "ms",
        f"the SDK's client + 2 commits + {_MCP_MORE_MS:g} ms",
        at_most(1),
    )


@asynccontextmanager
async def _bare_mcp_client() -> AsyncIterator[Measure]:
    """Give the time of a call in milliseconds: the SDK's client, with a server of its own."""
    command, *args = _TIME_SERVER
    async with (
        stdio_client(StdioServerParameters(command=command, args=args)) as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()

        async def call_ms() -> float:
            start = time.perf_counter()
            await session.call_tool(_TIME, _UTC)
            return (time.perf_counter() - start) * 1e3

        yield call_ms


@asynccontextmanager
async def _caller(place: Path, *flags: str) -> AsyncIterator[Caller]:
    async with (
        daemon(place, *flags) as running,
        commands(running.socket) as connection,
        subscription(running.events) as events,
    ):
        session = await connection.ask("new_session")
        yield Caller(connection, events, session["session_id"])
