"""The paths that a sandboxed command may change, for the calls that the supervisor decides.

Landlock rights cover a folder with everything below it. So a folder that contains something closed
cannot be opened as a whole: its entries are opened one by one, and the folder is called *parted*. In a
parted folder, and in folders made in it later, the supervisor does what the kernel cannot, by names:

- closed paths, and names that a file system which ignores case may take for them, are not changed
- neither are names that programs would obey, if the plan of the sandbox contains such names
- folders on the way to a closed path, existing or not, are neither moved nor replaced
- a file with a closed name is also recognized under its other names, by device and inode
- a git folder gets no symbolic links, and no entries from elsewhere that may contain some: git writes
  text prepared by a command (messages, logs) into files there, and would write it through a link

Folders are identified by their real paths. A parted folder is opened again by that path, without links
and, below the folder in the plan, without mounts, so that another path to it gives no other rights.

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
"""Parted for reading, too: only the supervisor can open the files that are made there for reading."""

CLOSED = "closed"

LINKED_ENTRIES_MAX = 10_000
"""Maximum entries of closed folders whose device and inode are recorded."""

FOLDER = os.O_PATH | os.O_DIRECTORY


class Folder:
    """An opened folder in which a command may change entries.

    Args:
        descriptor: its descriptor.
        path: its real path.
        kind: ``WHOLE``, ``PARTED`` or ``UNREAD``.
        is_of_git: whether it is a partly closed git folder, or lies in one.
    """

    def __init__(self, descriptor: int, path: bytes, kind: str, *, is_of_git: bool) -> None:
        self.descriptor = descriptor
        self.path = path
        self.kind = kind
        self.is_of_git = is_of_git

    @property
    def is_whole(self) -> bool:
        return self.kind == WHOLE


class Entry:
    """A name in a folder.

    Args:
        is_folder: whether the caller's path ends with a slash, which means a folder.
    """

    def __init__(self, folder: Folder, name: bytes, *, is_folder: bool = False) -> None:
        self.folder = folder
        self.name = name
        self.is_folder = is_folder

    @property
    def path(self) -> bytes:
        return b"%s/%s" % (self.folder.path, self.name)

    def status(self) -> os.stat_result | None:
        """Return the status of the entry, of a link itself; None if there is no such entry."""
        try:
            return os.stat(self.name, dir_fd=self.folder.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None


class WritablePlaces:
    """The writable paths of one command.

    Args:
        plan: with absolute paths as bytes

            - ``whole``: paths that may be written, with everything below
            - ``parted``: folder whose entries were opened one by one, and in which the supervisor acts
              -> whether the kernel lets the command read everything in it
            - ``closed``: paths that must not change, with everything below, existing or not
            - ``git``: the parted folders that are git folders
            - ``names``: (folder, pattern) of further names in a folder that must not change
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._kinds: dict[bytes, str] = dict.fromkeys(plan["whole"], WHOLE)
        self._kinds |= {
            path: PARTED if is_read else UNREAD for path, is_read in plan["parted"].items()
        }
        self._kinds |= dict.fromkeys(plan["closed"], CLOSED)
        self._closed: list[bytes] = plan["closed"]
        self._git = frozenset(plan["git"])
        # Compiled on first use: it takes milliseconds, and most commands make nothing in these folders.
        self._names = {_fold_case(folder): pattern for folder, pattern in plan["names"]}
        self._closed_names = frozenset(map(_fold_case, self._closed))
        named = [folder for folder, _ in plan["names"]]
        self._parents = frozenset(_above([*self._closed, *(b"%s/x" % folder for folder in named)]))
        self._folded_parents = frozenset(map(_fold_case, self._parents))
        self._files: _Files | None = None

    def may_change(self, file: int) -> bool:
        """Return whether the command may change an opened file or folder (O_PATH)."""
        path = place_of(file)
        kind, known = self._kind(path)
        if kind not in (PARTED, UNREAD) or path == known:
            return kind == WHOLE
        parent, _, name = path.rpartition(b"/")
        with ExitStack() as stack:
            try:
                folder = self.folder(stack.enter_context(OpenDescriptor(parent, FOLDER)), stack)
            except OSError:
                return False
            if folder is None:
                return False
            entry = Entry(folder, name)
            found, opened = entry.status(), os.fstat(file)
            is_same_file = found is not None and os.path.samestat(found, opened)
            return is_same_file and self.is_free(entry) and not self.is_closed_file(opened)

    def folder(self, opened: int, stack: ExitStack) -> Folder | None:
        """Return the folder of a descriptor (O_PATH); None if the command may change nothing in it."""
        path = place_of(opened)
        kind, known = self._kind(path)
        is_of_git = self._is_of_git(path)
        if kind == WHOLE:
            return Folder(opened, path, kind, is_of_git=is_of_git)
        if kind == CLOSED:
            return None
        rest = path[len(known) + 1 :]
        try:
            found = stack.enter_context(
                OpenDescriptor(known, FOLDER, AT_FDCWD, resolving=RESOLVE_NO_SYMLINKS)
            )
            if rest:
                resolving = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
                found = stack.enter_context(
                    OpenDescriptor(rest, FOLDER, found, resolving=resolving)
                )
        except OSError:
            return None
        if not os.path.samestat(os.fstat(found), os.fstat(opened)):
            return None
        return Folder(found, path, kind, is_of_git=is_of_git)

    def entry(self, start: int, path: bytes, stack: ExitStack) -> Entry | None:
        """Return the last name of a path, with its folder.

        Args:
            start: descriptor of the folder that a relative path starts from.

        Returns:
            None if the command may change nothing in that folder, or there is no such name.
        """
        parent, _, name = path.rstrip(b"/").rpartition(b"/")
        if name in (b"", b".", b".."):
            return None
        if not parent and path.startswith(b"/"):
            parent = b"/"
        try:
            opened = stack.enter_context(OpenDescriptor(parent, FOLDER, start)) if parent else start
        except OSError:
            return None
        folder = self.folder(opened, stack)
        return None if folder is None else Entry(folder, name, is_folder=path.endswith(b"/"))

    def is_free(self, entry: Entry) -> bool:
        """Return whether an entry may be made, written and removed."""
        if entry.folder.is_whole:
            return True
        parent = _fold_case(entry.folder.path)
        names = self._names.get(parent)
        return not any(
            f"{parent}/{name}" in self._closed_names
            or (names is not None and re.match(names, name, re.IGNORECASE))
            for name in _spellings(entry.name)
        )

    def is_movable(self, entry: Entry) -> bool:
        """Return whether an entry may also be moved away, and replaced by another one."""
        if entry.folder.is_whole:
            return True
        parent = _fold_case(entry.folder.path)
        is_parent = any(
            f"{parent}/{name}" in self._folded_parents for name in _spellings(entry.name)
        )
        return self.is_free(entry) and not is_parent

    def is_parted(self, entry: Entry) -> bool:
        """Return whether an entry is a parted folder of the plan."""
        return self._kinds.get(entry.path) in (PARTED, UNREAD)

    def is_closed_file(self, status: os.stat_result) -> bool:
        """Return whether a file is or may be a closed one under another name."""
        if self._files is None:
            # Read on first use: until now the command cannot have changed any of it without asking us.
            self._files = _Files(self._closed)
        return self._files.may_have(status)

    def forget(self, entry: Entry) -> None:
        """Record that a name no longer refers to the entry that the kernel granted rights for."""
        if self._kinds.get(entry.path) == WHOLE:
            del self._kinds[entry.path]

    def _kind(self, path: bytes) -> tuple[str, bytes]:
        """Return the kind of a path, and the path from the plan that determines it."""
        while path:
            if (kind := self._kinds.get(path)) is not None:
                return kind, path
            if self._closed_names:
                folded = _fold_case(path)
                is_other_spelling = folded in self._folded_parents and path not in self._parents
                if is_other_spelling or folded in self._closed_names:
                    return CLOSED, path
            path = path.rpartition(b"/")[0]
        return CLOSED, path

    def _is_of_git(self, path: bytes) -> bool:
        while path and self._git:
            if path in self._git:
                return True
            path = path.rpartition(b"/")[0]
        return False


def _fold_case(path: bytes) -> str:
    return os.fsdecode(path).casefold()


def _spellings(name: bytes) -> tuple[str, str]:
    """Return a name in folded case, with and without its non-ASCII characters, which some file systems
    ignore: all closed names that matter are ASCII.
    """
    folded = _fold_case(name)
    return folded, folded.encode("ascii", "ignore").decode()


def _above(paths: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the folders on the way to some paths."""
    seen = set[bytes]()
    for path in paths:
        folder = path.rpartition(b"/")[0]
        while folder and folder not in seen:
            seen.add(folder)
            yield folder
            folder = folder.rpartition(b"/")[0]


class _Files:
    """The closed files, identified by device and inode.

    Args:
        closed: closed paths.
    """

    def __init__(self, closed: Iterable[bytes]) -> None:
        self._known = set[tuple[int, int]]()
        self._entries_left = LINKED_ENTRIES_MAX
        for path in closed:
            if self._meet(path):
                self._meet_all(path)

    def _meet(self, path: bytes) -> bool:
        """Return whether a path is a folder; record any other file."""
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
            for name in names[: max(0, self._entries_left)]:
                self._meet(os.path.join(folder, name))  # noqa: PTH118
            self._entries_left -= len(names)
            if self._entries_left < 0:
                return

    def may_have(self, status: os.stat_result) -> bool:
        """Return whether a file is a closed one, or may be one that was not recorded."""
        is_unrecorded = (
            self._entries_left < 0 and status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)
        )
        return is_unrecorded or (status.st_dev, status.st_ino) in self._known
