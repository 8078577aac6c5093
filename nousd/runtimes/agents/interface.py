"""The interface between a runtime and the adapter for an external agent program.

An ``Agent`` knows how to start one kind of program and how to talk to it. A *life* (``AgentLife``) is
one process of the program; it serves one session, turn by turn. The adapter passes the program's output
and requests to an ``AgentListener`` as they arrive. Adapters only translate: messages, the gate, the log
and steers belong to the runtime.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec
import trio

from nousd.errors import AgentFailed, RunFailed
from nousd.runtimes.agents.obeyed import HiddenFiles
from nousd.runtimes.agents.raw_lines import CURRENT_LINE
from nousd.runtimes.agents.tools.own_tools import Facts
from nousd.tools.interface import ToolResult
from nousd.wire.objects.entries import Entry, StopReason, Usage
from nousd.wire.objects.runtimes import (
    DEFAULT_NAMESPACE,
    AuthFacts,
    RuntimeCapabilities,
    RuntimeTools,
)
from nousd.wire.objects.todos import Todo

ResumeKind = Literal["new", "native", "reconstruct"]
"""How a life begins: with nothing, with the program's own session, or with nousd's transcript."""


NO_ACTIVE_RUN: Final = ToolResult(
    "no_active_run: no run is open, so nothing was run", is_error=True
)
"""The result that the program receives for a call made while no run is open."""

UNREPORTED: Final = ToolResult("The agent did not say what came of it.", is_error=True)
"""The result of a call of the program's own tool if the turn ends before the program reports one."""

_REFUSED_MAX: Final = 20
"""Maximum number of recorded calls between two turns; further calls are refused without a record."""

OwnTools = RuntimeTools
"""The policy for a program's own tools. ``off``: none is offered. ``ask``: only tools that ask before
they run. ``on``: all; the gate judges only the calls that the program asks about.
"""


class AgentTool(msgspec.Struct, frozen=True):
    """An offered tool: a tool of the daemon or of an MCP server that the program may call, with the name
    that it has in nousd. ``parameters`` is a JSON Schema of type object.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]


class Resume(msgspec.Struct, frozen=True):
    """How a life begins.

    Args:
        agent_session_id: the program's session, for ``native``.
        transcript: the earlier conversation, for ``reconstruct``; ``told_transcript`` renders it.
    """

    kind: ResumeKind
    agent_session_id: str = ""
    transcript: tuple[Entry, ...] = ()


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a life. A life can serve every turn that has equal parameters.

    Args:
        workdir: the session's workspace, with symbolic links resolved.
        model: the program's name of a model; empty for its default.
        instructions: the user's and the project's instructions, for the program's system prompt.
        tools: the offered tools.
        left_out: the names of the tools that did not fit into the offer.
        own_tools: the policy for the program's own tools.
        thinking: one of the runtime's thinking levels; empty for the program's default.
        namespace: the namespace that selects the program's log-in.
    """

    workdir: Path
    model: str
    instructions: str
    tools: tuple[AgentTool, ...]
    left_out: tuple[str, ...] = ()
    own_tools: OwnTools = "off"
    thinking: str = ""
    namespace: str = DEFAULT_NAMESPACE


class AgentCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of an agent.

    Args:
        agent_call_id: the program's id of the call; empty if it has none.
        name: the name in nousd of an offered tool, or the program's name of its own tool.
    """

    agent_call_id: str
    name: str
    args: Mapping[str, Any]


class AgentImage(msgspec.Struct, frozen=True):
    """A picture attached to the user's text."""

    media_type: str
    data: bytes


class UserText(msgspec.Struct, frozen=True, kw_only=True):
    """A text of the user for an agent. ``message_id`` is a UUID that identifies it to the program."""

    message_id: str
    text: str
    images: tuple[AgentImage, ...] = ()


class AgentListener(Protocol):
    """Receives the events of one turn of an agent. After the end of the turn it refuses tool calls and
    ignores everything else.
    """

    async def confirm_delivery(self, message_id: str = "") -> None:
        """Record that the program has the user's text, or the text of ``take_steer`` with this id."""
        ...

    async def text(self, delta: str) -> None:
        """Append a piece of text to the model's message."""
        ...

    async def reasoning(self, delta: str) -> None:
        """Append a piece of reasoning to the model's message."""
        ...

    async def message_ends(self, stop_reason: StopReason = "stop") -> None:
        """End the model's open message; do nothing if none is open."""
        ...

    async def run_tool(self, call: AgentCall) -> ToolResult:
        """Carry out a call of an offered tool through the gate; return its result for the program."""
        ...

    async def find_refusal(self, call: AgentCall) -> str | None:
        """Judge a call of the program's own tool before it runs. Return the reason against the call;
        None if the program may make it.
        """
        ...

    def has_pending_steer(self) -> bool:
        """Return whether a steer is pending: then no call may begin."""
        ...

    async def take_steer(self) -> UserText | None:
        """Take the pending steer, to send it to the program now; return None if there is none.

        An adapter calls this at a point of the turn where the program accepts a text without cutting off
        its own, best just before it returns the result of a call. A steer that is not taken, or not
        delivered when the turn ends, begins the next turn.
        """
        ...

    async def record_call(self, call: AgentCall, result: ToolResult, seconds: float) -> None:
        """Log the result of a call of the program's own tool, which took ``seconds``. A call that the
        program did not ask about is logged here as a whole.
        """
        ...

    async def plan(self, todos: tuple[Todo, ...]) -> None:
        """Log the agent's plan, as a complete list that replaces the one before."""
        ...

    async def subagent_text(self, text: str, parent: str) -> None:
        """Log a text of a subagent; ``parent`` is the program's id of the call that it works for."""
        ...

    async def usage(self, usage: Usage, *, model: str = "", cost_usd: float | None = None) -> None:
        """Log the usage of the program's model calls since the last report."""
        ...

    async def unknown(self, line: bytes) -> None:
        """Log a message of the program that the adapter does not know."""
        ...


class AgentLife(ABC):
    """One life of an agent program: a process that serves one session.

    ``take`` receives the program's lines. ``take_turn`` and ``interrupt`` wait for the end of the turn,
    which the adapter reports with ``end_turn``.
    """

    agent_session_id = ""
    """The program's id of its session; empty while it has none."""
    version = ""
    """The version that the program reports; empty if it reports none."""
    model = ""
    """The model that the program uses, as far as it is known; empty if it is not."""
    models: tuple[str, ...] = ()
    """The names of the models that the program reports."""

    facts_of: Callable[[AgentCall], Facts] | None = None
    """Returns the effects of a call of the program's own tool; None while these tools are off."""

    record_outside: Callable[[AgentCall], Awaitable[None]] | None = None
    """Logs a call made while no run is open, as refused."""

    def __init__(self) -> None:
        self._refused_count = 0
        self.over = trio.Event()
        """Set when the program has ended or can no longer be used."""
        self.listener: AgentListener | None = None
        """Receives the events of the turn; None between turns."""
        self.is_stopping = False
        """Whether the turn is being stopped: then requests of the program are no longer decided."""
        self.failure: AgentFailed | None = None
        self._turn_over = trio.Event()
        self._turn_failure: RunFailed | None = None

    @abstractmethod
    async def begin(self) -> None:
        """Make the program ready for a turn.

        Raises:
            AgentFailed: the program cannot be used.
        """

    @abstractmethod
    async def take(self, line: bytes) -> None:
        """Handle a line of the program's output."""

    @abstractmethod
    async def _prompt(self, user_text: UserText) -> None:
        """Send the user's text, which begins a turn."""

    @abstractmethod
    async def _ask_to_stop(self) -> None:
        """Ask the program to end its turn."""

    async def take_turn(self, user_text: UserText, listener: AgentListener) -> None:
        """Send the user's text to the program; return when its turn has ended.

        Raises:
            RunFailed: the turn has failed; AgentFailed if the program can no longer be used.
        """
        self._turn_over, self._turn_failure = trio.Event(), None
        self.is_stopping, self._refused_count = False, 0
        self.listener = listener
        if self.failure is not None:
            raise self.failure
        await self._prompt(user_text)
        await self._turn_over.wait()
        if self._turn_failure is not None:
            raise self._turn_failure

    async def refuse_outside(self, call: AgentCall) -> ToolResult:
        """Refuse a call made while no run is open, and record it; return its result."""
        self._refused_count += 1
        if self.record_outside is not None and self._refused_count <= _REFUSED_MAX:
            await self.record_outside(call)
        return NO_ACTIVE_RUN

    async def interrupt(self) -> None:
        """Ask the program to end its turn, and wait until it has."""
        if self.listener is not None and self.failure is None:
            await self._ask_to_stop()
            await self._turn_over.wait()

    def end_turn(self, failure: RunFailed | None = None) -> None:
        """End the turn, with a failure if it has failed. Only the first call in a turn counts."""
        self.listener = None
        if failure is not None:
            failure.raw = failure.raw or CURRENT_LINE.get()
        if not self._turn_over.is_set():
            self._turn_failure = failure
            self._turn_over.set()

    def end(self, failure: AgentFailed) -> None:
        """End the life and its turn, because the program has ended or is being ended. Only the first
        call counts.
        """
        if self.failure is None:
            self.failure = failure
            self.over.set()
            self.end_turn(failure)


Write = Callable[[bytes], Awaitable[None]]
"""Sends a line to the program."""


class Agent(Protocol):
    """One kind of agent program."""

    @property
    def name(self) -> str:
        """The name of the runtime."""
        ...

    @property
    def capabilities(self) -> RuntimeCapabilities:
        """The capabilities of the program through this adapter."""
        ...

    def auth_facts(self, environment: Mapping[str, str]) -> AuthFacts:
        """Return the log-in state of a program with this environment, as its files and variables show
        it. Blocks.
        """
        ...

    def session_basis(self, start: Start) -> str:
        """Return a short text that identifies the parameters which the program's session keeps for
        good: a new life resumes the session only if the text is the same. Empty if a new life can change
        all parameters.
        """
        ...

    def command(self, start: Start, resume: Resume) -> Sequence[str]:
        """Return the command line of a life; its first word is looked up in the PATH."""
        ...

    def variables(self, start: Start) -> Mapping[str, str]:
        """Return the program's environment variables, in addition to those allowed for any program."""
        ...

    def list_hidden_paths(self, start: Start) -> HiddenFiles:
        """Return the files and folders to hide from the program: it would obey them, although the user
        has not chosen their content.
        """
        ...

    def life(
        self,
        start: Start,
        resume: Resume,
        write: Write,
        nursery: trio.Nursery,
        variables: Mapping[str, str],
    ) -> AgentLife:
        """Return the life of a program that has just been started.

        Args:
            nursery: for tasks of the adapter; they end with the life.
            variables: the result of ``variables`` with which the program was started.
        """
        ...
