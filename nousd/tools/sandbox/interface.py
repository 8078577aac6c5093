"""The interface of a sandbox, which holds a program and everything that the program starts.

A backend is a file in this room, and makes of a request what has to be started instead: so one that
runs programs in containers is one more file. Which backend there is on this machine is found out in
``detect``; whether a call may do without is not decided here. The supervisor, which ends programs,
stands around all of them and knows none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from nousd.tools.sandbox.limits import Limits
from nousd.wire.objects.policy import SandboxFacts


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A program that is to be held.

    Args:
        argv: the absolute path of the program, and its arguments.
        env: all of its environment; where it has a HOME and where temporary files lie is decided by
            the sandbox.
        workdir: where it starts, and the folder it may use; resolved.
        hidden: what it may neither see nor make, also inside of the workdir.
        reading, writing: patterns of places in the workdir, with slashes from there, that rules close.
        opened: what it may change although it is protected, with all in it.
        is_read_only: whether it may not even write in the workdir.
        network: whether it may reach one.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    workdir: Path
    hidden: tuple[Path, ...] = ()
    reading: tuple[re.Pattern[str], ...] = ()
    writing: tuple[re.Pattern[str], ...] = ()
    opened: tuple[Path, ...] = ()
    is_read_only: bool = False
    network: bool = False


class SandboxedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The command line that is started in a program's place.

    Args:
        facts: what an event tells of the sandbox; None if there is none.
        descriptors: what it inherits.
        limits: what the supervisor sees to.
        remarks: what came of it that a model should know; complete when the block is left.
        hint: what a model should know of the sandbox where the program was refused something.
        is_holder: whether the program started first only holds the others, and dies last: it takes them
            with it when it is killed, so it is not told to stop, they are.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    facts: SandboxFacts | None = None
    descriptors: tuple[int, ...] = ()
    limits: Limits = Limits()
    remarks: list[str] = msgspec.field(default_factory=list)
    hint: str = ""
    is_holder: bool = False


class Sandbox(Protocol):
    """One way to hold programs on this machine."""

    @property
    def name(self) -> str:
        """The backend's name in events, such as ``bubblewrap``."""
        ...

    @property
    def has_network(self) -> bool:
        """Whether a program in it can reach a network without asking for it."""
        ...

    def hold(self, request: Request) -> AbstractContextManager[SandboxedProcess]:
        """Provide what to start; leaving the block, when all of it is gone, clears up behind it. Blocks.

        Raises:
            ToolError: ``sandbox_failed``, with the reason why this program cannot be held.
        """
        ...


FindSandbox = Callable[[], Sandbox | None]
"""Returns the sandbox of this machine, None if none works. Blocks at its first call."""


def no_sandbox() -> None:
    """A ``FindSandbox`` where programs are not held."""
