"""The items of a session's todo list."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from nousd.wire.limits import NAME_CHARS_MAX, TODO_CHARS_MAX

TodoStatus = Literal["pending", "in_progress", "completed", "cancelled"]

TodoPriority = Literal["high", "medium", "low"]


class Todo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One item of a todo list."""

    id: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    content: Annotated[str, Meta(min_length=1, max_length=TODO_CHARS_MAX)]
    status: TodoStatus
    priority: TodoPriority | UnsetType = UNSET
