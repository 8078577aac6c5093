"""The interface of a runtime, and of the daemon towards it during a turn.

The daemon owns runs, queues, the log and every way to stop; a runtime owns what happens between the
user's message and the end of the turn. It is duplex: it hands out events and looks at what came in
meanwhile. It is stopped by cancellation at any await, and need not clean up anything it has opened in
the log: the daemon closes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import UnsetType

from nousd.machine.context.compaction import Cut
from nousd.machine.context.compiler import Compiled
from nousd.machine.context.input_chunks import Stored
from nousd.machine.context.model_input import ModelChoice, ToolSpec
from nousd.machine.context.prompt_sections import SourceText
from nousd.machine.session.usage import CallFigures
from nousd.runtimes.calls.attempts import Earlier
from nousd.runtimes.calls.host import RuntimeOpinion, TurnCallHost
from nousd.wire.objects.entries import Entry, ToolCall
from nousd.wire.objects.run_options import ToolChoice

Tell = Callable[[Compiled], Awaitable[None]]
"""Takes what a model is about to be given outside of the turn's answers."""

Report = Callable[[CallFigures], Awaitable[None]]
"""Takes what a model call outside of the turn's answers came to."""


class TurnHost(TurnCallHost, Protocol):
    """The daemon's side of one turn."""

    @property
    def choice(self) -> ModelChoice:
        """The model that the session names for its next call."""
        ...

    @property
    def tool_choice(self) -> ToolChoice | None:
        """Whether the model's next answer may, must not or has to call tools; None leaves that to it."""
        ...

    def offered(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Return those of the tools that there are now which the session's model is offered."""
        ...

    async def keep_input(self, compiled: Compiled) -> Stored:
        """Store what a model is about to be given together with the next commit."""
        ...

    async def instructions(self) -> Sequence[SourceText]:
        """Return the user's and the project's instructions, as they were when the run first asked, and
        which agents tasks can name.
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
        """How often the run may still ask its model; None leaves that to the runtime."""
        ...

    async def artifact(self, artifact_id: str) -> bytes:
        """Return the bytes of an artifact that the session's entries refer to.

        Raises:
            RunFailed: it is not there any more.
        """
        ...

    async def earlier(self, call: ToolCall) -> Earlier:
        """Return the outcome of an earlier attempt at a call, possibly in another run."""
        ...

    def has_pending_steer(self) -> bool:
        """Whether a steer of this run waits: then no further tool or model call may begin."""
        ...

    async def context(self) -> Sequence[Entry]:
        """Return the effective transcript, from the last compaction on, if there is one."""
        ...

    def new_id(self, prefix: str) -> str:
        """Mint an id."""
        ...


class Runtime(Protocol):
    """Something that can carry out a turn."""

    @property
    def name(self) -> str:
        """The runtime's name in ``agent_start``."""
        ...

    async def run_turn(self, host: TurnHost) -> None:
        """Carry out the turn whose user message is in the log, or on its way there.

        Raises:
            RunFailed: the run cannot go on.
        """
        ...

    async def opinion_of(self, call: ToolCall) -> RuntimeOpinion:
        """Return the runtime's own policy decision on its call: an adapter returns that of its
        agent program, a runtime without a policy ``NO_POLICY``.

        The gate asks once for each call that the rules and the mode do not deny. The opinion is put into
        the log, and can deny the call or have it asked about, but never allow what they do not.
        """
        ...

    def plan_cut(self, context: Sequence[Entry], choice: ModelChoice) -> Cut | None:
        """Return where to cut a transcript for that model, or None if nothing can be cut off."""
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
        """Return the summary that replaces the part cut off; bounded, and never fails.

        Args:
            tell: told what a model is given, before it is asked.
            report: told what a model call came to, also if it is cancelled or fails.
        """
        ...
