"""A daemon whose sessions may override their workspaces, and a clock to set."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import trio

from nousd.daemon.clock import SystemClock
from nousd.errors import ToolError
from nousd.tools.arguments import struct_arguments
from nousd.tools.function_tool import touches
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire.limits import OVERRIDE_SECONDS_MAX
from tests.daemon.asking_bench import naming
from tests.daemon.scripted import WithoutThread
from tests.daemon.workspaces_bench import Bench, Ended, Folders, several_folders
from tests.harness.daemon import Event, Payload, of_type

SECONDS = 60
"""How long an override of these tests lasts."""


class WallClock:
    """Tells trio's time as a wall clock, which can be set."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._ids = itertools.count(1)
        self._began = trio.current_time()

    def now(self) -> str:
        """See ``Clock.now``."""
        seconds = trio.current_time() - self._began + self.ahead
        time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        return time.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"

    def new_id(self, prefix: str) -> str:
        """See ``Clock.new_id``."""
        return f"{prefix}-{next(self._ids):08}"


class Look(msgspec.Struct):
    """Arguments of the tool ``look``."""

    path: str


async def _look(args: Look, context: ToolContext) -> ToolResult:
    try:
        with context.path_sandbox.locate(args.path) as place, place.open_file() as file:
            return ToolResult(file.read().decode())
    except OSError as error:
        raise ToolError(f"look_failed: {error.strerror}") from error


LOOK = WithoutThread(
    name="look",
    description="Looks.",
    source="builtin",
    arguments=struct_arguments(Look),
    function=_look,
    access_of=touches("read"),
)


class OverrideBench(Bench):
    """A client of that daemon, and one who answers."""

    async def override(self, session_id: str, seconds: int = SECONDS) -> Payload:
        """Let a session ask."""
        return await self.client.request(
            "override_workspace", session_id=session_id, ttl_seconds=seconds
        )

    async def start(
        self, session_id: str, path: Path | str, tool: str = "look", **args: Any
    ) -> str:
        """Call a tool with a path as a client; returns the call's id."""
        accepted = await self.client.request(
            "call_tool", session_id=session_id, tool=tool, args={"path": str(path), **args}
        )
        call_id: str = accepted["tool_call_id"]
        return call_id

    async def asked(self, session_id: str, path: Path | str, **more: Any) -> Payload:
        """Call a tool with a path, and return what is asked about that."""
        await self.start(session_id, path, **more)
        return (await self.events.until("permission_requested"))["payload"]  # type: ignore[no-any-return]

    async def answer(self, request: Payload, decision: str = "once", **more: Any) -> Ended:
        """Answer what was asked, and return what the call came to."""
        await self.client.request("confirm_tool", **naming(request, decision, **more))
        return await self.end_of(request["tool_call_id"])

    async def end_of(self, call_id: str) -> Ended:
        """Return what a call came to."""
        call = await self.client.request("get_tool_call", tool_call_id=call_id)
        while "ended_at" not in call["call"]:
            await self.events.next()
            call = await self.client.request("get_tool_call", tool_call_id=call_id)
        return Ended((), call["call"].get("result", ""), call["call"].get("is_error", True))

    async def decision(self, call_id: str) -> Payload:
        """Return who decided what about a call."""
        call = await self.client.request("get_tool_call", tool_call_id=call_id)
        decision: Payload = call["call"]["decision"]
        return decision

    async def later(self, type: str, **fields: Any) -> Payload:
        """Return the next event of that type with those fields; the clock must be one that jumps."""
        while True:
            event = await self.events.next(seconds=10 * OVERRIDE_SECONDS_MAX)
            if event["type"] == type and fields.items() <= event["payload"].items():
                payload: Payload = event["payload"]
                return payload

    async def shown(self, session_id: str) -> Payload | None:
        """Return what ``get_state`` says of a session's override."""
        state = await self.client.request("get_state", session_id=session_id)
        return state.get("override")

    async def log(self, *wanted: str) -> list[Payload]:
        """Return the payloads of the events of those types, from the log."""
        page = await self.client.request("get_events", types=list(wanted))
        events: list[Event] = page["events"]
        return of_type(events, *wanted)


@asynccontextmanager
async def overriding(
    folders: Folders, *roots: Path, **options: Any
) -> AsyncIterator[OverrideBench]:
    """Run a daemon in memory, in the mode yolo if nothing else is said, with the tool ``look``."""
    options.setdefault("clock", SystemClock())
    options["tools"] = [LOOK, *options.get("tools", ())]
    async with several_folders(folders, *roots, **options) as bench:
        yield OverrideBench(bench.daemon, bench.client, bench.events, bench.provider)
