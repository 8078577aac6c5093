"""The daemon as a separate process: started, stopped, killed.

It says that it is ready through the service manager's socket, so nothing has to be tried again and
again. Whatever a test leaves running is killed when its block is left.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from tests.harness.daemon import WAIT_SECONDS, Client, Events
from tests.harness.stub_model import StubModel

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Place:
    """The folder of a daemon, over any number of starts. ``stub``: its model; None: the built-in one."""

    folder: Path
    stub: StubModel | None = None
    options: tuple[str, ...] = ()
    umask: int = 0o022
    allow_exec: bool = True
    permission_mode: str = "yolo"
    sandbox: str = "none"
    _streams: list[trio.abc.Stream] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("run", "state", "work"):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "nous.sock"

    @property
    def events_socket(self) -> Path:
        return Path(f"{self.socket}.events")

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def command(self, **changed: Path) -> list[str]:
        """Return the command line; ``changed`` replaces the socket or the state folder."""
        paths = {"socket": self.socket, "state_dir": self.state, "workdir": self.work, **changed}
        command = [sys.executable, "-m", "nousd", "serve"]
        if self.allow_exec:
            command.append("--allow-exec")
        for name, path in paths.items():
            command += [f"--{name.replace('_', '-')}", str(path)]
        if self.stub is not None:
            command += ["--provider", "openai", "--api-base", self.stub.api_base]
        return [*command, *self.options]

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder),
            "NOUSD_PROVIDER": "mock",
            "NOUSD_PERMISSION_MODE": self.permission_mode,
            "NOUSD_SANDBOX": self.sandbox,
            **more,
        }

    async def refusal(self, **changed: Path) -> tuple[int, str]:
        """Start a daemon that must not start; returns its exit code and what it said."""
        with trio.fail_after(WAIT_SECONDS):
            ended = await trio.run_process(
                self.command(**changed),
                env=self.environment(),
                cwd=REPOSITORY,
                capture_stderr=True,
                check=False,
            )
        return ended.returncode, ended.stderr.decode()

    async def connect(self) -> Client:
        return Client(await self._open(self.socket))

    async def watch(self, **subscription: Any) -> Events:
        events = Events(await self._open(self.events_socket))
        await events.subscribe(**subscription)
        return events

    async def _open(self, path: Path) -> trio.abc.Stream:
        stream = await trio.open_unix_socket(path)
        self._streams.append(stream)
        return stream

    async def aclose(self) -> None:
        for stream in self._streams:
            await trio.aclose_forcefully(stream)


class Process:
    """A daemon that is ready."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def stop(self) -> int:
        """Tells it to stop; returns its exit code, or fails if it takes too long."""
        self._process.send_signal(signal.SIGTERM)
        with trio.fail_after(WAIT_SECONDS):
            return await self._process.wait()

    async def kill(self) -> None:
        """Kill it in mid-step, as a crash or the kernel would."""
        self._process.kill()
        await self._process.wait()

    def descriptors(self) -> int:
        """The number of files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def running(place: Place) -> AsyncIterator[Process]:
    """Start a daemon and wait until it is ready; kills it at the end if it still runs."""
    ready = trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    address = place.folder / "ready"
    with ready, suppress(FileNotFoundError):
        await ready.bind(str(address))
        with (place.folder / "daemon.log").open("ab") as log:
            process = await trio.lowlevel.open_process(
                place.command(),
                env=place.environment(NOTIFY_SOCKET=str(address)),
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=place.umask,
            )
        try:
            with trio.fail_after(WAIT_SECONDS):
                await _wait_ready(ready, process, place)
            address.unlink()
            yield Process(process)
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                await place.aclose()


async def _wait_ready(ready: trio.socket.SocketType, process: trio.Process, place: Place) -> None:
    async with trio.open_nursery() as nursery:

        async def fail_if_it_ends() -> None:
            code = await process.wait()
            log = (place.folder / "daemon.log").read_text()
            raise AssertionError(f"the daemon ended with {code}: {log}")

        nursery.start_soon(fail_if_it_ends)
        while b"READY=1" not in await ready.recv(4096):
            pass
        nursery.cancel_scope.cancel()
