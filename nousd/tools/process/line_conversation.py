"""Exchanges lines with a local program, such as an MCP server or another agent.

Its output is read at a bounded rate: a program that writes faster blocks on its pipe. A bounded part of
its standard error goes to the daemon's diagnostic log.
"""

from __future__ import annotations

import logging
import shutil
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

import msgspec
import trio

from nousd.errors import NousdError
from nousd.tools.process.message_limits import MESSAGES_PER_SECOND, Pace, values_in
from nousd.tools.process.supervisor import Conversation
from nousd.wire.codec.framing import LineSplitter, LineTooLong

_WRITE_SECONDS: Final = 30.0
"""How long a program may leave a line unread."""

_FAREWELL_SECONDS: Final = 0.5
"""Time between closing its input, which asks it to end, and the signal."""

_STDERR_LINE_BYTES_MAX: Final = 1000
_STDERR_LINES_PER_SECOND: Final = 20
_LAST_STDERR_LINES: Final = 3
"""Number of lines of standard error that a failure quotes."""

_log: Final = logging.getLogger(__name__)


class LineBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum bytes and JSON values of one line, and the lines that are read per second."""

    bytes_max: int
    values_max: int
    per_second: int = MESSAGES_PER_SECOND


class LineConversation:
    """The lines of a running program.

    Args:
        name: its name in the diagnostic log, such as ``mcp server files``.
        failure: makes the error that is raised when the conversation fails.
        redact: removes secrets from its standard error.
        tells_code: whether the failure of an ended program names its exit code.
    """

    def __init__(
        self,
        name: str,
        process: Conversation,
        bounds: LineBounds,
        failure: Callable[[str], NousdError],
        redact: Callable[[str], str],
        *,
        tells_code: bool = False,
    ) -> None:
        self._tells_code = tells_code
        self._name = name
        self._process = process
        self._bounds = bounds
        self._failure = failure
        self._redact = redact
        self._writing = trio.Lock()
        self._is_line_cut = False
        self._last_stderr_lines: deque[str] = deque(maxlen=_LAST_STDERR_LINES)
        self._stderr_ended = trio.Event()

    async def read(self, take: Callable[[bytes], Awaitable[None]]) -> NoReturn:
        """Pass each line to ``take`` until the program ends, which always counts as a failure.

        Raises:
            NousdError: the ``failure``: it ended, or a line is beyond the bounds.
        """
        splitter = LineSplitter(self._bounds.bytes_max)
        pace = Pace(self._bounds.per_second)
        async for chunk in self._process.stdout:
            for line in splitter.feed(chunk):
                if isinstance(line, LineTooLong):
                    raise self._failure(
                        f"it sent a message of more than {self._bounds.bytes_max} bytes"
                    )
                values = values_in(line)
                if values > self._bounds.values_max:
                    raise self._failure(
                        f"it sent a message of more than {self._bounds.values_max} values"
                    )
                await pace.take(len(line), values=values)
                await take(line)
        with trio.move_on_after(_FAREWELL_SECONDS):
            await self._stderr_ended.wait()
            if self._tells_code:
                await self._process.wait()
        code = self._process.code() if self._tells_code else None
        ended = "it ended" if code is None else f"it ended with exit code {code}"
        raise self._failure("; ".join([ended, *self._last_stderr_lines]))

    async def write(self, line: bytes) -> None:
        """Send a line, given without its line feed. If the program is ending, do nothing: ``read``
        reports why.

        Raises:
            NousdError: the ``failure``: the program does not read its input, or an earlier line was cut
                off because its sender was cancelled.
        """
        with trio.move_on_after(_WRITE_SECONDS) as limit:
            async with self._writing:
                if self._is_line_cut:
                    raise self._failure("a message to it was cut off")
                self._is_line_cut = True
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._process.stdin.send_all(line + b"\n")
                self._is_line_cut = False
        if limit.cancelled_caught:
            raise self._failure(f"it did not read what it was sent for {_WRITE_SECONDS:g} seconds")

    async def read_stderr(self) -> None:
        """Log its standard error; excess lines are dropped."""
        splitter = LineSplitter(_STDERR_LINE_BYTES_MAX)
        pace = Pace()
        window, logged = trio.current_time(), 0
        async for chunk in self._process.stderr:
            lines = [
                line for line in splitter.feed(chunk) if isinstance(line, bytes) and line.strip()
            ]
            for line in lines:
                text = self._redact(line.decode("utf-8", "replace").strip())
                self._last_stderr_lines.append(text)
                if trio.current_time() - window >= 1:
                    window, logged = trio.current_time(), 0
                logged += 1
                if logged <= _STDERR_LINES_PER_SECOND:
                    _log.info("%s: %s", self._name, text)
            await pace.take(len(chunk), messages=len(lines))
        self._stderr_ended.set()

    async def dismiss(self) -> None:
        """Ask the program to end by closing its input, and wait a moment for its end."""
        with trio.CancelScope(shield=True):
            await self._process.stdin.aclose()
            with trio.move_on_after(_FAREWELL_SECONDS):
                await self._process.wait()


def find_program(
    command: Sequence[str], env: Mapping[str, str], failure: Callable[[str], NousdError]
) -> tuple[str, ...]:
    """Return a command line with its program replaced by the path found in the PATH of ``env``.

    Raises:
        NousdError: the ``failure``: there is no such program.
    """
    program = command[0]
    if "/" not in program:
        found = shutil.which(program, path=env.get("PATH", ""))
        if found is None:
            raise failure(f"there is no program {program}")
        program = found
    return (program, *command[1:])
