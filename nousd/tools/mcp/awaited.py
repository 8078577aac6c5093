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
    """One answer, from the sending of its request on."""

    def __init__(self) -> None:
        self._is_over = False
        self._waiting = trio.CancelScope()

    async def wait(self, coming: Awaitable[_T]) -> _T:
        """Returns what comes next of it.

        Raises:
            SSEError: it was given up.
        """
        with trio.CancelScope() as self._waiting:
            if self._is_over:
                self._waiting.cancel()
            return await coming
        raise httpx2.SSEError("the call was cancelled")

    def give_up(self) -> None:
        """Ends every wait for it, those to come included."""
        self._is_over = True
        self._waiting.cancel()


class _Params(msgspec.Struct, rename="camel"):
    request_id: _Id | None = None


class _Message(msgspec.Struct):
    """What is looked at of a message of ours."""

    method: str = ""
    id: _Id | None = None
    params: _Params | None = None


class Answers:
    """The answers that are awaited, by the ids of their requests."""

    def __init__(self) -> None:
        self._awaited: dict[_Id | None, Awaited] = {}

    @contextmanager
    def sent(self, request: httpx2.Request) -> Iterator[Awaited]:
        """Gives the answer to a request that is sent meanwhile; one that cancels another gives that up
        when the server has been told.
        """
        message = _message_of(request)
        awaited = Awaited()
        if message.method and message.id is not None:
            self._awaited[message.id] = awaited
        yield awaited
        if message.method == _CANCELLED and message.params is not None:
            cancelled = self._awaited.get(message.params.request_id)
            if cancelled is not None:
                cancelled.give_up()

    def forget(self, awaited: Awaited) -> None:
        """Notes that nobody waits for an answer any more."""
        self._awaited = {id: each for id, each in self._awaited.items() if each is not awaited}


def _message_of(request: httpx2.Request) -> _Message:
    try:
        return msgspec.json.decode(request.content, type=_Message)
    except (httpx2.RequestNotRead, msgspec.MsgspecError):
        return _Message()
