"""Keeps file tools inside the workdir, and away from the daemon's own state.

Theory of operation. A path is never checked as a string and then used: it is *walked*, one component
at a time, each opened relative to the descriptor of the folder before it and without following
symbolic links. A link is read, and its target is walked in its place by the same rules; ``..`` goes back
to the folder we came from, which is a descriptor and not a name. What is used in the end is a
descriptor plus one last name, opened with ``O_NOFOLLOW``. Whoever swaps a folder for a link
meanwhile finds that we hold the folder, or that the open fails; there is no gap to slip through.

The walk knows the real place it arrives at, so hidden places are recognized however the way there
was spelled, also when they do not exist yet.

Why not ``openat2`` with ``RESOLVE_BENEATH``: it refuses absolute links that lead back inside, it does
not say where one arrived (which the hidden places need), and a second way beside it would be needed
for creating folders and for other kernels.

It deliberately does not know what a tool wants to do with a file. Everything here blocks: call it
in a thread. Standard library and ``nousd.errors`` only, so that the search process starts quickly.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from nousd.errors import ConfigError, ToolError
from nousd.tools.environment import allowed_environment

SYMLINKS_MAX: Final = 40
"""Links followed for one path; the kernel's own bound."""

DEPTH_MAX: Final = 128
"""Folders below the workdir. Each holds a descriptor while a path is walked."""

SHOWN_CHARS_MAX: Final = 200
"""Characters of a path that an error message repeats."""

_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that nobody writes to must not block.
_ALWAYS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\})", re.ASCII)


def shown(given: str) -> str:
    """Returns a path for a message: as it was given, but printable and not endless."""
    text = given.encode("utf-8", "replace").decode().replace("\0", "\\0")
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "..."


@contextmanager
def explained(verb: str, given: str) -> Iterator[None]:
    """Turns an operating system's refusal into ``<verb>_failed: <path as given>: <reason>``."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{verb}_failed: {shown(given)}: {error.strerror}") from error


class Place:
    """Where a path leads: a name in an open folder. Valid inside ``Confinement.locate`` only.

    Args:
        folder: descriptor (``O_PATH``) of the folder that holds it.
        name: one component, no link when it was looked at; ``.`` for the folder itself.
        parts: the real way there from the workdir.
    """

    def __init__(self, folder: int, name: str, parts: tuple[str, ...]) -> None:
        self.folder = folder
        self.name = name
        self.parts = parts

    def open(self, flags: int) -> int:
        """Returns a descriptor; never follows a link and never blocks."""
        return os.open(self.name, flags | _ALWAYS, dir_fd=self.folder)

    def open_file(self) -> BinaryIO:
        """Opens a regular file for reading.

        Raises:
            OSError: also for folders (EISDIR), and for FIFOs, sockets and devices (EINVAL).
        """
        file = os.fdopen(self.open(os.O_RDONLY), "rb")
        try:
            refuse_irregular(os.fstat(file.fileno()))
        except OSError:
            file.close()
            raise
        return file

    @contextmanager
    def open_folder(self) -> Iterator[int]:
        """Opens a folder for listing.

        Raises:
            OSError: also for anything that is no folder (ENOTDIR).
        """
        descriptor = self.open(os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def status(self) -> os.stat_result | None:
        """Returns what stands there, None if nothing does."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None


def refuse_irregular(status: os.stat_result) -> None:
    """Raises OSError for everything but a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


class Confinement:
    """The part of the file system that file tools may touch.

    Args:
        workdir: the folder that no path may lead out of; must exist.
        hidden: files and folders that count as outside even when they lie inside.

    Raises:
        ConfigError: if the workdir is no folder, or is hidden itself.
    """

    def __init__(self, workdir: Path, hidden: tuple[Path, ...] = ()) -> None:
        self.workdir = workdir.resolve()
        self.spelled = workdir.absolute()
        self.hidden = hidden
        if not self.workdir.is_dir():
            raise ConfigError(f"workdir: {workdir} is not a folder")
        # The folder may be reached by a link; paths spelled that way are inside as well.
        self._roots = (self.workdir.parts, self.spelled.parts)
        places = [spelling for path in hidden for spelling in (path.absolute(), path.resolve())]
        if any(self.workdir.is_relative_to(place) for place in places):
            raise ConfigError(f"workdir: {workdir} lies in the daemon's own state")
        self._hidden = {rest for place in places if (rest := self._inside(place.parts)) is not None}

    def is_hidden(self, parts: tuple[str, ...]) -> bool:
        """Whether the real place ``parts`` (from the workdir) belongs to the daemon."""
        return any(parts[: len(place)] == place for place in self._hidden)

    @contextmanager
    def locate(self, given: str, *, create_parents: bool = False) -> Iterator[Place]:
        """Walks to a path, which need not exist except for its folder.

        Args:
            given: relative to the workdir, or absolute and inside it; ``~`` and ``$VAR`` are expanded.
            create_parents: whether missing folders on the way are made.

        Raises:
            ToolError: ``path_outside_workdir`` or ``path_invalid``, naming the path as given.
            OSError: what the operating system says of a folder on the way.
        """
        walk = _Walk(self, given)
        with ExitStack() as cleanup:
            cleanup.callback(walk.close)
            yield walk.to(self.names_of(_expanded(given), given), create=create_parents)

    def names_of(self, path: str, given: str) -> list[str]:
        """Splits a path into names that start at the workdir; ``..`` is left in place.

        Raises:
            ToolError: if it is absolute and does not begin with the workdir.
        """
        pure = PurePosixPath(path)
        if not pure.is_absolute():
            return list(pure.parts)
        # POSIX keeps a leading "//" apart; for Linux it is the same as "/".
        inside = self._inside(("/", *pure.parts[1:]))
        if inside is None:
            raise outside(given)
        return list(inside)

    def _inside(self, parts: tuple[str, ...]) -> tuple[str, ...] | None:
        for root in self._roots:
            if parts[: len(root)] == root:
                return parts[len(root) :]
        return None


def outside(given: str) -> ToolError:
    """Names the path as it was given: where it leads to is nothing a model should learn."""
    return ToolError(f"path_outside_workdir: {shown(given)}")


class _Walk:
    """One way down from the workdir.

    Invariant: ``len(self._folders) == len(self._parts) + 1``; no folder is a link or hidden.
    """

    def __init__(self, confinement: Confinement, given: str) -> None:
        self._confinement = confinement
        self._given = given
        self._parts: list[str] = []
        self._folders = [os.open(confinement.workdir, _FOLDER)]

    def close(self) -> None:
        for folder in self._folders:
            os.close(folder)

    def to(self, names: list[str], *, create: bool) -> Place:
        ahead = deque(names)
        links = 0
        while ahead:
            name = ahead.popleft()
            if name == "..":
                self._up()
            elif (target := self._link_target(name)) is not None:
                links += 1
                if links > SYMLINKS_MAX:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                ahead.extendleft(reversed(self._names_behind(target)))
            elif ahead:
                self._down(name, create=create)
            else:
                return Place(self._folders[-1], name, self._visible(name))
        return Place(self._folders[-1], ".", tuple(self._parts))

    def _up(self) -> None:
        if not self._parts:
            raise outside(self._given)
        self._parts.pop()
        os.close(self._folders.pop())

    def _down(self, name: str, *, create: bool) -> None:
        if len(self._parts) >= DEPTH_MAX:
            raise ToolError(f"path_invalid: more than {DEPTH_MAX} folders deep")
        self._visible(name)
        try:
            folder = os.open(name, _FOLDER, dir_fd=self._folders[-1])
        except FileNotFoundError:
            if not create:
                raise
            os.mkdir(name, dir_fd=self._folders[-1])
            folder = os.open(name, _FOLDER, dir_fd=self._folders[-1])
        self._folders.append(folder)
        self._parts.append(name)

    def _visible(self, name: str) -> tuple[str, ...]:
        parts = (*self._parts, name)
        if self._confinement.is_hidden(parts):
            raise outside(self._given)
        return parts

    def _link_target(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self._folders[-1])
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:  # it is there, but no link
                return None
            raise

    def _names_behind(self, target: str) -> list[str]:
        names = self._confinement.names_of(target, self._given)
        if target.startswith("/"):
            while self._parts:
                self._up()
        return names


def _expanded(given: str) -> str:
    if "\0" in given:
        raise ToolError(f"path_invalid: {shown(given)} holds a NUL character")
    try:
        os.fsencode(given)
    except UnicodeEncodeError:
        raise ToolError(f"path_invalid: {shown(given)} is not valid Unicode") from None
    # Only allowed variables: the name of a file must not become a way to read a secret.
    variables = allowed_environment()
    if given == "~" or given.startswith("~/"):
        given = variables.get("HOME", "~") + given[1:]
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), given)
