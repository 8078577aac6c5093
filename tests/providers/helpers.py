"""Shared by provider tests: calling models and collecting chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import trio

from nousd.machine.context.model_input import ModelInput, ModelMessage, ToolSpec, UserMessage
from nousd.providers.interface import (
    Alive,
    Finished,
    Piece,
    Provider,
    ReasoningDelta,
    TextDelta,
    ToolCallPiece,
)


def ask(
    *messages: ModelMessage | str, system: str = "", tools: tuple[ToolSpec, ...] = (), **more: Any
) -> ModelInput:
    """Return a model input; strings are user messages."""
    return ModelInput(
        model="test-model",
        system=system,
        messages=tuple(UserMessage(m) if isinstance(m, str) else m for m in messages),
        tools=tools,
        **more,
    )


class Collector:
    """A receiver that collects pieces, except for ``Alive``, which comes at any time."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._grown = trio.Event()

    async def __call__(self, piece: Piece) -> None:
        if isinstance(piece, Alive):
            return
        self.pieces.append(piece)
        self._grown.set()
        self._grown = trio.Event()

    async def wait_for(self, kind: type) -> None:
        """Wait until a piece of this kind is received."""
        while not any(isinstance(piece, kind) for piece in self.pieces):
            await self.wait_for_more()

    async def wait_for_more(self) -> None:
        await self._grown.wait()


async def collect(provider: Provider, request: ModelInput) -> list[Piece]:
    """Make one call and return its pieces."""
    received = Collector()
    await provider.generate(request, received)
    return received.pieces


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))


def reasoning_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, ReasoningDelta))


def calls_of(pieces: Iterable[Piece]) -> list[tuple[str, str]]:
    """Return name and arguments of each call."""
    return [(p.name, p.arguments) for p in pieces if isinstance(p, ToolCallPiece)]


def finish_of(pieces: list[Piece]) -> Finished:
    """Return the last piece, after making sure that it alone is a ``Finished``."""
    *before, last = pieces
    assert isinstance(last, Finished)
    assert not any(isinstance(piece, Finished) for piece in before)
    return last


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """Yield the data whole, byte by byte, and in odd pieces."""
    yield [data]
    for size in (1, 2, 3, 7, 31):
        yield [data[start : start + size] for start in range(0, len(data), size)]
