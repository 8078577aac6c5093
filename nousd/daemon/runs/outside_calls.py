"""Records the refusal of calls that agent programs make while their session has no active run.

Like a client's own call, such a call has neither run nor turn. Its request and its denial are one
commit.
"""

from __future__ import annotations

from typing import Any, Final

from nousd.daemon.runs.services import RunServices
from nousd.runtimes.calls.admission import input_hash
from nousd.wire import events
from nousd.wire.objects.entries import ToolCall

_REASON: Final = "no_active_run: the agent called while no run was open"


async def record_refused(
    services: RunServices, session_id: str, runtime: str, call: ToolCall
) -> None:
    """Log a refused call in its session, under a new id.

    Raises:
        SessionNotFound: the session was deleted meanwhile.
        StoreError: the session could not be read.
    """
    live = await services.sessions.get(session_id)
    keys: dict[str, Any] = {
        "session_id": session_id,
        "tool_call_id": services.clock.new_id("call"),
        "attempt": 1,
        "tool_name": call.name,
        "input_hash": input_hash(call.name, call.args),
    }
    requested = events.ToolCallRequested(
        **keys, args=call.args, runtime_tool_call_id=call.runtime_tool_call_id, runtime=runtime
    )
    denied = events.ToolCallDenied(**keys, by="policy", reason=_REASON)
    live.decide((requested, denied))
    await services.log.wait_room()
