"""The interface of a runtime, and of the daemon towards it during a turn.

``Runtime`` is what carries out a turn, and ``TurnHost`` what each of them needs of the daemon: the
native one takes a ``NativeHost``, one that drives an agent program an ``AgentHost``. A run is all of
them (``RunTurnHost``).

The daemon owns runs, queues, the log and every way to stop; a runtime owns what happens between the
user's message and the end of the turn. Both sides talk: the runtime emits events and looks for new
input. It is stopped by cancellation at any await and need not close anything that it opened in the log;
the daemon does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import UnsetType

from nousd.machine.context.compaction import CutPoint
from nousd.machine.context.compiler import CompiledInput, InputCache
from nousd.machine.context.input_chunks import StoredInput
from nousd.machine.context.model_input import ModelChoice, ToolSpec
from nousd.machine.context.prompt_sections import SourceText
from nousd.machine.session.queue import Inputs
from nousd.machine.session.usage import CallFigures
from nousd.runtimes.calls.attempts import EarlierAttempts
from nousd.runtimes.calls.host import RuntimeOpinion, TurnCallHost
from nousd.wire.objects.agents import AgentSessionFacts
from nousd.wire.objects.entries import Attachment, Entry, ToolCall, TurnKind
from nousd.wire.objects.run_options import ToolChoice
from nousd.wire.objects.runtimes import AuthFacts, RuntimeCapabilities

Tell = Callable[[CompiledInput], Awaitable[None]]
"""Receives an input of a model outside of the turn's answers, before it is sent."""

Report = Callable[[CallFigures], Awaitable[None]]
"""Receives the figures of a model call outside of the turn's answers."""


class AnswersOfRun(msgspec.Struct):
    """What models said in one run so far: ``bytes`` of text, reasoning and tool call arguments."""

    bytes: int = 0


class TurnHost(TurnCallHost, Protocol):
    """The daemon's side of one turn, for any runtime."""

    async def wait_results(self) -> None:
        """Return when the results of earlier calls are durable: only then may a model be told of them.

        Raises:
            StoreError: they never will be.
        """
        ...

    async def instructions(self) -> Sequence[SourceText]:
        """Return the user's and the project's instructions, as the run first found them, and the agents
        that tasks can name.
        """
        ...

    @property
    def correlation_id(self) -> str | UnsetType:
        """The correlation id of the run's prompt; UNSET without one."""
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

    async def earlier(self, call: ToolCall) -> EarlierAttempts:
        """Return the outcome of an earlier attempt at a call, possibly in another run."""
        ...

    def has_pending_steer(self) -> bool:
        """Return whether a steer of this run is pending: then no further tool or model call
        may begin. One that ``AgentHost.take_steer`` took is not pending.
        """
        ...

    async def wait_steer(self) -> None:
        """Return when a steer of this run is pending (``has_pending_steer``)."""
        ...

    async def context(self) -> Sequence[Entry]:
        """Return the effective transcript, from the last compaction on, if there is one."""
        ...

    def new_id(self, prefix: str) -> str:
        """Return a new id."""
        ...


class NativeHost(TurnHost, Protocol):
    """The daemon's side of a turn whose model calls it makes itself."""

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

    def select_offered_tools(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Return the current tools that the session's model is offered."""
        ...

    async def keep_input(self, compiled: CompiledInput) -> StoredInput:
        """Store a model input with the next commit."""
        ...

    @property
    def own_prompt(self) -> SourceText | None:
        """The replacement of the runtime's system prompt; None keeps it."""
        ...

    @property
    def model_calls_left(self) -> int | None:
        """How many more times the run may call its model; None for no limit of the run's own."""
        ...

    @property
    def grown(self) -> InputCache:
        """What the last input of the transcript has in common with the next (``compile_input``)."""
        ...


class Delivery(Protocol):
    """Inputs of the user that an agent program is being given as one message.

    Until the delivery is proven they are pending, and no command can change them.
    """

    @property
    def kind(self) -> TurnKind:
        """The kind of the inputs."""
        ...

    @property
    def text(self) -> str:
        """The whole text of the message."""
        ...

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The attachments of the message."""
        ...

    @property
    def inputs(self) -> Inputs:
        """The inputs, with whole texts."""
        ...

    async def confirm_delivery(self) -> None:
        """Note that the program has taken the message: consume the inputs and log the user's message,
        in one step. Further calls do nothing.
        """
        ...


class AgentHost(TurnHost, Protocol):
    """The daemon's side of a turn that an agent program carries out.

    The turn's own inputs are delivered by proof: the runtime gives them to the program, and calls
    ``confirm_delivery`` when the program says that it has them. A turn that ends without that leaves
    them pending.
    """

    def let_calls_overlap(self) -> None:
        """Let several calls of the run be open, and calls beside a message: from now on its brackets
        are put in order.
        """
        ...

    @property
    def workdir(self) -> Path:
        """The folder of the session; resolved."""
        ...

    @property
    def agent_model(self) -> str:
        """The runtime's own name of the session's model; empty for its default."""
        ...

    @property
    def agent_thinking(self) -> str:
        """The session's thinking level; empty if it has none, or the runtime does not have it."""
        ...

    @property
    def runtime_namespace(self) -> str:
        """Whose log-in the session's program uses."""
        ...

    @property
    def agent_session(self) -> AgentSessionFacts | None:
        """The program's session that the log knows of, of whatever runtime."""
        ...

    @property
    def turn_text(self) -> str:
        """The text to deliver; empty for a turn that resumes."""
        ...

    @property
    def turn_attachments(self) -> tuple[Attachment, ...]:
        """The attachments to deliver."""
        ...

    @property
    def turn_inputs(self) -> Inputs:
        """The inputs to deliver, with whole texts; empty for a turn that resumes."""
        ...

    async def confirm_delivery(self) -> None:
        """See ``Delivery.confirm_delivery``, of the turn's own inputs. It does nothing in a turn that
        resumes.
        """
        ...

    async def find_earlier_call(self, call: ToolCall) -> ToolCall | None:
        """Return the call that this is another attempt at: one under the same id of the program, with
        the same arguments, in a run that was cut off, and after which no run was completed; None if it
        is new.
        """
        ...

    def stop_asking(self) -> None:
        """End the turn's requests to the user, now and later: the program has ended its turn, so it
        waits for no answer. The calls end as denied.
        """
        ...

    async def take_steer(self) -> Delivery | None:
        """Take the pending steer to deliver it inside of this turn, as soon as its acceptance is
        durable; None if none is pending.

        What is not delivered when the turn ends is pending again.
        """
        ...


class RunTurnHost(NativeHost, AgentHost, Protocol):
    """Everything that the daemon offers a runtime; each uses the part that it needs."""


class Runtime(Protocol):
    """Something that can carry out a turn."""

    @property
    def name(self) -> str:
        """The runtime's name in ``agent_start``, and in the settings of sessions."""
        ...

    @property
    def version(self) -> str | UnsetType:
        """The version of the agent program, as far as it is known; UNSET for the daemon's own."""
        ...

    @property
    def capabilities(self) -> RuntimeCapabilities:
        """What it can do."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """The names of its agent program's models, as far as they are known; empty for the daemon's own,
        whose models are those of providers.
        """
        ...

    def auth_facts(self, namespace: str) -> AuthFacts:
        """Return whether its program is logged in for a namespace. Blocks."""
        ...

    @property
    def consumes_on_delivery(self) -> bool:
        """Whether a turn's inputs are consumed when the runtime says that they were delivered
        (``AgentHost.confirm_delivery``), instead of before the turn.
        """
        ...

    async def run_turn(self, host: RunTurnHost) -> None:
        """Carry out the turn of the user message that was just logged or is pending.

        Raises:
            RunFailed: the run cannot continue.
        """
        ...

    def forget(self, session_id: str) -> None:
        """A session is deleted: nothing is kept for it any more."""
        ...

    async def opinion_of(self, call: ToolCall) -> RuntimeOpinion:
        """Return the runtime's own opinion on its call: an adapter returns that of its agent program, a
        runtime without a policy ``NO_POLICY``.

        The gate asks once for each call that rules and mode do not deny. The opinion is logged. It can
        deny the call or require approval, but never allow what rules and mode do not.
        """
        ...


class Summariser(Protocol):
    """Something that can shorten a transcript."""

    async def plan_cut(self, context: Sequence[Entry], choice: ModelChoice) -> CutPoint | None:
        """Return where to cut a transcript for that model; None if nothing can be cut off."""
        ...

    async def summarise(
        self,
        cut: CutPoint,
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
