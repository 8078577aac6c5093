"""The interface of a tool, and the context of a call.

A tool states its arguments as a struct: the JSON Schema that the model sees and the validation come
from it, so they cannot disagree. A tool knows nothing of sessions, runs or events; it reports progress
through ``ToolContext.emit`` and its outcome as a ``ToolResult`` or a ``ToolError``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from nousd.errors import ToolError, Unanswered
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.sandbox.interface import FindSandbox, no_sandbox
from nousd.tools.secret_filter import NO_SECRETS, Secrets
from nousd.tools.spooled_file import SpooledFile
from nousd.tools.task_runner import TaskRunner
from nousd.wire.objects.policy import ExecutedBy, ExecutionEnv, SandboxFacts
from nousd.wire.objects.questions import QuestionAnswer, UserQuestion
from nousd.wire.objects.todos import Todo
from nousd.wire.objects.tool_footprint import Access

Emit = Callable[[str], Awaitable[None]]
"""Takes a piece of output as it appears; may wait, which slows the tool down."""

ExtendIdleDeadline = Callable[[float], None]
"""Is told that nothing need be seen for so many seconds, because a limit of the caller's own ends what
it does by then."""


def nobody_waits(_seconds: float) -> None:
    """An ``ExtendIdleDeadline`` for calls without an idle deadline."""


UserAnswers = tuple[QuestionAnswer, ...]
"""One answer for each question, in their order."""

AskUser = Callable[[Sequence[UserQuestion]], Awaitable[UserAnswers]]
"""Asks the user and waits, for a limited time; raises Unanswered."""


async def nobody_answers(_questions: Sequence[UserQuestion]) -> UserAnswers:
    """An ``AskUser`` of calls behind which nobody is."""
    raise Unanswered("nobody can be asked")


SetTodos = Callable[[tuple[Todo, ...]], Awaitable[None]]
"""Replaces the list of things to do of the session that a call is for."""


async def no_list(_todos: tuple[Todo, ...]) -> None:
    """A ``SetTodos`` of a call that is for no session.

    Raises:
        ToolError: always.
    """
    raise ToolError("todo_failed: there is no session that keeps the list")


class ToolContext(msgspec.Struct, frozen=True):
    """The surroundings of one call.

    Args:
        path_sandbox: the only way to a file: what it refuses, a file tool cannot reach.
        emit: streams output to whoever watches. What a tool never emits, it says in its result.
        extend_idle_deadline: a tool that has a time-out of its own says so here when it begins; one that
            says nothing, neither here nor with ``emit``, is given up with its run after a while.
        spool_folder: on whose filesystem long outputs are kept meanwhile; None: the usual one.
        secrets: takes the daemon's own out of what programs say. What a tool returns is seen to.
        sandbox: finds what holds the programs of the call; blocks when it is first called.
        set_todos: replaces the list of things to do of the call's session.
        tasks: carries out tasks for the call; None where nobody can.
        ask_user: asks the user something and waits for the answer.
    """

    path_sandbox: PathSandbox
    emit: Emit
    extend_idle_deadline: ExtendIdleDeadline = nobody_waits
    spool_folder: Path | None = None
    secrets: Secrets = NO_SECRETS
    sandbox: FindSandbox = no_sandbox
    set_todos: SetTodos = no_list
    tasks: TaskRunner | None = None
    ask_user: AskUser = nobody_answers

    @property
    def workdir(self) -> Path:
        """Absolute, resolved; relative paths start here and no path may lead out of it."""
        return self.path_sandbox.workdir


class ToolResult(msgspec.Struct, frozen=True):
    """The result of a call.

    Args:
        text: what the model is told; already cut to the output limits.
        is_error: whether the model is told that it failed (a command's non-zero exit).
        full: the whole output where ``text`` was cut, for the artifact store; in a file if it is long,
            which whoever gets the result closes.
        sandbox: what held the programs that it ran; None if none did.
        execution_env: where it had its effects.
    """

    text: str
    is_error: bool = False
    full: bytes | SpooledFile | None = None
    sandbox: SandboxFacts | None = None
    execution_env: ExecutionEnv = "host"


class Tool(Protocol):
    """Something the model may call."""

    @property
    def name(self) -> str:
        """The name the model uses."""
        ...

    @property
    def description(self) -> str:
        """The description for the model."""
        ...

    @property
    def source(self) -> str:
        """``builtin``, or the name of the extension that registered it."""
        ...

    @property
    def executed_by(self) -> ExecutedBy:
        """The party whose code carries out its calls."""
        ...

    @property
    def is_read_only(self) -> bool:
        """Whether a call changes nothing, so that its result may be given again for the same call."""
        ...

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, of type object."""
        ...

    def validated(self, args: Mapping[str, Any]) -> msgspec.Struct | Mapping[str, Any]:
        """Return the arguments ready to run with: aliases resolved, defaults applied.

        Raises:
            ToolArgumentsInvalid: such as ``validation_failed: bash.command is required``.
        """
        ...

    async def access(self, args: Any, context: ToolContext) -> Access:
        """Return the footprint of a call with validated arguments.

        What it names is looked at as it is now. ``run`` must not touch anything else: what may have
        changed meanwhile is looked at once more where it is opened.
        """
        ...

    async def run(self, args: Any, context: ToolContext) -> ToolResult:
        """Carry out a call with validated arguments.

        Raises:
            ToolError: with the text that the model is told.
        """
        ...
