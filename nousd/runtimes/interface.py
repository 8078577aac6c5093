"""The interface between the daemon and a runtime during a turn.

A ``Runtime`` carries out turns. A ``TurnHost`` is the daemon's side of one turn: the native runtime
takes a ``NativeHost``, a runtime that drives an agent program an ``AgentHost``. A run implements both
(``RunTurnHost``).

The daemon owns runs, queues, the log and every way to stop a run; a runtime owns the steps between the
user's message and the end of the turn. The runtime emits events and looks for new input. Cancellation
can stop it at any await; the daemon then logs the end of every message and call that is still open.
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
"""Receives the input of a model call outside of a turn, such as for a summary, before it is sent."""

Report = Callable[[CallFigures], Awaitable[None]]
"""Receives the figures of a model call outside of a turn."""


class AnswersOfRun(msgspec.Struct):
    """The size of one run's model answers so far: ``bytes`` of text, reasoning and call arguments."""

    bytes: int = 0


class TurnHost(TurnCallHost, Protocol):
    """The daemon's side of one turn, for any runtime."""

    async def wait_results(self) -> None:
        """Wait until the results of earlier calls are durable: only then may a model receive them.

        Raises:
            StoreError: they cannot become durable.
        """
        ...

    async def instructions(self) -> Sequence[SourceText]:
        """Return the user's and the project's instructions, as they were when the run first read them,
        and the agents that tasks can name.
        """
        ...

    @property
    def correlation_id(self) -> str | UnsetType:
        """The correlation id of the run's prompt; UNSET without one."""
        ...

    @property
    def answers(self) -> AnswersOfRun:
        """The size of the run's model answers; the runtime adds to it."""
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
        may begin. A steer that ``AgentHost.take_steer`` has returned is no longer pending.
        """
        ...

    async def wait_steer(self) -> None:
        """Wait until a steer of this run is pending (``has_pending_steer``)."""
        ...

    async def context(self) -> Sequence[Entry]:
        """Return the effective transcript, which begins at the last compaction if there is one."""
        ...

    def new_id(self, prefix: str) -> str:
        """Return a new id."""
        ...


class NativeHost(TurnHost, Protocol):
    """The daemon's side of a turn of the native runtime, which calls the model itself."""

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
        """Return those of the current tools that are offered to the session's model."""
        ...

    async def keep_input(self, compiled: CompiledInput) -> StoredInput:
        """Store a model input with the next commit."""
        ...

    @property
    def own_prompt(self) -> SourceText | None:
        """The text that replaces the runtime's system prompt; None keeps the prompt."""
        ...

    @property
    def model_calls_left(self) -> int | None:
        """The number of model calls left to the run; None if the run has no limit of its own."""
        ...

    @property
    def grown(self) -> InputCache:
        """The cache that successive model inputs of the transcript share (``compile_input``)."""
        ...


class Delivery(Protocol):
    """User inputs on their way to an agent program, as one message.

    They stay pending until the program confirms them; meanwhile no command can change them.
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
        """Record that the program has the message: consume the inputs and log the user's message in one
        step. Later calls do nothing.
        """
        ...


class AgentHost(TurnHost, Protocol):
    """The daemon's side of a turn that an agent program carries out.

    The program must confirm the turn's inputs: the runtime sends them and calls ``confirm_delivery``
    when the program reports that it has them. A turn that ends without that call leaves them pending.
    """

    def let_calls_overlap(self) -> None:
        """Allow several open calls at a time, and calls while a message is open. From now on the daemon
        orders the start and end events of the run so that they do not overlap in the log.
        """
        ...

    @property
    def workdir(self) -> Path:
        """The session's workspace, with symbolic links resolved."""
        ...

    @property
    def agent_model(self) -> str:
        """The session's model, by the runtime's own name; empty for the runtime's default."""
        ...

    @property
    def agent_thinking(self) -> str:
        """The session's thinking level; empty if none is set or the runtime does not support it."""
        ...

    @property
    def runtime_namespace(self) -> str:
        """The namespace that selects the log-in of the session's program."""
        ...

    @property
    def agent_session(self) -> AgentSessionFacts | None:
        """The agent session that the log names last, of any runtime; None if it names none."""
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
        """Confirm the turn's own inputs, like ``Delivery.confirm_delivery``. Do nothing in a turn that
        resumes.
        """
        ...

    async def find_earlier_call(self, call: ToolCall) -> ToolCall | None:
        """Return the earlier call that this call repeats: one with the same program id and arguments, in
        an interrupted run that no completed run followed. Return None for a new call.
        """
        ...

    def stop_asking(self) -> None:
        """Close the turn's requests to the user, pending and later ones: the program has ended its turn
        and no longer waits for answers. Their calls end as denied.
        """
        ...

    async def take_steer(self) -> Delivery | None:
        """Take the pending steer for delivery within this turn, as soon as its acceptance is durable;
        return None if none is pending.

        A steer that is not delivered when the turn ends becomes pending again.
        """
        ...


class RunTurnHost(NativeHost, AgentHost, Protocol):
    """The daemon's side of a turn for any runtime; each runtime uses the part that it needs."""


class Runtime(Protocol):
    """Carries out turns."""

    @property
    def name(self) -> str:
        """The runtime's name in ``agent_start``, and in the settings of sessions."""
        ...

    @property
    def version(self) -> str | UnsetType:
        """The version of the agent program; UNSET while unknown, and for the native runtime."""
        ...

    @property
    def capabilities(self) -> RuntimeCapabilities:
        """The capabilities of the runtime."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """The known models of the agent program; empty for the native runtime, whose models belong to
        providers.
        """
        ...

    def auth_facts(self, namespace: str) -> AuthFacts:
        """Return the log-in state of the runtime's program in a namespace. Blocks."""
        ...

    @property
    def consumes_on_delivery(self) -> bool:
        """Whether a turn's inputs are consumed when the runtime confirms their delivery
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
        """Release everything kept for a session, because it is deleted."""
        ...

    async def opinion_of(self, call: ToolCall) -> RuntimeOpinion:
        """Return the runtime's own opinion on its call: an adapter returns the opinion of its agent
        program, a runtime without a policy ``NO_POLICY``.

        The gate asks once for each call that rules and mode do not deny, and logs the opinion. It can
        deny the call or require approval, but never allow a call that rules and mode do not.
        """
        ...


class Summariser(Protocol):
    """Shortens transcripts."""

    async def plan_cut(self, context: Sequence[Entry], choice: ModelChoice) -> CutPoint | None:
        """Return the point at which to cut a transcript for a model; None if nothing can be cut off."""
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
        """Return the summary that replaces the part that was cut off. Its size is bounded, even if the
        model fails.

        Args:
            tell: receives the input of the model before it is sent.
            report: receives the figures of the model call, even if it is cancelled or fails.

        Raises:
            AnswerTooLong: the model's answer exceeds its bounds.
        """
        ...
