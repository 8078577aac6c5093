"""The interface of a tool, and the context of a call.

A tool states its arguments as a struct: the JSON Schema for the model and the validation both come from
it, so they cannot disagree. A tool knows nothing of sessions, runs or events; it reports progress
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
from nousd.tools.sandbox.obeyed_links import NO_LINKS, ObeyedLinks
from nousd.tools.secrets_interface import NO_SECRETS, Secrets
from nousd.tools.spooled_file import SpooledFile
from nousd.tools.task_runner import TaskRunner
from nousd.wire.objects.field_types import OutputKind
from nousd.wire.objects.policy import ExecutedBy, ExecutionEnv, ObeyedFile, SandboxFacts
from nousd.wire.objects.questions import QuestionAnswer, UserQuestion
from nousd.wire.objects.todos import Todo
from nousd.wire.objects.tool_footprint import Access


class Emit(Protocol):
    """Receives a piece of output as it appears; may wait, which slows the tool down."""

    async def __call__(self, delta: str, stream: OutputKind | None = None, /) -> None:
        """Take a piece.

        Args:
            stream: what it is, if the tool can tell.
        """
        ...


ExtendIdleDeadline = Callable[[float], None]
"""Announces that the caller may be silent for so many seconds, because a time-out of its own applies."""


def nobody_waits(_seconds: float) -> None:
    """An ``ExtendIdleDeadline`` for calls without an idle deadline."""


UserAnswers = tuple[QuestionAnswer, ...]
"""One answer for each question, in their order."""

AskUser = Callable[[Sequence[UserQuestion]], Awaitable[UserAnswers]]
"""Asks the user and waits for a limited time; raises Unanswered."""


async def nobody_answers(_questions: Sequence[UserQuestion]) -> UserAnswers:
    """An ``AskUser`` for calls without a user."""
    raise Unanswered("nobody can be asked")


SetTodos = Callable[[tuple[Todo, ...]], Awaitable[None]]
"""Replaces the todo list of the call's session."""


async def no_list(_todos: tuple[Todo, ...]) -> None:
    """A ``SetTodos`` for calls without a session.

    Raises:
        ToolError: always.
    """
    raise ToolError("todo_failed: there is no session that keeps the list")


WaitStarted = Callable[[], Awaitable[None]]
"""Returns once the log says durably that the call has started; raises StoreError if it never will."""


async def has_started() -> None:
    """A ``WaitStarted`` for calls whose start is durable, or in no log."""


TellLeft = Callable[[Sequence[ObeyedFile]], None]
"""Is told which files a command left for programs to obey."""


def nobody_listens(_left: Sequence[ObeyedFile]) -> None:
    """A ``TellLeft`` for calls that nobody watches."""


class ToolContext(msgspec.Struct, frozen=True):
    """The context of one call.

    Args:
        path_sandbox: the only way to a file: a path that it refuses, a file tool cannot reach.
        emit: streams output to watching clients. The result must contain what is not emitted.
        extend_idle_deadline: a tool with a time-out of its own announces it here when it begins; a tool
            that is silent, neither here nor with ``emit``, is ended with its run after a while.
        spool_folder: directory for long outputs until they are stored; None: the usual one.
        secrets: redacts the daemon's secrets in the output of programs. Results of tools are redacted
            anyway.
        sandbox: finds the sandbox for programs; blocks on its first call.
        tell_left: is told what a command left for programs to obey, also if the call is ended early.
        obeyed_links: finds the links by which programs obey a file.
        set_todos: replaces the todo list of the call's session.
        tasks: carries out tasks for the call; None if that is impossible.
        ask_user: asks the user and waits for the answer.
        wait_started: awaited by a tool that ``begins_early`` before its first effect.
    """

    path_sandbox: PathSandbox
    emit: Emit
    extend_idle_deadline: ExtendIdleDeadline = nobody_waits
    spool_folder: Path | None = None
    secrets: Secrets = NO_SECRETS
    sandbox: FindSandbox = no_sandbox
    tell_left: TellLeft = nobody_listens
    obeyed_links: ObeyedLinks = NO_LINKS
    set_todos: SetTodos = no_list
    tasks: TaskRunner | None = None
    ask_user: AskUser = nobody_answers
    wait_started: WaitStarted = has_started

    @property
    def workdir(self) -> Path:
        """Absolute and resolved; relative paths start here, and no path may lead out of it."""
        return self.path_sandbox.workdir


class ToolResult(msgspec.Struct, frozen=True):
    """The result of a call.

    Args:
        text: the text for the model, already cut to the output limits.
        is_error: whether the model is told that the call failed (a command's non-zero exit).
        full: the whole output, byte for byte, if ``text`` was cut or an event may show only its
            beginning, for the artifact store; a file if it is long, which the receiver of the result
            closes.
        sandbox: the sandbox of its programs; None if there was none.
        execution_env: where its effects happened.
    """

    text: str
    is_error: bool = False
    full: bytes | SpooledFile | None = None
    sandbox: SandboxFacts | None = None
    execution_env: ExecutionEnv = "host"


class Tool(Protocol):
    """A tool that models can call."""

    @property
    def name(self) -> str:
        """The name that models use."""
        ...

    @property
    def description(self) -> str:
        """The description for models."""
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
        """Return whether a call changes nothing, so that its result can be reused for the same call."""
        ...

    @property
    def begins_early(self) -> bool:
        """Return whether ``run`` may be called while the start of the call is on its way to the disk.

        Such a tool has no effect at all, or none before it has awaited ``ToolContext.wait_started``.
        """
        ...

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, of type object."""
        ...

    def validate(self, args: Mapping[str, Any]) -> msgspec.Struct | Mapping[str, Any]:
        """Return validated arguments: aliases resolved, defaults applied.

        Raises:
            ToolArgumentsInvalid: such as ``validation_failed: bash.command is required``.
        """
        ...

    async def access(self, args: Any, context: ToolContext) -> Access:
        """Return the footprint of a call with validated arguments.

        It looks at the named paths as they are now. ``run`` must not touch anything else; paths are
        checked again where they are opened, because they may have changed meanwhile.
        """
        ...

    async def run(self, args: Any, context: ToolContext) -> ToolResult:
        """Carry out a call with validated arguments.

        Raises:
            ToolError: with the text that the model receives.
        """
        ...
