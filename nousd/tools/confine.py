"""Keeps file tools inside the workdir, and away from the daemon's own state.

Theory of operation. A path is never checked as a string and then used: it is *walked*, one component
at a time, each opened relative to the descriptor of the folder before it and without following
symbolic links. A link is read, and its target is walked in its place by the same rules; ``..`` goes back
to the folder we came from, which is a descriptor and not a name. What is used in the end is a
descriptor plus one last name, opened with ``O_NOFOLLOW``. Whoever swaps a folder for a link
meanwhile finds that we hold the folder, or that the open fails; there is no gap to slip through.

The walk knows the real place it arrives at, so hidden places are recognized however the way there
was spelled, also when they do not exist yet. The same holds for places that are closed to one call
(``Confinement.closed_to``): what a rule denies is denied where it is opened, whatever was exchanged
since the rule was asked.

A file with several names (hard links) is refused: another of them may lie outside, or be our own state,
and which ones there are nothing tells. Folders cannot have several.

Why not ``openat2`` with ``RESOLVE_BENEATH``: it refuses absolute links that lead back inside, it does
not say where one arrived (which the hidden places need), and a second way beside it would be needed
for creating folders and for other kernels.

It deliberately does not know what a tool wants to do with a file. Everything here blocks: call it
in a thread. Standard library and ``nousd.errors`` only, so that the search process starts quickly.
"""

from __future__ import annotations

import copy
import errno
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Literal, NamedTuple

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
_Missing = Literal["fail", "create", "imagine"]
"""What becomes of a folder on the way that does not exist."""

SEVERAL_NAMES: Final = (
    "it has several names (hard links), and another may lie outside of the workdir"
)
"""Why such a file is not opened."""

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


class Closed(NamedTuple):
    """Places that one call may not touch, by patterns that match them whole, as ``real`` spells them.

    A folder that matches is closed with everything in it.
    """

    reading: tuple[re.Pattern[str], ...] = ()
    writing: tuple[re.Pattern[str], ...] = ()

    def to_reading(self, parts: tuple[str, ...]) -> bool:
        """Whether the real place ``parts`` may be neither read nor listed."""
        return _matches(self.reading, parts)

    def to_writing(self, parts: tuple[str, ...]) -> bool:
        """Whether the real place ``parts`` may be neither made, changed nor removed."""
        return _matches(self.writing, parts)


def _matches(patterns: tuple[re.Pattern[str], ...], parts: tuple[str, ...]) -> bool:
    if not patterns:
        return False
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)] or ["."]
    return any(pattern.fullmatch(place) for pattern in patterns for place in above)


class Place:
    """Where a path leads: a name in an open folder. Valid inside ``Confinement.locate`` only.

    Args:
        confinement: by whose rules it is opened.
        folder: descriptor (``O_PATH``) of the folder that holds it.
        name: one component, no link when it was looked at; ``.`` for the folder itself.
        parts: the real way there from the workdir.
        given: the path as it was given, for messages.
    """

    def __init__(
        self, confinement: Confinement, folder: int, name: str, parts: tuple[str, ...], given: str
    ) -> None:
        self.folder = folder
        self.name = name
        self.parts = parts
        self._confinement = confinement
        self._given = given

    def open(self, flags: int) -> int:
        """Returns a descriptor; never follows a link and never blocks. Asks no ``Closed``."""
        return os.open(self.name, flags | _ALWAYS, dir_fd=self.folder)

    def open_file(self) -> BinaryIO:
        """Opens a regular file for reading.

        Raises:
            ToolError: ``path_denied``.
            OSError: also for folders (EISDIR), for FIFOs, sockets and devices (EINVAL), and for files
                with several names (EMLINK).
        """
        self._require_readable()
        file = os.fdopen(self.open(os.O_RDONLY), "rb")
        try:
            self._confinement.refuse(os.fstat(file.fileno()))
        except OSError:
            file.close()
            raise
        return file

    @contextmanager
    def open_folder(self) -> Iterator[int]:
        """Opens a folder for listing.

        Raises:
            ToolError: ``path_denied``.
            OSError: also for anything that is no folder (ENOTDIR).
        """
        self._require_readable()
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

    def require_writable(self) -> os.stat_result | None:
        """Returns what stands there, None if nothing does, if it may be changed or removed.

        Raises:
            ToolError: ``path_denied``.
            OSError: as ``open_file``.
        """
        if self._confinement.closed.to_writing(self.parts):
            raise denied(self._given, "writing")
        status = self.status()
        if status is not None:
            self._confinement.refuse(status)
        return status

    def _require_readable(self) -> None:
        if self._confinement.closed.to_reading(self.parts):
            raise denied(self._given, "reading")


def denied(given: str, what: str) -> ToolError:
    """Says that a rule closes a place of the workdir."""
    return ToolError(f"path_denied: {shown(given)}: {what} it is not allowed")


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
        hard_links: whether files with several names may be opened all the same.

    ``closed``: what one call may not touch.

    Raises:
        ConfigError: if the workdir is no folder, or is hidden itself.
    """

    def __init__(
        self, workdir: Path, hidden: tuple[Path, ...] = (), *, hard_links: bool = False
    ) -> None:
        self.workdir = workdir.resolve()
        self.spelled = workdir.absolute()
        self.hidden = hidden
        self.hard_links = hard_links
        self.closed = Closed()
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

    def closed_to(
        self,
        *,
        reading: Iterable[re.Pattern[str]] = (),
        writing: Iterable[re.Pattern[str]] = (),
    ) -> Confinement:
        """Returns a copy for one call, which refuses more: ``path_denied``, and unseen in walks.

        Args:
            reading: patterns of places that are neither read nor listed. Each is matched whole against
                real places as ``real`` spells them, and closes a folder with all that is in it.
            writing: the same for places that are neither made, changed nor removed.
        """
        closer = copy.copy(self)
        closer.closed = Closed((*self.closed.reading, *reading), (*self.closed.writing, *writing))
        return closer

    def is_seen(self, parts: tuple[str, ...]) -> bool:
        """Whether the real place ``parts`` turns up in lists and searches."""
        return not (self.is_hidden(parts) or self.closed.to_reading(parts))

    def refuse(self, status: os.stat_result) -> None:
        """Raises OSError for everything but a regular file with one name."""
        refuse_irregular(status)
        if status.st_nlink > 1 and not self.hard_links:
            raise OSError(errno.EMLINK, SEVERAL_NAMES)

    def real(self, given: str) -> str:
        """Returns where a path leads, with slashes from the workdir, ``.`` for the workdir itself.

        Neither the place nor the folders on the way need exist: what is not there is no link.

        Raises:
            ToolError, OSError: as ``locate``.
        """
        walk = _Walk(self, given)
        with ExitStack() as cleanup:
            cleanup.callback(walk.close)
            name = walk.to(self.names_of(_expanded(given), given), missing="imagine")
            return "/".join(walk.parts_of(name)) or "."

    @contextmanager
    def locate(self, given: str, *, create_parents: bool = False) -> Iterator[Place]:
        """Walks to a path, which need not exist except for its folder.

        Args:
            given: relative to the workdir, or absolute and inside it; ``~`` and ``$VAR`` are expanded.
            create_parents: whether missing folders on the way are made.

        Raises:
            ToolError: ``path_outside_workdir`` or ``path_invalid``, naming the path as given; or
                ``path_denied`` if a folder that is missing may not be made.
            OSError: what the operating system says of a folder on the way.
        """
        walk = _Walk(self, given)
        with ExitStack() as cleanup:
            cleanup.callback(walk.close)
            names = self.names_of(_expanded(given), given)
            name = walk.to(names, missing="create" if create_parents else "fail")
            yield Place(self, walk.folder, name, walk.parts_of(name), given)

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

    Invariant: ``len(self._folders) == len(self._parts) + 1``; no folder is a link or hidden, and one
    that does not exist is None.
    """

    def __init__(self, confinement: Confinement, given: str) -> None:
        self._confinement = confinement
        self._given = given
        self._parts: list[str] = []
        self._folders: list[int | None] = [os.open(confinement.workdir, _FOLDER)]

    def close(self) -> None:
        for folder in self._folders:
            if folder is not None:
                os.close(folder)

    @property
    def folder(self) -> int:
        """The folder that was arrived at, which exists unless missing ones were imagined."""
        folder = self._folders[-1]
        assert folder is not None
        return folder

    def to(self, names: list[str], *, missing: _Missing) -> str:
        """Goes to the folder that holds the last name, and returns that; ``.`` for the folder itself."""
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
                self._down(name, missing)
            else:
                return name
        return "."

    def parts_of(self, name: str) -> tuple[str, ...]:
        """Returns the real way to a name in the folder that was arrived at.

        Raises:
            ToolError: ``path_outside_workdir`` if it is hidden.
        """
        if name == ".":
            return tuple(self._parts)
        parts = (*self._parts, name)
        if self._confinement.is_hidden(parts):
            raise outside(self._given)
        return parts

    def _up(self) -> None:
        if not self._parts:
            raise outside(self._given)
        self._parts.pop()
        folder = self._folders.pop()
        if folder is not None:
            os.close(folder)

    def _down(self, name: str, missing: _Missing) -> None:
        if len(self._parts) >= DEPTH_MAX:
            raise ToolError(f"path_invalid: more than {DEPTH_MAX} folders deep")
        self.parts_of(name)
        self._folders.append(self._folder_below(name, missing))
        self._parts.append(name)

    def _folder_below(self, name: str, missing: _Missing) -> int | None:
        above = self._folders[-1]
        if above is None:
            return None
        try:
            return os.open(name, _FOLDER, dir_fd=above)
        except FileNotFoundError:
            if missing == "imagine":
                return None
            if missing == "fail":
                raise
        if self._confinement.closed.to_writing((*self._parts, name)):
            raise denied(self._given, "writing")
        os.mkdir(name, dir_fd=above)
        return os.open(name, _FOLDER, dir_fd=above)

    def _link_target(self, name: str) -> str | None:
        folder = self._folders[-1]
        if folder is None:
            return None
        try:
            return os.readlink(name, dir_fd=folder)
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
