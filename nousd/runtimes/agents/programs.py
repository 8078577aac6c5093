"""Starts the programs of one runtime: each as a guest, with the files and variables of its namespace."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from nousd.errors import AgentFailed
from nousd.runtimes.agents.guest import Guest
from nousd.runtimes.agents.interface import Agent, Resume, Start
from nousd.runtimes.agents.spaces import Spaces
from nousd.tools.process.line_conversation import find_program
from nousd.tools.process.supervisor import Conversation, open_conversation
from nousd.wire.objects.runtimes import AuthFacts, IsolationMode

_ROOT: Final = Path("/")
_NO_HOME: Final = Path(os.devnull)

_EPHEMERAL_LOGIN_HINT: Final = (
    "a log-in is not kept at the level ephemeral: name the variable of a key in env"
)
_SERVER_LOGIN_HINT: Final = "the server that runs the program keeps the log-in"


class Programs:
    """The programs of one runtime.

    Args:
        guest: starts them in isolation.
        spaces: their files and variables, by namespace.
        mode: whether the agent runs here, or the program only connects to a server that runs it.
    """

    def __init__(
        self, agent: Agent, guest: Guest, spaces: Spaces, mode: IsolationMode = "subprocess"
    ) -> None:
        self._agent = agent
        self._guest = guest
        self._spaces = spaces
        self._mode = mode

    @asynccontextmanager
    async def run_program(
        self, start: Start, resume: Resume
    ) -> AsyncIterator[tuple[Conversation, Mapping[str, str]]]:
        """Run a program for the duration of the block, after which it and all its child processes have
        ended. Provide its streams and the result of ``Agent.variables`` that it was started with.

        Raises:
            AgentFailed: the program is missing, or must not be started.
            OSError: the program cannot be started.
        """
        async with self._spaces.open_home(start.namespace) as home:
            variables = self._agent.variables(start)
            env = self._spaces.environment(start.namespace, home, variables)
            argv = find_program(self._agent.command(start, resume), env, AgentFailed)
            can_disable_tools = self._agent.capabilities.tool_execution_model == "external_mcp"
            has_tools = start.own_tools != "off" or not can_disable_tools
            hidden = self._agent.list_hidden_paths(start)
            guest_argv = self._guest.argv(
                argv, start.workdir, has_tools=has_tools, home=home, hidden=hidden
            )
            async with open_conversation(guest_argv, cwd=start.workdir, env=env) as process:
                yield process, variables

    def keeps_sessions(self, namespace: str) -> bool:
        """Return whether the files of a life are kept for later lives."""
        return self._spaces.level(namespace) != "ephemeral"

    def facts(self, start: Start) -> dict[str, object]:
        """Return the namespace, isolation level and variable names of a program, for the log."""
        withheld = self._spaces.list_withheld(start.namespace)
        return {
            "namespace": start.namespace,
            "isolation": self._spaces.level(start.namespace),
            "variables": sorted(self._agent.variables(start).keys() - withheld),
        }

    def auth_facts(self, namespace: str) -> AuthFacts:
        """Return the program's log-in state in a namespace, and the commands that change it. Blocks."""
        level, home = self._spaces.level(namespace), self._spaces.home(namespace)
        if self._mode == "server_side":
            return AuthFacts(instructions=_SERVER_LOGIN_HINT, isolation=level)
        start = Start(workdir=_ROOT, model="", instructions="", tools=(), namespace=namespace)
        # An ephemeral HOME is empty when a life begins.
        environment = self._environment(start, _NO_HOME if level == "ephemeral" else home)
        facts = self._agent.auth_facts(environment)
        if level == "ephemeral":
            return msgspec.structs.replace(
                facts, login=(), logout=(), instructions=_EPHEMERAL_LOGIN_HINT, isolation=level
            )
        prefix = self._prefix(namespace, home, environment)
        facts = msgspec.structs.replace(
            facts,
            login=(*prefix, *facts.login) if facts.login else (),
            logout=(*prefix, *facts.logout) if facts.logout else (),
            isolation=level,
        )
        return facts if home is None else _at_home(facts, self._agent.name, namespace, home)

    def _prefix(
        self, namespace: str, home: Path | None, environment: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Return the prefix that makes a command line use the files of a namespace."""
        if home is None:
            folders = self._spaces.user_folders(environment)
            return (
                ("env", *[f"{name}={value}" for name, value in folders.items()]) if folders else ()
            )
        withheld = sorted(self._spaces.list_withheld(namespace))
        return ("env", *[word for name in withheld for word in ("-u", name)], f"HOME={home}")

    def _environment(self, start: Start, home: Path | None) -> dict[str, str]:
        return self._spaces.environment(start.namespace, home, self._agent.variables(start))


def _at_home(facts: AuthFacts, runtime: str, namespace: str, home: Path) -> AuthFacts:
    """Return the facts about a log-in, completed for a private HOME."""
    command = f"run nousctl runtime login {runtime} --namespace {namespace} in a terminal"
    instructions = command if facts.login else f"{facts.instructions}, with HOME={home}"
    return msgspec.structs.replace(facts, home=str(home), instructions=instructions)
