"""The interface of a model provider: one call in, pieces out.

A provider pushes pieces into ``receive`` instead of yielding them, so that its cancel scopes and open
connections live in one stack frame that the caller can cancel at any point (an async generator would
keep them open between two steps).

Providers know nothing of sessions, runs or events. They do not retry: ``retry`` wraps any of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal, Protocol

import msgspec

from nousd.machine.context.model_input import ModelInput
from nousd.wire.objects.entries import ReasoningBlock, Usage

IDLE_TIMEOUT_SECONDS: Final = 300.0
"""Default limit of a server's silence, before its answer and within it."""

CONNECT_TIMEOUT_SECONDS: Final = 10.0
"""Default time limit of connecting to a server."""

FinishReason = Literal["stop", "length", "tool_use"]


class TextDelta(msgspec.Struct, frozen=True):
    """A piece of the answer's text; never empty. White space is content. Neighbouring pieces that
    arrive in one read may be joined.
    """

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """A piece of the model's reasoning; never part of the answer."""

    text: str


class ToolCallPiece(msgspec.Struct, frozen=True):
    """One complete tool call. Calls come in the order of the model's indexes. ``arguments`` is the
    JSON text as the model wrote it, which may be invalid.
    """

    id: str
    name: str
    arguments: str


class Finished(msgspec.Struct, frozen=True):
    """The last piece of every successful call, exactly once."""

    reason: FinishReason
    usage: Usage | None = None


class UsageSoFar(msgspec.Struct, frozen=True):
    """The usage of the call so far, which counts if the call does not finish. Each report replaces the
    one before. Sent if the server reports usage before the end.
    """

    usage: Usage


class ReasoningKept(msgspec.Struct, frozen=True):
    """Reasoning that the provider needs back with the next call, in its own format. Not for display."""

    block: ReasoningBlock


class Retrying(msgspec.Struct, frozen=True):
    """An attempt failed before any content and will be repeated after ``delay_seconds``.

    ``attempt`` is the number of the failed attempt, from 1; ``cause`` reads like
    ``http 503: overloaded``.
    """

    attempt: int
    attempts_max: int
    cause: str
    delay_seconds: float


class Alive(msgspec.Struct, frozen=True):
    """The server sent data that does not complete a piece, such as a part of a long tool call.

    ``held_bytes`` is the size of the arguments that this attempt has received and not yet passed on,
    so that the receiver can stop the call before they are complete.
    """

    held_bytes: int = 0


Piece = (
    TextDelta
    | ReasoningDelta
    | ReasoningKept
    | ToolCallPiece
    | UsageSoFar
    | Finished
    | Retrying
    | Alive
)

Receive = Callable[[Piece], Awaitable[None]]
"""Receives one piece. If it waits, reading the stream waits too."""


class Recorder(Protocol):
    """Receives one exchange with a model server, byte for byte, without the key. Neither waits nor
    fails.
    """

    def request(self, path: str, body: bytes) -> None:
        """Record the request; ``path`` follows the API's base."""
        ...

    def response(self, status: int, content_type: str) -> None:
        """Record the head of the response."""
        ...

    def chunk(self, data: bytes) -> None:
        """Record a part of the response's body, as it came from the network."""
        ...

    def end(self) -> None:
        """Record the end of the exchange, however it ended. Called once, last."""
        ...


class _NullRecorder:
    """A recorder that records nothing."""

    def request(self, path: str, body: bytes) -> None: ...

    def response(self, status: int, content_type: str) -> None: ...

    def chunk(self, data: bytes) -> None: ...

    def end(self) -> None: ...


UNRECORDED: Final[Recorder] = _NullRecorder()

Record = Callable[[], Recorder]
"""Returns the recorder of the next exchange; each attempt is an exchange."""


Blobs = Mapping[str, bytes]
"""Artifact id -> its bytes."""

NO_BLOBS: Final[Blobs] = MappingProxyType({})


class Provider(Protocol):
    """One model dialect at one server."""

    @property
    def name(self) -> str:
        """The name for ``--provider``."""
        ...

    @property
    def default_model(self) -> str:
        """The model of sessions that name none."""
        ...

    def context_window(self, model: str) -> int:
        """Return the model's context window in tokens, or an assumed one if it is unknown."""
        ...

    def accepts(self, model: str, media_type: str) -> bool:
        """Return whether the model accepts attachments of that type, as far as known."""
        ...

    async def models(self) -> tuple[str, ...]:
        """Return the names of the models, as the server lists them.

        Raises:
            ProviderError: the server refused, cannot be reached, or sent an unreadable list.
        """
        ...

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        """Make one model call and pass its pieces on, ending with ``Finished``.

        Args:
            blobs: the bytes of every attachment in the request.

        Raises:
            ContextOverflow: the server refused the input as too long.
            ProviderError: any other failure, in the server's own words if it gave any.
        """
        ...

    async def aclose(self) -> None:
        """Release resources kept between calls, such as idle connections. Never fails."""
        ...
