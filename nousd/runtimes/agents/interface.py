"""The interface of an adapter for an external agent, and of the runtime towards it.

An ``Agent`` knows one kind of program: how to start it and how to talk to it. One *life* of the program
serves one session and is driven turn by turn (``AgentLife``). What the program says and asks reaches the
daemon by calls of ``AgentListener``, as it happens. Adapters translate, and decide nothing: messages,
gate, log and steer are the runtime's.
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
from nousd.runtimes.agents.raw_lines import HEARD
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
"""The beginning of a life: with nothing, with the program's own session, or told our transcript."""


OUTSIDE: Final = ToolResult("no_active_run: no run is open, so nothing was run", is_error=True)
"""The result of a call that comes while no run is open, as the program is told it."""

UNTOLD: Final = ToolResult("The agent did not say what came of it.", is_error=True)
"""The result of a call of the agent's own when the turn ends without one."""

_OUTSIDE_MAX: Final = 20
"""Calls between two turns that are recorded; further ones are only refused."""

OwnTools = RuntimeTools
"""The use of a program's own tools: not offered; only those that it asks about; all of them, and only
what it asks about is judged.
"""


class AgentTool(msgspec.Struct, frozen=True):
    """A tool of ours or of an MCP server as an agent is offered it, under our name. ``parameters`` is a
    JSON Schema of type object.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]


class Resume(msgspec.Struct, frozen=True):
    """The beginning of a life.

    Args:
        agent_session_id: the program's session, for ``native``.
        transcript: what was said before, for ``reconstruct``; ``told_transcript`` makes text of it.
    """

    kind: ResumeKind
    agent_session_id: str = ""
    transcript: tuple[Entry, ...] = ()


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that one life of an agent is started with. Two equal ones need not be told apart.

    Args:
        workdir: the folder of the session; resolved.
        model: the agent's name of a model; empty for its own default.
        instructions: the user's and the project's, for the program's system prompt.
        tools: ours and those of MCP servers, which the program is offered.
        left_out: the names of those for which there is no room.
        own_tools: the use of the program's own tools.
        thinking: one of the runtime's levels; empty for the program's own.
        namespace: whose log-in the program uses.
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
        agent_call_id: the program's own id; empty if it has none.
        name: the tool, under our name if it is ours.
    """

    agent_call_id: str
    name: str
    args: Mapping[str, Any]


class AgentImage(msgspec.Struct, frozen=True):
    """A picture that belongs to the user's text."""

    media_type: str
    data: bytes


class UserText(msgspec.Struct, frozen=True, kw_only=True):
    """A text of the user for an agent. ``message_id`` names it towards the program, as a UUID."""

    message_id: str
    text: str
    images: tuple[AgentImage, ...] = ()


class AgentListener(Protocol):
    """Hears what an agent does in one turn. Once the turn has ended, every call does nothing."""

    async def confirm_delivery(self, message_id: str = "") -> None:
        """Note that the program has the user's text, or that of ``take_steer`` with this id."""
        ...

    async def text(self, delta: str) -> None:
        """The model says something."""
        ...

    async def reasoning(self, delta: str) -> None:
        """The model thinks."""
        ...

    async def message_ends(self, stop_reason: StopReason = "stop") -> None:
        """The model's message is complete; without one, nothing happens."""
        ...

    async def run_tool(self, call: AgentCall) -> ToolResult:
        """Carry out a call of a tool of ours, through the gate; return its result for the program."""
        ...

    async def may_run(self, call: AgentCall) -> str | None:
        """Return why the program must not run a tool of its own that it asks about; None if it may."""
        ...

    def has_pending_steer(self) -> bool:
        """Return whether the user sent a message that the program does not have yet: then no call may
        begin.
        """
        ...

    async def take_steer(self) -> UserText | None:
        """Take the user's pending message, to give it to the program now; None if there is none.

        An adapter asks where the program can take it in the middle of a turn, without a text of its own
        being cut: best before it tells a call's result. What is not delivered when the turn ends,
        and what no adapter asked for, begins the next turn.
        """
        ...

    async def record_call(self, call: AgentCall, result: ToolResult, seconds: float) -> None:
        """Log a call of the program's own tool that it made without asking, in so many seconds."""
        ...

    async def plan(self, todos: tuple[Todo, ...]) -> None:
        """What the agent means to do, and how far it is: the whole list, as it is from now on."""
        ...

    async def subagent_text(self, text: str, parent: str) -> None:
        """A subagent says something; ``parent`` is the program's id of the call that it works for."""
        ...

    async def usage(self, usage: Usage, *, model: str = "", cost_usd: float | None = None) -> None:
        """What the program's model calls took since it last said so."""
        ...

    async def unknown(self, line: bytes) -> None:
        """The program said something that the adapter does not know."""
        ...


class AgentLife(ABC):
    """One life of an agent program: a process that serves one session.

    The lines of the program come to ``take``. Whoever waits for the end of a turn waits for
    ``_turn_ends``, which an adapter lets happen with ``_end_turn``.
    """

    agent_session_id = ""
    """The program's id of the session; empty while it has none."""
    version = ""
    """The program's version, as it says; empty if it does not."""
    model = ""
    """The model that the program uses, as it says; empty if it does not."""
    models: tuple[str, ...] = ()
    """The names of the program's models, as it says."""

    facts_of: Callable[[AgentCall], Facts] | None = None
    """Returns the effects of a call of the program's own tools; None while these are off."""

    record_outside: Callable[[AgentCall], Awaitable[None]] | None = None
    """Writes a call that comes while no run is open into the log, as refused."""

    def __init__(self) -> None:
        self._outside = 0
        self.over = trio.Event()
        """The program has ended, or is of no more use."""
        self.listener: AgentListener | None = None
        """Hears of the turn; None between turns."""
        self.is_stopping = False
        """The turn is being stopped: nothing that the program asks in it is decided any more."""
        self.failure: AgentFailed | None = None
        self._turn_over = trio.Event()
        self._turn_failure: RunFailed | None = None

    @abstractmethod
    async def begin(self) -> None:
        """Make the program ready for a turn.

        Raises:
            AgentFailed: it cannot be used.
        """

    @abstractmethod
    async def take(self, line: bytes) -> None:
        """Take a line of the program."""

    @abstractmethod
    async def _prompt(self, said: UserText) -> None:
        """Send the user's text, which begins a turn."""

    @abstractmethod
    async def _ask_to_stop(self) -> None:
        """Ask the program to end its turn."""

    async def take_turn(self, said: UserText, listener: AgentListener) -> None:
        """Give the program the user's text; return when its turn has ended.

        Raises:
            RunFailed: the turn has failed; AgentFailed if the program is of no more use.
        """
        self._turn_over, self._turn_failure = trio.Event(), None
        self.is_stopping, self._outside = False, 0
        self.listener = listener
        if self.failure is not None:
            raise self.failure
        await self._prompt(said)
        await self._turn_over.wait()
        if self._turn_failure is not None:
            raise self._turn_failure

    async def refuse_outside(self, call: AgentCall) -> ToolResult:
        """Refuse a call that comes while no run is open, and record it; return its result."""
        self._outside += 1
        if self.record_outside is not None and self._outside <= _OUTSIDE_MAX:
            await self.record_outside(call)
        return OUTSIDE

    async def interrupt(self) -> None:
        """Ask the program to end its turn, and wait until it has."""
        if self.listener is not None and self.failure is None:
            await self._ask_to_stop()
            await self._turn_over.wait()

    def end_turn(self, failure: RunFailed | None = None) -> None:
        """Let the turn end, with a failure if it has failed. The first time counts."""
        self.listener = None
        if failure is not None:
            failure.raw = failure.raw or HEARD.get()
        if not self._turn_over.is_set():
            self._turn_failure = failure
            self._turn_over.set()

    def end(self, failure: AgentFailed) -> None:
        """End the life, and its turn: the program has ended or will be. The first time counts."""
        if self.failure is None:
            self.failure = failure
            self.over.set()
            self.end_turn(failure)


Write = Callable[[bytes], Awaitable[None]]
"""Sends the program a line."""


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
        """Return whether a program with this environment is logged in, by its own files and variables.
        Blocks.
        """
        ...

    def session_basis(self, start: Start) -> str:
        """Return a short text for the facts that a session of the program keeps for good: a new life
        goes on with the session only if it is the same. Empty if a new life can change everything.
        """
        ...

    def command(self, start: Start, resume: Resume) -> Sequence[str]:
        """Return the command line of a life; its first word is looked up in the PATH."""
        ...

    def variables(self, start: Start) -> Mapping[str, str]:
        """Return the variables of the program's environment besides the allowed names."""
        ...

    def list_hidden_paths(self, start: Start) -> HiddenFiles:
        """Return the files and folders that the program would obey although nobody may plant anything
        there.
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
            variables: those of ``variables`` that the program was started with.
        """
        ...
