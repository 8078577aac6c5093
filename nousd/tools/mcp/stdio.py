"""The connection to a server that is a process: messages are lines on its standard input and output.

The process runs under a supervisor, so it ends with the daemon and leaves no processes behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import mcp_types
import msgspec
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from nousd.errors import ToolServerFailed
from nousd.tools.mcp.spec import ServerSpec
from nousd.tools.process.line_conversation import LineBounds, LineConversation, find_program
from nousd.tools.process.supervisor import open_conversation
from nousd.wire.codec.decoding import decode_json
from nousd.wire.limits import MCP_MESSAGE_BYTES_MAX, MCP_MESSAGE_VALUES_MAX

_WRITES_WAITING_MAX: Final = 64

FromServer = MemoryObjectSendStream[SessionMessage | Exception]
ToServer = MemoryObjectReceiveStream[SessionMessage]


@asynccontextmanager
async def stdio_streams(
    spec: ServerSpec, *, env: Mapping[str, str], workdir: Path, redact: Callable[[str], str]
) -> AsyncIterator[tuple[Any, Any]]:
    """Start the server and yield the streams for a session of the SDK.

    Raises:
        ToolServerFailed: the server cannot be started, has ended, or sent an unacceptable message.
    """
    argv = find_program(spec.command, env, ToolServerFailed)
    try:
        async with open_conversation(argv, cwd=workdir / (spec.cwd or ""), env=env) as process:
            bounds = LineBounds(bytes_max=MCP_MESSAGE_BYTES_MAX, values_max=MCP_MESSAGE_VALUES_MAX)
            conversation = LineConversation(
                f"mcp server {spec.name}", process, bounds, ToolServerFailed, redact
            )
            server = _Server(conversation)
            to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](
                0
            )
            to_server, from_session = anyio.create_memory_object_stream[SessionMessage](
                _WRITES_WAITING_MAX
            )
            with to_session, from_server, to_server, from_session:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(server.read, to_session)
                    nursery.start_soon(server.write, from_session)
                    nursery.start_soon(conversation.read_stderr)
                    try:
                        yield from_server, to_server
                    finally:
                        nursery.cancel_scope.cancel()
                        await conversation.dismiss()
    except OSError as error:
        raise ToolServerFailed(f"{argv[0]}: {error.strerror}") from None


class _Server:
    """The process of a server, as the streams of a session of the SDK."""

    def __init__(self, conversation: LineConversation) -> None:
        self._conversation = conversation

    async def read(self, to_session: FromServer) -> None:
        """Forward messages until the server ends, which always counts as a failure."""

        async def take(line: bytes) -> None:
            message = _decode_message(line)
            if message is not None:
                await to_session.send(message)

        await self._conversation.read(take)

    async def write(self, from_session: ToServer) -> None:
        async for message in from_session:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await self._conversation.write(line.encode("utf-8", "replace"))


class _Answer(msgspec.Struct):
    """The readable fields of an invalid answer."""

    id: int | str


def _decode_message(line: bytes) -> SessionMessage | None:
    """Return a message; None for a log notification, and for an invalid message without an id."""
    try:
        message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return _as_error(line)
    is_log_message = (
        isinstance(message, mcp_types.JSONRPCNotification)
        and message.method == "notifications/message"
    )
    return None if is_log_message else SessionMessage(message)


def _as_error(line: bytes) -> SessionMessage | None:
    """Return an error in place of an invalid answer, so that its request does not wait for ever."""
    try:
        answer = decode_json(line, type=_Answer)
    except (msgspec.DecodeError, RecursionError):
        return None
    fault = mcp_types.ErrorData(
        code=mcp_types.INTERNAL_ERROR, message="the answer is not as the protocol has it"
    )
    return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=answer.id, error=fault))
