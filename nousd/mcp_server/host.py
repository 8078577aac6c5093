"""The MCP server with the daemon's tools, and ``nousd mcp``, which serves it over standard input and
output.

The server is an ordinary client of the daemon, which judges, logs and confines each call. An MCP client
cannot be asked for approval; another client of the daemon answers, and without one the call is refused
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from nousd import __version__
from nousd.errors import ClientError
from nousd.mcp_server.calls import CallEnd, CallSession, DaemonTools
from nousd.mcp_server.daemon_process import running_daemon

_SHOWN_CHARS_MAX: Final = 2000
"""Maximum length of one piece of output that is sent as progress."""

Context = ServerRequestContext[dict[str, Any]]


def serve(
    socket_path: Path,
    *,
    session: CallSession,
    tools: Sequence[str] | None,
    serve_options: Sequence[str],
) -> None:
    """Serve until standard input ends.

    Raises:
        DaemonUnreachable: no daemon answers, and none could be started.
    """
    try:
        anyio.run(partial(_serve, socket_path, session, tools, serve_options), backend="trio")
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


async def _serve(
    socket_path: Path,
    session: CallSession,
    tools: Sequence[str] | None,
    serve_options: Sequence[str],
) -> None:
    async with (
        running_daemon(socket_path, serve_options) as ensure,
        stdio_server() as (incoming, outgoing),
    ):
        served = DaemonTools(socket_path, session=session, names=tools, ensure=ensure)
        server = make_server(lambda _context: nullcontext(served))
        await server.run(incoming, outgoing, server.create_initialization_options())


ToolsFor = Callable[[Context], AbstractAsyncContextManager[DaemonTools]]
"""Provides the served tools during a request. It may cancel the request, and then absorbs the
cancellation."""


def make_server(tools_for: ToolsFor) -> Server[dict[str, Any]]:
    """Return the server with these tools."""

    async def list_tools(
        context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        listed: list[dict[str, Any]] = []
        try:
            async with tools_for(context) as tools:
                listed = await tools.list_tools()
        except ClientError as error:
            raise MCPError(code=types.INTERNAL_ERROR, message=str(error)) from None
        return types.ListToolsResult(tools=[_tool(tool) for tool in listed])

    async def call_tool(
        context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        progress = _Progress(context)
        end = CallEnd("the call was stopped", is_error=True)
        try:
            async with tools_for(context) as tools:
                end = await tools.call(params.name, params.arguments or {}, progress.show)
        except ClientError as error:
            end = CallEnd(str(error), is_error=True)
        return _result(end)

    return Server(
        "nousd",
        version=__version__,
        # No tool of the daemon has arguments in headers, so the library need not look for them.
        get_tool_input_schema=lambda _name: None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _tool(tool: dict[str, Any]) -> types.Tool:
    return types.Tool(
        name=tool["name"], description=tool["description"], input_schema=tool["parameters"]
    )


def _result(end: CallEnd) -> types.CallToolResult:
    refusal = {"ok": False, "error": end.text, "policy_snapshot": end.policy}
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=end.text)],
        is_error=end.is_error,
        structured_content=refusal if end.policy is not None else None,
    )


class _Progress:
    """Sends a call's output to a client, if it asked for progress."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pieces = 0

    async def show(self, piece: str) -> None:
        self._pieces += 1
        await self._context.session.report_progress(self._pieces, message=piece[:_SHOWN_CHARS_MAX])
