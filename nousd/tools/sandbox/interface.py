"""The interface of a sandbox, which confines a program and everything that the program starts.

A backend is a module in this folder. It turns a request into the command line to start instead; one
that runs programs in containers would be one more module. ``detect`` finds out which backend works on
this machine; whether a call may run without one is decided elsewhere. The supervisor, which ends
programs, is around all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from nousd.tools.sandbox.limits import Limits
from nousd.tools.sandbox.trap_watch import LeftFiles
from nousd.wire.objects.policy import SandboxFacts


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A program to be confined.

    Args:
        argv: the absolute path of the program, and its arguments.
        env: its whole environment; the sandbox decides on HOME and the directory for temporary files.
        workdir: where it starts, and the directory it may use; resolved.
        hidden: paths that it must neither see nor create, even inside the workspace.
        reading, writing: patterns of places in the workdir, with slashes from there, that rules close.
        opened: protected paths that it may change, with everything below.
        may_miss: whether it may run although not all of ``reading`` was found.
        is_read_only: whether it must not even write in the workspace.
        network: whether it may use a network.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    workdir: Path
    hidden: tuple[Path, ...] = ()
    reading: tuple[re.Pattern[str], ...] = ()
    writing: tuple[re.Pattern[str], ...] = ()
    opened: tuple[Path, ...] = ()
    may_miss: bool = False
    is_read_only: bool = False
    network: bool = False


class SandboxedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The command line that is started instead of a program.

    Args:
        facts: the facts about the sandbox for an event; None if there are none.
        descriptors: the descriptors that it inherits.
        limits: enforced by the supervisor.
        remarks: results that a model should know; complete at the end of the block.
        left: the files that programs obey and that the command left; there at the end of the block.
        hint: what a model should know about the sandbox if the program was refused something.
        is_holder: whether the program started first only holds the others and dies last: it takes them
            with it when it is killed, so they are told to stop, not it.
        asks_on: the socket on which the supervisor gets the listener for the calls that the sandbox
            leaves to it; None if there are none.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    facts: SandboxFacts | None = None
    descriptors: tuple[int, ...] = ()
    limits: Limits = Limits()
    remarks: list[str] = msgspec.field(default_factory=list)
    left: list[LeftFiles] = msgspec.field(default_factory=list)
    hint: str = ""
    is_holder: bool = False
    asks_on: int | None = None


class Sandbox(Protocol):
    """One kind of sandbox on this machine."""

    @property
    def name(self) -> str:
        """The backend's name in events, such as ``bubblewrap``."""
        ...

    @property
    def has_network(self) -> bool:
        """Return whether its programs can use a network without asking."""
        ...

    def finds_closed(
        self, workdir: Path, reading: Sequence[re.Pattern[str]], writing: Sequence[re.Pattern[str]]
    ) -> bool:
        """Return whether ``hold`` would find all that is closed to reading, by all its names; else it
        refuses a request without ``may_miss``. Blocks.
        """
        ...

    def hold(self, request: Request) -> AbstractContextManager[SandboxedProcess]:
        """Provide the command line to start; at the end of the block, when all its processes are gone,
        clean up. Blocks.

        Raises:
            ToolError: ``sandbox_failed``, with the reason why this program cannot be confined.
        """
        ...


FindSandbox = Callable[[], Sandbox | None]
"""Returns the sandbox of this machine, None if none works. Blocks on its first call."""


def no_sandbox() -> None:
    """A ``FindSandbox`` without a sandbox."""
