"""Where a sandboxed command may change something, for the calls that the supervisor decides.

Landlock's rights hold for a folder with everything below it. A folder that holds something closed can
therefore not be opened as a whole: each of its entries is, and it is *parted*. In such a folder, and in
what is made in it meanwhile, the supervisor does what the kernel cannot, and goes by names:

- what is closed, and every name that may mean the same to a file system that ignores case, is left alone
- so is a name that programs would obey, where the sandbox was told of such names
- what lies on the way to something closed, existing or not, is neither moved nor replaced
- a file that has a closed name is known by its device and inode, too, whatever else it is called
- a git folder gets no symbolic links, and nothing from elsewhere that may hold some: git writes what a
  command prepares (messages, logs) into files there, and would write it through a link

Folders are found by where they really lie, and a parted one is opened once more from there, over no link
and no mount, so that another name of it is not taken for a place of its own.

Loaded by the fork server, and so standard library only.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from nousd.tools.fs.deep_folders import walk
from nousd.tools.process.waiting_call import (
    AT_FDCWD,
    RESOLVE_BENEATH,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    OpenDescriptor,
    place_of,
)

WHOLE = "whole"
PARTED = "parted"
UNREAD = "unread"
"""Parted for reading, too: what is made there is not read unless we open it."""

CLOSED = "closed"

LINKED_ENTRIES_MAX = 10_000
"""Maximum entries of closed folders that are looked at."""

FOLDER = os.O_PATH | os.O_DIRECTORY


class Folder:
    """An opened folder in which a command may change something.

    Args:
        descriptor: of it.
        place: where it lies.
        kind: ``WHOLE``, ``PARTED`` or ``UNREAD``.
        is_of_git: whether it is a git folder that is closed in part, or lies in one.
    """

    def __init__(self, descriptor: int, place: bytes, kind: str, *, is_of_git: bool) -> None:
        self.descriptor = descriptor
        self.place = place
        self.kind = kind
        self.is_of_git = is_of_git

    @property
    def is_whole(self) -> bool:
        return self.kind == WHOLE


class Entry:
    """A name in a folder.

    Args:
        is_folder: whether the caller says, by a slash behind it, that it means a folder.
    """

    def __init__(self, folder: Folder, name: bytes, *, is_folder: bool = False) -> None:
        self.folder = folder
        self.name = name
        self.is_folder = is_folder

    @property
    def place(self) -> bytes:
        return b"%s/%s" % (self.folder.place, self.name)

    def status(self) -> os.stat_result | None:
        """Return the facts about what has that name, a link itself; None if nothing has."""
        try:
            return os.stat(self.name, dir_fd=self.folder.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None


class WritablePlaces:
    """The places of one command.

    Args:
        plan: with absolute paths as bytes

            - ``whole``: what may be written, with everything below
            - ``parted``: folder in which only what it held was opened, and where we act -> whether the
              kernel lets the command read all in it
            - ``closed``: what stays as it is, with everything below, existing or not
            - ``git``: those of the parted folders that are git folders
            - ``names``: (folder, pattern) of further names in a folder that stay as they are
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._kinds: dict[bytes, str] = dict.fromkeys(plan["whole"], WHOLE)
        self._kinds |= {
            path: PARTED if is_read else UNREAD for path, is_read in plan["parted"].items()
        }
        self._kinds |= dict.fromkeys(plan["closed"], CLOSED)
        self._closed: list[bytes] = plan["closed"]
        self._git = frozenset(plan["git"])
        self._names = {
            _fold_case(folder): re.compile(pattern, re.IGNORECASE)
            for folder, pattern in plan["names"]
        }
        self._closed_names = frozenset(map(_fold_case, self._closed))
        named = [folder for folder, _ in plan["names"]]
        self._ways = frozenset(_above([*self._closed, *(b"%s/x" % folder for folder in named)]))
        self._folded_ways = frozenset(map(_fold_case, self._ways))
        self._files: _Files | None = None

    def may_change(self, file: int) -> bool:
        """Return whether a command may write an opened file (O_PATH), or in a folder."""
        place = place_of(file)
        kind, known = self._kind(place)
        if kind not in (PARTED, UNREAD) or place == known:
            return kind == WHOLE
        above, _, name = place.rpartition(b"/")
        with ExitStack() as stack:
            try:
                folder = self.folder(stack.enter_context(OpenDescriptor(above, FOLDER)), stack)
            except OSError:
                return False
            if folder is None:
                return False
            entry = Entry(folder, name)
            found, opened = entry.status(), os.fstat(file)
            is_it = found is not None and os.path.samestat(found, opened)
            return is_it and self.is_free(entry) and not self.is_closed_file(opened)

    def folder(self, opened: int, stack: ExitStack) -> Folder | None:
        """Return an opened folder (O_PATH); None if the command may change nothing in it."""
        place = place_of(opened)
        kind, known = self._kind(place)
        is_of_git = self._is_of_git(place)
        if kind == WHOLE:
            return Folder(opened, place, kind, is_of_git=is_of_git)
        if kind == CLOSED:
            return None
        further = place[len(known) + 1 :]
        try:
            own = stack.enter_context(
                OpenDescriptor(known, FOLDER, AT_FDCWD, resolving=RESOLVE_NO_SYMLINKS)
            )
            if further:
                how = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
                own = stack.enter_context(OpenDescriptor(further, FOLDER, own, resolving=how))
        except OSError:
            return None
        if not os.path.samestat(os.fstat(own), os.fstat(opened)):
            return None
        return Folder(own, place, kind, is_of_git=is_of_git)

    def entry(self, start: int, path: bytes, stack: ExitStack) -> Entry | None:
        """Return the name that a path ends with, in its folder.

        Args:
            start: from where a relative path leads.

        Returns:
            None if the command may change nothing in that folder, or there is no such name.
        """
        above, _, name = path.rstrip(b"/").rpartition(b"/")
        if name in (b"", b".", b".."):
            return None
        if not above and path.startswith(b"/"):
            above = b"/"
        try:
            opened = stack.enter_context(OpenDescriptor(above, FOLDER, start)) if above else start
        except OSError:
            return None
        folder = self.folder(opened, stack)
        return None if folder is None else Entry(folder, name, is_folder=path.endswith(b"/"))

    def is_free(self, entry: Entry) -> bool:
        """Return whether a name may be made, written and removed."""
        if entry.folder.is_whole:
            return True
        above = _fold_case(entry.folder.place)
        names = self._names.get(above)
        return not any(
            f"{above}/{name}" in self._closed_names or (names is not None and names.match(name))
            for name in _spellings(entry.name)
        )

    def is_movable(self, entry: Entry) -> bool:
        """Return whether a name may, besides, be moved away, and something else moved there."""
        if entry.folder.is_whole:
            return True
        above = _fold_case(entry.folder.place)
        is_way = any(f"{above}/{name}" in self._folded_ways for name in _spellings(entry.name))
        return self.is_free(entry) and not is_way

    def is_parted(self, entry: Entry) -> bool:
        """Return whether a name is a folder that was there and holds something closed."""
        return self._kinds.get(entry.place) in (PARTED, UNREAD)

    def is_closed_file(self, status: os.stat_result) -> bool:
        """Return whether a file is a closed one, whatever its name."""
        if self._files is None:
            # Nothing of it can have changed by the command until now: it has to ask us.
            self._files = _Files(self._closed)
        return self._files.may_have(status)

    def forget(self, entry: Entry) -> None:
        """Note that a name means something else now, to which the kernel gives no rights."""
        if self._kinds.get(entry.place) == WHOLE:
            del self._kinds[entry.place]

    def _kind(self, place: bytes) -> tuple[str, bytes]:
        """Return what holds for a place, and the known path that says so."""
        while place:
            if (kind := self._kinds.get(place)) is not None:
                return kind, place
            if self._closed_names:
                folded = _fold_case(place)
                is_other_spelling = folded in self._folded_ways and place not in self._ways
                if is_other_spelling or folded in self._closed_names:
                    return CLOSED, place
            place = place.rpartition(b"/")[0]
        return CLOSED, place

    def _is_of_git(self, place: bytes) -> bool:
        while place and self._git:
            if place in self._git:
                return True
            place = place.rpartition(b"/")[0]
        return False


def _fold_case(path: bytes) -> str:
    return os.fsdecode(path).casefold()


def _spellings(name: bytes) -> tuple[str, str]:
    """Return a name without case, and without what some file systems ignore: none of the closed names
    that matter has other characters than those of ASCII.
    """
    folded = _fold_case(name)
    return folded, folded.encode("ascii", "ignore").decode()


def _above(paths: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the folders on the way to some paths."""
    met = set[bytes]()
    for path in paths:
        folder = path.rpartition(b"/")[0]
        while folder and folder not in met:
            met.add(folder)
            yield folder
            folder = folder.rpartition(b"/")[0]


class _Files:
    """The closed files, known by device and inode.

    Args:
        closed: closed paths.
    """

    def __init__(self, closed: Iterable[bytes]) -> None:
        self._known = set[tuple[int, int]]()
        self._left = LINKED_ENTRIES_MAX
        for path in closed:
            if self._meet(path):
                self._meet_all(path)

    def _meet(self, path: bytes) -> bool:
        """Return whether a path is a folder; remember it if it is anything else."""
        try:
            status = os.lstat(path)
        except OSError:
            return False
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_folder:
            self._known.add((status.st_dev, status.st_ino))
        return is_folder

    def _meet_all(self, path: bytes) -> None:
        for folder, _, names in walk(path):
            for name in names[: max(0, self._left)]:
                self._meet(os.path.join(folder, name))  # noqa: PTH118
            self._left -= len(names)
            if self._left < 0:
                return

    def may_have(self, status: os.stat_result) -> bool:
        """Return whether a file is a closed one, or cannot be told from one."""
        is_unmet = self._left < 0 and status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)
        return is_unmet or (status.st_dev, status.st_ino) in self._known
