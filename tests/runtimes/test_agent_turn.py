"""A turn of an agent that calls at the wrong moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import trio

from nousd.daemon.error_boundary import run_contained
from nousd.runtimes.agents.agent_turn import STOPPED, AgentTurn
from nousd.runtimes.agents.interface import AgentCall, AgentLife, AgentListener, UserText
from nousd.runtimes.answer_room import AnswerBounds
from nousd.runtimes.interface import AgentHost
from nousd.tools.interface import ToolResult
from tests.harness.daemon import WAIT_SECONDS


class Working(AgentLife):
    """A program that is working whenever one looks."""

    async def begin(self) -> None:
        """It is ready."""

    async def take(self, line: bytes) -> None:
        """It says nothing."""

    async def take_turn(self, said: UserText, listener: AgentListener) -> None:
        await trio.sleep_forever()

    async def _prompt(self, said: UserText) -> None:
        """It has begun already."""

    async def _ask_to_stop(self) -> None:
        """It has stopped already."""


def a_turn() -> AgentTurn:
    secrets: Any = SimpleNamespace(redact_output_json=dict, redact_output=str)
    calls: Any = None
    host = SimpleNamespace(
        answers=SimpleNamespace(bytes=0),
        turn_inputs=("input",),
        turn_text="text",
        turn_attachments=(),
        confirm_delivery=trio.sleep_forever,
        keep=trio.sleep_forever,
    )
    return AgentTurn(
        cast("AgentHost", host),
        Working(),
        calls,
        runtime="test",
        contain=run_contained,
        bounds=AnswerBounds(1000, 1000),
        secrets=secrets,
    )


async def test_a_call_at_any_moment_of_the_end_of_a_turn_is_told_that_it_is_over() -> None:
    turn, told = a_turn(), list[ToolResult]()
    is_over = trio.Event()

    async def call(number: int) -> None:
        made = AgentCall(agent_call_id=str(number), name="workspace.read", args={})
        told.append(await turn.run_tool(made))

    async def call_on() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            calling.start_soon(call, number)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as calling:
        with trio.CancelScope() as scope:
            calling.start_soon(call_on)

            async def abort() -> None:
                for _ in range(20):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            calling.start_soon(abort)
            with trio.fail_after(WAIT_SECONDS):
                await turn.carry_out()
        is_over.set()
    assert set(told) == {STOPPED}
