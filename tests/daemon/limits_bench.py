"""Fixtures for the rows of the limits table; see ``test_limits``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nousd.runtimes.answer_room import AnswerBounds
from nousd.wire.limit_table import LIMITS
from tests.harness.daemon import Client, Daemon, Event, Events, of_type
from tests.harness.stub_model import StubModel, text_reply, tool_reply


@dataclass
class Kit:
    """A daemon on real sockets, its model, and two clients."""

    folder: Path
    daemon: Daemon
    client: Client
    events: Events
    stub: StubModel
    patch: pytest.MonkeyPatch

    def scale(self, name: str, module: ModuleType, constant: str, value: int) -> int:
        """Set another bound for the test, after checking that the code has the table's."""
        assert getattr(module, constant) == LIMITS[name][0], (
            f"{constant} is not the bound of {name}"
        )
        self.patch.setattr(module, constant, value)
        return value

    def bound_answers(self, of_call: int, of_run: int | None = None) -> None:
        """Run the daemon with other bounds of answers than the table's, which are settings."""
        runtime: Any = self.daemon.services.run_services.summariser
        usual = AnswerBounds(LIMITS["answer_bytes_max"][0], LIMITS["run_answer_bytes_max"][0])
        assert runtime._bounds == usual
        self.patch.setattr(runtime, "_bounds", AnswerBounds(of_call, of_run or usual.per_run))

    async def run(self, text: str = "go") -> list[Event]:
        await self.client.request("prompt", text=text, wait=False)
        return await self.events.run()

    async def tool_result(self, text: str) -> tuple[str, str]:
        """Have a tool return the text; return it as in the transcript and as in the end of the call."""
        self.stub.script(tool_reply(("say", {"text": text})), text_reply("done"))
        (end,) = of_type(await self.run(), "tool_execution_end")
        entries = (await self.client.request("get_messages"))["messages"]
        (in_transcript,) = (entry["text"] for entry in entries if entry["role"] == "tool")
        return in_transcript, end["result"]


def error_text(error: dict[str, Any]) -> str:
    return f"{error['code']}: {error['message']}"


def table_text(name: str) -> str:
    return LIMITS[name][1]


def padded_line(length: int, type: str, **payload: Any) -> bytes:
    """Return a line of that length without its LF."""
    line = json.dumps({"id": "padded", "type": type, "payload": {**payload, "pad": ""}}).encode()
    return line.replace(b'"pad": ""', b'"pad": "%b"' % (b"x" * (length - len(line))))


async def check_command(kit: Kit, name: str, offset: int, type: str, **payload: Any) -> None:
    """Assert that the command succeeds up to the bound, and is refused with the table's text past it."""
    if offset > 0:
        assert error_text(await kit.client.refusal(type, **payload)) == table_text(name)
    else:
        await kit.client.request(type, **payload)
