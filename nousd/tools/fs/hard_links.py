"""Finds the other names of closed files: rules name paths, and a file can have several (hard links).

A file is identified by its device and inode. The kernel does not list the names of a file, but reports
their number: so the names at closed paths are counted, and the others are searched for while some are
missing. Both searches are bounded, and report whether they reached everything.

Everything here blocks. Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

from nousd.tools.fs.lexical_paths import lies_in, lies_in_any
from nousd.tools.fs.real_paths import real_paths

ENTRIES_MAX: Final = 200_000
"""Maximum entries of the search for closed files of a workspace."""

File = tuple[int, int]
"""Device and inode."""


class LinkedFiles(NamedTuple):
    """Closed files with several names.

    Args:
        names_left: file -> number of its names that have not been found yet.
        is_partial: whether more such files may exist.
    """

    names_left: dict[File, int]
    is_partial: bool = False


class OtherNames(NamedTuple):
    """Names of closed files that are not closed themselves.

    Args:
        is_partial: whether more may exist in the searched paths.
    """

    paths: tuple[Path, ...] = ()
    is_partial: bool = False


def find_linked_files(
    starts: Iterable[Path | str],
    entries_max: int,
    is_closed: Callable[[str], bool] = lambda _: True,
) -> LinkedFiles:
    """Return the closed files with several names among some paths and everything below them.

    Args:
        is_closed: returns whether an absolute path is a closed one.
    """
    walk = _Walk(entries_max)
    names_left: dict[File, int] = {}
    for path, status in walk.files(starts, lambda _: True):
        if status.st_nlink > 1 and is_closed(path):
            _meet(names_left, status)
    return LinkedFiles(names_left, walk.is_partial or any(map(is_closed, walk.unread)))


def other_names(
    closed: LinkedFiles,
    starts: Iterable[Path | str],
    skipped: Collection[str],
    entries_max: int,
) -> OtherNames:
    """Return the other names of closed files among some paths and everything below them.

    Args:
        skipped: the closed paths, whose names were counted already.
    """
    names_left, other_files = dict(closed.names_left), dict[File, int]()
    found: list[Path] = []
    walk = _Walk(entries_max)
    ahead = walk.files(starts, lambda path: path not in skipped)
    while (closed.is_partial or any(names_left.values())) and (file := next(ahead, None)):
        path, status = file
        if status.st_nlink > 1 and path not in skipped:
            is_found = file_of(status) in names_left
            _meet(names_left if is_found else other_files, status)
            found += [Path(path)] if is_found else []
    # A file with a name that was not found may be a closed file that the first search did not reach.
    may_be_closed = closed.is_partial and any(other_files.values())
    is_incomplete = closed.is_partial or any(names_left.values())
    is_partial = walk.is_partial or bool(walk.unread)
    return OtherNames(tuple(found), may_be_closed or (is_partial and is_incomplete))


def targets_of(paths: Iterable[Path], folders: Collection[Path]) -> list[str]:
    """Return the real paths of those that lie in ``folders`` or are files."""
    return [
        path
        for path in real_paths(paths)
        if lies_in_any(path, folders) or os.path.isfile(path)  # noqa: PTH113
    ]


class ClosedFiles:
    """The files that are closed to reading under any name; searched for at the first query.

    Args:
        is_closed: returns whether a path with slashes, relative to the workspace, is closed.
    """

    def __init__(self, workdir: Path, is_closed: Callable[[str], bool]) -> None:
        self._prefix = len(str(workdir)) + 1
        self._workdir = workdir
        self._is_closed = is_closed

    @cached_property
    def _found(self) -> LinkedFiles:
        return find_linked_files(
            (self._workdir,), ENTRIES_MAX, lambda path: self._is_closed(path[self._prefix :])
        )

    def state_of(self, status: os.stat_result) -> Literal["open", "closed", "unknown"]:
        """Return the state of a file with several names; ``unknown`` if the search was incomplete."""
        if file_of(status) in self._found.names_left:
            return "closed"
        return "unknown" if self._found.is_partial else "open"


def file_of(status: os.stat_result) -> File:
    """Return the identity of a file."""
    return status.st_dev, status.st_ino


def _meet(names_left: dict[File, int], status: os.stat_result) -> None:
    left = names_left.get(file_of(status), status.st_nlink)
    names_left[file_of(status)] = max(left - 1, 0)


class _Walk:
    """A breadth-first walk through trees, limited to a number of entries.

    ``unread``: the paths that permissions kept it from reading.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_left = entries_max
        self.is_partial = False
        self.unread: list[str] = []

    def files(
        self, starts: Iterable[Path | str], enters: Callable[[str], bool]
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the path and status of each regular file, once even if one start lies in another.

        Args:
            enters: returns whether to enter a directory.
        """
        ahead = deque(_outermost(starts))
        while ahead:
            path = ahead.popleft()
            try:
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    yield path, status
                elif stat.S_ISDIR(status.st_mode) and enters(path):
                    ahead.extend(self._list_folder(path))
            except (FileNotFoundError, NotADirectoryError):  # it has changed meanwhile
                continue
            except PermissionError:
                self.unread.append(path)
            except OSError:  # such as a path that is too long
                self.is_partial = True

    def _list_folder(self, folder: str) -> list[str]:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in islice(entries, self._entries_left + 1)]
        if len(found) > self._entries_left:
            self.is_partial = True
            found = found[: self._entries_left]
        self._entries_left -= len(found)
        return found


def _outermost(paths: Iterable[Path | str]) -> Iterator[str]:
    last: str | None = None
    # In this order the content of a folder directly follows the folder.
    for path in sorted(map(str, paths), key=lambda path: path.split("/")):
        if last is None or not lies_in(path, last):
            yield path
            last = path
