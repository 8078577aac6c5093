"""The error boundary around adapters, which talk to foreign programs and may have faults.

The daemon provides it (``AgentSurroundings.contain``), because it is the daemon's own broad ``except``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nousd.errors import AgentFailed

Contain = Callable[[Callable[[], Awaitable[Any]], str], Awaitable[Any]]
"""Makes a call that has a name; returns its result, or its failure as a ``NousdError``. The traceback of
any other exception is logged under the name.
"""


def adapter_fault() -> AgentFailed:
    """Return the failure of a program whose adapter has a fault; the log file has the traceback."""
    return AgentFailed(
        "what it said or asked met a fault of the daemon's",
        hint="the daemon's log file has the traceback; the next turn starts the program anew",
    )
