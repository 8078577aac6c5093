"""The interface between the tool ``task`` and the daemon, which runs each task in its own session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from nousd.wire.events.base import EndStatus
from nousd.wire.limits import NAME_CHARS_MAX, TEXT_CHARS_MAX
from nousd.wire.objects.workers import WorkerName, WorkerSpec


class Task(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One task. At most one of ``agent`` and ``worker`` is set."""

    prompt: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=TEXT_CHARS_MAX,
            pattern=r"\S",
            description="What to do. The worker sees nothing of this conversation: say all it needs.",
        ),
    ]
    agent: Annotated[WorkerName, Meta(description="Name of an agent that there is.")] | None = None
    worker: Annotated[WorkerSpec, Meta(description="A worker of your own.")] | None = None
    description: (
        Annotated[
            str,
            Meta(
                min_length=1, max_length=NAME_CHARS_MAX, description="What it is, in a few words."
            ),
        ]
        | None
    ) = None

    def __post_init__(self) -> None:
        if self.agent is not None and self.worker is not None:
            raise ValueError("agent and worker cannot be given together")


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a task.

    Args:
        name: the worker's name.
        status: how its run ended; ``refused`` if it has none.
        text: the whole last text of the worker.
        error: the failure, for the model; "" if there was none.
        session_id: "" if there is no session; likewise ``run_id``.
    """

    name: str
    status: EndStatus | Literal["refused"]
    text: str = ""
    error: str = ""
    session_id: str = ""
    run_id: str = ""


class TaskRunner(Protocol):
    """Runs the tasks of one call."""

    async def run(
        self, tasks: Sequence[Task], emit: Callable[[str], Awaitable[None]]
    ) -> Sequence[TaskResult]:
        """Return the results in the order of the tasks. If it is cancelled, it ends all tasks before it
        returns.

        Raises:
            ToolError: none of the tasks may start; the text names the limit.
        """
        ...
