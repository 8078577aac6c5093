"""Which responses may answer a command, read from the base class of the command."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args, get_origin

from nousd.wire.commands.base import AnsweredBy, Command
from nousd.wire.responses import Response


@cache
def responses_of(command: type[Command]) -> tuple[type[Response], ...]:
    """Return the payloads that may answer the command; none if that may be any object."""
    bases: tuple[Any, ...] = getattr(command, "__orig_bases__", ())
    answers = [get_args(base)[0] for base in bases if get_origin(base) is AnsweredBy]
    return tuple(struct for answer in answers for struct in get_args(answer) or (answer,))
