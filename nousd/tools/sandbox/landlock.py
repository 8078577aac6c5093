"""A sandbox made by the kernel alone (Landlock), for machines on which bubblewrap does not work, mostly
inside of containers. It is always combined with the filter of system calls, which denies sockets.

A process gives up, for itself and all processes that it starts, access to all paths but those in a plan
(``_landlock_main``). Landlock is used as a sandbox from ABI 6 (Linux 6.12) on: with earlier ones
programs could signal the daemon and their own supervisor.

Rights can only be added, to a file or to a directory with everything below. So a directory that contains
a denied path cannot be opened as a whole: its entries are opened one by one, and no new entry can be
created next to them. A right to a file applies to all its names: opening another name of a denied file
would open the denied one. A workspace has denied paths at its top, whether they exist or not, and so has
a repository. So calls that make, rename and remove entries wait for the supervisor, which decides them
and carries them out in such directories (``nousd.tools.process.entry_calls``).

Unlike bubblewrap, this sandbox has no network of its own: programs that use 127.0.0.1 do not work, nor
do those that need a terminal.

Landlock has no right for a file's mode, times and owner. Calls that change them wait for the supervisor
as well (``nousd.tools.process.metadata_calls``): ``_landlock_main`` sends it the filter's listener and
the plan, which names the paths. Where a listener is not possible (``filter_listener``), these calls are
refused, and the others are left to Landlock: no new entries can be made next to denied paths.

Further weaknesses: other processes are visible, though they can be neither signalled nor inspected;
``stat`` of a file with a known name works, and so does listing a directory that contains a hidden path.
Files of other users cannot be used, not even by root.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import re
import socket
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from nousd.errors import ToolError
from nousd.tools.anonymous_file import anonymous_file
from nousd.tools.fs.hard_links import File, file_of
from nousd.tools.fs.lexical_paths import folders_around, lies_in_any, lies_in_one_of
from nousd.tools.fs.real_paths import real_paths
from nousd.tools.fs.temporary_folders import sweep, temporary_folder
from nousd.tools.own_program import own_program
from nousd.tools.sandbox import filter_listener, seccomp
from nousd.tools.sandbox.deny_scan import Search
from nousd.tools.sandbox.git_folders import git_folders_among
from nousd.tools.sandbox.interface import Request, SandboxedProcess
from nousd.tools.sandbox.trap_watch import watch_traps
from nousd.tools.sandbox.visible_paths import (
    Places,
    SandboxChoices,
    finds_closed,
    is_of_the_machine,
    places_of,
)
from nousd.wire.objects.policy import SandboxFacts

ABI_MIN: Final = 6

ENTRIES_MAX: Final = 10_000
"""Maximum files and directories that may have to be opened one by one."""

_TEMPORARY: Final = "nousd-sandbox-"
"""Prefix of the name of a call's temporary directory, followed by the daemon's process id."""

HINT: Final = (
    "In this sandbox protected files, such as .git/config, hooks and AGENTS.md, cannot be made or"
    " changed, .git gets no symbolic links, and there are no sockets, terminals or shared memory. Use a"
    " file tool, or ask to run unsandboxed, if that is why something was refused."
)
"""The hint for models."""

HINT_WITHOUT_LISTENER: Final = (
    "In this sandbox nothing new can be made in a folder that holds something protected, such as the"
    " top of the working folder and .git, modes, times and owners of files cannot be changed, and there"
    " are no sockets, terminals or shared memory. Make such files with a file tool, or ask to run"
    " unsandboxed, if that is why something was refused."
)
"""The hint for models if the supervisor cannot decide system calls."""

_PROGRAM: Final = own_program("nousd.tools.sandbox._landlock_main")
_CREATE_RULESET: Final = 444
_ABI_VERSION: Final = 1

# Rights: the kernel's bits.
_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_FOLDER: Final = 1 << 3
_TRUNCATE: Final = 1 << 14
_ALL: Final = (1 << 16) - 1
_DEVICES: Final = (1 << 6) | (1 << 11) | (1 << 15)  # creating them, and talking to their drivers

_LINKS: Final = (1 << 12) | (1 << 13)
"""Making symbolic links, and moving entries, which may contain some, to another folder. In a git folder
git would write text prepared by a command, such as messages and logs, through them."""

READ: Final = _EXECUTE | _READ_FILE | _READ_FOLDER
WRITE: Final = _ALL & ~_DEVICES
_FILE_RIGHTS: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | (1 << 15)

_MACHINE: Final = (
    ("/proc", READ, False),
    ("/dev/fd", READ, False),
    *(
        (f"/dev/{name}", _READ_FILE | _WRITE_FILE, False)
        for name in ("null", "zero", "full", "tty")
    ),
    *((f"/dev/{name}", _READ_FILE, False) for name in ("random", "urandom")),
)
"""The kernel's files that every program needs."""

Rule = tuple[str, int, bool]
"""A path, its rights, and whether it must not contain a link."""


def why_not() -> str | None:
    """Return why Landlock does not work on this machine; None if it does."""
    if (reason := seccomp.why_not()) is not None:
        return reason
    abi = _abi()
    if abi < 0:
        return "the kernel has no Landlock, or it is switched off"
    if abi < ABI_MIN:
        return f"the kernel's Landlock has ABI {abi}, and {ABI_MIN} (Linux 6.12) is needed"
    return None


def _abi() -> int:
    version: int = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, _ABI_VERSION)
    return version


class Landlock:
    """Implements ``Sandbox`` with Landlock."""

    name = "landlock"

    def __init__(self, chosen: SandboxChoices) -> None:
        self._chosen = chosen
        self._search = Search()
        sweep(_TEMPORARY)

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
        with ExitStack() as stack:
            left_files = stack.enter_context(watch_traps(places.traps))
            try:
                temporary = stack.enter_context(temporary_folder(_TEMPORARY))
                home = _make_home(temporary, places, request)
                receiver, sender = stack.enter_context(_sockets())
                plan = _plan(places, temporary, sender, network=request.network)
                content = marshal.dumps(plan)
                descriptor = stack.enter_context(anonymous_file("plan", content))
            except OSError as error:
                raise ToolError(f"sandbox_failed: {error.strerror}") from error
            env = places.environment(request.env, home=str(home), temporary=str(temporary))
            yield SandboxedProcess(
                argv=[
                    *(*_PROGRAM, str(descriptor)),
                    *request.argv,
                ],
                # An existing but denied path makes git fail, unlike a missing one.
                env={**env, "GIT_CONFIG_NOSYSTEM": "1"},
                facts=self._facts(request, places, temporary),
                descriptors=(descriptor, *(() if sender < 0 else (receiver, sender))),
                limits=self._chosen.limits,
                left_files=left_files,
                hint=HINT_WITHOUT_LISTENER if sender < 0 else HINT,
                asks_on=None if sender < 0 else receiver,
            )

    def _facts(self, request: Request, places: Places, temporary: Path) -> SandboxFacts:
        return SandboxFacts(
            backend=self.name,
            network=request.network,
            is_partial=places.is_partial,
            mounts=places.describe_mounts(str(temporary)),
            limits=self._chosen.limits.facts(),
        )


def _make_home(temporary: Path, places: Places, request: Request) -> Path:
    """Make the home directory of a call, with links to the visible parts of the user's home."""
    home = temporary / "home"
    home.mkdir()
    for name, path in places.home_links(request.env.get("HOME")):
        link = home / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return home


@contextmanager
def _sockets() -> Iterator[tuple[int, int]]:
    """Provide the sockets on which the supervisor receives the filter's listener and to which it is
    sent; -1 for both if there can be no listener.
    """
    if filter_listener.why_not() is not None:
        yield -1, -1
        return
    receiver, sender = socket.socketpair()
    with receiver, sender:
        yield receiver.fileno(), sender.fileno()


def _plan(places: Places, temporary: Path, sender: int, *, network: bool) -> dict[str, Any]:
    """Return the plan for ``_landlock_main`` and the supervisor."""
    families = seccomp.INTERNET if network else ()
    closed = _unwritable(places)
    git = git_folders_among(closed.paths) if sender >= 0 else frozenset()
    rules, parted = _rules(places, closed, git)
    # Waiting calls cost time: if every folder can be opened as a whole, none has to wait.
    makes_entries = sender >= 0 and bool(parted)
    rules += [(os.path.realpath(temporary), WRITE, False), *_MACHINE]
    names = (
        places.config_guard.patterns() if places.config_guard is not None and makes_entries else ()
    )
    return {
        "rules": rules,
        "of_files": _FILE_RIGHTS,
        "handled": _ALL,
        "filter": seccomp.program(
            families=families,
            shares_machine=True,
            asks=sender >= 0,
            asks_about_entries=makes_entries,
            asks_about_reading=makes_entries and not all(parted.values()),
        ),
        "sender": sender,
        "calls": seccomp.map_call_numbers(entries=makes_entries),
        "whole": [os.fsencode(path) for path, rights, _ in rules if rights & _TRUNCATE],
        "parted": {os.fsencode(path): is_read for path, is_read in parted.items()}
        if makes_entries
        else {},
        "closed": [os.fsencode(path) for path in closed.paths] if makes_entries else [],
        "git": [os.fsencode(path) for path in git],
        "names": [(os.fsencode(folder), pattern) for folder, pattern in names],
    }


class _ClosedPaths(NamedTuple):
    """Closed paths.

    Args:
        parents: the closed paths and all folders that contain them.
        files: closed files with other names: a rule for such a name, even one that no search has found,
            would open the file under its closed name too.
    """

    paths: frozenset[str]
    parents: AbstractSet[str]
    files: frozenset[File]


def _build_closed(paths: Iterable[str]) -> _ClosedPaths:
    closed = frozenset(paths)
    return _ClosedPaths(closed, folders_around(closed), frozenset(_find_linked(closed)))


def _unwritable(places: Places) -> _ClosedPaths:
    """Return the paths that must not change, and their real paths: rights apply to link targets."""
    protected = places.protected
    return _build_closed((*map(str, (*protected, *places.hidden)), *real_paths(protected)))


def _rules(
    places: Places, closed: _ClosedPaths, git: Collection[str]
) -> tuple[list[Rule], dict[str, bool]]:
    """Return the rules, none of which grants a denied path or a folder in which a denied name could be
    created; and folder -> whether everything in it may be read, for folders of which only the existing
    entries may be written.

    Args:
        git: git folders that are closed in part, in which links must not be made.
    """
    rules: list[Rule] = []
    parted: dict[str, bool] = {}
    hidden = _build_closed(map(str, places.hidden))
    # Paths outside of the system folders are resolved, so a link in one was made since by a program.
    for root in places.writable:
        is_plain = not is_of_the_machine(root)
        for path, is_whole in _list_openable(root, closed):
            if is_whole:
                rights = WRITE & ~_LINKS if lies_in_any(path, git) else WRITE
                rules.append((path, rights, is_plain))
            else:
                parted[path] = True
    for root in (*places.readable, *places.writable):
        is_plain = not is_of_the_machine(root)
        for path, is_whole in _list_openable(root, hidden):
            rules.append((path, READ if is_whole else _READ_FOLDER, is_plain))
            if not is_whole and path in parted:
                parted[path] = False
    if len(rules) > ENTRIES_MAX:
        raise ToolError(
            f"sandbox_failed: more than {ENTRIES_MAX} files and folders would have to be opened one"
            " by one, because something closed lies beside them"
        )
    return rules, parted


def _find_linked(paths: Iterable[str]) -> Iterator[File]:
    """Yield the files among some paths that have several names."""
    for path in paths:
        with suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                yield file_of(status)


def _list_openable(root: Path, closed: _ClosedPaths) -> Iterator[tuple[str, bool]]:
    """Yield the paths at and below a path that can be opened, and whether each can be as a whole."""
    if not closed.paths or not lies_in_one_of(root, closed.paths):
        yield from _list_openable_below(str(root), closed)


def _list_openable_below(path: str, closed: _ClosedPaths) -> Iterator[tuple[str, bool]]:
    """See ``_list_openable``; the path must not lie in a closed one."""
    if path in closed.paths:
        return
    if closed.files and any(file in closed.files for file in _find_linked((path,))):
        return
    # Unlike Path.is_dir, this works in directories that we cannot read.
    if path not in closed.parents or not os.path.isdir(path):  # noqa: PTH112
        yield path, True
        return
    yield path, False
    with suppress(PermissionError), os.scandir(path) as entries:
        for entry in entries:
            if not entry.is_symlink():
                yield from _list_openable_below(entry.path, closed)
