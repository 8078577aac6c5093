"""The daemon's services for the runtimes that drive agent programs. It imports none of the runtimes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import trio

from nousd.runtimes.agents.boundary import Contain
from nousd.runtimes.answer_room import AnswerBounds
from nousd.runtimes.calls.hooks import CallHooks
from nousd.tools.registry import ToolRegistry
from nousd.tools.secrets_interface import Secrets
from nousd.wire.objects.entries import ToolCall


class AgentSurroundings(NamedTuple):
    """The daemon's services for the runtimes that drive agent programs.

    Args:
        nursery: runs the tasks that hold the programs.
        contain: the error boundary around adapters.
        tools: the daemon's current tools.
        hooks: called for every call.
        record_refused: logs that a call was refused because no run is open; takes the session, the name
            of the runtime and the call without an id.
    """

    nursery: trio.Nursery
    contain: Contain
    tools: ToolRegistry
    hooks: CallHooks
    record_refused: Callable[[str, str, ToolCall], Awaitable[None]]
    bounds: AnswerBounds
    secrets: Secrets
