"""Programs to measure: folders for them, processes for as long as a block lasts, and turns."""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import trio

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PYTHON: Final = sys.executable
DAEMON: Final = (PYTHON, "-m", "nousd")

Measure = Callable[[], Awaitable[float]]


async def in_turns(rounds: int, *measures: Measure) -> list[float]:
    """Measures A B C, A B C, ... so that noise meets all alike; returns the median of each."""
    figures: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for measure, taken in zip(measures, figures, strict=True):
            taken.append(await measure())
    return [statistics.median(taken) for taken in figures]


@contextmanager
def folder() -> Iterator[Path]:
    """A short folder, because a Unix socket's path is short; on a disk, because fsync counts."""
    path = Path(tempfile.mkdtemp(prefix="nousd-bench-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def free_port() -> int:
    """Return a port of loopback on which nobody listens at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def process(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program for as long as the block lasts."""
    running = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    )
    try:
        yield running
    finally:
        running.terminate()
        running.wait()


@contextmanager
def helper(module: str, *args: str) -> Iterator[str]:
    """Run a module of this package; gives the first line it prints, when it is ready."""
    with process(PYTHON, "-m", f"scripts.benchmarks.{module}", *args) as running:
        assert running.stdout is not None
        yield running.stdout.readline().strip()


class Daemon:
    """A daemon that runs: where its socket is, and which process it is."""

    def __init__(self, socket: Path, pid: int) -> None:
        self.socket = socket
        self.pid = pid

    @property
    def events(self) -> Path:
        """The socket that events are on."""
        return Path(f"{self.socket}.events")


@asynccontextmanager
async def daemon(
    place: Path, *flags: str, program: tuple[str, ...] = DAEMON
) -> AsyncIterator[Daemon]:
    """Run the daemon with its socket and state in ``place``, from when it can be connected to."""
    path = place / "s"
    argv = ["serve", "--socket", str(path), "--state-dir", str(place / "state"), *flags]
    with process(*program, *argv) as running:
        await connectable(path, running)
        yield Daemon(path, running.pid)


def model_flags(api_base: str) -> tuple[str, ...]:
    """Return the daemon's flags for a model stub."""
    return ("--provider", "openai", "--api-base", api_base, "--model", "m")


async def connectable(path: Path, running: subprocess.Popen[str] | None = None) -> None:
    """Wait until someone listens.

    Raises:
        RuntimeError: the process that should is over.
    """
    while True:
        try:
            stream = await trio.open_unix_socket(path)
        except OSError:
            if running is not None and running.poll() is not None:
                raise RuntimeError(f"{running.args!r} ended with {running.returncode}") from None
            await trio.sleep(0.001)
        else:
            await stream.aclose()
            return
