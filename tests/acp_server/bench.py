"""An editor with a session of a real daemon, and another client beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nousd.providers.setup.registry import make_provider
from tests.acp_server.editor import ALL, Editor, Message, editor_at
from tests.harness.daemon import Client, Daemon, socket_daemon


class Bench(NamedTuple):
    """An editor with a session, and another client of the same daemon."""

    editor: Editor
    daemon: Daemon
    client: Client
    session_id: str
    folder: Path

    async def prompt(self, *blocks: str | Message) -> str:
        return await self.editor.prompt(self.session_id, *blocks)

    async def begin(self, *blocks: str | Message) -> int:
        return await self.editor.begin_prompt(self.session_id, *blocks)

    async def entries(self) -> list[dict[str, Any]]:
        answer = await self.client.request("get_messages", session_id=self.session_id)
        messages: list[dict[str, Any]] = answer["messages"]
        return messages


@asynccontextmanager
async def bench_in(
    folder: Path, *, capabilities: Message = ALL, **options: Any
) -> AsyncIterator[Bench]:
    async with (
        socket_daemon(folder, provider=make_provider("mock"), **options) as daemon,
        editor_at(folder / "nous.sock", capabilities) as editor,
    ):
        session_id = await editor.new(folder / "work")
        client = await daemon.connect()
        yield Bench(editor, daemon, client, session_id, folder / "work")


def choosing(option_id: str) -> Message:
    return {"outcome": {"outcome": "selected", "optionId": option_id}}
