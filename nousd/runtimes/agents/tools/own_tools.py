"""Presents a call of an agent program's own tool to the gate, as a tool.

Only the call's arguments show its effects. A call whose arguments do not show them counts as having all
effects, so that a mode which asks about commands asks about it too. Once the call is allowed, the
program carries it out and reports the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import trio

from nousd.runtimes.agents.time_limits import OWN_CALL_SECONDS
from nousd.tools.fs.folder_threads import in_folder_thread
from nousd.tools.function_tool import access_to
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire.objects.policy import ExecutedBy
from nousd.wire.objects.tool_footprint import Access, ToolClass

_EVERYTHING: Final[frozenset[ToolClass]] = frozenset({"read", "write", "exec", "network"})


class Facts(NamedTuple):
    """The effects of a call, as far as its arguments show them.

    Args:
        classes: all effects that the call may have.
        paths: the files and folders that the call names.
        command: the command line that the call would run.
        hosts: the hosts that the call would reach.
    """

    classes: frozenset[ToolClass] = _EVERYTHING
    paths: tuple[str, ...] = ()
    command: str | None = None
    hosts: tuple[str, ...] = ()


class OwnToolCall:
    """Implements ``Tool`` for one call.

    Args:
        args: the arguments that the program has sent.
        runtime: the name of the program's runtime.
    """

    executed_by: ExecutedBy = "runtime"
    is_read_only = False
    begins_early = False
    description = "a tool of the agent's own"

    def __init__(self, name: str, args: Mapping[str, Any], runtime: str, facts: Facts) -> None:
        self.name = name
        self.args = args
        self.source = runtime
        self.parameters: dict[str, Any] = {"type": "object"}
        self.is_decided = trio.Event()
        self.refusal: str | None = None
        """The reason against the call, once it is decided; None if it may be carried out."""
        self.is_written = trio.Event()
        """Set when the log has the call's result."""
        self._facts = facts
        self._is_over = trio.Event()
        self._result = ToolResult("")

    def validate(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """See ``Tool.validate``: only the program knows the tool's parameters."""
        return args

    async def access(self, _args: Any, context: ToolContext) -> Access:
        """See ``Tool.access``."""
        facts = self._facts
        access = await in_folder_thread(access_to, facts.classes, facts.paths, context)
        return msgspec.structs.replace(access, command=facts.command, hosts=facts.hosts)

    async def run(self, _args: Any, context: ToolContext) -> ToolResult:
        """See ``Tool.run``: the program carries it out."""
        context.extend_idle_deadline(OWN_CALL_SECONDS)
        self.is_decided.set()
        await self._is_over.wait()
        return self._result

    def refuse(self, reason: str) -> None:
        """Decide that the program must not carry out the call, unless the call is decided already."""
        if not self.is_decided.is_set():
            self.refusal = reason
            self.is_decided.set()

    def finish(self, result: ToolResult) -> None:
        """Set the call's result; only the first one counts."""
        if not self._is_over.is_set():
            self._result = result
            self._is_over.set()
