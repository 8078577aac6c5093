"""A model and a tool that wait for the test at each step, for tests of ordering.

::

    provider = ScriptedProvider()
    ...                                   # the daemon's run asks the model and waits
    provider.answer(says("hello"))        # now it streams, and ends

What is asked for while nothing was told waits; ``waiting`` says so. No clock, no network, no thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

import msgspec
import trio

from nousd.machine.context.model_input import ModelInput
from nousd.providers.interface import (
    NO_BLOBS,
    Blobs,
    Finished,
    Piece,
    Receive,
    TextDelta,
    ToolCallPiece,
)
from nousd.tools.arguments import struct_arguments
from nousd.tools.function_tool import FunctionTool, touches_nothing
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire.objects.tool_footprint import Access
from tests.harness.daemon import WAIT_SECONDS

T = TypeVar("T")


class Held(Generic[T]):
    """Calls that wait for what the test decides, one decision for each."""

    def __init__(self) -> None:
        self._decided: list[T] = []
        self._parked = trio.lowlevel.ParkingLot()
        self._watchers = trio.lowlevel.ParkingLot()

    @property
    def waiting(self) -> bool:
        return len(self._parked) > 0

    async def wait_waiting(self) -> None:
        """Wait until a call waits."""
        with trio.fail_after(WAIT_SECONDS):
            while not self.waiting:
                await self._watchers.park()

    def decide(self, outcome: T) -> None:
        """Let the call that waits, or else the next one, go on."""
        self._decided.append(outcome)
        self._parked.unpark()

    def forget(self) -> None:
        """Take back what was decided and no call has taken."""
        self._decided.clear()

    async def outcome(self) -> T:
        while not self._decided:
            self._watchers.unpark_all()
            await self._parked.park()
        return self._decided.pop(0)


Outcome = Callable[[Receive], Awaitable[None]]
"""What one model call does."""


def says(*texts: str) -> Outcome:
    """A model call that streams those texts, one delta each."""

    async def play(receive: Receive) -> None:
        pieces: list[Piece] = [TextDelta(text) for text in texts]
        for piece in [*pieces, Finished("stop")]:
            await receive(piece)

    return play


def streams(*pieces: Piece) -> Outcome:
    """A model call of these pieces, and the end."""

    async def play(receive: Receive) -> None:
        for piece in pieces:
            await receive(piece)
        is_calling = any(isinstance(piece, ToolCallPiece) for piece in pieces)
        await receive(Finished("tool_use" if is_calling else "stop"))

    return play


def asks_for_tools(count: int = 1, name: str = "work") -> Outcome:
    """A model call that asks for that many calls of one tool."""

    async def play(receive: Receive) -> None:
        for number in range(count):
            await receive(ToolCallPiece(f"own-{number}", name, "{}"))
        await receive(Finished("tool_use"))

    return play


def fails(error: Exception, *texts: str) -> Outcome:
    """A model call that fails, perhaps after it has said something."""

    async def play(receive: Receive) -> None:
        for text in texts:
            await receive(TextDelta(text))
        raise error

    return play


class OneModel:
    """The base of the providers in tests: one model, which accepts any file."""

    default_model: str

    def context_window(self, model: str) -> int:
        return 100_000

    def accepts(self, model: str, media_type: str) -> bool:
        return True

    async def models(self) -> tuple[str, ...]:
        return (self.default_model,)

    async def aclose(self) -> None:
        pass


class ScriptedProvider(OneModel):
    """See ``providers.interface.Provider``."""

    name: Final = "scripted"
    default_model = "scripted-model"

    def __init__(self) -> None:
        self.calls: Held[Outcome] = Held()
        self.requests: list[ModelInput] = []

    @property
    def waiting(self) -> bool:
        return self.calls.waiting

    def answer(self, *outcomes: Outcome) -> None:
        for outcome in outcomes:
            self.calls.decide(outcome)

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        self.requests.append(request)
        outcome = await self.calls.outcome()
        await outcome(receive)


class WithoutThread(FunctionTool, frozen=True, kw_only=True):
    """A tool whose access is told without a thread: a clock that jumps takes no heed of those."""

    async def access(self, args: Any, context: ToolContext) -> Access:
        return self.access_of(args, context)


class _NoArguments(msgspec.Struct):
    pass


ToolOutcome = Callable[[ToolContext], Awaitable[ToolResult]]
"""What one tool call does."""


def gives(text: str = "done", *, is_error: bool = False) -> ToolOutcome:
    async def play(_: ToolContext) -> ToolResult:
        return ToolResult(text, is_error=is_error)

    return play


def emits(*parts: str) -> ToolOutcome:
    """A tool call that streams those pieces."""

    async def play(context: ToolContext) -> ToolResult:
        for part in parts:
            await context.emit(part)
        return ToolResult("done")

    return play


def breaks(error: Exception) -> ToolOutcome:
    async def play(_: ToolContext) -> ToolResult:
        raise error

    return play


class ScriptedTool:
    """A tool called ``work``; ``tool`` is what a daemon is given."""

    def __init__(self) -> None:
        self.calls: Held[ToolOutcome] = Held()
        self.tool = FunctionTool(
            name="work",
            description="Does what the test says.",
            source="scripted",
            arguments=struct_arguments(_NoArguments, {}),
            function=self._run,
            access_of=touches_nothing,
        )

    @property
    def waiting(self) -> bool:
        return self.calls.waiting

    def finish(self, *outcomes: ToolOutcome) -> None:
        for outcome in outcomes:
            self.calls.decide(outcome)

    async def _run(self, _: Any, context: ToolContext) -> ToolResult:
        outcome = await self.calls.outcome()
        return await outcome(context)
