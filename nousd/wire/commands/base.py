"""The base classes of command payloads."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all payload structs."""


R = TypeVar("R")


class AnsweredBy(Command, Generic[R], frozen=True, kw_only=True):
    """A command and the payload of its response: ``class GetState(AnsweredBy[State], ...)``.

    The type in the brackets is for type checkers and ``responses_of``; it is not part of the wire.
    """
