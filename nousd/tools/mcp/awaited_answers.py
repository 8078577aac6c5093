"""The answers of a server over HTTP that are still awaited, and the end of those that nobody wants.

A call that is cancelled is cancelled by a notification, and an answer need not come: the server may keep
its stream open for ever. So when the notification is sent the answer is not waited for any longer, and
its connection is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import httpx2
import msgspec
import trio

_CANCELLED: Final = "notifications/cancelled"

_T = TypeVar("_T")

_Id = int | str


class Awaited:
    """One answer, from the sending of its request on.

    Args:
        cancels: the id of the request that its own request takes back, if that is what it does.
    """

    def __init__(self, cancels: _Id | None = None) -> None:
        self.cancels = cancels
        self._is_over = False
        self._waiting = trio.CancelScope()

    async def wait(self, coming: Awaitable[_T]) -> _T:
        """Return the next message.

        Raises:
            SSEError: it was given up.
        """
        with trio.CancelScope() as self._waiting:
            if self._is_over:
                self._waiting.cancel()
            return await coming
        raise httpx2.SSEError("the call was cancelled")

    def give_up(self) -> None:
        """End every wait for it, those to come included."""
        self._is_over = True
        self._waiting.cancel()


class _Params(msgspec.Struct, rename="camel"):
    request_id: _Id | None = None


class _Message(msgspec.Struct):
    """The fields of our own message that matter here."""

    method: str = ""
    id: _Id | None = None
    params: _Params | None = None


class Answers:
    """The answers that are awaited, by the ids of their requests."""

    def __init__(self) -> None:
        self._awaited: dict[_Id, Awaited] = {}

    def __len__(self) -> int:
        return len(self._awaited)

    @contextmanager
    def awaiting(self, request: httpx2.Request) -> Iterator[Awaited]:
        """Provide the answer to a request, which counts as awaited while the block lasts."""
        message = _message_of(request)
        params = message.params if message.method == _CANCELLED else None
        awaited = Awaited(None if params is None else params.request_id)
        if not message.method or message.id is None:
            yield awaited
            return
        self._awaited[message.id] = awaited
        try:
            yield awaited
        finally:
            del self._awaited[message.id]

    def give_up(self, request_id: _Id | None) -> None:
        """Wait no longer for the answer to a request, if it is awaited."""
        if request_id in self._awaited:
            self._awaited[request_id].give_up()


def _message_of(request: httpx2.Request) -> _Message:
    try:
        return msgspec.json.decode(request.content, type=_Message)
    except (httpx2.RequestNotRead, msgspec.MsgspecError):
        return _Message()
