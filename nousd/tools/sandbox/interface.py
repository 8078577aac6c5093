"""The interface of a sandbox, which confines a program and everything that the program starts.

A backend is a module in this folder. It turns a request into the command line to start instead; support
for containers would be one more module. ``detect`` determines which backend works on this machine. This
room does not decide whether a call may run without a sandbox. The supervisor, which ends programs, runs
outside of all sandboxes.
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
        env: its whole environment, in which the sandbox replaces HOME and TMPDIR.
        workdir: the workspace, which is its working directory and which it may use; resolved.
        hidden: paths that it must neither see nor create, even inside the workspace.
        reading, writing: patterns of paths that rules close, with slashes, relative to the workspace.
        opened: protected paths that it may change, with everything below.
        may_miss: whether it may run even if not all paths of ``reading`` were found.
        is_read_only: whether it must not even write in the workspace.
        network: whether it may use the network.
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
        limits: the limits that the supervisor enforces.
        remarks: facts for the model; complete at the end of the block.
        left_files: the files that the command left and that programs obey; complete at the end of the
            block.
        hint: advice on the sandbox for the model, in case the program was denied access.
        is_holder: whether the first process only holds the sandbox and ends last. Killing it kills all
            others, so SIGTERM is sent to them and not to it.
        asks_on: the socket over which the supervisor gets the listener for the system calls that the
            sandbox leaves to it; None if there are none.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    facts: SandboxFacts | None = None
    descriptors: tuple[int, ...] = ()
    limits: Limits = Limits()
    remarks: list[str] = msgspec.field(default_factory=list)
    left_files: list[LeftFiles] = msgspec.field(default_factory=list)
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
        """Return whether its programs can use the network without approval."""
        ...

    def finds_closed(
        self, workdir: Path, reading: Sequence[re.Pattern[str]], writing: Sequence[re.Pattern[str]]
    ) -> bool:
        """Return whether ``hold`` would find all files that are closed to reading, under all their
        names; otherwise it refuses requests without ``may_miss``. Blocks.
        """
        ...

    def hold(self, request: Request) -> AbstractContextManager[SandboxedProcess]:
        """Provide the command line to start, and clean up at the end of the block, when all its
        processes must be gone. Blocks.

        Raises:
            ToolError: ``sandbox_failed``, with the reason why this program cannot be confined.
        """
        ...


FindSandbox = Callable[[], Sandbox | None]
"""Returns the sandbox of this machine, None if none works. Blocks on its first call."""


def no_sandbox() -> None:
    """Return None, as a ``FindSandbox`` without a sandbox."""
