"""The rows of the limits table about MCP servers; see ``test_limits``."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from nousd.daemon.mcp import servers as mcp_servers
from nousd.daemon.mcp import session_servers
from nousd.tools.mcp import definitions
from nousd.tools.mcp.definitions import Definitions, OfferedTool, definitions_of
from nousd.tools.mcp.spec import ServerSpec
from nousd.wire.limit_table import LIMITS
from tests.daemon.limits_bench import Kit
from tests.harness.daemon import WAIT_SECONDS

SPEC: Final = ServerSpec(name="s", command=("no-such-program-of-ours",))
LEFT_OUT: Final = "a tool that is named in `left_out` of `mcp_server_status`"


async def check_add_mcp(kit: Kit, row: str, offset: int, **payload: Any) -> None:
    """Assert that adding a server succeeds up to the bound, and is refused past it."""
    given = {"name": "s", "command": ["no-such-program-of-ours"], **payload}
    if offset > 0:
        error = await kit.client.refusal("add_mcp", **given)
        assert f"{error['code']}: {error['message']}" == LIMITS[row][1]
    else:
        await kit.client.request("add_mcp", **given)


async def servers(kit: Kit, offset: int) -> None:
    bound = kit.scale("mcp_servers_max", mcp_servers, "MCP_SERVERS_MAX", 2)
    for number in range(bound + offset - 1):
        await check_add_mcp(kit, "mcp_servers_max", 0, name=f"s{number}")
    await check_add_mcp(kit, "mcp_servers_max", offset, name="last")


async def servers_of_session(kit: Kit, offset: int) -> None:
    row = "mcp_servers_of_session_max"
    bound = kit.scale(row, session_servers, "MCP_SERVERS_OF_SESSION_MAX", 2)
    session_id = (await kit.client.request("new_session"))["session_id"]
    for number in range(bound + offset - 1):
        await check_add_mcp(kit, row, 0, name=f"s{number}", session_id=session_id)
    await check_add_mcp(kit, row, offset, name="last", session_id=session_id)


async def servers_of_sessions(kit: Kit, offset: int) -> None:
    row = "mcp_servers_of_sessions_max"
    bound = kit.scale(row, session_servers, "MCP_SERVERS_OF_SESSIONS_MAX", 2)
    for _ in range(bound + offset):
        session_id = (await kit.client.request("new_session"))["session_id"]
        await check_add_mcp(kit, row, 0, session_id=session_id)
    assert len((await kit.client.request("list_mcp"))["servers"]) == bound + min(offset, 0)
    assert LIMITS[row][1] == "the servers of a session without a run are removed"


async def values(kit: Kit, offset: int) -> None:
    words = ["w"] * (LIMITS["mcp_values_max"][0] + offset)
    await check_add_mcp(kit, "mcp_values_max", offset, command=words)


async def value_chars(kit: Kit, offset: int) -> None:
    beginning = "http://127.0.0.1:1/"
    url = beginning + "a" * (LIMITS["mcp_value_chars_max"][0] + offset - len(beginning))
    await check_add_mcp(kit, "mcp_value_chars_max", offset, url=url, command=None)


async def timeout_ms(kit: Kit, offset: int) -> None:
    milliseconds = LIMITS["mcp_timeout_ms_max"][0] + offset
    await check_add_mcp(kit, "mcp_timeout_ms_max", offset, timeout_ms=milliseconds)


async def ttl_seconds(kit: Kit, offset: int) -> None:
    seconds = LIMITS["mcp_ttl_seconds_max"][0] + offset
    session_id = (await kit.client.request("new_session"))["session_id"]
    keys = {"session_id": session_id, "ttl_seconds": seconds}
    await check_add_mcp(kit, "mcp_ttl_seconds_max", offset, **keys)


def offered(*tools: OfferedTool) -> Definitions:
    return definitions_of(SPEC, tools)


async def tools(kit: Kit, offset: int) -> None:
    bound = kit.scale("mcp_tools_max", definitions, "MCP_TOOLS_MAX", 3)
    found = offered(*(OfferedTool(f"t{number}", "", {}) for number in range(bound + offset)))
    assert len(found.usable) == min(bound, bound + offset)
    assert found.left_out == ((f"t{bound}: the server has more than 3 tools",) * (offset > 0))
    assert LIMITS["mcp_tools_max"][1] == LEFT_OUT


async def schema_bytes(_kit: Kit, offset: int) -> None:
    bound = LIMITS["mcp_schema_bytes_max"][0]
    empty = len(json.dumps({"title": ""}))
    schema = {"title": "x" * (bound + offset - empty)}
    found = offered(OfferedTool("t", "", schema))
    assert len(found.usable) == (0 if offset > 0 else 1)
    assert found.left_out == ((f"t: its schema has more than {bound} bytes",) * (offset > 0))
    assert LIMITS["mcp_schema_bytes_max"][1] == LEFT_OUT


async def description_chars(_kit: Kit, offset: int) -> None:
    bound = LIMITS["mcp_description_chars_max"][0]
    (tool,) = offered(OfferedTool("t", "x" * (bound + offset), {})).usable
    assert len(tool.description) == min(bound, bound + offset)


async def message_bytes(kit: Kit, offset: int) -> None:
    """Use a server that sends one line of that length, which is not an answer."""
    from nousd.tools.mcp import stdio

    bound = kit.scale("mcp_message_bytes_max", stdio, "MCP_MESSAGE_BYTES_MAX", 1000)
    program = f"printf '%{bound + offset}s\\n' x; echo quiet >&2"
    statuses = await kit.daemon.watch(after="evt-0", types=["mcp_server_status"])
    await kit.client.request("add_mcp", name="s", command=["/bin/sh", "-c", program])
    with trio.fail_after(WAIT_SECONDS):
        failed = await statuses.until("mcp_server_status", state="backoff")
    too_long = f"it sent a message of more than {bound} bytes"
    assert failed["payload"]["error"] == (too_long if offset > 0 else "it ended; quiet")


async def message_values(kit: Kit, offset: int) -> None:
    """Use a server that sends one line of that many values, which is not an answer."""
    bound = LIMITS["mcp_message_values_max"][0]
    program = f"printf '['; printf '%{bound + offset - 2}s' '' | tr ' ' ,; echo ']'; echo quiet >&2"
    statuses = await kit.daemon.watch(after="evt-0", types=["mcp_server_status"])
    await kit.client.request("add_mcp", name="s", command=["/bin/sh", "-c", program])
    with trio.fail_after(WAIT_SECONDS):
        failed = await statuses.until("mcp_server_status", state="backoff")
    too_many = f"it sent a message of more than {bound} values"
    assert failed["payload"]["error"] == (too_many if offset > 0 else "it ended; quiet")


MCP_PLAYS: Final[dict[str, Callable[[Kit, int], Awaitable[None]]]] = {
    "mcp_servers_max": servers,
    "mcp_servers_of_session_max": servers_of_session,
    "mcp_servers_of_sessions_max": servers_of_sessions,
    "mcp_values_max": values,
    "mcp_value_chars_max": value_chars,
    "mcp_timeout_ms_max": timeout_ms,
    "mcp_ttl_seconds_max": ttl_seconds,
    "mcp_tools_max": tools,
    "mcp_schema_bytes_max": schema_bytes,
    "mcp_description_chars_max": description_chars,
    "mcp_message_bytes_max": message_bytes,
    "mcp_message_values_max": message_values,
}
