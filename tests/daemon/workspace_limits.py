"""The rows of the limits table about paths outside a workspace; see ``test_limits``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nousd.daemon.policy import overrides
from nousd.wire.limit_table import LIMITS
from tests.daemon.asking_limits import next_request, responder, start
from tests.daemon.limits_bench import Kit, error_text
from tests.harness.daemon import of_type
from tests.harness.stub_model import text_reply, tool_reply


async def outside_places(kit: Kit, offset: int) -> None:
    most = LIMITS["outside_places_max"][0]
    events = await responder(kit)
    await kit.client.request("new_session")
    await kit.client.request("override_workspace", ttl_seconds=3600)
    patch = "".join(
        f"--- /dev/null\n+++ ../beside/{number}\n@@ -0,0 +1 @@\n+x\n"
        for number in range(most + offset)
    )
    await start(kit, tool_reply(("patch", {"patch": patch, "strip": 0})), text_reply("done"))
    if offset > 0:
        [end] = of_type(await events.run(), "tool_execution_end")
        assert end["result"].startswith("tool_error: path_outside_workdir: ")
        return
    request = await next_request(events)
    assert len(request["outside"]) == most + offset
    named = {key: request[key] for key in ("tool_call_id", "attempt", "input_hash")}
    await kit.client.request("confirm_tool", **named, decision="deny")
    await events.run()


async def overrides_at_once(kit: Kit, offset: int) -> None:
    most = kit.scale("overrides_max", overrides, "OVERRIDES_MAX", 2)
    for number in range(most + offset):
        await kit.client.request("new_session")
        if number == most:
            error = await kit.client.refusal("override_workspace", ttl_seconds=60)
            assert error_text(error) == LIMITS["overrides_max"][1]
        else:
            # Replacing an override does not add one.
            for _ in range(2):
                await kit.client.request("override_workspace", ttl_seconds=60)


async def override_seconds(kit: Kit, name: str, offset: int, beyond: int) -> None:
    seconds, words = LIMITS[name]
    await kit.client.request("new_session")
    payload = {"ttl_seconds": seconds + offset}
    if offset == beyond:
        assert error_text(await kit.client.refusal("override_workspace", **payload)) == words
        return
    answer = await kit.client.request("override_workspace", **payload)
    assert answer["override"]["ttl_seconds"] == seconds + offset


async def shortest_override(kit: Kit, offset: int) -> None:
    await override_seconds(kit, "override_seconds_min", offset, beyond=-1)


async def longest_override(kit: Kit, offset: int) -> None:
    await override_seconds(kit, "override_seconds_max", offset, beyond=1)


WORKSPACE_PLAYS: dict[str, Callable[[Any, int], Awaitable[None]]] = {
    "outside_places_max": outside_places,
    "overrides_max": overrides_at_once,
    "override_seconds_min": shortest_override,
    "override_seconds_max": longest_override,
}
