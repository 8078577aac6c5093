"""One active run, as its runtime, its tools and other runs see it.

``RunHost`` is the ``RunTurnHost`` of a runtime: it logs the decided events, stores model inputs, and
gives the run its model, tools and instructions. ``call_host`` serves tool calls; ``run_loop`` takes the
run from turn to turn and ends it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import trio
from msgspec import UNSET, UnsetType

from nousd.daemon.clock import later
from nousd.daemon.eventlog.log import SETTLED, CommitHandle
from nousd.daemon.policy.approvers import Audience
from nousd.daemon.policy.requests import PassedOver
from nousd.daemon.runs.deliveries import DeliveringHost
from nousd.daemon.runs.model_inputs import InputsOfRun, artifacts_of
from nousd.daemon.runs.services import RunServices
from nousd.daemon.runs.task_tree import TaskTree
from nousd.daemon.runs.tasks import RunRegistry, TaskRun, TasksOfCall
from nousd.daemon.sessions.history import ContextOfRun
from nousd.daemon.sessions.live_session import LiveSession
from nousd.daemon.workspace.workspaces import Workspace
from nousd.errors import CommandRejected, RunFailed
from nousd.machine.context import text_offload
from nousd.machine.context.compiler import CompiledInput, InputCache
from nousd.machine.context.input_chunks import StoredInput
from nousd.machine.context.model_input import ModelChoice, ToolSpec
from nousd.machine.context.prompt_sections import SourceText, agent_prompt, agents_source
from nousd.machine.session import queue
from nousd.machine.session.brackets import Brackets
from nousd.machine.session.closing_events import message_of
from nousd.machine.session.lifecycle import LifecycleTracker, Phase
from nousd.machine.session.state import options_of
from nousd.runtimes.calls.attempts import EarlierAttempts
from nousd.runtimes.calls.host import RuntimeOpinion
from nousd.runtimes.interface import AnswersOfRun, Runtime
from nousd.store.artifacts import Artifact
from nousd.tools.builtin.task import TASK
from nousd.tools.interface import Emit, ToolContext
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.events import Event
from nousd.wire.events.base import EndStatus, TurnKey
from nousd.wire.objects.agents import AgentSessionFacts
from nousd.wire.objects.entries import Entry, MessageEntry, ToolCall
from nousd.wire.objects.run_options import RunOptions, ToolChoice
from nousd.wire.objects.runtimes import DEFAULT_NAMESPACE

_CONFLICT_SECONDS: Final = 1.0
"""Minimum time between two reports that another run was refused because of this one."""


class RunHost(DeliveringHost):
    """One active run. It implements ``RunTurnHost`` for its runtime.

    Args:
        others: the registry of active runs.
        parent: the run whose call of ``task`` this run carries out.

    ``scope`` is the cancel scope of the run; ``stop`` cancels it.
    """

    def __init__(
        self,
        live: LiveSession,
        run_id: str,
        services: RunServices,
        others: RunRegistry,
        *,
        runtime: Runtime,
        parent: TaskRun | None = None,
    ) -> None:
        super().__init__(live, services)
        self._others = others
        self.run_id = run_id
        self.begun_after: Final = services.store.head
        """The events of the run have greater numbers."""
        self.runtime = runtime
        self.tree = TaskTree(self, parent)
        self.tracker = LifecycleTracker(live.session_id, run_id)
        self.shown = LifecycleTracker(live.session_id, run_id)
        self.steer_waiters = trio.lowlevel.ParkingLot()
        self.ended = trio.Event()
        self.scope = trio.CancelScope()
        self.calls_of: str | None = None
        """The message whose calls the run carries out, from the message's end to the next model call."""
        self.answers = AnswersOfRun()
        self.end: events.AgentEnd | None = None
        """The end of the run, once it is durable."""
        self._stopped_as: EndStatus = "cancelled"
        self._activity_time = trio.current_time()
        self._grace_until = 0.0
        self._reported_activity_time = -math.inf
        self._last_activity_at = ""
        self._conflict_reported_at = -math.inf
        self._brackets: Brackets | None = None
        self._context = ContextOfRun(services.contexts, live)
        self._inputs = InputsOfRun(services.inputs, live.session_id)
        self._workspace: Workspace | None = None
        self._instructions: Sequence[SourceText] | None = None
        self._model_calls = 0
        self._has_new_results = False
        self._results = SETTLED
        """The handle of the newest tool results that no model has received yet."""
        self._has_answered = False

    # --- lifetime and activity ---------------------------------------------------------------

    def begin(self, decided: Sequence[Event], artifacts: Sequence[Artifact]) -> None:
        """Log the events that start the run."""
        self._uncommitted_artifacts += artifacts
        self.decide(decided)
        self.live.run = self

    async def enter_workspace(self) -> Workspace:
        """Resolve the run's workspace; it stays the same until the run ends.

        Raises:
            RunFailed: the workspace is not allowed, or cannot be used.
        """
        if self._workspace is None:
            try:
                self._workspace = await self._services.workspaces.of(self.live.state)
            except CommandRejected as refused:
                raise RunFailed(
                    refused.message, "the session's folder cannot be used", refused.cause or ""
                ) from refused
        return self._workspace

    def leave(self) -> None:
        """Leave the cached context and chunks to later runs of the session."""
        self._context.leave()
        self._inputs.leave()

    def stop(self, status: EndStatus) -> None:
        """End the run early: cancel it and withdraw its requests to the user. The first stop counts."""
        if not self.scope.cancel_called:
            self._stopped_as = status
            self.scope.cancel()
            for tool_call_id in self.tracker.tools:
                self._services.withdraw(tool_call_id)

    @property
    def stale_at(self) -> float:
        """The time (trio's clock) at which a run without further activity is ended as stale."""
        if self.tree.is_waiting:
            return math.inf
        return max(self._activity_time, self._grace_until) + self._services.stale_seconds

    @property
    def active_at(self) -> float:
        """The time (trio's clock) of the last activity; the current time during a wait with a limit."""
        now = trio.current_time()
        return (
            now if self.tree.is_waiting else min(now, max(self._activity_time, self._grace_until))
        )

    @property
    def last_activity_at(self) -> str:
        """``active_at`` in the clock's format: the same text until the next activity."""
        active_at = self.active_at
        if active_at > self._reported_activity_time:
            self._reported_activity_time = active_at
            offset = timedelta(seconds=active_at - trio.current_time())
            # The two clocks are not read at the same instant, so the result varies a little.
            self._last_activity_at = max(
                self._last_activity_at, later(self._services.clock.now(), offset)
            )
        return self._last_activity_at

    def tell_conflict(self, client_id: str | None) -> None:
        """Report that another run was requested while this one is active; at most once per second, so
        that a client that keeps trying does not fill the log.
        """
        now = trio.current_time()
        if now - self._conflict_reported_at < _CONFLICT_SECONDS or self.live.lost:
            return
        self._conflict_reported_at = now
        conflict = events.RunConflict(
            session_id=self.live.session_id, run_id=self.run_id, client_id=or_unset(client_id)
        )
        self.live.decide((conflict,))

    @property
    def stopped_as(self) -> EndStatus:
        """The status of the run if it is stopped; its tasks end with the same status."""
        return self._stopped_as

    @property
    def last_answer(self) -> str:
        """The last text of the model in this run."""
        return self._context.last_answer(self.run_id)

    @property
    def remark_where(self) -> dict[str, Any]:
        """The keys of a warning: those of the open turn, else those of the run."""
        where: dict[str, Any] = {**self.tracker.where}
        if self.tracker.phase is Phase.RUN:
            del where["turn_id"]
        return where

    # --- RunTurnHost -------------------------------------------------------------------------

    @property
    def turn(self) -> RunHost:
        """See ``CallHost.turn``."""
        return self

    @property
    def where(self) -> TurnKey:
        """See ``CallHost.where``."""
        return self.tracker.where

    def call_keys(self, tool_call_id: str) -> Mapping[str, Any]:
        """See ``LiveCallHost.call_keys``."""
        return {**self.where, **self.tracker.tools[tool_call_id].keys}

    @property
    def audiences(self) -> tuple[Audience, ...]:
        """See ``LiveCallHost.audiences``."""
        return self.tree.audiences

    def tool_context(self, tool_call_id: str, emit: Emit) -> ToolContext:
        """See ``CallHost.tool_context``."""
        assert self._workspace is not None
        context = self._context_in(self._workspace, tool_call_id, emit)
        tasks = TasksOfCall(self._services, self, tool_call_id, self._others)
        return msgspec.structs.replace(context, tasks=tasks)

    async def runtime_opinion(self, call: ToolCall) -> RuntimeOpinion:
        """See ``CallHost.runtime_opinion``."""
        return await self.runtime.opinion_of(call)

    @property
    def choice(self) -> ModelChoice:
        """See ``NativeHost.choice``."""
        return self._services.choice_of(self.live.state, self._options)

    @property
    def tool_choice(self) -> ToolChoice | None:
        """See ``NativeHost.tool_choice``."""
        choice = self._options.tool_choice
        if choice is UNSET or (choice == "required" and self._has_answered):
            return None
        return None if choice == "auto" else choice

    @property
    def leaf_id(self) -> str | None:
        """See ``TurnHost.leaf_id``."""
        return self.live.state.leaf_id

    async def wait_results(self) -> None:
        """See ``TurnHost.wait_results``."""
        # Events that are held back are not in the log yet, although the runtime knows them.
        results, self._results = self._results, SETTLED
        if self.is_holding:
            await self.wait_durable()
        elif results is not SETTLED:
            await results.wait_committed()

    async def keep_input(self, compiled: CompiledInput) -> StoredInput:
        """See ``NativeHost.keep_input``."""
        stored = await self._inputs.store(compiled)
        self._uncommitted_artifacts += artifacts_of(stored)
        return stored

    async def instructions(self) -> Sequence[SourceText]:
        """See ``TurnHost.instructions``."""
        if self._instructions is None:
            workspace = await self.enter_workspace()
            instructions = await workspace.instructions.of(self.live.session_id)
            agents = await self._services.agents_of(self.live)
            agents_section = (
                agents_source(agents.described) if self.tool_is_active(TASK.name) else ()
            )
            self._instructions = (*instructions, *agents_section)
        return self._instructions

    async def add_instructions(self, added: Sequence[SourceText]) -> None:
        """Add prompt sections for the models of this run."""
        self._instructions = (*await self.instructions(), *added)

    @property
    def own_prompt(self) -> SourceText | None:
        """See ``NativeHost.own_prompt``."""
        worker = self.live.state.worker
        if worker is not None and worker.prompt:
            return agent_prompt(worker.prompt)
        return None if self._workspace is None else self._workspace.system_prompt

    @property
    def correlation_id(self) -> str | UnsetType:
        """See ``TurnHost.correlation_id``."""
        run = self.live.state.run
        return UNSET if run is None else run.request.correlation_id

    @property
    def model_calls_left(self) -> int | None:
        """See ``NativeHost.model_calls_left``."""
        worker = self.live.state.worker
        if worker is None or worker.max_calls is UNSET:
            return None
        return max(0, worker.max_calls - self._model_calls)

    async def artifact(self, artifact_id: str) -> bytes:
        """See ``TurnHost.artifact``."""
        store = self._services.store
        artifact = await store.artifact(artifact_id)
        if artifact is None:
            # It may belong to an input that was just accepted and is not committed yet.
            await store.flush()
            artifact = await store.artifact(artifact_id)
        if artifact is None:
            raise RunFailed("artifact_not_found", "an artifact is missing", artifact_id)
        return artifact.data

    def extend_idle_deadline(self, seconds: float) -> None:
        """See ``TurnHost.extend_idle_deadline``."""
        self._activity_time = trio.current_time()
        grace_until = self._activity_time + seconds
        # While other calls run, the activity of one must not shorten the deadline of another.
        if len(self.tracker.tools) > 1:
            grace_until = max(grace_until, self._grace_until)
        self._grace_until = grace_until

    def warn(self, code: str, message: str) -> None:
        """See ``HookedRun.warn``."""
        self.decide((events.Warning(**self.remark_where, code=code, message=message),))

    async def find_earlier_call(self, call: ToolCall) -> ToolCall | None:
        """See ``AgentHost.find_earlier_call``."""
        return await self._services.call_records.find_earlier_attempt(
            await self.context(), call, runtime=self.runtime.name, run_id=self.run_id
        )

    async def earlier(self, call: ToolCall) -> EarlierAttempts:
        """See ``TurnHost.earlier``."""
        message_id = message_of(call.tool_call_id)
        self._others.require_alone(self, message_id)
        self.calls_of = message_id
        return await self._services.call_records.earlier(self.live.session_id, call)

    def get_skip_reason(self) -> PassedOver | None:
        """See ``LiveCallHost.get_skip_reason``."""
        path = [(run.live.state, run.run_id) for run in self.tree.path]
        if any(
            queue.has_pending_steer(state.queue, run_id, state.delivering) for state, run_id in path
        ):
            return "steer"
        return "stop" if self.has_stopped_asking else None

    def tool_is_active(self, name: str) -> bool:
        """See ``TurnHost.tool_is_active``."""
        return self._options.tool_choice != "none" and self._is_offered(name)

    def select_offered_tools(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """See ``NativeHost.select_offered_tools``."""
        return tuple(tool for tool in tools if self._is_offered(tool.name))

    def _is_offered(self, name: str) -> bool:
        allowed = self._options.tools
        is_allowed = allowed is UNSET or name in allowed
        return is_allowed and self._services.tool_is_active(self.live.state, name)

    @property
    def _options(self) -> RunOptions:
        return options_of(self.live.state)

    async def context(self) -> Sequence[Entry]:
        """See ``TurnHost.context``."""
        return await self._context.read()

    @property
    def grown(self) -> InputCache:
        """See ``NativeHost.grown``."""
        return self._context.grown

    @property
    def workdir(self) -> Path:
        """See ``AgentHost.workdir``."""
        assert self._workspace is not None
        return self._workspace.path_sandbox.workdir

    @property
    def agent_model(self) -> str:
        """See ``AgentHost.agent_model``."""
        return self.live.state.runtime_model or ""

    @property
    def agent_thinking(self) -> str:
        """See ``AgentHost.agent_thinking``."""
        level = self.live.state.thinking
        return level if level in self.runtime.capabilities.thinking_levels else ""

    @property
    def runtime_namespace(self) -> str:
        """See ``AgentHost.runtime_namespace``."""
        return self.live.state.runtime_namespace or DEFAULT_NAMESPACE

    @property
    def agent_session(self) -> AgentSessionFacts | None:
        """See ``AgentHost.agent_session``."""
        return self.live.state.agent_session

    # --- logging -----------------------------------------------------------------------------

    def let_calls_overlap(self) -> None:
        """Allow several open calls at a time, and calls during a message: from now on ``Brackets`` puts
        the run's brackets in order.
        """
        if self._brackets is None:
            self._brackets = Brackets()

    @property
    def is_holding(self) -> bool:
        """Whether brackets are held back until the open one has ended."""
        return self._brackets is not None and self._brackets.is_holding

    def decide(self, decided: Sequence[Event]) -> CommitHandle:
        """See ``LiveCallHost.decide``."""
        if self._brackets is not None:
            decided = self._brackets.order(decided, self.tracker, self.live.state, self.now())
            if not decided:
                return self.last_handle
        artifacts, self._uncommitted_artifacts = self._uncommitted_artifacts, []
        handle = self.live.decide(decided, artifacts=artifacts, follow=self._follow)

        def on_resolved(handle: CommitHandle) -> None:
            if handle.failure is None:
                for event in decided:
                    self.shown.note(event)
                    if isinstance(event, events.AgentEnd):
                        self.end = event
            else:
                # No later event of the run can be written. The log may get other events with the same
                # ids instead of these.
                self._inputs.forget()
                self._context.forget()
                self.scope.cancel()

        handle.when_resolved(on_resolved)
        self.last_handle = handle
        if self._has_new_results:
            self._results, self._has_new_results = handle, False
        self.tree.tell_root(decided)
        return handle

    def _follow(self, decided: Sequence[Event], logged: Sequence[Event]) -> None:
        self._activity_time = trio.current_time()
        for event, short in zip(decided, logged, strict=True):
            self.tracker.note(event)
            if isinstance(event, events.ToolExecutionEnd):
                if not self.tracker.tools:
                    self._grace_until = 0.0
                self._has_new_results = True
            if isinstance(event, events.ModelInput):
                self._model_calls += event.purpose == "answer"
            if isinstance(event, events.ModelInput | events.AgentEnd):
                self.calls_of = None
            if isinstance(event, events.EntryAppended) and isinstance(short, events.EntryAppended):
                self._append(text_offload.as_logged(short.entry, event.entry))

    def _append(self, entry: Entry) -> None:
        if isinstance(entry, MessageEntry) and entry.role == "assistant":
            self._has_answered = True
        if isinstance(entry, MessageEntry) and entry.tool_calls:
            self.calls_of = entry.id
        self._context.append(entry)
