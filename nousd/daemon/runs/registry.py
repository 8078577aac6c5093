"""All active runs: one task for each, what they share, and how they are stopped.

What happens in a run is ``run_driver``'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

import trio
from msgspec import UNSET, UnsetType

from nousd.config.agents import Catalogue
from nousd.daemon import error_boundary as boundary
from nousd.daemon.clock import Clock, earlier
from nousd.daemon.eventlog.log import Log, Ticket
from nousd.daemon.policy.approvals import Approvals
from nousd.daemon.policy.overrides import OVER, Overrides
from nousd.daemon.policy.permissions import Permissions
from nousd.daemon.policy.questions import Questions
from nousd.daemon.policy.requests import Asker
from nousd.daemon.runs.call_records import CallRecords
from nousd.daemon.runs.model_inputs import ModelInputs
from nousd.daemon.runs.recordings import current_run
from nousd.daemon.runs.run_hooks import tell_end
from nousd.daemon.runs.run_host import RunHost
from nousd.daemon.runs.run_loop import CLOSING_SECONDS, RunDriver
from nousd.daemon.sessions.history import Contexts
from nousd.daemon.sessions.live_session import LiveSession
from nousd.daemon.sessions.registry import Sessions
from nousd.daemon.workspace.workspaces import Workspaces
from nousd.errors import RunFailed
from nousd.extensions.hook_chain import NO_HOOKS, Hooks
from nousd.machine.context.model_input import ModelChoice, with_own
from nousd.machine.policy.permission import Judgement
from nousd.machine.policy.workers import has_tool
from nousd.machine.session.state import SessionState
from nousd.providers.models.catalog import Models
from nousd.runtimes.calls.host import Answer, Question
from nousd.runtimes.interface import Runtime
from nousd.store.artifacts import Artifact
from nousd.store.interface import Store
from nousd.tools.fs.path_sandbox import Confinement
from nousd.tools.interface import Emit, ExpectQuiet, Tool, ToolContext
from nousd.wire.events import AgentEnd, Event
from nousd.wire.events.base import EndStatus
from nousd.wire.objects.run_options import RunOptions
from nousd.wire.objects.tool_footprint import Access

_log = logging.getLogger(__name__)

_TELLING_SECONDS: Final = 1.0
"""How long the daemon's end waits for extensions that are being told of the ends of runs."""


@dataclass(kw_only=True, eq=False, repr=False)
class Runs:
    """All active runs, and what they share."""

    nursery: trio.Nursery
    """Where the runs' tasks live."""
    sessions: Sessions
    """A lost one is read from the log again, which closes its run there."""
    store: Store
    log: Log
    clock: Clock
    runtime: Runtime
    models: Models
    """Which there are, and which is asked where a session names none."""
    tools: Mapping[str, Tool]
    """As they are at the moment, by name."""
    contexts: Contexts
    """What the runs' models are told of the past."""
    inputs: ModelInputs
    """What models were given last."""
    workspaces: Workspaces
    """What depends on the folder that a session works in."""
    permissions: Permissions
    """What may run."""
    granted: Callable[[], Sequence[str]]
    """The rules that the user added for every session."""
    approvals: Approvals
    questions: Questions
    overrides: Overrides
    """Of workspaces, under which more is asked."""
    make_context: Callable[[Confinement, Emit, ExpectQuiet], ToolContext]
    """Gives a tool its surroundings, with what it may touch and the given places for its output and for
    what it says of its own limit.
    """
    stale_seconds: float
    """After how long without a sign of life a run is given up."""
    hooks: Hooks = NO_HOOKS
    """Of extensions."""
    call_records: CallRecords = field(init=False)
    _active: dict[str, RunHost] = field(init=False, default_factory=dict)
    _telling: dict[str, trio.Event] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.call_records = CallRecords(self.store)

    def choice_of(self, state: SessionState, options: RunOptions | None = None) -> ModelChoice:
        """Returns the model of a session's next call, or of one in a run with these options."""
        provider, model, sampling = state.provider, state.model, state.sampling
        if options is not None and options.model is not UNSET:
            provider = None if options.provider is UNSET else options.provider
            model = options.model
        if options is not None and options.sampling is not UNSET:
            sampling = with_own(sampling, options.sampling)
        return self.models.choice(provider, model, state.thinking, sampling)

    def last_activity_at(self, run_id: str, started_at: str) -> str | UnsetType:
        """Returns when a run last gave a sign of life, as clocks tell it; UNSET of one that is over."""
        run = self._active.get(run_id)
        if run is None:
            return UNSET
        return max(started_at, earlier(self.clock.now(), timedelta(seconds=run.quiet_seconds)))

    def tool_is_active(self, state: SessionState, name: str) -> bool:
        """Whether a session's model may use a tool. Only the built-in ones are a matter of choice."""
        if not has_tool(state.worker, name):
            return False
        if state.active_tools is None or name in state.active_tools:
            return True
        tool = self.tools.get(name)
        return tool is not None and tool.source != "builtin"

    async def agents_of(self, live: LiveSession) -> Catalogue:
        """Returns the agents that a session has: those that there were when it first asked, and of each
        what the user's trust lets count now.
        """
        if live.agents is None:
            live.agents = await (await self.workspaces.of(live.state)).read_agents()
        return live.agents.in_force(self.workspaces.trust.trusts)

    async def judge(self, state: SessionState, tool: Tool, access: Access) -> Judgement:
        """Returns what the rules in force and a session's mode say of a call."""
        return await self.permissions.judge(state, self.granted(), tool, access)

    async def ask(self, state: SessionState, question: Question, asker: Asker) -> Answer:
        """Asks whether a call may run; see ``CallHost.ask``. What leads out is asked while it may be."""
        if not question.access.outside:
            return await self.approvals.ask(question, asker)
        under = self.overrides.under(state)
        obstacle = OVER if under is None else None
        return await self.approvals.ask(question, asker, under=under, obstacle=obstacle)

    def withdraw(self, tool_call_id: str) -> None:
        """Takes back what a call asks the user, because it is being stopped."""
        self.approvals.withdraw(tool_call_id)
        self.questions.withdraw(tool_call_id)

    def start(
        self,
        live: LiveSession,
        run_id: str,
        decided: Sequence[Event],
        *,
        own_prompt: str | None,
        artifacts: Sequence[Artifact] = (),
        parent: RunHost | None = None,
    ) -> tuple[RunHost, Ticket]:
        """Starts the task of a run whose start was just decided, with what its prompt brought along.

        Args:
            parent: the run whose call of ``task`` it carries out.
        """
        run = RunHost(live, run_id, self, parent=parent)
        ticket = run.begin(decided, artifacts)
        self._active[run_id] = run
        _log.debug("run %s started in session %s", run_id, live.session_id)
        self.nursery.start_soon(self._carry_out, run, own_prompt)
        return run, ticket

    async def _carry_out(self, run: RunHost, own_prompt: str | None) -> None:
        current_run.set(run.run_id)
        # Only ``stop`` ends a run early: so its ends are written, whatever cancels the daemon.
        with trio.CancelScope(shield=True):
            await RunDriver(run, self, own_prompt=own_prompt).drive()
            if run.live.lost:
                _log.error("run %s lost its session, which is read again", run.run_id)
                await boundary.contained(partial(self._end_in_log, run), "closing a lost run")
        _log.debug("run %s is over", run.run_id)
        del self._active[run.run_id]
        run.ended.set()
        if run.end is not None and self.hooks.has("run_end"):
            await self._tell_end(run.run_id, run.end)

    async def _tell_end(self, run_id: str, end: AgentEnd) -> None:
        """Tells extensions that a run is over; whoever stops the daemon waits for that, but not long."""
        told = self._telling[run_id] = trio.Event()
        try:
            await tell_end(self.hooks, end)
        finally:
            del self._telling[run_id]
            told.set()

    async def _end_in_log(self, run: RunHost) -> None:
        """Gives a run that could not write its end one; whoever watches waits for it."""
        with trio.move_on_after(CLOSING_SECONDS):
            await self.store.flush()
            await self.sessions.get(run.live.session_id)

    def require_alone(self, run: RunHost, message_id: str) -> None:
        """Makes sure that no other run carries out the calls of a message: a branch has the calls of its
        parent, and whoever looks whether one has run already must not look while it is about to.

        Raises:
            RunFailed: another run does.
        """
        for other in self._active.values():
            if other is not run and other.calls_of == message_id:
                raise RunFailed(
                    "calls_in_progress",
                    "another run carries out the same tool calls",
                    other.run_id,
                    hint="resume when that run is over",
                )

    def find(self, run_id: str) -> RunHost | None:
        """Returns an active run."""
        return self._active.get(run_id)

    def active(self) -> list[RunHost]:
        """Returns the active runs, oldest first."""
        return list(self._active.values())

    async def stop_stale_runs(self) -> None:
        """Ends, for as long as it runs itself, every run without a sign of life for too long."""
        while True:
            now = trio.current_time()
            # A run that begins meanwhile is not stale before this.
            next_look = now + self.stale_seconds
            for run in self.active():
                if run.stale_at <= now:
                    run.stop("timeout")
                else:
                    next_look = min(next_look, run.stale_at)
            await trio.sleep_until(next_look)

    async def stop_all(self, status: EndStatus) -> None:
        """Ends every run early and waits until all are over."""
        runs = self.active()
        for run in runs:
            run.stop(status)
        for run in runs:
            await run.ended.wait()
        with trio.move_on_after(_TELLING_SECONDS):
            for told in list(self._telling.values()):
                await told.wait()
