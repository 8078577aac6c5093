"""Which responses a command can be answered with, read from the commands' own base classes."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, ForwardRef, get_args

from nousd.wire.commands.base import Command
from nousd.wire.responses import RESPONSES, Response

_BY_NAME: Final = {struct.__name__: struct for struct in RESPONSES.values()}


@cache
def responses_of(command: type[Command]) -> tuple[type[Response], ...]:
    """Returns the payloads that the command can be answered with; none if it may be any object."""
    bases: tuple[Any, ...] = getattr(command, "__orig_bases__", ())
    named = [name for base in bases for name in get_args(base) if isinstance(name, ForwardRef)]
    return tuple(_BY_NAME[word] for name in named for word in name.__forward_arg__.split(" | "))
