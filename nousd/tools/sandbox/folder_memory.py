"""What was found in the folders of a workspace, for as long as no entry of theirs can have changed.

To tell that a folder has the entries that it had takes one system call; to look at 10,000 names takes
as long as a command does. A file system sets the times of a folder when an entry is made, removed,
renamed or replaced in it, and nobody can set the time of that change (``ctime``) to one of his choice.
So what was found counts while the folder at a place is the same one with the same times.

Two changes within one step of the file system's clock leave the same times. So nothing is remembered
of a folder that had changed shortly before it was read. File systems of which it is not known that they
keep these times, such as those of a network or of a program, are read each time.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from threading import Lock
from typing import Any, Final, NamedTuple

FOLDERS_MAX: Final = 20_000
"""Number of folders that are remembered from one walk to the next, in all workspaces."""

WALKS_MAX: Final = 200
"""Number of workspaces, each with what is looked for in it: the most recently used ones."""

UNSETTLED_NS: Final = 2_500_000_000
"""For so long after a change another one may leave the same times: the coarsest file systems count
every second second, and their time may be behind the clock by one tick of the kernel."""

_KEEPING_TIMES: Final = frozenset(
    (
        0xEF53,  # ext2, ext3, ext4
        0x58465342,  # XFS
        0x9123683E,  # btrfs
        0xF2F52010,  # F2FS
        0x2FC12FC1,  # ZFS
        0xCA451A4E,  # bcachefs
        0x01021994,  # tmpfs
        0x794C7630,  # overlayfs
    )
)
"""The kernel's numbers of file systems on which a folder's times tell every change of its entries."""

_STATFS_BYTES: Final = 256
"""More than what the kernel writes, whose beginning is the number."""

_READ: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_LIBC: Final = ctypes.CDLL(None, use_errno=True)

Stamp = tuple[int, int, int, int]
"""Which folder it is, and when it last changed."""


class _SeenFolder(NamedTuple):
    """What was found in a folder; ``key`` is what that depends on besides."""

    stamp: Stamp
    key: Hashable
    found: Any


class Listing(NamedTuple):
    """The entries of a folder.

    Args:
        entries: name, and whether it is a folder itself.
        stamp: from before they were read; None if it does not tell of changes.
    """

    entries: Sequence[tuple[str, bool]]
    stamp: Stamp | None


def listing_of(path: str, most: int) -> Listing:
    """Read a folder.

    Args:
        most: maximum entries; behind them it ends.

    Raises:
        OSError: it is not there, or cannot be listed.
    """
    # One descriptor for both: a path may lead to another folder at any time.
    descriptor = os.open(path, _READ)
    try:
        stamp = stamp_of(os.fstat(descriptor)) if _keeps_times(descriptor) else None
        with os.scandir(descriptor) as found:
            entries = [
                (entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(found, most)
            ]
    finally:
        os.close(descriptor)
    return Listing(entries, stamp)


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a folder with this status."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _keeps_times(descriptor: int) -> bool:
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if _LIBC.fstatfs(descriptor, status):
        return False
    (number,) = struct.unpack_from("@l", status)
    return number & 0xFFFFFFFF in _KEEPING_TIMES


class RememberedFolders:
    """What was found in one workspace with the same patterns, during one walk."""

    def __init__(self, seen: dict[str, _SeenFolder], now_ns: int) -> None:
        self._seen = seen
        self._settled_ns = now_ns - UNSETTLED_NS

    def look_up(self, place: str, path: str, key: Hashable) -> Any:
        """Return the findings in the folder at a place; None if it has to be read.

        Raises:
            OSError: it is not there, or out of reach.
        """
        seen = self._seen.get(place)
        if seen is None or seen.key != key or stamp_of(os.lstat(path)) != seen.stamp:
            return None
        return seen.found

    def keep(self, place: str, stamp: Stamp | None, key: Hashable, found: Any) -> None:
        """Remember what was found in a folder that was read during this walk, if that can be told to
        be so still.
        """
        if stamp is None or max(stamp[2:]) >= self._settled_ns:
            self._seen.pop(place, None)
        elif len(self._seen) < FOLDERS_MAX:
            self._seen[place] = _SeenFolder(stamp, key, found)


class FolderMemory:
    """What was found in all workspaces.

    Args:
        wall_ns: returns the time of the clock by which file systems go, in nanoseconds.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_ns = wall_ns
        self._lock = Lock()
        self._seen: OrderedDict[Hashable, dict[str, _SeenFolder]] = OrderedDict()

    def of(self, wanted: Hashable) -> RememberedFolders:
        """Return what is remembered for a walk that begins now.

        Args:
            wanted: the workspace, and what is looked for in it.
        """
        with self._lock:
            seen = self._seen.setdefault(wanted, {})
            self._seen.move_to_end(wanted)
            if len(seen) >= FOLDERS_MAX:  # some may be gone
                seen.clear()
            while len(self._seen) > 1 and (
                len(self._seen) > WALKS_MAX or self.folders > FOLDERS_MAX
            ):
                self._seen.popitem(last=False)
            return RememberedFolders(seen, self._wall_ns())

    @property
    def folders(self) -> int:
        """How many folders are remembered."""
        return sum(map(len, self._seen.values()))
