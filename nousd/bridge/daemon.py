"""What the bridge needs of the client package: one place that knows how the daemon is reached."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, overload

from nousd.client.connection import connect
from nousd.client.dial import Where
from nousd.client.subscription import Subscription, subscribe
from nousd.wire.command_base import AnsweredBy, Command
from nousd.wire.response_base import Response
from nousd.wire.subscribe import Subscribe

R = TypeVar("R", bound=Response)
Expected = TypeVar("Expected", bound=Response)


class Daemon:
    """A daemon, in this process or behind its sockets."""

    def __init__(self, where: Where) -> None:
        self._where = where

    @overload
    async def ask(self, command: AnsweredBy[R]) -> R: ...

    @overload
    async def ask(self, command: Command, expected: type[Expected]) -> Expected: ...

    async def ask(self, command: Any, expected: Any = None) -> Any:
        """Sends a command and returns its answer.

        Raises:
            ClientError: see ``nousd.client``.
        """
        async with connect(self._where) as connection:
            return await connection.ask(command, expected)

    def follow(self, wanted: Subscribe) -> AbstractAsyncContextManager[Subscription]:
        """Opens a subscription.

        Raises:
            ClientError: see ``nousd.client``.
        """
        return subscribe(self._where, wanted)
