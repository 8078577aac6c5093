"""The tool ``bash``: a shell command in the workdir.

It is held by a supervisor (``nousd.tools.supervisor``), so nothing of it outlives the call. What it may
touch is not limited here: whoever registers this tool gives a model the rights of the user.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
import trio
from msgspec import Meta

from nousd.errors import ToolArgumentsInvalid, ToolError
from nousd.tools.environment import allowed_environment
from nousd.tools.function_tool import builtin
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.output import OutputCollector, OutputStream
from nousd.tools.supervisor import Ended, run_supervised
from nousd.wire.access import Access, ToolClass

TIMEOUT_SECONDS: Final = 120
"""For commands that come without one."""

TIMEOUT_SECONDS_MAX: Final = 3600
"""The longest that a command may ask for."""

COMMAND_BYTES_MAX: Final = 128 * 1024 - 1
"""What the kernel takes as one argument of a program."""


class Bash(msgspec.Struct, frozen=True):
    """Arguments of ``bash``."""

    command: Annotated[str, Meta(min_length=1, description="Shell command to run.")]
    timeout: Annotated[
        int,
        Meta(ge=1, le=TIMEOUT_SECONDS_MAX, description="Seconds after which it is ended."),
    ] = TIMEOUT_SECONDS


async def _bash(args: Bash, context: ToolContext) -> ToolResult:
    _refuse_impossible(args.command)
    context.expect_quiet(args.timeout)
    collector = OutputCollector(context.spool_folder)
    stream = OutputStream(context.emit)

    def take(chunk: bytes) -> None:
        collector.feed(chunk)
        stream.feed(chunk)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        ended = await run_supervised(
            [_shell(), "-c", args.command],
            cwd=context.workdir,
            env=allowed_environment(),
            on_output=take,
            wait_room=collector.wait_room,
            timeout_seconds=args.timeout,
        )
        stream.finish()
    await collector.finish()
    return _result(collector.tail(), ended, args.timeout)


def _access(args: Bash, context: ToolContext) -> Access:
    sandbox = context.sandbox
    has_network = sandbox is None or sandbox.has_network
    classes: set[ToolClass] = {"exec", "network"} if has_network else {"exec"}
    return Access(classes=frozenset(classes), command=args.command, is_confined=sandbox is not None)


def _refuse_impossible(command: str) -> None:
    if "\0" in command:
        raise ToolArgumentsInvalid("validation_failed: bash.command must not hold a NUL character")
    if len(command.encode()) > COMMAND_BYTES_MAX:
        raise ToolArgumentsInvalid(
            f"validation_failed: bash.command must have at most {COMMAND_BYTES_MAX} bytes"
        )


def _shell() -> str:
    return next(
        (shell for shell in ("/bin/bash", "/usr/bin/bash") if Path(shell).exists()), "/bin/sh"
    )


def _result(output: ToolResult, ended: Ended, timeout: int) -> ToolResult:
    if ended.failure is not None:
        raise ToolError(f"bash_failed: the command {ended.failure}")
    text = output.text or "(no output)"
    if ended.timed_out:
        text = f"{text}\n\nCommand timed out after {timeout} seconds"
    elif ended.code != 0:
        text = f"{text}\n\nCommand exited with code {ended.code}"
    return ToolResult(text=text, is_error=ended.timed_out or ended.code != 0, full=output.full)


BASH = builtin(
    "bash",
    "Runs a shell command in the working folder and returns its output. There is no terminal and no"
    " input; processes left in the background are ended when the command ends.",
    Bash,
    _bash,
    dict.fromkeys(("cmd", "script"), "command") | {"timeout_seconds": "timeout"},
    access_of=_access,
)
