"""A sandbox made by bubblewrap: namespaces of its own, in which the machine's files are not there.

What a program sees is mounted piece by piece onto an empty root, so whatever is not named does not
exist: no home, no ``/run``, no socket of anybody's. It has its own processes, its own network (none but
its own loopback), no capabilities, and a filter of system calls (``seccomp``). When its first process
dies, the kernel ends all others with it.

Closed places inside of a writable folder are mounted over themselves, read-only. Every folder on the way
to one is mounted onto itself as well: what is a mount cannot be renamed, so nothing closed can be
moved aside together with its folder. All of this is done before bubblewrap starts, which cannot do it
safely beside other commands (``_bubblewrap_main``).
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from nousd.errors import ToolError
from nousd.tools.anonymous_file import anonymous_file
from nousd.tools.sandbox import seccomp
from nousd.tools.sandbox._bubblewrap_main import STAGING
from nousd.tools.sandbox.deny_scan import Search
from nousd.tools.sandbox.interface import Request, SandboxedProcess
from nousd.tools.sandbox.limits import TEMPORARY_BYTES_MAX
from nousd.tools.sandbox.mount_layout import Root, lay_out
from nousd.tools.sandbox.mount_placeholders import MountPlaceholders
from nousd.tools.sandbox.symlinks import kept
from nousd.tools.sandbox.visible_paths import Chosen, Places, is_of_the_machine, places_of
from nousd.wire.objects.policy import SandboxFacts

TEMPORARY: Final = "/tmp"  # noqa: S108 - inside of the sandbox, where it is its own
HOME: Final = f"{TEMPORARY}/home"

_PROGRAM: Final = Path(__file__).with_name("_bubblewrap_main.py")

_EMPTY: Final = ("/home", "/root", "/run", "/var")

_ALONE: Final = (
    *("--unshare-all", "--unshare-user", "--cap-drop", "ALL"),
    *("--die-with-parent", "--new-session"),
)


class Bubblewrap:
    """Keeps the interface ``Sandbox``.

    Args:
        program: where bubblewrap is.
    """

    name = "bubblewrap"

    def __init__(self, program: Path, chosen: Chosen) -> None:
        self._program = program
        self._chosen = chosen
        self._search = Search()
        self._placeholders = MountPlaceholders()

    @property
    def has_network(self) -> bool:
        return self._chosen.network

    @contextmanager
    def hold(self, request: Request) -> Iterator[SandboxedProcess]:
        """See ``Sandbox.hold``."""
        places = places_of(request, self._chosen, self._search)
        closed = _resolved(places)
        remarks: list[str] = []
        with ExitStack() as stack:
            try:
                if places.watched is not None:
                    stack.enter_context(places.watched.kept(remarks))
                stack.enter_context(kept(_links(places)))
                placeholders = stack.enter_context(self._placeholders.made(_makeable(closed)))
                roots = lay_out(closed, placeholders)
                plan = stack.enter_context(anonymous_file("plan", _plan(roots)))
                calls = seccomp.program(families=seccomp.INTERNET)
                rules = stack.enter_context(anonymous_file("seccomp", calls))
            except OSError as error:
                where = f"{error.filename}: " if error.filename else ""
                raise ToolError(f"sandbox_failed: {where}{error.strerror}") from error
            yield SandboxedProcess(
                argv=[
                    *(sys.executable, "-I", "-S", str(_PROGRAM), str(plan)),
                    *(str(self._program), *_arguments(request, closed, roots, rules)),
                    *request.argv,
                ],
                env=places.environment(request.env, home=HOME, temporary=TEMPORARY),
                facts=self._facts(request, places),
                descriptors=(plan, rules),
                limits=self._chosen.limits,
                remarks=remarks,
                is_holder=True,
            )

    def _facts(self, request: Request, places: Places) -> SandboxFacts:
        limits = self._chosen.limits.facts() | {"temporary_bytes": TEMPORARY_BYTES_MAX}
        return SandboxFacts(
            backend=self.name,
            network=request.network,
            is_partial=places.is_partial,
            mounts=places.shown(TEMPORARY),
            limits=limits,
        )


def _plan(roots: Sequence[Root]) -> bytes:
    return marshal.dumps({"roots": [root.plan for root in roots]})


def _arguments(
    request: Request, places: Places, roots: Sequence[Root], rules: int
) -> Iterator[str]:
    yield from _ALONE
    if request.network:
        yield "--share-net"
    yield from _machine(places.readable, {root.path for root in roots})
    for number, root in enumerate(roots):
        if root.outer < 0:
            yield from ("--bind", f"{STAGING}/{number}", str(root.path))
    for name, path in places.home_links(request.env.get("HOME")):
        yield from ("--symlink", str(path), f"{HOME}/{name}")
    # The settings of the kernel belong to root, which needs no capability to write what it owns.
    for own in ("/proc", "/dev", "/"):
        yield from ("--remount-ro", own)
    yield from ("--chdir", str(request.workdir), "--seccomp", str(rules), "--")


def _machine(readable: Sequence[Path], lay_out: Collection[Path]) -> Iterator[str]:
    size = str(TEMPORARY_BYTES_MAX)
    for path in readable:
        if path.is_symlink() and len(path.parts) == 2:  # such as /bin
            yield from ("--symlink", str(path.readlink()), str(path))
        elif is_of_the_machine(path) and path not in lay_out:
            yield from ("--ro-bind", str(path), str(path))
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from ("--size", size, "--tmpfs", "/dev/shm", "--size", size, "--tmpfs", TEMPORARY)  # noqa: S108
    for folder in (*_EMPTY, HOME):
        yield from ("--dir", folder)


def _on_the_way(roots: Iterable[Path], closed: Sequence[Path]) -> Iterator[Path]:
    """Yield the directories between a writable one and a denied path in it, from above."""
    for path in closed:
        inside = [root for root in roots if path.is_relative_to(root)]
        for folder in reversed(path.parents):
            if any(folder != root and folder.is_relative_to(root) for root in inside):
                yield folder


def _resolved(places: Places) -> Places:
    """Return the paths with every link resolved: a mount needs the real path."""
    shown = (*places.readable, *places.writable)

    def real(paths: Iterable[Path], within: Sequence[Path]) -> tuple[Path, ...]:
        found = dict.fromkeys(Path(os.path.realpath(path)) for path in paths)
        return tuple(
            path
            for path in found
            # What is still a link is one of a loop, and leads nowhere.
            if not _is_link(path) and any(path.is_relative_to(folder) for folder in within)
        )

    return Places(
        readable=places.readable,
        writable=places.writable,
        protected=real(places.protected, places.writable),
        hidden=real(places.hidden, shown),
    )


def _is_link(path: Path) -> bool:
    # Unlike Path.is_symlink, this bears folders that are closed to us.
    return os.path.islink(path)  # noqa: PTH114


def _links(places: Places) -> Iterator[Path]:
    """Yield the links by which a closed place is reached from a writable one."""
    closed = (*places.protected, *places.hidden)
    for path in dict.fromkeys([*_on_the_way(places.writable, closed), *closed]):
        if _is_link(path) and any(path.is_relative_to(root) for root in places.writable):
            yield path


def _makeable(places: Places) -> Iterator[Path]:
    """Yield what is closed where a program could make it."""
    for path in (*places.protected, *places.hidden):
        if any(path.is_relative_to(root) for root in places.writable):
            yield path
