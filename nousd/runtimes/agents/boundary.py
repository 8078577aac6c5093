"""The boundary around what adapters do: they speak with programs of others, and may have faults.

The daemon gives it (``AgentSurroundings.contain``), because it is the daemon's own broad ``except``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nousd.errors import AgentFailed

Contain = Callable[[Callable[[], Awaitable[Any]], str], Awaitable[Any]]
"""Returns the result of a call, or its failure as a ``NousdError``. Of a fault, which is none, the
traceback is logged under the name of the call.
"""


def adapter_fault() -> AgentFailed:
    """Return the failure of a program whose adapter has a fault, which the log file describes."""
    return AgentFailed(
        "what it said or asked met a fault of the daemon's",
        hint="the daemon's log file has the traceback; the next turn starts the program anew",
    )
