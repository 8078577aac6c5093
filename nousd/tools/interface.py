"""The interface of a tool, and the context of a call.

A tool declares its arguments as a struct, from which both the JSON Schema for the model and the
validation derive, so that they cannot disagree. A tool does not know sessions, runs or events; it
reports progress through ``ToolContext.emit`` and its outcome as a ``ToolResult`` or a ``ToolError``.
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
            stream: the kind of the piece, if the tool knows it.
        """
        ...


ExtendIdleDeadline = Callable[[float], None]
"""Announces that the call may be silent for this number of seconds, because it has its own time-out."""


def nobody_waits(_seconds: float) -> None:
    """An ``ExtendIdleDeadline`` for calls without an idle deadline."""


UserAnswers = tuple[QuestionAnswer, ...]
"""One answer for each question, in order."""

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
"""Returns once the start of the call is durable in the log; raises StoreError if it cannot be logged."""


async def has_started() -> None:
    """A ``WaitStarted`` for calls whose start is durable already, or not logged."""


TellLeft = Callable[[Sequence[ObeyedFile]], None]
"""Receives the files that a command left behind and that programs would obey."""


def nobody_listens(_files: Sequence[ObeyedFile]) -> None:
    """A ``TellLeft`` that ignores the files."""


class ToolContext(msgspec.Struct, frozen=True):
    """The context of one call.

    Args:
        path_sandbox: the only access to files: file tools cannot reach a path that it refuses.
        emit: streams output to watching clients. The result must contain all that is not emitted.
        extend_idle_deadline: a tool with its own time-out announces it here when it begins; a tool that
            neither announces one nor calls ``emit`` for a while is ended with its run.
        spool_folder: directory for long outputs until they are stored; None for the default.
        secrets: redacts the daemon's secrets in the output of programs. Results of tools are redacted
            anyway.
        sandbox: finds the sandbox for programs; blocks on its first call.
        tell_left: receives the files that a command left behind and that programs would obey, even if
            the call is ended early.
        obeyed_links: finds the links through which programs obey a file.
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
        """The workspace, absolute and resolved; relative paths start here and must not leave it."""
        return self.path_sandbox.workdir


class ToolResult(msgspec.Struct, frozen=True):
    """The result of a call.

    Args:
        text: the text for the model, already cut to the output limits.
        is_error: whether the call counts as failed for the model (such as a command's non-zero exit).
        full: the whole output for the artifact store, byte for byte, if ``text`` was cut or an event may
            show only its beginning. A long output is a file, which the receiver of the result closes.
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
        """The origin of the tool: ``builtin``, an extension or an MCP server."""
        ...

    @property
    def executed_by(self) -> ExecutedBy:
        """The party whose code executes its calls."""
        ...

    @property
    def is_read_only(self) -> bool:
        """Return whether a call changes nothing, so that its result can be reused for the same call."""
        ...

    @property
    def begins_early(self) -> bool:
        """Return whether ``run`` may be called before the start of the call is durable.

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

        It resolves the named paths as they are now. ``run`` must not touch anything else; paths are
        checked again when they are opened, because they may have changed meanwhile.
        """
        ...

    async def run(self, args: Any, context: ToolContext) -> ToolResult:
        """Run a call with validated arguments.

        Raises:
            ToolError: with the text that the model receives.
        """
        ...
