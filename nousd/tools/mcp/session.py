"""A conversation with one MCP server, through the official SDK. Importing this takes 0.4 seconds.

Every failure of a server, or of the SDK because of a server, becomes ``ToolServerFailed``: foreign code
can raise anything. Results are not checked with the SDK's validator of output schemas, because a hostile
pattern in a schema would block the event loop.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import httpx2
import mcp_types
import trio
from mcp import Client, MCPError
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from pydantic import TypeAdapter, ValidationError

from nousd import __version__
from nousd.errors import NousdError, ToolError, ToolServerFailed
from nousd.tools.mcp.definitions import OfferedTool
from nousd.tools.mcp.http import http_streams
from nousd.tools.mcp.spec import ServerSpec
from nousd.tools.mcp.stdio import stdio_streams
from nousd.wire.limits import MCP_TOOLS_MAX

CONNECT_SECONDS: Final = 30.0
"""Seconds that a server may take until the connection is established."""

PAGES_MAX: Final = 64

_log: Final = logging.getLogger(__name__)

_WORDS_CHARS_MAX: Final = 500


class OnProgress(Protocol):
    """Receives the progress of a call: done, total, and the server's message."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


_RESULT: Final[TypeAdapter[mcp_types.CallToolResult | mcp_types.InputRequiredResult]] = TypeAdapter(
    mcp_types.CallToolResult | mcp_types.InputRequiredResult
)


class Outcome(NamedTuple):
    """The result of a call: its content blocks as JSON, and the structured content."""

    content: list[dict[str, Any]]
    structured_content: Any
    is_error: bool


class Session:
    """An open conversation. ``changed`` is set when the server's tools may have changed.

    Args:
        redact_output: removes known secrets from the server's texts.
    """

    def __init__(self, client: Client, redact_output: Callable[[str], str]) -> None:
        self._client = client
        self._redact_output = redact_output
        self.changed = trio.Event()

    @property
    def protocol_version(self) -> str:
        return self._client.protocol_version

    async def tools(self) -> list[OfferedTool]:
        """Return the server's tools: at most one more than can be offered.

        Raises:
            ToolServerFailed: the server does not list them, or the list has too many pages.
        """
        if self._client.server_capabilities.tools is None and self._has_handshake:
            return []
        found: list[OfferedTool] = []
        cursor: str | None = None
        with _foreign(self._redact_output):
            for _ in range(PAGES_MAX):
                page = await self._client.list_tools(cursor=cursor)
                found += [
                    OfferedTool(tool.name, tool.description or "", tool.input_schema)
                    for tool in page.tools
                ]
                cursor = page.next_cursor
                if cursor is None or len(found) > MCP_TOOLS_MAX:
                    return found[: MCP_TOOLS_MAX + 1]
        raise ToolServerFailed(f"its list of tools has more than {PAGES_MAX} pages")

    @property
    def _has_handshake(self) -> bool:
        """Return whether the server speaks a protocol version that declares capabilities."""
        return self._client.session.initialize_result is not None

    async def call(self, tool: str, args: Mapping[str, Any], on_progress: OnProgress) -> Outcome:
        """Call a tool; a cancellation notifies the server.

        Raises:
            ToolError: the server refused, or returned an invalid result.
            ToolServerFailed: the server is gone.
        """
        request = mcp_types.CallToolRequest(
            params=mcp_types.CallToolRequestParams(name=tool, arguments=dict(args))
        )
        try:
            with _foreign(self._redact_output):
                result = await self._client.session.send_request(
                    request, _RESULT, progress_callback=on_progress
                )
        except _ServerError as error:
            raise ToolError(f"mcp_error: {error}") from None
        if isinstance(result, mcp_types.InputRequiredResult):
            raise ToolError("mcp_error: the server asks for more input, which nobody can give it")
        blocks = [
            block.model_dump(by_alias=True, mode="json", exclude_none=True)
            for block in result.content
        ]
        return Outcome(blocks, result.structured_content, bool(result.is_error))

    async def follow_changes(self) -> None:
        """Set ``changed`` on notifications of a server that needs a subscription for them. Others send
        them without one.
        """
        with _foreign(self._redact_output):
            try:
                async with self._client.listen(tools_list_changed=True) as notifications:
                    async for _ in notifications:
                        self.changed.set()
            except (ListenNotSupportedError, SubscriptionLost, MCPError):
                return


class _ServerError(ToolError):
    """The server answered with an error."""


@asynccontextmanager
async def open_session(
    spec: ServerSpec,
    *,
    env: Mapping[str, str],
    headers: Mapping[str, str],
    workdir: Path,
    redact: Callable[[str], str],
    redact_output: Callable[[str], str],
) -> AsyncIterator[Session]:
    """Connect to a server for the duration of the block, which is cancelled if the connection breaks.

    Args:
        env: the whole environment of the server's process.
        redact: removes secrets from the log output of the process.
        redact_output: removes known secrets from the server's texts.

    Raises:
        ToolServerFailed: the connection failed or broke; the message is the reason.
    """
    if spec.url:
        streams = http_streams(spec, headers=headers)
    else:
        streams = stdio_streams(spec, env=env, workdir=workdir, redact=redact)
    changes: list[Session] = []

    async def on_message(message: object) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            for session in changes:
                session.changed.set()

    client = Client(
        streams,
        cache=None,
        message_handler=on_message,
        client_info=mcp_types.Implementation(name="nousd", version=__version__),
    )
    limit = trio.CancelScope(deadline=trio.current_time() + CONNECT_SECONDS)
    with _foreign(redact_output), limit:
        async with client:
            limit.deadline = math.inf
            session = Session(client, redact_output)
            changes.append(session)
            yield session
    if limit.cancelled_caught:
        raise ToolServerFailed(f"it did not answer within {CONNECT_SECONDS:g} seconds")


@contextmanager
def _foreign(redact_output: Callable[[str], str]) -> Iterator[None]:
    """Translate every exception of the SDK into a ``NousdError``. A cancellation passes."""
    failure: NousdError | None = None
    try:
        yield
    except* Exception as group:  # noqa: BLE001 - the boundary to foreign code
        failure = _meaning_of(group, redact_output)
    if failure is not None:
        raise failure


def _meaning_of(error: BaseException, redact_output: Callable[[str], str]) -> NousdError:
    while isinstance(error, BaseExceptionGroup):
        # The first one is the cause; the others follow from it.
        known = [inner for inner in error.exceptions if isinstance(inner, NousdError)]
        error = (known or error.exceptions)[0]
    match error:
        case NousdError():
            return error
        case MCPError(error=reply) if reply.code == mcp_types.CONNECTION_CLOSED:
            return ToolServerFailed("the connection ended")
        case MCPError(error=reply):
            return _ServerError(_short(redact_output(reply.message)))
        case ValidationError():
            fault = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, fault["loc"]))
            return _ServerError(
                f"the answer is not as the protocol has it: {field}: {fault['msg']}"
            )
    if not isinstance(error, OSError | httpx2.HTTPError):
        # An error of the SDK because of a server's message, or a bug in nousd.
        _log.warning("an unexpected end of a conversation with an mcp server", exc_info=error)
    return ToolServerFailed(_short(redact_output(str(error) or type(error).__name__)))


def _short(text: str) -> str:
    return " ".join(text.split())[:_WORDS_CHARS_MAX]
