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
"""Default of how long a server may be silent, before its answer and within it."""

CONNECT_TIMEOUT_SECONDS: Final = 10.0
"""Default of how long connecting to a server may take."""

FinishReason = Literal["stop", "length", "tool_use"]


class TextDelta(msgspec.Struct, frozen=True):
    """A piece of the answer. Neighbouring pieces that arrived in one read may be joined; white space
    is content; never empty.
    """

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """A piece of the model's reasoning; never part of the answer."""

    text: str


class ToolCallPiece(msgspec.Struct, frozen=True):
    """One complete call, in the order of the model's own indexes. ``arguments`` is the raw JSON text
    as the model wrote it, which need not be valid.
    """

    id: str
    name: str
    arguments: str


class Finished(msgspec.Struct, frozen=True):
    """The last piece of every successful call, exactly once."""

    reason: FinishReason
    usage: Usage | None = None


class UsageSoFar(msgspec.Struct, frozen=True):
    """The usage of the call so far, in case it does not end; the last one counts. For servers that
    report it before the end, for example at the start.
    """

    usage: Usage


class ReasoningKept(msgspec.Struct, frozen=True):
    """Reasoning that this provider needs back with the next call, in its own form. Not for display."""

    block: ReasoningBlock


class Retrying(msgspec.Struct, frozen=True):
    """An attempt failed before any content and will be repeated after ``delay_seconds``.

    ``attempt`` is the one that failed, counted from 1; ``cause`` reads like ``http 503: overloaded``.
    """

    attempt: int
    attempts_max: int
    cause: str
    delay_seconds: float


class Alive(msgspec.Struct, frozen=True):
    """The server sent something that is not a piece yet, such as a part of a long tool call.

    ``held_bytes`` is the size of all arguments that this attempt has received so far and not passed
    on, so that their receiver can stop the call while they are still coming.
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
"""Receives one piece; may wait, which slows the reading of the stream."""


class Recorder(Protocol):
    """Receives one exchange with a model server, byte for byte. Neither waits nor fails; sees no key."""

    def request(self, path: str, body: bytes) -> None:
        """Record the request; ``path`` follows the API's base."""
        ...

    def response(self, status: int, content_type: str) -> None:
        """Take the head of the response."""
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
"""Returns the recorder of the next exchange; each attempt is one."""


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
        """Return how many tokens the model accepts, as far as known."""
        ...

    def accepts(self, model: str, media_type: str) -> bool:
        """Return whether the model accepts attachments of that type, as far as known."""
        ...

    async def models(self) -> tuple[str, ...]:
        """Return the names of the models, as the server lists them.

        Raises:
            ProviderError: it refused, cannot be reached, or its list could not be read.
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
        """Close what is kept between calls, such as idle connections. Never fails."""
        ...
