"""The tool ``task``: delegates work to workers with their own session, prompt and tools.

The call itself has no footprint. A worker's calls go through the same permission gate as all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from nousd.errors import ToolError
from nousd.tools.arguments import struct_arguments
from nousd.tools.function_tool import FunctionTool, touches_nothing
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.output.tool_output import within_bounds
from nousd.tools.task_runner import Task, TaskResult
from nousd.wire.codec.canonical_json import digest
from nousd.wire.limits import TASKS_PER_CALL_MAX, TOOL_RESULT_BYTES_MAX, TOOL_RESULT_LINES_MAX


class TaskArguments(msgspec.Struct, frozen=True, kw_only=True):
    tasks: Annotated[
        tuple[Task, ...],
        Meta(
            min_length=1,
            max_length=TASKS_PER_CALL_MAX,
            description="The tasks. They run at the same time, each in a session of its own.",
        ),
    ]


class _TaskTool(FunctionTool, frozen=True, kw_only=True):
    """Accepts a single task without a list around it, too."""

    def validate(self, args: Mapping[str, Any]) -> msgspec.Struct | Mapping[str, Any]:
        return super().validate(
            args if "tasks" in args or "prompt" not in args else {"tasks": [args]}
        )


async def _run(args: TaskArguments, context: ToolContext) -> ToolResult:
    if context.tasks is None:
        raise ToolError("task_failed: no tasks can be started here")
    results = await context.tasks.run(args.tasks, context.emit)
    headings = _headings(results)
    bodies = ["\n".join(filter(None, (result.error, result.text))) for result in results]
    full = within_bounds(_join_sections(headings, bodies).encode("utf-8", "replace"))
    assert isinstance(full, bytes)
    shown = _join_sections(headings, [_beginning(body, len(bodies)) for body in bodies])
    return ToolResult(
        text=f"{shown}\n\n[The whole of this: artifact {digest(full)}]",
        is_error=all(result.status != "completed" for result in results),
        full=full,
    )


def _headings(results: Sequence[TaskResult]) -> list[str]:
    headings = []
    for number, result in enumerate(results, 1):
        place = f"[{number}/{len(results)}] " if len(results) > 1 else ""
        ids = f" (session {result.session_id}, run {result.run_id})" if result.run_id else ""
        headings.append(f"{place}{result.name}: {result.status}{ids}")
    return headings


def _join_sections(headings: Sequence[str], bodies: Sequence[str]) -> str:
    return "\n\n".join(f"{each}\n{body}" for each, body in zip(headings, bodies, strict=True))


def _beginning(body: str, shares: int) -> str:
    """Return the part of a result that fits if ``shares`` results share one answer to the model."""
    lines = "\n".join(body.split("\n")[: TOOL_RESULT_LINES_MAX // shares])
    data = lines.encode("utf-8", "replace")[: TOOL_RESULT_BYTES_MAX // shares]
    shown = data.decode(errors="ignore")
    if len(shown) == len(body):
        return body
    return f"{shown}\n[Cut: the first {len(data)} of {len(body.encode('utf-8', 'replace'))} bytes.]"


TASK: Final = _TaskTool(
    name="task",
    description=(
        "Hand work to workers. Each task is carried out in a session of its own by a worker that sees "
        "its prompt alone, with your tools or a part of them, and gives back its last answer. Tasks of "
        "one call run at the same time. Name an agent, describe a worker, or give neither for a worker "
        "like yourself."
    ),
    source="builtin",
    arguments=struct_arguments(TaskArguments),
    function=_run,
    access_of=touches_nothing,
)
