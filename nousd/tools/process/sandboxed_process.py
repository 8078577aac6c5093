"""Runs a command of a tool: supervised, sandboxed if required, its output streamed and collected.

The tool decides which program runs, and whether it needs a sandbox.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import trio

from nousd.errors import ToolError
from nousd.tools.environment import filter_environment
from nousd.tools.fs.folder_threads import in_folder_thread
from nousd.tools.fs.open_nofollow import require_real
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.output.tool_output import OutputCollector, OutputStream, WholeCharacters
from nousd.tools.process.supervisor import ProcessEnd, run_supervised
from nousd.tools.sandbox.interface import Request, Sandbox, SandboxedProcess
from nousd.tools.sandbox.trap_watch import LeftFiles, remark_of
from nousd.tools.secrets_interface import SecretsInStream
from nousd.wire.limits import ARTIFACT_BYTES_MAX
from nousd.wire.objects.field_types import OutputKind
from nousd.wire.objects.policy import SandboxFacts

_REASON_CHARS_MAX: Final = 1000

_REFUSAL: Final = re.compile("permission denied|operation not permitted", re.IGNORECASE)
"""The messages with which programs report that the kernel denied them access."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run in the workspace.

    Args:
        argv: the absolute path of the program, and its arguments.
        sandbox: the sandbox that confines it; None to run it without.
        network: whether it may use the network, even if programs in the sandbox usually cannot.
        opened: protected paths that it may change.
        is_read_only: whether the sandbox keeps it from writing in the workspace.
        variables: variables added to the environment of all commands.
    """

    argv: Sequence[str]
    sandbox: Sandbox | None
    timeout_seconds: float
    network: bool = False
    opened: tuple[Path, ...] = ()
    is_read_only: bool = False
    variables: dict[str, str] = {}


class ProcessResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command.

    Args:
        result: its output for the model, and the facts about its sandbox.
        remarks: further facts for the model.
    """

    ended: ProcessEnd
    result: ToolResult
    timeout_seconds: float
    remarks: tuple[str, ...] = ()

    @property
    def is_error(self) -> bool:
        """Whether the command was ended, or its exit code is not zero."""
        return self.cut_off is not None or self.ended.code != 0

    @property
    def cut_off(self) -> str | None:
        """Why it was ended, in words to follow its name; None if it ended by itself."""
        if self.ended.exceeded is not None:
            return f"was ended: it went beyond {self._limit_exceeded(self.ended.exceeded)}"
        return f"timed out after {self.timeout_seconds:g} seconds" if self.ended.timed_out else None

    def _limit_exceeded(self, name: str) -> str:
        facts = self.result.sandbox
        return f"the limit {name} of {facts.limits[name]}" if facts else f"the limit {name}"

    def to_tool_result(self, empty_text: str, *notes: str | None) -> ToolResult:
        """Return the text for the model: output, remarks, and then the notes.

        Args:
            empty_text: the text instead of an empty output.
        """
        remarks = [f"[{remark}]" for remark in self.remarks]
        text = "\n\n".join([self.result.text or empty_text, *remarks, *filter(None, notes)])
        return msgspec.structs.replace(self.result, text=text, is_error=self.is_error)


async def run_command(command: Command, context: ToolContext) -> ProcessResult:
    """Run a command to its end, streaming its output.

    Raises:
        ToolError: it cannot be confined.
    """
    collector = OutputCollector(context.spool_folder)
    stream = OutputStream(context.emit)
    output = _WatchedStream("stdout", context.secrets.stream(), collector, stream)
    errors = _WatchedStream("stderr", context.secrets.stream(), collector, stream)

    async with _hold_sandbox(command, context) as process, trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        ended = await run_supervised(
            process.argv,
            cwd=context.workdir,
            env=process.env,
            on_output=output.feed,
            on_errors=errors.feed,
            wait_room=collector.wait_room,
            timeout_seconds=command.timeout_seconds,
            sandboxed=process,
            wait_started=context.wait_started,
        )
        output.finish()
        errors.finish()
        stream.finish()
    await collector.finish()
    result = collector.tail()
    if process.facts is not None:
        facts = _with_left(_with_own_limits(process.facts, command), process.left_files)
        result = msgspec.structs.replace(result, execution_env="sandbox", sandbox=facts)
    hints = (process.hint,) if process.hint and _REFUSAL.search(result.text) else ()
    return ProcessResult(
        ended=ended,
        result=result,
        timeout_seconds=command.timeout_seconds,
        remarks=(
            *process.remarks,
            *(remark_of(found.files) for found in process.left_files if found.files),
            *hints,
        ),
    )


class _WatchedStream:
    """Passes one stream of a command, without secrets, to the result and to the session's clients."""

    def __init__(
        self,
        kind: OutputKind,
        secrets: SecretsInStream[bytes],
        collector: OutputCollector,
        stream: OutputStream,
    ) -> None:
        self._kind = kind
        self._secrets = secrets
        self._characters = WholeCharacters()
        self._collector = collector
        self._stream = stream

    def feed(self, chunk: bytes) -> None:
        self._tell(self._characters.feed(self._secrets.feed(chunk)))

    def finish(self) -> None:
        self._tell(self._characters.feed(self._secrets.finish()) + self._characters.finish())

    def _tell(self, chunk: bytes) -> None:
        self._collector.feed(chunk)
        self._stream.feed(chunk, self._kind)


async def capture_stdout(command: Command, context: ToolContext, bytes_max: int) -> bytes:
    """Return the output of a command without streaming it.

    Raises:
        ToolError: it failed, printed more than ``bytes_max`` bytes, or cannot be confined.
    """
    output = bytearray()

    def take(chunk: bytes) -> None:
        output.extend(chunk[: bytes_max + 1 - len(output)])

    async with _hold_sandbox(command, context) as process:
        ended = await run_supervised(
            process.argv,
            cwd=context.workdir,
            env=process.env,
            on_output=take,
            timeout_seconds=command.timeout_seconds,
            sandboxed=process,
        )
    failed = f"{Path(command.argv[0]).name}_failed"
    if len(output) > bytes_max:
        raise ToolError(f"{failed}: it said more than {bytes_max} bytes")
    if ended != ProcessEnd():
        reason = ended.failure or output.decode("utf-8", "replace").strip() or f"code {ended.code}"
        raise ToolError(f"{failed}: {reason[-_REASON_CHARS_MAX:]}")
    return bytes(output)


def _with_own_limits(facts: SandboxFacts, command: Command) -> SandboxFacts:
    """Return the facts with the limits that apply to every command."""
    seconds, output = command.timeout_seconds, ARTIFACT_BYTES_MAX
    own_limits = {"time_ms": round(seconds * 1000), "output_bytes": output}
    return msgspec.structs.replace(facts, limits={**own_limits, **facts.limits})


def _with_left(facts: SandboxFacts, left_files: Sequence[LeftFiles]) -> SandboxFacts:
    """Return the facts with the files that the command left and that programs would obey."""
    return msgspec.structs.replace(
        facts,
        left=tuple(file for each in left_files for file in each.files),
        is_left_partial=any(each.is_partial for each in left_files),
    )


@asynccontextmanager
async def _hold_sandbox(command: Command, context: ToolContext) -> AsyncIterator[SandboxedProcess]:
    env = {**filter_environment(), **command.variables}
    if command.sandbox is None:
        await in_folder_thread(require_real, context.workdir)
        yield SandboxedProcess(argv=command.argv, env=env)
        return
    sandbox_context = command.sandbox.hold(
        Request(
            argv=command.argv,
            env=env,
            workdir=context.workdir,
            hidden=context.path_sandbox.hidden,
            reading=context.path_sandbox.restrictions.reading,
            writing=context.path_sandbox.restrictions.writing,
            opened=command.opened,
            may_miss=context.path_sandbox.restrictions.may_miss,
            is_read_only=command.is_read_only,
            network=command.network or command.sandbox.has_network,
        )
    )
    process = await in_folder_thread(_enter_sandbox, sandbox_context, context.workdir)
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(sandbox_context.__exit__, None, None, None)
        if files := tuple(file for each in process.left_files for file in each.files):
            context.tell_left(files)


def _enter_sandbox(
    sandbox_context: AbstractContextManager[SandboxedProcess], workdir: Path
) -> SandboxedProcess:
    # The program and the sandbox get the workspace by its path, which may lead elsewhere by now.
    require_real(workdir)
    return sandbox_context.__enter__()
