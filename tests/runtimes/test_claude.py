"""What of one turn of Claude Code must not reach the next one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio
import trio.testing

from nousd.runtimes.agents.claude.life import ClaudeLife
from nousd.runtimes.agents.interface import AgentCall, Resume, Start, UserText
from nousd.tools.interface import ToolResult

_ASKS = {
    "type": "control_request",
    "request_id": "1",
    "request": {
        "subtype": "hook_callback",
        "input": {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "a call"},
    },
}
_ENDS = {"type": "result", "subtype": "success", "is_error": False, "total_cost_usd": 0}


class Listener:
    """Hears of one turn, and allows its calls when the test says so."""

    def __init__(self) -> None:
        self.may_decide = trio.Event()
        self.observed_calls: list[AgentCall] = []

    def has_pending_steer(self) -> bool:
        return False

    async def find_refusal(self, _call: AgentCall) -> str | None:
        await self.may_decide.wait()
        return None

    async def record_call(self, call: AgentCall, _result: ToolResult, _seconds: float) -> None:
        self.observed_calls.append(call)

    async def confirm_delivery(self, message_id: str = "") -> None:
        """Nothing is noted."""


async def _write(_line: bytes) -> None:
    """Nobody reads."""


async def test_a_call_allowed_after_its_turn_is_not_a_call_of_the_next_one(tmp_path: Path) -> None:
    start = Start(workdir=tmp_path, model="", instructions="", tools=(), own_tools="ask")
    first, second = Listener(), Listener()
    async with trio.open_nursery() as nursery:
        life = ClaudeLife(start, Resume("new"), _write, nursery)

        async def turn(listener: Any, *lines: Any) -> None:
            async with trio.open_nursery() as taking:
                taking.start_soon(life.take_turn, UserText(message_id="", text="go"), listener)
                await trio.testing.wait_all_tasks_blocked()
                for line in lines:
                    await life.take(json.dumps(line).encode())
                    await trio.testing.wait_all_tasks_blocked()

        await turn(first, _ASKS, _ENDS)
        first.may_decide.set()
        await trio.testing.wait_all_tasks_blocked()
        await turn(second, _ENDS)
    assert first.observed_calls == second.observed_calls == []
