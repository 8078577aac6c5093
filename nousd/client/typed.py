"""Commands, answers and events as the structs of ``nousd.wire``, for both faces of the client.

Apart from the rest because the structs take longer to import than a ping takes. Lines are understood in
``answers`` and nowhere else; here is only what their payloads become.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from nousd.client.answers import Answer, ReceivedEvent
from nousd.errors import AnswerInvalid
from nousd.wire.codec.answer_types import responses_of
from nousd.wire.commands import COMMANDS
from nousd.wire.commands.base import Command
from nousd.wire.events import EVENTS, Event
from nousd.wire.responses import RESPONSES, Response

T = TypeVar("T")

loads: Final = msgspec.json.Decoder().decode
"""Parses JSON, faster than the standard library does."""

_COMMAND_TYPES: Final = {struct: name for name, struct in COMMANDS.items()}


class _Line(msgspec.Struct, Generic[T]):
    """The payload of a line with a valid envelope."""

    payload: T


@cache
def _decoder(struct: Any) -> msgspec.json.Decoder[_Line[Any]]:
    return msgspec.json.Decoder(_Line[struct])


def request_of(command: Command) -> tuple[str, dict[str, Any]]:
    """Return a command's type and its payload."""
    return _COMMAND_TYPES[type(command)], msgspec.to_builtins(command)


def response_of(answer: Answer, command: Command, expected: type[Response] | None) -> Any:
    """Return the payload of an answer to the command as its struct.

    Args:
        expected: what it has to be, for a command with several answers; None: any of those.

    Raises:
        AnswerInvalid: it is of another type, or lacks what that type has.
    """
    struct = RESPONSES.get(answer.type)
    wanted = responses_of(type(command)) if expected is None else (expected,)
    if struct is None or struct not in wanted:
        raise AnswerInvalid(f"the daemon answered {answer.type}, not what was asked for")
    return _payload(struct, answer.type, answer.line)


def decoded(event: ReceivedEvent) -> Event | None:
    """Return the event as its struct, or None if its type is newer than this client.

    Raises:
        AnswerInvalid: the payload lacks what an event of its type has.
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
