"""The surroundings of the runtimes that drive agent programs. It imports none of these."""

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
    """The daemon's side of the runtimes that drive agent programs.

    Args:
        nursery: holds the programs.
        contain: the boundary around what an adapter does.
        tools: the daemon's current tools.
        hooks: called for every call.
        record_refused: given a session, a runtime and a call without an id, logs that the call was
            refused because no run is open.
    """

    nursery: trio.Nursery
    contain: Contain
    tools: ToolRegistry
    hooks: CallHooks
    record_refused: Callable[[str, str, ToolCall], Awaitable[None]]
    bounds: AnswerBounds
    secrets: Secrets
