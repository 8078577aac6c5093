"""Commands, answers and events as the structs of ``nousd.wire``, for both clients.

This is a separate module because importing the structs takes longer than a ping. ``answers`` decodes
lines; this module only converts their payloads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Generic, TypeVar, get_args, get_origin, overload

import msgspec

from nousd.client.answers import Answer, ReceivedEvent
from nousd.errors import AnswerInvalid
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.commands import COMMANDS
from nousd.wire.commands.base import AnsweredBy, Command
from nousd.wire.events import EVENTS, Event
from nousd.wire.responses import RESPONSES
from nousd.wire.responses.base import Response

T = TypeVar("T")

loads: Final = json_decoder().decode
"""Parses JSON, faster than the standard library."""

_COMMAND_TYPES: Final = {struct: name for name, struct in COMMANDS.items()}


class _Line(msgspec.Struct, Generic[T]):
    """The payload of a line with a valid envelope."""

    payload: T


@cache
def _decoder(struct: Any) -> msgspec.json.Decoder[_Line[Any]]:
    return json_decoder(_Line[struct])


def request_of(command: Command) -> tuple[str, dict[str, Any]]:
    """Return the type and the payload of a command."""
    return _COMMAND_TYPES[type(command)], msgspec.to_builtins(command)


def response_of(answer: Answer, command: Command, expected: type[Response] | None) -> Any:
    """Return the payload of an answer to the command as its struct.

    Args:
        expected: the only valid answer, for a command with several; None for any of them.

    Raises:
        AnswerInvalid: the answer has another type, or its payload does not match the type.
    """
    struct = RESPONSES.get(answer.type)
    structs = responses_of(type(command)) if expected is None else (expected,)
    if struct is None or struct not in structs:
        raise AnswerInvalid(f"the daemon answered {answer.type}, not what was asked for")
    return _payload(struct, answer.type, answer.line)


def decoded(event: ReceivedEvent) -> Event | None:
    """Return the event as its struct; None if its type is newer than this client.

    Raises:
        AnswerInvalid: the payload does not match the type.
    """
    struct = EVENTS.get(event.type)
    if struct is None:
        return None
    payload: Event = _payload(struct, event.type, event.line)
    return payload


def _payload(struct: Any, type_: str, line: bytes) -> Any:
    try:
        return _decoder(struct).decode(line).payload
    except msgspec.DecodeError as error:
        raise AnswerInvalid(f"{type_}: {error}") from None


@cache
def responses_of(command: type[Command]) -> tuple[type[Response], ...]:
    """Return the structs of the answers that the command declares; empty if it declares none."""
    bases: tuple[Any, ...] = getattr(command, "__orig_bases__", ())
    answers = [get_args(base)[0] for base in bases if get_origin(base) is AnsweredBy]
    return tuple(struct for answer in answers for struct in get_args(answer) or (answer,))


R = TypeVar("R")
Expected = TypeVar("Expected", bound=Response)


class Asking(ABC):
    """Base of clients that can send a request; it adds commands as structs."""

    @abstractmethod
    async def request(
        self, type_: str, payload: Mapping[str, Any], *, timeout_seconds: float | None = None
    ) -> Answer:
        """Send a command and return its answer. Raise Refused if the answer is an error."""

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
            expected: the expected answer, for a command with several.

        Raises:
            ClientError: as ``request``.
            AnswerInvalid: the daemon sent another answer.
        """
        type_, payload = request_of(command)
        answer = await self.request(type_, payload, timeout_seconds=timeout_seconds)
        return response_of(answer, command, expected)
