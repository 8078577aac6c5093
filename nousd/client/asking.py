"""Asking with commands as structs, over whatever carries a request to the daemon."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from nousd.client.answers import Answer
from nousd.client.typed import request_of, response_of
from nousd.wire.commands.base import AnsweredBy, Command
from nousd.wire.responses.base import Response

R = TypeVar("R")
Expected = TypeVar("Expected", bound=Response)


class Asking(ABC):
    """Sends commands as structs over anything that can send a request."""

    @abstractmethod
    async def request(
        self, type_: str, payload: Mapping[str, Any], *, timeout_seconds: float | None = None
    ) -> Answer:
        """Send a command and return its answer, which is not a refusal."""

    @overload
    async def ask(self, command: AnsweredBy[R], *, timeout_seconds: float | None = None) -> R: ...

    @overload
    async def ask(
        self, command: Command, expected: type[Expected], *, timeout_seconds: float | None = None
    ) -> Expected: ...

    async def ask(
        self,
        command: Command,
        expected: type[Response] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Send a command and return the payload of its answer as its struct.

        Args:
            expected: for a command that has several answers, which of them is meant.

        Raises:
            ClientError: as ``request``.
            AnswerInvalid: the answer is another than that.
        """
        type_, payload = request_of(command)
        answer = await self.request(type_, payload, timeout_seconds=timeout_seconds)
        return response_of(answer, command, expected)
