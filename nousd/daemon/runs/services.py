"""The services that runs and tool calls share: models, tools, permissions, approvals, the log.

They do not know the active runs (``registry``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import UNSET

from nousd.config.agents import Catalogue
from nousd.daemon.clock import Clock
from nousd.daemon.eventlog.log import Log
from nousd.daemon.policy.approvals import Approvals
from nousd.daemon.policy.grants import list_permanent_grants
from nousd.daemon.policy.overrides import OVER, Overrides
from nousd.daemon.policy.permissions import Permissions
from nousd.daemon.policy.questions import Questions
from nousd.daemon.policy.requests import Asker
from nousd.daemon.runs.call_records import CallRecords
from nousd.daemon.runs.model_inputs import ModelInputs
from nousd.daemon.runs.runtimes import Runtimes
from nousd.daemon.sessions.history import Contexts
from nousd.daemon.sessions.live_session import LiveSession
from nousd.daemon.sessions.registry import Sessions
from nousd.daemon.workspace.workspaces import Workspaces
from nousd.extensions.hook_chain import NO_HOOKS, Hooks
from nousd.machine.context.model_input import ModelChoice, with_own
from nousd.machine.policy.permission import Judgement
from nousd.machine.policy.workers import has_tool
from nousd.machine.session.settings import in_force
from nousd.machine.session.state import SessionState
from nousd.machine.session.titles import TITLED_CHARS_MAX, title_of
from nousd.providers.models.catalog import Models
from nousd.runtimes.calls.host import Answer, Question
from nousd.runtimes.interface import Runtime, Summariser
from nousd.store.interface import Store
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.interface import Emit, ExtendIdleDeadline, Tool, ToolContext
from nousd.tools.registry import ToolRegistry
from nousd.tools.secrets_interface import NO_SECRETS, Secrets
from nousd.wire.objects.run_options import RunOptions
from nousd.wire.objects.tool_footprint import Access


@dataclass(kw_only=True, eq=False, repr=False)
class RunServices:
    """The services that the runs and tool calls of one daemon share."""

    sessions: Sessions
    """Reading a lost session from the log again closes its run there."""
    store: Store
    log: Log
    clock: Clock
    runtimes: Runtimes
    summariser: Summariser
    """Summarises transcripts at a client's request."""
    models: Models
    """The models, and the default of sessions that name none."""
    tools: ToolRegistry
    """The current tools."""
    contexts: Contexts
    """The contexts of the runs' model calls."""
    inputs: ModelInputs
    """The last model input of each session."""
    workspaces: Workspaces
    """The workspaces of sessions."""
    permissions: Permissions
    """Decides which calls may run."""
    approvals: Approvals
    questions: Questions
    overrides: Overrides
    """Overrides of workspaces, under which calls may request paths outside."""
    make_context: Callable[[PathSandbox, Emit, ExtendIdleDeadline], ToolContext]
    """Makes a tool's context from its path sandbox, a function that receives its output, and a function
    that extends its idle deadline.
    """
    stale_seconds: float
    """Seconds without activity after which a run is ended."""
    hooks: Hooks = NO_HOOKS
    """The hooks of extensions."""
    secrets: Secrets = NO_SECRETS
    """The secrets to redact."""
    call_records: CallRecords = field(init=False)

    def __post_init__(self) -> None:
        self.call_records = CallRecords(self.store)

    def choice_of(self, state: SessionState, options: RunOptions | None = None) -> ModelChoice:
        """Return the model of a session's next call, or of one in a run with these options."""
        provider, model, sampling = state.provider, state.model, state.sampling
        if options is not None and options.model is not UNSET:
            provider = None if options.provider is UNSET else options.provider
            model = options.model
        if options is not None and options.sampling is not UNSET:
            sampling = with_own(sampling, options.sampling)
        return self.models.choice(provider, model, state.thinking, sampling)

    def model_of_run(
        self, runtime: Runtime, state: SessionState, options: RunOptions | None
    ) -> str:
        """Return the name of the model that a run begins with; empty where an agent program chooses."""
        if runtime.name != self.runtimes.default:
            return ""
        return self.choice_of(state, options).model

    def new_title(self, state: SessionState, text: str) -> str | None:
        """Return the title that a text gives a session; None if it already has a title or a name."""
        if state.title is not None or state.name is not None:
            return None
        # Redacted before it is cut, because a part of a secret is not recognised.
        return title_of(self.secrets.redact_output(text[:TITLED_CHARS_MAX]))

    def tool_is_active(self, state: SessionState, name: str) -> bool:
        """Return whether a session's model may use a tool. Only built-in tools can be deactivated."""
        if not has_tool(state.worker, name):
            return False
        active = in_force(state, self.sessions.defaults).active_tools
        if active is None or name in active:
            return True
        tool = self.tools.of(state.session_id).get(name)
        return tool is not None and tool.source != "builtin"

    async def agents_of(self, live: LiveSession) -> Catalogue:
        """Return the agents of a session: those that existed when it first read them, reduced to the
        parts that the user trusts now.
        """
        if live.agents is None:
            live.agents = await (await self.workspaces.of(live.state)).read_agents()
        return live.agents.in_force(self.workspaces.trust.trusts)

    async def judge(self, state: SessionState, tool: Tool, access: Access) -> Judgement:
        """Return the decision of the rules and the session's mode on a call."""
        granted = list_permanent_grants(self.sessions.defaults, self.workspaces.path_of(state))
        return await self.permissions.judge(state, granted, tool, access)

    async def ask(self, state: SessionState, question: Question, asker: Asker) -> Answer:
        """Ask whether a call may run; see ``CallHost.ask``. Paths outside need an override."""
        if not question.access.outside:
            return await self.approvals.ask(question, asker)
        override = self.overrides.under(state)
        obstacle = OVER if override is None else None
        return await self.approvals.ask(question, asker, override=override, obstacle=obstacle)

    def skip_passed_over(self) -> None:
        """End the requests whose answers are no longer waited for (``Asker.passed_over``)."""
        self.approvals.skip_passed_over()
        self.questions.skip_passed_over()

    def withdraw(self, tool_call_id: str) -> None:
        """Withdraw the requests of a call that is being stopped."""
        self.approvals.withdraw(tool_call_id)
        self.questions.withdraw(tool_call_id)
