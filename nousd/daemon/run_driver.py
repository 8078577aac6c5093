"""One active run: the daemon's side of it, from its start in the log to its one end.

``RunDriver`` is the ``TurnHost`` of its runtime. It takes turns off the session's queue, hands each to
the runtime, and ends the run. However a run ends (done, failed, aborted, stopped), what it has open is
closed by the machine's ``owed_ends`` and nothing else. Of other runs it knows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio
from msgspec import UNSET

from nousd.daemon import boundary
from nousd.daemon.history import wholes_of
from nousd.daemon.log import Ticket
from nousd.daemon.model_inputs import InputsOfRun, artifacts_of
from nousd.daemon.requests import Asker
from nousd.daemon.run_hooks import RunHooks
from nousd.daemon.sessions import LiveSession
from nousd.daemon.spooled import SignOfLife
from nousd.daemon.task_tree import TaskTree
from nousd.daemon.tasks import TasksOfCall
from nousd.errors import NousdError, RunFailed
from nousd.machine import decisions, long_texts, queue
from nousd.machine.compile import Compiled
from nousd.machine.fragments import Stored
from nousd.machine.lifecycle import Ledger, Phase, owed_ends
from nousd.machine.model_input import ModelChoice
from nousd.machine.permission import Judgement
from nousd.machine.queue import Turn
from nousd.machine.sources import SourceText, agent_prompt, agents_source
from nousd.machine.transcript import in_context
from nousd.runtimes.calls.attempts import Earlier
from nousd.runtimes.calls.host import Answer, Question
from nousd.store.interface import Artifact
from nousd.tools.interface import Emit, Tool, ToolContext, UserAnswers
from nousd.tools.spool import Spool
from nousd.tools.task import TASK
from nousd.wire import events
from nousd.wire.access import Access
from nousd.wire.entries import Entry, MessageEntry, PermissionMode, ToolCall
from nousd.wire.events import EndStatus, Event
from nousd.wire.questions import UserQuestion
from nousd.wire.todos import Todo

if TYPE_CHECKING:
    from nousd.daemon.runs import Runs

CLOSING_SECONDS: Final = 3.0
"""How long a stopped run waits for its ends to reach the disk; the log has them either way, or the
next start writes them."""


class RunDriver:
    """One active run.

    Args:
        own_prompt: the id of the input that started it; None for a run that resumes.
        parent: the run whose call of ``task`` it carries out.
    """

    def __init__(
        self,
        live: LiveSession,
        run_id: str,
        services: Runs,
        *,
        own_prompt: str | None,
        parent: RunDriver | None = None,
    ) -> None:
        self.live = live
        self.run_id = run_id
        self.tree = TaskTree(self, parent)
        self.ledger = Ledger(live.session_id, run_id)
        self.shown = Ledger(live.session_id, run_id)
        self.ended = trio.Event()
        self._services = services
        self._own_prompt = own_prompt
        self._scope = trio.CancelScope()
        self._stopped_as: EndStatus = "cancelled"
        self._seen = trio.current_time()
        self._quiet_until = 0.0
        self._context: Sequence[Entry] | None = None
        self._context_leaf: str | None = None
        self._artifacts: list[Artifact] = []
        self._inputs = InputsOfRun(services.inputs, live.session_id)
        self._instructions: Sequence[SourceText] | None = None
        self._last_ticket = Ticket()
        self._model_calls = 0
        self.calls_of: str | None = None
        """The message whose calls it carries out, from the message's end to the next model call."""
        self.end: events.AgentEnd | None = None
        """The end of the run, once it is durable."""
        self._hooks = RunHooks(services.hooks, self)

    # --- from start to end -------------------------------------------------------------------

    def begin(self, decided: Sequence[Event], artifacts: Sequence[Artifact]) -> Ticket:
        """Puts the events that start the run into the log."""
        self._artifacts += artifacts
        ticket = self._decide(decided)
        self.live.run = self
        return ticket

    async def drive(self) -> None:
        """Carries the run out to its end, unless the session is lost meanwhile. Never raises."""
        outcome = await boundary.contained(self._turns_until_stopped, f"run {self.run_id}")
        if self._scope.cancel_called:
            outcome = None  # what fails while the run is being stopped comes of that
        if not self.live.lost and self.ledger.phase is not Phase.ENDED:
            ended = await boundary.contained(partial(self._end_early, outcome), "the end of a run")
            if ended is not None:
                # Ends that fail here are owed to the log, like those of a killed process.
                self.live.lost = True
        if not self.live.lost:
            if self._context is not None:
                contexts = self._services.contexts
                contexts.keep(self.live.session_id, self._context_leaf, self._context)
            self._inputs.leave()
        with trio.move_on_after(CLOSING_SECONDS):
            await boundary.contained(self._last_ticket.wait_committed, f"end of {self.run_id}")
        # The next run may have been accepted while this one's end was on its way to the disk.
        if self.live.run is self:
            self.live.run = None

    def stop(self, status: EndStatus) -> None:
        """Ends the run early: its task is cancelled and closes what is open. The first stop counts."""
        if not self._scope.cancel_called:
            self._stopped_as = status
            self._scope.cancel()
            if self.ledger.tool is not None:
                self._services.withdraw(self.ledger.tool.tool_call_id)

    @property
    def stale_at(self) -> float:
        """When the run is to be given up if nothing is seen of it before; trio's time."""
        if self.tree.is_waiting:
            return math.inf
        return max(self._seen, self._quiet_until) + self._services.stale_seconds

    @property
    def stopped_as(self) -> EndStatus:
        """How the run ends if it is stopped, and how its tasks then end."""
        return self._stopped_as

    @property
    def last_answer(self) -> str:
        """What the model said last in this run."""
        for entry in reversed(self._context or ()):
            if isinstance(entry, MessageEntry) and entry.role == "assistant" and entry.text:
                return entry.text if entry.run_id == self.run_id else ""
        return ""

    def tell(self, decided: Sequence[Event]) -> None:
        """Puts events of others that this run tells of into the log."""
        self._decide(decided)

    async def _turns_until_stopped(self) -> None:
        # An error that meets the cancelling comes out of the scope, as a group without it.
        with self._scope:
            await self._turns()

    async def _turns(self) -> None:
        started = self._last_ticket
        # Read while the start is on its way to the disk.
        await self.context()
        await self.instructions()
        remark = await self._services.project.remark(self.live.session_id)
        await started.wait_committed()
        # Aborted before it began, it has no turn: the abort has given its prompt back.
        await trio.lowlevel.checkpoint_if_cancelled()
        if remark is not None:
            message = long_texts.beginning(remark)
            self._decide(
                [events.Warning(**self._where, code="project_config_ignored", message=message)]
            )
        added = await self._hooks.before_run(resumes=self._own_prompt is None)
        self._instructions = (*await self.instructions(), *added)
        turn: Turn | None = await self._next_turn() or Turn("resume", ())
        while turn is not None:
            self._begin_turn(turn)
            await self._hooks.turn_start(turn)
            await self._services.runtime.run_turn(self)
            # A stop that came while this task was already on its way must not look like an end.
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._hooks.turn_end()
            turn = await self._end_turn()

    async def _next_turn(self) -> Turn | None:
        """Returns what is next, with whole texts; the caller may decide on it without another await."""
        wholes: dict[str, bytes | None] = {}
        while True:
            state = self.live.state
            turn = queue.next_turn(
                state.queue,
                own_prompt=self._own_prompt,
                steering=state.steering_mode,
                follow_up=state.follow_up_mode,
            )
            if turn is None:
                return None
            missing = long_texts.refs_in(turn.inputs).keys() - wholes
            if not missing:
                return Turn(turn.kind, long_texts.whole_inputs(turn.inputs, wholes))
            # What was accepted a moment ago may still be on its way to the disk.
            await self._services.store.flush()
            wholes |= await wholes_of(self._services.store, missing)

    def _begin_turn(self, turn: Turn) -> None:
        """Puts the turn's beginning on its way into the log. The model is asked meanwhile: what it
        says comes behind this in the log, and a tool call waits for both. What a runtime says before
        it first waits is there in time for the same commit.
        """
        clock = self._services.clock
        self._decide(
            decisions.begin_turn(
                self.live.state,
                turn,
                run_id=self.run_id,
                turn_id=str(self.ledger.turns + 1),
                message_id=clock.new_id("msg"),
                created_at=clock.now(),
            )
        )

    async def _end_turn(self) -> Turn | None:
        """Ends the turn, and the run with it if nothing waits; in one step, so that an input is
        either seen here or refused because there is no run any more.
        """
        turn = await self._next_turn()
        ends: list[Event] = [events.TurnEnd(**self.ledger.where)]
        if turn is None:
            ends.append(self._agent_end("completed"))
        self._decide(ends)
        return turn

    async def _end_early(self, failure: NousdError | None) -> None:
        status: EndStatus = self._stopped_as
        remarks: list[Event] = []
        cause: str | None = None
        if failure is not None:
            status = "error"
            failed = boundary.run_failure(failure)
            cause = long_texts.beginning(failed.cause or failed.message)
            remarks.append(self._error_event(failed))
        elif status == "timeout":
            cause = f"nothing happened for {self._services.stale_seconds * 1000:.0f} ms"
            remarks.append(events.Warning(**self._where, code="run_stale", message=cause))
        elif self.ledger.phase in (Phase.TURN, Phase.MESSAGE):
            remarks.append(
                events.Warning(
                    **self.ledger.where, code="provider_aborted", message="request_aborted"
                )
            )
        ends = owed_ends(
            self.ledger,
            status,
            leaf_id=self.leaf_id,
            now=self._services.clock.now(),
            error=cause,
        )
        self._decide([*remarks, *ends])

    def _agent_end(self, status: EndStatus) -> events.AgentEnd:
        return events.AgentEnd(session_id=self.live.session_id, run_id=self.run_id, status=status)

    def _error_event(self, failure: RunFailed) -> events.Error:
        """Tells a failure; what its server said is kept where the cause does not tell all of it."""
        cause = long_texts.beginning(failure.cause)
        raw = failure.raw or failure.cause.encode(errors="replace")
        is_told = raw.decode(errors="replace").strip() in cause
        return events.Error(
            **self._where,
            code=failure.code,
            message=failure.message,
            cause=cause,
            hint=failure.hint or UNSET,
            raw_ref=UNSET if is_told else self._kept(raw, _raw_type(raw)),
        )

    @property
    def _where(self) -> dict[str, Any]:
        """The keys of a remark: those of the turn that is open, else those of the run."""
        where: dict[str, Any] = {**self.ledger.where}
        if self.ledger.phase is Phase.RUN:
            del where["turn_id"]
        return where

    # --- the runtime's side (TurnHost) -------------------------------------------------------

    @property
    def turn(self) -> RunDriver:
        """See ``CallHost.turn``."""
        return self

    @property
    def where(self) -> events.TurnKey:
        """See ``CallHost.where``."""
        return self.ledger.where

    @property
    def permission_mode(self) -> PermissionMode:
        """See ``CallHost.permission_mode``."""
        return self._services.permissions.mode_of(self.live.state)

    def tool_context(self, tool_call_id: str, emit: Emit) -> ToolContext:
        """See ``CallHost.tool_context``."""
        context = self._services.make_context(emit, self.expect_quiet)
        return msgspec.structs.replace(
            context,
            set_todos=partial(self._set_todos, tool_call_id),
            ask_user=self._ask_user,
            tasks=TasksOfCall(self._services, self, tool_call_id),
        )

    async def _set_todos(self, tool_call_id: str, todos: tuple[Todo, ...]) -> None:
        await self.commit(
            events.TodoUpdated(**self.ledger.where, tool_call_id=tool_call_id, todos=todos)
        )

    async def judge(self, tool: Tool, access: Access) -> Judgement:
        """See ``CallHost.judge``."""
        return await self._services.judge(self.live.state, tool, access)

    async def ask(self, question: Question) -> Answer:
        """See ``CallHost.ask``."""
        approvals = self._services.approvals
        with self._waiting_for_user(approvals.requests.timeout_seconds):
            return await approvals.ask(question, self._asker)

    async def _ask_user(self, questions: Sequence[UserQuestion]) -> UserAnswers:
        """Asks what the call that is running wants to know."""
        asked = self._services.questions
        assert self.ledger.tool is not None
        call = {**self.where, **self.ledger.tool.keys}
        with self._waiting_for_user(asked.requests.timeout_seconds):
            return await asked.ask(call, questions, self._asker)

    @contextmanager
    def _waiting_for_user(self, seconds: float) -> Iterator[None]:
        """Waiting is not staleness: it has a limit of its own."""
        self.expect_quiet(seconds)
        try:
            yield
        finally:
            self.expect_quiet(0.0)

    @property
    def _asker(self) -> Asker:
        return Asker(self._decide, self.tree.places)

    @property
    def choice(self) -> ModelChoice:
        """See ``TurnHost.choice``."""
        return self._services.choice_of(self.live.state)

    @property
    def leaf_id(self) -> str | None:
        """See ``TurnHost.leaf_id``."""
        return self.live.state.leaf_id

    async def commit(self, *decided: Event) -> None:
        """See ``TurnHost.commit``."""
        await self._decide(decided).wait_committed()

    async def stream(self, *decided: Event) -> None:
        """See ``TurnHost.stream``."""
        self._decide(decided)
        await self._services.log.wait_room()

    async def keep(self, data: bytes | Spool, media_type: str) -> str:
        """See ``TurnHost.keep``."""
        if isinstance(data, Spool):
            put = await self._services.store.put_artifact(
                SignOfLife(data, self.expect_quiet), media_type, now=self.now()
            )
            return put.id
        return self._kept(data, media_type)

    def _kept(self, data: bytes, media_type: str) -> str:
        artifact_id = long_texts.artifact_id_of(data)
        self._artifacts.append(Artifact(artifact_id, media_type, data))
        return artifact_id

    async def keep_input(self, compiled: Compiled) -> Stored:
        """See ``TurnHost.keep_input``."""
        stored = await self._inputs.store(compiled)
        self._artifacts += artifacts_of(stored)
        return stored

    async def instructions(self) -> Sequence[SourceText]:
        """See ``TurnHost.instructions``."""
        if self._instructions is None:
            instructions = await self._services.instructions.of(self.live.session_id)
            agents = await self._services.agents_of(self.live)
            told = agents_source(agents.described) if self.tool_is_active(TASK.name) else ()
            self._instructions = (*instructions, *told)
        return self._instructions

    @property
    def own_prompt(self) -> SourceText | None:
        """See ``TurnHost.own_prompt``."""
        worker = self.live.state.worker
        return agent_prompt(worker.prompt) if worker is not None and worker.prompt else None

    @property
    def model_calls_left(self) -> int | None:
        """See ``TurnHost.model_calls_left``."""
        worker = self.live.state.worker
        if worker is None or worker.max_calls is UNSET:
            return None
        return max(0, worker.max_calls - self._model_calls)

    async def artifact(self, artifact_id: str) -> bytes:
        """See ``TurnHost.artifact``."""
        store = self._services.store
        artifact = await store.artifact(artifact_id)
        if artifact is None:
            # It may have been accepted a moment ago, and be on its way to the disk.
            await store.flush()
            artifact = await store.artifact(artifact_id)
        if artifact is None:
            raise RunFailed("artifact_not_found", "an artifact is missing", artifact_id)
        return artifact.data

    def expect_quiet(self, seconds: float) -> None:
        """See ``TurnHost.expect_quiet``."""
        self._seen = trio.current_time()
        self._quiet_until = self._seen + seconds

    def warn(self, code: str, message: str) -> None:
        """See ``HookedRun.warn``."""
        self._decide((events.Warning(**self._where, code=code, message=message),))

    async def earlier(self, call: ToolCall) -> Earlier:
        """See ``TurnHost.earlier``."""
        message_id = call.tool_call_id.rpartition(".")[0]
        self._services.require_alone(self, message_id)
        self.calls_of = message_id
        return await self._services.call_records.earlier(self.live.session_id, call)

    def steer_bites(self) -> bool:
        """See ``TurnHost.steer_bites``."""
        return queue.steer_bites(self.live.state.queue, self.run_id)

    def tool_is_active(self, name: str) -> bool:
        """See ``TurnHost.tool_is_active``."""
        return self._services.tool_is_active(self.live.state, name)

    async def context(self) -> Sequence[Entry]:
        """See ``TurnHost.context``."""
        if self._context is None:
            self._context_leaf = self.leaf_id
            self._context = await self._services.contexts.at_leaf(self.live)
        return self._context

    def new_id(self, prefix: str) -> str:
        """See ``TurnHost.new_id``."""
        return self._services.clock.new_id(prefix)

    def now(self) -> str:
        """See ``TurnHost.now``."""
        return self._services.clock.now()

    # --- into the log ------------------------------------------------------------------------

    def _decide(self, decided: Sequence[Event]) -> Ticket:
        artifacts, self._artifacts = self._artifacts, []
        ticket = self.live.decide(decided, artifacts=artifacts, follow=self._follow)

        def settled(ticket: Ticket) -> None:
            if ticket.failure is None:
                for event in decided:
                    self.shown.note(event)
                    if isinstance(event, events.AgentEnd):
                        self.end = event
            else:
                # Nothing that it does from now on could be written. What is put into the log in its
                # place may have the same ids, and says something else.
                self._inputs.forget()
                self._services.contexts.forget(self.live.session_id)
                self._scope.cancel()

        ticket.when_settled(settled)
        self._last_ticket = ticket
        self.tree.tell_root(decided)
        return ticket

    def _follow(self, decided: Sequence[Event], logged: Sequence[Event]) -> None:
        self._seen = trio.current_time()
        for event, short in zip(decided, logged, strict=True):
            self.ledger.note(event)
            if isinstance(event, events.ToolExecutionEnd):
                self._quiet_until = 0.0
            if isinstance(event, events.ModelInput) and event.purpose == "answer":
                self._model_calls += 1
            if isinstance(event, events.ModelInput | events.AgentEnd):
                self.calls_of = None
            if isinstance(event, events.EntryAppended) and isinstance(short, events.EntryAppended):
                self._append(long_texts.as_logged(short.entry, event.entry))

    def _append(self, entry: Entry) -> None:
        if isinstance(entry, MessageEntry) and entry.tool_calls:
            self.calls_of = entry.id
        if self._context is not None:
            self._context = in_context([*self._context, entry])
            self._context_leaf = entry.id


def _raw_type(raw: bytes) -> str:
    """Returns the media type of what a server answered."""
    return "application/json" if raw.lstrip()[:1] in (b"{", b"[") else long_texts.TEXT_MEDIA_TYPE
