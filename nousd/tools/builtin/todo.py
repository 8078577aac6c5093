"""The tool ``todo``: the model's own todo list, visible to clients.

Each call replaces the whole list. It has no effects outside the session, so it needs no approval.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from nousd.errors import ToolError
from nousd.tools.function_tool import builtin, touches_nothing
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire.limits import NAME_CHARS_MAX, TODO_CHARS_MAX, TODOS_MAX
from nousd.wire.objects.todos import Todo, TodoPriority, TodoStatus

_MARKS: Final[dict[TodoStatus, str]] = {
    "pending": "[ ]",
    "in_progress": "[>]",
    "completed": "[x]",
    "cancelled": "[-]",
}


class TodoGiven(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An item, as models give it."""

    content: Annotated[
        str,
        Meta(min_length=1, max_length=TODO_CHARS_MAX, pattern=r"\S", description="What to do."),
    ]
    status: Annotated[TodoStatus, Meta(description="How far it is.")] = "pending"
    priority: TodoPriority | UnsetType = UNSET
    id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=NAME_CHARS_MAX,
                description="Its name in the list; its place if left out.",
            ),
        ]
        | UnsetType
    ) = UNSET


class TodoList(msgspec.Struct, frozen=True):
    """Arguments of ``todo``."""

    todos: Annotated[
        tuple[TodoGiven, ...],
        Meta(max_length=TODOS_MAX, description="The whole list as it is from now on, in order."),
    ]


async def _todo(args: TodoList, context: ToolContext) -> ToolResult:
    todos = build_list(args.todos)
    await context.set_todos(todos)
    return ToolResult("\n".join(map(_line, todos)) or "The list is empty.")


def build_list(items: tuple[TodoGiven, ...]) -> tuple[Todo, ...]:
    """Return the items of a list, with unique names.

    Raises:
        ToolError: two items have the same name.
    """
    todos = tuple(
        Todo(
            id=str(position) if item.id is UNSET else item.id,
            content=item.content,
            status=item.status,
            priority=item.priority,
        )
        for position, item in enumerate(items, 1)
    )
    seen: set[str] = set()
    for todo in todos:
        if todo.id in seen:
            raise ToolError(f"todo_failed: two items have the id {todo.id}")
        seen.add(todo.id)
    return todos


def _line(todo: Todo) -> str:
    return f"{_MARKS[todo.status]} {todo.id}. {todo.content}"


TODO = builtin(
    "todo",
    "Replaces the list of what is to be done in this session, which the user sees. For work of several"
    " steps: at most one item in_progress, and each marked completed as soon as it is.",
    TodoList,
    _todo,
    dict.fromkeys(("items", "list", "tasks"), "todos"),
    access_of=touches_nothing,
)
