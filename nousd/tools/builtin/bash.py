"""The tool ``bash``: a shell command in the workspace.

The command runs under a supervisor (``nousd.tools.process.supervisor``), so none of its processes
outlives the call, and in a sandbox, if one works on this machine. A model may request a network, or no
sandbox at all, in the arguments, which the policy judges and the user sees and approves. Without a
sandbox, a command has the user's rights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from nousd.errors import ToolArgumentsInvalid, ToolError
from nousd.tools.function_tool import builtin
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.process.sandboxed_process import Command, ProcessResult, run_command
from nousd.wire.objects.tool_footprint import Access, ToolClass

TIMEOUT_SECONDS: Final = 120
"""Default time-out of a command."""

TIMEOUT_SECONDS_MAX: Final = 3600
"""The longest time-out that a command may request."""

ANY_HOST: Final = ("*",)
"""The hosts of a command that requests more than the sandbox allows."""

COMMAND_BYTES_MAX: Final = 128 * 1024 - 1
"""The kernel's limit for one argument of a program."""


class Bash(msgspec.Struct, frozen=True):
    """Arguments of ``bash``."""

    command: Annotated[str, Meta(min_length=1, description="Shell command to run.")]
    timeout: Annotated[
        int,
        Meta(ge=1, le=TIMEOUT_SECONDS_MAX, description="Seconds after which it is ended."),
    ] = TIMEOUT_SECONDS
    network: Annotated[
        bool, Meta(description="Whether it needs a network; the user may be asked.")
    ] = False
    unsandboxed: Annotated[
        bool,
        Meta(
            description="Whether it needs files or programs outside of the sandbox; the user may be"
            " asked."
        ),
    ] = False


async def _bash(args: Bash, context: ToolContext) -> ToolResult:
    _refuse_impossible(args.command)
    context.extend_idle_deadline(args.timeout)
    command = Command(
        argv=(_shell(), "-c", args.command),
        # Does not block: computing the footprint has already found the sandbox.
        sandbox=None if args.unsandboxed else context.sandbox(),
        network=args.network,
        timeout_seconds=args.timeout,
    )
    return _build_result(await run_command(command, context))


def _access(args: Bash, context: ToolContext) -> Access:
    sandbox = context.sandbox()
    needs_sandbox_exit = sandbox is not None and (args.unsandboxed or args.network)
    has_network = sandbox is None or sandbox.has_network or needs_sandbox_exit
    classes: set[ToolClass] = {"exec", "network"} if has_network else {"exec"}
    return Access(
        classes=frozenset(classes),
        command=args.command,
        # A rule that allows a command does not allow it without a sandbox.
        hosts=ANY_HOST if needs_sandbox_exit else (),
        is_confined=sandbox is not None and not args.unsandboxed,
    )


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


def _build_result(result: ProcessResult) -> ToolResult:
    ended = result.ended
    if ended.failure is not None:
        raise ToolError(f"bash_failed: the command {ended.failure}")
    if result.cut_off is not None:
        return result.to_tool_result("(no output)", f"Command {result.cut_off}")
    return result.to_tool_result(
        "(no output)", f"Command exited with code {ended.code}" if ended.code else None
    )


BASH = builtin(
    "bash",
    "Runs a shell command in the working folder and returns its output: stdout and stderr as they"
    " come, 2>&1 keeps their exact order. There is no terminal and no input; processes left in the"
    " background are ended when the command ends. It mostly runs in a sandbox: it sees the working"
    " folder and the programs of the system, and has no network.",
    Bash,
    _bash,
    dict.fromkeys(("cmd", "script"), "command") | {"timeout_seconds": "timeout"},
    access_of=_access,
    begins_early=True,
)
