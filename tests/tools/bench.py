"""A workspace with a directory outside it, tool calls, and observation of real processes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.tools.builtin.catalog import builtin_tools
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.registry import ToolRegistry
from nousd.wire.objects.field_types import OutputKind
from tests.harness.daemon import WAIT_SECONDS

T = TypeVar("T")

SECRET = "the-secret-outside"
REPOSITORY = Path(__file__).parents[2]


class Bench:
    """Built-in tools in a workspace of the test's own."""

    seconds_max: float = WAIT_SECONDS
    """The time limit for one call; only a failing test reaches it."""

    def __init__(self, root: Path) -> None:
        self.outside = root / "outside"
        self.work = root / "work"
        self.hidden = self.work / ".state"
        for folder in (self.outside, self.work, self.hidden):
            folder.mkdir(parents=True, exist_ok=True)
        (self.outside / "secret.txt").write_text(SECRET)
        (self.hidden / "log.db").write_text(SECRET)
        self.registry = ToolRegistry(builtin_tools(allow_exec=True))
        self.emitted: list[str] = []
        self.streams: list[OutputKind | None] = []
        """The stream of each piece in ``emitted``."""
        self.quiet_seconds: list[float] = []
        self.context = ToolContext(
            path_sandbox=PathSandbox(self.work, (self.hidden,)),
            emit=self._emit,
            extend_idle_deadline=self.quiet_seconds.append,
        )

    async def _emit(self, text: str, stream: OutputKind | None = None) -> None:
        self.emitted.append(text)
        self.streams.append(stream)

    async def call(self, tool: str, **args: Any) -> ToolResult:
        found = self.registry.get(tool)
        assert found is not None
        with trio.fail_after(self.seconds_max):
            return await found.run(found.validate(args), self.context)

    async def text(self, tool: str, **args: Any) -> str:
        return (await self.call(tool, **args)).text

    def put(self, path: str, content: str | bytes) -> Path:
        target = self.work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        return target

    def close(self, *, reading: Iterable[str] = (), writing: Iterable[str] = ()) -> None:
        """Close paths to later calls."""
        path_sandbox = self.context.path_sandbox.restrict(
            reading=map(re.compile, reading), writing=map(re.compile, writing)
        )
        self.restrict(path_sandbox)

    def open(self, *paths: str) -> None:
        """Open the targets of these paths to later calls, as if the user had approved it."""
        asking = PathSandbox(self.work, (self.hidden,)).asking()
        places = [place for path in paths if (place := asking.beyond(path)) is not None]
        assert len(places) == len(paths)
        self.restrict(self.context.path_sandbox.allow_outside(places))

    def restrict(self, path_sandbox: PathSandbox) -> None:
        """Use another path sandbox for later calls."""
        self.context = msgspec.structs.replace(self.context, path_sandbox=path_sandbox)

    def names(self) -> set[str]:
        return {path.name for path in self.work.iterdir()}


class Lifeline:
    """A FIFO that processes hold open: it ends only when the last of them is gone.

    In a shell: ``exec 9>"$FIFO"; echo ready >&9``.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    async def wait_ready(self, processes: int) -> None:
        """Return when that many processes have written ``ready``."""
        seen = b""
        with trio.fail_after(WAIT_SECONDS):
            while seen.count(b"ready\n") < processes:
                await trio.lowlevel.wait_readable(self._descriptor)
                chunk = os.read(self._descriptor, 4096)
                assert chunk, "they ended before they were ready"
                seen += chunk

    def is_gone(self) -> bool:
        """True if no process holds the FIFO open any more."""
        try:
            while os.read(self._descriptor, 4096):
                pass
        except BlockingIOError:
            return False
        return True

    async def time_out(
        self, call: Callable[[], Awaitable[T]], clock: MockClock, seconds: float
    ) -> T:
        """Return the outcome of a call whose time runs out when one of its processes is ready.

        Args:
            clock: the test's clock, which stands still until then.
        """
        outcomes: list[T] = []

        async def play() -> None:
            outcomes.append(await call())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(play)
            await self.wait_ready(1)
            # The process may be ready before the call knows that it was started, and sets its limit.
            given_up_at = time.monotonic() + WAIT_SECONDS
            while trio.lowlevel.current_statistics().seconds_to_next_deadline > seconds:
                assert time.monotonic() < given_up_at, "the call set no limit"
                await wait_all_tasks_blocked(0.001)
            clock.jump(seconds)
        return outcomes[0]

    async def wait_gone(self) -> None:
        """Return when no process holds the FIFO open any more."""
        with trio.fail_after(WAIT_SECONDS):
            while True:
                await trio.lowlevel.wait_readable(self._descriptor)
                if not os.read(self._descriptor, 4096):
                    return


@contextmanager
def lifeline(path: Path) -> Iterator[Lifeline]:
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield Lifeline(path, descriptor)
    finally:
        os.close(descriptor)


def supervising(
    control: socket.socket,
    script: str,
    cwd: Path,
    *,
    grace_seconds: float = 0.5,
    is_holder: bool = False,
    changes: str = "",
) -> list[str]:
    """Return the command line of a process that supervises a shell script.

    Args:
        is_holder: whether the shell only holds what it starts.
        changes: code that runs before, with the module ``supervisor``.
    """
    job = {
        "argv": ["/bin/sh", "-c", script],
        "cwd": str(cwd),
        "environment": {"PATH": os.environ["PATH"]},
        "grace_seconds": grace_seconds,
        "limits": (is_holder, 0, 0, 0),
        "control": control.fileno(),
        "asks_on": -1,
        "places": [[0], [1], [2], [control.fileno()]],
    }
    code = f"""
import marshal, os
from nousd.tools.process import first_process, supervisor_process as supervisor
from nousd.tools.process.jobs import ReceivedJob
from nousd.wire.objects.field_types import OutputKind
{changes}
job = {job}
file = os.memfd_create("job")
os.write(file, marshal.dumps(job))
first = first_process.FirstProcess(is_ahead=False)
first.take(ReceivedJob(job, [file, 0, 1, 2, {control.fileno()}]))
supervisor.run(job, first)
"""
    return [sys.executable, "-c", code]


# Writes ``ready`` three times; one process has left its group, and one has lost its parent.
FAMILY = """
exec 9>'{fifo}'
(setsid sh -c 'trap "" TERM HUP; echo ready >&9; while :; do sleep 1000; done' &)
setsid sh -c 'setsid sh -c "echo ready >&9; sleep 1000" & sleep 1000' &
echo ready >&9
while :; do sleep 1000; done
"""


@asynccontextmanager
async def another_daemon(code: str, script: str) -> AsyncIterator[trio.Process]:
    """Run Python code in another process, with a shell script and a PATH as its arguments."""
    daemon = await trio.lowlevel.open_process(
        [sys.executable, "-c", code, script, os.environ["PATH"]],
        cwd=REPOSITORY,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield daemon
    finally:
        daemon.kill()
        await daemon.wait()
