"""Converts an agent's plan to a todo list."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nousd.wire.limits import TODO_CHARS_MAX, TODOS_MAX
from nousd.wire.objects.todos import Todo, TodoPriority, TodoStatus


class PlanEntry(msgspec.Struct):
    """A step of an agent's plan."""

    content: str
    status: TodoStatus = "pending"
    priority: TodoPriority = "medium"


def todos_of(entries: Iterable[PlanEntry]) -> tuple[Todo, ...]:
    """Return the first steps that have content, within the limits of a todo list."""
    steps = [entry for entry in entries if entry.content][:TODOS_MAX]
    return tuple(
        Todo(
            id=str(number),
            content=step.content[:TODO_CHARS_MAX],
            status=step.status,
            priority=step.priority,
        )
        for number, step in enumerate(steps, 1)
    )
