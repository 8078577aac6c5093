"""The rows of the limits table about clients' own tool calls; see ``test_limits``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nousd.daemon.runs import client_calls
from tests.daemon.limits_bench import Kit

ASKS = {"questions": [{"question": "Really?"}]}
"""Arguments of a call of ``question``, which waits as long as nobody answers."""


async def calls_at_once(kit: Kit, offset: int) -> None:
    most = kit.scale("client_calls_max", client_calls, "CLIENT_CALLS_MAX", 3)
    await kit.daemon.watch(types="all", confirms=True)
    await kit.client.request("new_session")
    for _ in range(most + offset - 1):
        await kit.client.request("call_tool", tool="question", args=ASKS)
    request_id = await kit.client.ask("call_tool", tool="question", args=ASKS)
    answer: dict[str, Any] = await kit.client.answer(request_id)
    assert answer["ok"] is (offset <= 0)
    if offset > 0:
        assert answer["error"]["code"] == "command_rejected"
        assert answer["error"]["message"] == "too_many_calls"
        assert answer["error"]["details"] == {"limit": most}


CALL_PLAYS: dict[str, Callable[[Kit, int], Awaitable[None]]] = {"client_calls_max": calls_at_once}
