"""The sessions of an editor with another face than version 1: a prompt is acknowledged when the daemon
has it, and its end is an update.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from nousd.acp_server.open_sessions import OpenSessions
from nousd.acp_server.requests import Text
from nousd.acp_server.session import OpenSession
from nousd.client.client import Client
from nousd.net.jsonrpc import JsonRpc
from nousd.providers.setup.registry import make_provider
from tests.harness.daemon import WAIT_SECONDS, socket_daemon

Message = dict[str, Any]


class Acknowledging:
    """The face: ``state`` are the ends that it tells."""

    def __init__(self, daemon: Client, nursery: trio.Nursery) -> None:
        self._send, self._messages = trio.open_memory_channel[Message](1000)
        rpc = JsonRpc(self.write, None, nursery)  # type: ignore[arg-type]  # it is asked nothing
        self.sessions = OpenSessions(daemon, rpc, nursery, trio.lowlevel.checkpoint)

    async def write(self, line: bytes) -> None:
        await self._send.send(json.loads(line))

    async def prompt(
        self, session: OpenSession, text: str, *, task_status: trio.TaskStatus[None]
    ) -> None:
        async with session.prompt([Text(text=text)]) as prompt:
            task_status.started()
            await self._send.send({"state": await prompt.wait_end(), "of": text})

    async def state(self) -> Message:
        async for message in self._messages:
            if "state" in message:
                return message
        raise AssertionError("nothing more comes")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Acknowledging, OpenSession, trio.Nursery]]:
    (folder / "work").mkdir(exist_ok=True)
    with trio.fail_after(WAIT_SECONDS):
        async with (
            socket_daemon(folder, provider=make_provider("mock")),
            Client(folder / "nous.sock") as daemon,
            trio.open_nursery() as nursery,
        ):
            face = Acknowledging(daemon, nursery)
            session = await face.sessions.new(str(folder / "work"), ())
            session.begin()
            yield face, session, nursery
            face.sessions.leave()
            nursery.cancel_scope.cancel()


async def test_prompts_are_acknowledged_while_a_turn_goes_on(folder: Path) -> None:
    async with opened(folder) as (face, session, nursery):
        for text in ("[[hang]]", "second"):
            await nursery.start(face.prompt, session, text)
        await session.cancel()
        ends = [await face.state() for _ in range(2)]
        assert {(end["of"], end["state"]) for end in ends} == {
            ("[[hang]]", "cancelled"),
            ("second", "cancelled"),
        }
        await nursery.start(face.prompt, session, "[[text Again.]]")
        assert await face.state() == {"state": "end_turn", "of": "[[text Again.]]"}


async def test_a_prompt_whose_block_is_left_early_is_taken_back(folder: Path) -> None:
    async with opened(folder) as (face, session, nursery):
        await nursery.start(face.prompt, session, "[[slow 20]] [[say 20]]")
        with trio.CancelScope() as scope:
            async with session.prompt([Text(text="never")]) as prompt:
                scope.cancel()
                await prompt.wait_end()
        assert (await face.state())["state"] == "end_turn"
        found = await face.sessions.ask("get_messages", {"session_id": session.id})
        assert [entry["role"] for entry in found["messages"]] == ["user", "assistant"]
