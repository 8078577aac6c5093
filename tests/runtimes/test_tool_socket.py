"""The socket over which programs that start MCP servers themselves reach our tools."""

from __future__ import annotations

import trio

from nousd.runtimes.agents.tools._tools_main import TOKEN_VARIABLE
from nousd.runtimes.agents.tools.mcp_tools import McpTools, ToolCallParams
from nousd.runtimes.agents.tools.tool_socket import serve_tools
from nousd.tools.interface import ToolResult
from tests.runtimes.bench import WAIT_SECONDS


async def no_tool(_name: str, _params: ToolCallParams) -> ToolResult:
    return ToolResult("")


async def test_a_client_that_is_killed_with_an_answer_unread_harms_nobody() -> None:
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            server = await nursery.start(serve_tools, McpTools((), no_tool))
            (token,) = [each["value"] for each in server["env"] if each["name"] == TOKEN_VARIABLE]
            for _ in range(2):
                client = await trio.open_unix_socket(server["args"][-1])
                await client.send_all(f"{token}\n".encode() + ping)
                # The answer has come; closed without being read, the connection is reset.
                assert await client.socket.recv(1) == b"{"
                await client.send_all(ping)
                await client.aclose()
            async with await trio.open_unix_socket(server["args"][-1]) as client:
                await client.send_all(f"{token}\n".encode() + ping)
                assert b'"id":1' in await client.receive_some()
            nursery.cancel_scope.cancel()
