"""The surroundings of the runtimes that drive agent programs. It imports none of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import trio

from nousd.runtimes.agents.boundary import Contain
from nousd.runtimes.answer_room import AnswerBounds
from nousd.runtimes.calls.hooks import CallHooks
from nousd.tools.interface import Tool
from nousd.tools.secrets_interface import Secrets


class AgentSurroundings(NamedTuple):
    """The daemon's side of the runtimes that drive agent programs.

    Args:
        nursery: holds the programs.
        contain: the boundary around what an adapter does.
        tools: the daemon's current tools.
        hooks: called for every call.
    """

    nursery: trio.Nursery
    contain: Contain
    tools: Mapping[str, Tool]
    hooks: CallHooks
    bounds: AnswerBounds
    secrets: Secrets
