"""A server as a process of this machine: its messages are lines on its standard input and output.

It runs under a supervisor, so it dies with the daemon and leaves nothing behind. It is read at a
bounded rate: a server that floods us waits in its own pipe. A bounded part of its standard error goes
to the daemon's diagnostic log.
"""

from __future__ import annotations

import logging
import shutil
from collections import deque
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
from nousd.tools.mcp.message_limits import Pace, values_in
from nousd.tools.mcp.spec import ServerSpec
from nousd.tools.process.supervisor import Conversation, supervised_conversation
from nousd.wire.codec.framing import LineSplitter, LineTooLong
from nousd.wire.limits import MCP_MESSAGE_BYTES_MAX, MCP_MESSAGE_VALUES_MAX

_WRITES_WAITING_MAX: Final = 64
_WRITE_SECONDS: Final = 30.0
"""How long a server may leave a message unread."""

_FAREWELL_SECONDS: Final = 0.5
"""Time between the end of its input, which asks it to end, and the signal."""

_STDERR_LINE_BYTES_MAX: Final = 1000
_STDERR_LINES_PER_SECOND: Final = 20
_LAST_WORDS: Final = 3
"""Number of lines of standard error that a failure quotes."""

_log: Final = logging.getLogger(__name__)

FromServer = MemoryObjectSendStream[SessionMessage | Exception]
ToServer = MemoryObjectReceiveStream[SessionMessage]


@asynccontextmanager
async def stdio_streams(
    spec: ServerSpec, *, env: Mapping[str, str], workdir: Path, redact: Callable[[str], str]
) -> AsyncIterator[tuple[Any, Any]]:
    """Start the server and yield the streams for a session of the SDK.

    Raises:
        ToolServerFailed: it cannot be started, has ended, or sent an unacceptable message.
    """
    argv = _found(spec.command, env)
    try:
        async with supervised_conversation(
            argv, cwd=workdir / (spec.cwd or ""), env=env
        ) as process:
            server = _Server(spec.name, process, redact)
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
                    nursery.start_soon(server.read_stderr)
                    try:
                        yield from_server, to_server
                    finally:
                        nursery.cancel_scope.cancel()
                        await server.dismiss()
    except OSError as error:
        raise ToolServerFailed(f"{argv[0]}: {error.strerror}") from None


def _found(command: tuple[str, ...], env: Mapping[str, str]) -> tuple[str, ...]:
    program = command[0]
    if "/" not in program:
        found = shutil.which(program, path=env.get("PATH", ""))
        if found is None:
            raise ToolServerFailed(f"there is no program {program}")
        program = found
    return (program, *command[1:])


class _Server:
    """The process of a server, as its streams."""

    def __init__(self, name: str, process: Conversation, redact: Callable[[str], str]) -> None:
        self._name = name
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._stderr = process.stderr
        self._redact = redact
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        self._silent = trio.Event()

    async def read(self, to_session: FromServer) -> None:
        """Pass on messages until the server ends, which always counts as a failure."""
        lines = LineSplitter(MCP_MESSAGE_BYTES_MAX)
        pace = Pace()
        async for chunk in self._stdout:
            for line in lines.feed(chunk):
                if isinstance(line, LineTooLong):
                    raise ToolServerFailed(
                        f"it sent a message of more than {MCP_MESSAGE_BYTES_MAX} bytes"
                    )
                values = values_in(line)
                if values > MCP_MESSAGE_VALUES_MAX:
                    raise ToolServerFailed(
                        f"it sent a message of more than {MCP_MESSAGE_VALUES_MAX} values"
                    )
                await pace.take(len(line), values=values)
                message = _decoded(line)
                if message is not None:
                    await to_session.send(message)
        with trio.move_on_after(_FAREWELL_SECONDS):
            await self._silent.wait()
        raise ToolServerFailed("; ".join(["it ended", *self._last_words]))

    async def write(self, from_session: ToServer) -> None:
        async for message in from_session:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
            with trio.move_on_after(_WRITE_SECONDS) as limit:
                try:
                    await self._stdin.send_all(line.encode("utf-8", "replace"))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # it is ending; the reader reports why
            if limit.cancelled_caught:
                raise ToolServerFailed(
                    f"it did not read what it was sent for {_WRITE_SECONDS:g} seconds"
                )

    async def read_stderr(self) -> None:
        """Log the server's standard error; excess lines are dropped."""
        lines = LineSplitter(_STDERR_LINE_BYTES_MAX)
        pace = Pace()
        window, logged = trio.current_time(), 0
        async for chunk in self._stderr:
            said = [line for line in lines.feed(chunk) if isinstance(line, bytes) and line.strip()]
            for line in said:
                text = self._redact(line.decode("utf-8", "replace").strip())
                self._last_words.append(text)
                if trio.current_time() - window >= 1:
                    window, logged = trio.current_time(), 0
                logged += 1
                if logged <= _STDERR_LINES_PER_SECOND:
                    _log.info("mcp server %s: %s", self._name, text)
            await pace.take(len(chunk), messages=len(said))
        self._silent.set()

    async def dismiss(self) -> None:
        """Ask the server to end, and wait a moment for that."""
        with trio.CancelScope(shield=True):
            await self._stdin.aclose()
            with trio.move_on_after(_FAREWELL_SECONDS):
                await self._process.wait()


class _Answer(msgspec.Struct):
    """The readable fields of an invalid answer."""

    id: int | str


def _decoded(line: bytes) -> SessionMessage | None:
    """Return a message; None if it is invalid or nobody waits for it."""
    try:
        message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return _as_error(line)
    is_log = (
        isinstance(message, mcp_types.JSONRPCNotification)
        and message.method == "notifications/message"
    )
    return None if is_log else SessionMessage(message)


def _as_error(line: bytes) -> SessionMessage | None:
    """Return an error instead of an invalid answer, so that nobody waits for it."""
    try:
        answer = msgspec.json.decode(line, type=_Answer)
    except (msgspec.DecodeError, RecursionError):
        return None
    fault = mcp_types.ErrorData(
        code=mcp_types.INTERNAL_ERROR, message="the answer is not as the protocol has it"
    )
    return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=answer.id, error=fault))
