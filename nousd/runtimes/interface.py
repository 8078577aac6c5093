"""The interface of a runtime, and of the daemon towards it during a turn.

The daemon owns runs, queues, the log and every way to stop; a runtime owns what happens between the
user's message and the end of the turn. Both sides talk: the runtime emits events and looks for new
input. It is stopped by cancellation at any await and need not close anything that it opened in the log;
the daemon does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import UnsetType

from nousd.machine.context.compaction import Cut
from nousd.machine.context.compiler import Compiled, Grown
from nousd.machine.context.input_chunks import Stored
from nousd.machine.context.model_input import ModelChoice, ToolSpec
from nousd.machine.context.prompt_sections import SourceText
from nousd.machine.session.usage import CallFigures
from nousd.runtimes.calls.attempts import Earlier
from nousd.runtimes.calls.host import RuntimeOpinion, TurnCallHost
from nousd.wire.objects.entries import Entry, ToolCall
from nousd.wire.objects.run_options import ToolChoice

Tell = Callable[[Compiled], Awaitable[None]]
"""Receives an input of a model outside of the turn's answers, before it is sent."""

Report = Callable[[CallFigures], Awaitable[None]]
"""Receives the figures of a model call outside of the turn's answers."""


class AnswersOfRun(msgspec.Struct):
    """What models said in one run so far: ``bytes`` of text, reasoning and tool call arguments."""

    bytes: int = 0


class TurnHost(TurnCallHost, Protocol):
    """The daemon's side of one turn."""

    @property
    def choice(self) -> ModelChoice:
        """The model of the session's next call."""
        ...

    @property
    def tool_choice(self) -> ToolChoice | None:
        """Whether the model's next answer may, must not or must call tools; None leaves that to the
        model.
        """
        ...

    def offered(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Return the current tools that the session's model is offered."""
        ...

    async def wait_results(self) -> None:
        """Return when the results of earlier calls are durable: only then may a model be told of them.

        Raises:
            StoreError: they never will be.
        """
        ...

    async def keep_input(self, compiled: Compiled) -> Stored:
        """Store a model input with the next commit."""
        ...

    async def instructions(self) -> Sequence[SourceText]:
        """Return the user's and the project's instructions, as the run first found them, and the agents
        that tasks can name.
        """
        ...

    @property
    def own_prompt(self) -> SourceText | None:
        """The replacement of the runtime's system prompt; None keeps it."""
        ...

    @property
    def correlation_id(self) -> str | UnsetType:
        """The correlation id of the run's prompt; UNSET without one."""
        ...

    @property
    def model_calls_left(self) -> int | None:
        """How many more times the run may call its model; None for no limit of the run's own."""
        ...

    @property
    def answers(self) -> AnswersOfRun:
        """What models said in the run; the runtime counts it."""
        ...

    async def artifact(self, artifact_id: str) -> bytes:
        """Return the bytes of an artifact that the session's entries refer to.

        Raises:
            RunFailed: the artifact no longer exists.
        """
        ...

    async def earlier(self, call: ToolCall) -> Earlier:
        """Return the outcome of an earlier attempt at a call, possibly in another run."""
        ...

    def has_pending_steer(self) -> bool:
        """Return whether a steer of this run is pending: then no further tool or model call
        may begin.
        """
        ...

    async def context(self) -> Sequence[Entry]:
        """Return the effective transcript, from the last compaction on, if there is one."""
        ...

    @property
    def grown(self) -> Grown:
        """What the last input of the transcript has in common with the next (``compile_input``)."""
        ...

    def new_id(self, prefix: str) -> str:
        """Return a new id."""
        ...


class Runtime(Protocol):
    """Something that can carry out a turn."""

    @property
    def name(self) -> str:
        """The runtime's name in ``agent_start``."""
        ...

    async def run_turn(self, host: TurnHost) -> None:
        """Carry out the turn of the user message that was just logged or is pending.

        Raises:
            RunFailed: the run cannot continue.
        """
        ...

    async def opinion_of(self, call: ToolCall) -> RuntimeOpinion:
        """Return the runtime's own opinion on its call: an adapter returns that of its agent program, a
        runtime without a policy ``NO_POLICY``.

        The gate asks once for each call that rules and mode do not deny. The opinion is logged. It can
        deny the call or require approval, but never allow what rules and mode do not.
        """
        ...

    async def plan_cut(self, context: Sequence[Entry], choice: ModelChoice) -> Cut | None:
        """Return where to cut a transcript for that model; None if nothing can be cut off."""
        ...

    async def summarise(
        self,
        cut: Cut,
        choice: ModelChoice,
        *,
        instruction: str | None,
        tell: Tell,
        report: Report,
    ) -> str:
        """Return the summary that replaces the part that was cut off; bounded, also if the model fails.

        Args:
            tell: receives the input of the model before it is sent.
            report: receives the figures of the model call, also if it is cancelled or fails.

        Raises:
            AnswerTooLong: the model did not come to an end.
        """
        ...
