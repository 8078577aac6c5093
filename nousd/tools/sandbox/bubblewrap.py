"""A sandbox made by bubblewrap: namespaces of its own, in which the machine's files do not exist.

The visible paths are mounted one by one onto an empty root, so all other paths do not exist: no home, no
``/run``, no sockets of other programs. The sandbox has its own processes, its own network (only a
loopback), no capabilities, and a filter of system calls (``seccomp``). When its first process dies, the
kernel kills all others.

Denied paths in a writable directory are mounted onto themselves, read-only. Every directory on the way
to one is mounted onto itself as well: a mount cannot be renamed, so no denied path can be moved aside
together with its directory. All this happens before bubblewrap starts, because bubblewrap cannot do it
safely while other commands run (``_bubblewrap_main``).

Directories that other programs can change meanwhile are laid out for ``_bubblewrap_main``: their
nesting, and the denied paths in each. System directories are not among them, unless they contain such a
directory; bubblewrap mounts them by name, except the many small parts of ``/etc``, which it gets as one.

A mount is tied to a file, not to a name. If a program outside replaces the file, as editors and ``git
config`` do when they save, the kernel removes the mount, and the command can use the new file. The
sandbox cannot prevent that; the model gets a remark.

A mount cannot cover a symbolic link. So a link that leads to a denied path is restored when all
processes have ended, if a program has replaced it.
"""

from __future__ import annotations

import marshal
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from nousd.errors import ToolError
from nousd.tools.anonymous_file import anonymous_file
from nousd.tools.fs.lexical_paths import folders_around, lies_in, lies_in_any, lies_in_one_of
from nousd.tools.fs.real_paths import real_paths
from nousd.tools.own_program import own_program
from nousd.tools.sandbox import seccomp
from nousd.tools.sandbox._bubblewrap_main import COVER, ETC, KEEP, PARENT, PLACEHOLDER, STAGING
from nousd.tools.sandbox.deny_scan import Search
from nousd.tools.sandbox.interface import Request, SandboxedProcess
from nousd.tools.sandbox.limits import TEMPORARY_BYTES_MAX
from nousd.tools.sandbox.mount_placeholders import MountPlaceholders, content_of
from nousd.tools.sandbox.nofollow_stat import hold_folder
from nousd.tools.sandbox.trap_watch import watch_traps
from nousd.tools.sandbox.visible_paths import (
    Places,
    SandboxChoices,
    finds_closed,
    is_in_etc,
    is_of_the_machine,
    places_of,
)
from nousd.wire.objects.policy import SandboxFacts

TEMPORARY: Final = "/tmp"  # noqa: S108 - inside of the sandbox, where it is its own
HOME: Final = f"{TEMPORARY}/home"

_PROGRAM: Final = own_program("nousd.tools.sandbox._bubblewrap_main")

_EMPTY_FOLDERS: Final = ("/home", "/root", "/run", "/var")

_ISOLATION_OPTIONS: Final = (
    *("--unshare-all", "--unshare-user", "--cap-drop", "ALL"),
    *("--die-with-parent", "--new-session"),
)


class Bubblewrap:
    """Implements ``Sandbox`` with bubblewrap.

    Args:
        program: the path of bubblewrap.
    """

    name = "bubblewrap"

    def __init__(self, program: Path, chosen: SandboxChoices) -> None:
        self._program = program
        self._chosen = chosen
        self._search = Search()
        self._placeholders = MountPlaceholders()

    @property
    def has_network(self) -> bool:
        return self._chosen.network

    def finds_closed(
        self, workdir: Path, reading: Sequence[re.Pattern[str]], writing: Sequence[re.Pattern[str]]
    ) -> bool:
        """See ``Sandbox.finds_closed``."""
        return finds_closed(workdir, reading, writing, self._chosen, self._search)

    @contextmanager
    def hold(self, request: Request) -> Iterator[SandboxedProcess]:
        """See ``Sandbox.hold``."""
        places = places_of(request, self._chosen, self._search)
        closed = _resolve_links(places)
        remarks: list[str] = []
        with ExitStack() as stack:
            # Entered first, so that it looks last, when no placeholder is left in the workspace.
            left_files = stack.enter_context(watch_traps(places.traps))
            try:
                stack.enter_context(_report_replaced(request.workdir, closed, remarks))
                if places.config_guard is not None:
                    stack.enter_context(places.config_guard.set_aside_new_files(remarks))
                stack.enter_context(restore_links(_links(places)))
                placeholders = stack.enter_context(self._placeholders.provide(_makeable(closed)))
                roots = lay_out(closed, placeholders)
                plan = stack.enter_context(anonymous_file("plan", _plan(places, roots)))
                calls = seccomp.program(families=seccomp.INTERNET)
                rules = stack.enter_context(anonymous_file("seccomp", calls))
            except OSError as error:
                where = f"{error.filename}: " if error.filename else ""
                raise ToolError(f"sandbox_failed: {where}{error.strerror}") from error
            yield SandboxedProcess(
                argv=[
                    *(*_PROGRAM, str(plan)),
                    *(str(self._program), *_arguments(request, closed, roots, rules)),
                    *request.argv,
                ],
                env=places.environment(request.env, home=HOME, temporary=TEMPORARY),
                facts=self._facts(request, places),
                descriptors=(plan, rules),
                limits=self._chosen.limits,
                remarks=remarks,
                left_files=left_files,
                is_holder=True,
            )

    def _facts(self, request: Request, places: Places) -> SandboxFacts:
        limits = self._chosen.limits.facts() | {"temporary_bytes": TEMPORARY_BYTES_MAX}
        return SandboxFacts(
            backend=self.name,
            network=request.network,
            is_partial=places.is_partial,
            mounts=places.describe_mounts(TEMPORARY),
            limits=limits,
        )


@contextmanager
def _report_replaced(workdir: Path, places: Places, remarks: list[str]) -> Iterator[None]:
    """At the end of the block, add remarks on closed paths that have become other files."""
    before = {path: _file_at(path) for path in (*places.hidden, *places.protected)}
    try:
        yield
    finally:
        remarks += [
            f"another program replaced {os.path.relpath(path, workdir)} meanwhile; from then on the"
            " command could read and change it"
            for path, file in before.items()
            if file is not None and _file_at(path) not in (file, None)
        ]


def _file_at(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file or folder; None if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _plan(places: Places, roots: Sequence[Root]) -> bytes:
    laid_out = {root.path for root in roots}
    etc = [str(path) for path in places.readable if is_in_etc(path) and path not in laid_out]
    return marshal.dumps({"roots": [root.plan for root in roots], "etc": etc})


def _arguments(
    request: Request, places: Places, roots: Sequence[Root], rules: int
) -> Iterator[str]:
    yield from _ISOLATION_OPTIONS
    if request.network:
        yield "--share-net"
    yield from _machine(places.readable, {root.path for root in roots})
    for number, root in enumerate(roots):
        if root.outer < 0:
            yield from ("--bind", f"{STAGING}/{number}", str(root.path))
    for name, path in places.home_links(request.env.get("HOME")):
        yield from ("--symlink", str(path), f"{HOME}/{name}")
    # The kernel's settings are files of root, which needs no capability to write its own files.
    for own in ("/proc", "/dev", "/"):
        yield from ("--remount-ro", own)
    yield from ("--chdir", str(request.workdir), "--seccomp", str(rules), "--")


def _machine(readable: Sequence[Path], lay_out: Collection[Path]) -> Iterator[str]:
    size = str(TEMPORARY_BYTES_MAX)
    for path in readable:
        if str(path).count("/") == 1 and (target := _target_of(path)) is not None:  # such as /bin
            yield from ("--symlink", target, str(path))
        elif is_of_the_machine(path) and not is_in_etc(path) and path not in lay_out:
            yield from ("--ro-bind", str(path), str(path))
    yield from ("--ro-bind", ETC, "/etc")
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from ("--size", size, "--tmpfs", "/dev/shm", "--size", size, "--tmpfs", TEMPORARY)  # noqa: S108
    for folder in (*_EMPTY_FOLDERS, HOME):
        yield from ("--dir", folder)


def _target_of(path: Path) -> str | None:
    """Return the target of a link; None if the path is not a link."""
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return None


def _on_the_way(roots: Iterable[Path], closed: Iterable[Path]) -> list[str]:
    """Return the denied paths in writable directories, and the directories on the way to them,
    outermost first.
    """
    inside = tuple(f"{root}/" for root in roots)
    return sorted(path for path in folders_around(closed) if path.startswith(inside))


def _resolve_links(places: Places) -> Places:
    """Return the paths with every link resolved, because a mount needs the real path."""

    def real(paths: Iterable[Path], *within: Path) -> tuple[Path, ...]:
        folders = {str(path) for path in within}
        return tuple(
            Path(path)
            for path in dict.fromkeys(real_paths(paths))
            # A path that is still a link belongs to a loop of links.
            if lies_in_one_of(path, folders) and not _is_link(path)
        )

    return Places(
        readable=places.readable,
        writable=places.writable,
        protected=real(places.protected, *places.writable),
        hidden=real(places.hidden, *places.readable, *places.writable),
    )


def _is_link(path: str) -> bool:
    # Unlike Path.is_symlink, this works in directories that we cannot read.
    return os.path.islink(path)  # noqa: PTH114


def _links(places: Places) -> Iterator[Path]:
    """Yield the links in writable directories that lead to a denied path."""
    for path in _on_the_way(places.writable, (*places.protected, *places.hidden)):
        if _is_link(path):
            yield Path(path)


def _makeable(places: Places) -> Iterator[Path]:
    """Yield the denied paths that a program could create."""
    for path in (*places.protected, *places.hidden):
        if lies_in_any(path, places.writable):
            yield path


@contextmanager
def restore_links(links: Iterable[Path]) -> Iterator[None]:
    """At the end of the block, restore symbolic links that were replaced."""
    targets: dict[Path, str] = {}
    for link in links:
        with suppress(OSError):  # it is gone, or no longer a link
            targets[link] = str(link.readlink())
    try:
        yield
    finally:
        for link, target in targets.items():
            with suppress(OSError), hold_folder(link.parent) as folder:
                _keep(folder, link.name, target)


def _keep(folder: int, name: str, target: str) -> None:
    mode = _mode(folder, name)
    if stat.S_ISLNK(mode) and os.readlink(name, dir_fd=folder) == target:
        return
    mark = os.urandom(4).hex()
    if stat.S_ISDIR(mode):
        os.rename(name, f"{name}.replaced-{mark}", src_dir_fd=folder, dst_dir_fd=folder)
    temporary = f".{name}.{mark}"
    os.symlink(target, temporary, dir_fd=folder)
    try:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:  # another command has made a directory there meanwhile
        os.unlink(temporary, dir_fd=folder)
        raise


def _mode(folder: int, name: str) -> int:
    """Return the mode of an entry; 0 if it does not exist."""
    try:
        return os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return 0


Closed = dict[str, tuple[str, bytes | None, Any]]
"""Name -> how it is denied, the content of its cover, the denied paths below."""


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """A file or directory that is laid out.

    Args:
        outer: the index of the root that contains it, -1 for none.
    """

    path: Path
    outer: int
    is_writable: bool
    closed: Closed

    @property
    def plan(self) -> tuple[str, int, bool, Closed]:
        return str(self.path), self.outer, self.is_writable, self.closed


def lay_out(places: Places, placeholders: Iterable[Path]) -> list[Root]:
    """Return the layout, outermost directories first.

    Args:
        places: the visible paths with every link resolved.
        placeholders: see ``MountPlaceholders.provide``.
    """
    closings = [
        *((path, KEEP, None) for path in places.protected),
        *((path, COVER, None) for path in places.hidden),
        *((path, PLACEHOLDER, content_of(path)) for path in placeholders),
    ]
    roots: list[Root] = []
    for path, is_writable in _list_layout_paths(places, [path for path, _, _ in closings]):
        outer = _innermost(path, roots)
        # No root is needed where the outer one already allows as much.
        if outer < 0 or (is_writable and not roots[outer].is_writable):
            stays_writable = is_writable and not any(path == closed for closed, _, _ in closings)
            roots.append(Root(path=path, outer=outer, is_writable=stays_writable, closed={}))
    for path, closing, content in closings:
        if (number := _innermost(path, roots)) >= 0:
            below = str(path).removeprefix(str(roots[number].path))
            _insert(roots[number].closed, [*filter(None, below.split("/"))], closing, content)
    return roots


def _list_layout_paths(places: Places, closed: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield each path of the layout, and whether it is writable, outermost first."""
    users = [path for path in places.readable if not is_of_the_machine(path)]
    inside = folders_around((*users, *places.writable, *closed))
    parents = [
        path
        for path in places.readable
        if is_of_the_machine(path) and str(path) in inside and not path.is_symlink()
    ]
    shown = dict.fromkeys((*parents, *users), False) | dict.fromkeys(places.writable, True)
    yield from sorted(shown.items(), key=lambda item: len(item[0].parts))


def _innermost(path: Path, roots: Sequence[Root]) -> int:
    containing = [number for number, root in enumerate(roots) if lies_in(path, root.path)]
    return max(containing, default=-1)


def _insert(closed: Closed, names: Sequence[str], closing: str, content: bytes | None) -> None:
    for name in names[:-1]:
        outer_closing, _, closed = closed.setdefault(name, (PARENT, None, {}))
        if outer_closing in (COVER, PLACEHOLDER):
            return
    if names:
        below = closed.get(names[-1], (PARENT, None, {}))[2] if closing == KEEP else {}
        closed[names[-1]] = (closing, content, below)
