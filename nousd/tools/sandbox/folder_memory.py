"""Remembers the findings in the folders of a workspace while their entries cannot have changed.

Checking that a folder still has the same entries takes one system call; examining 10,000 names takes as
long as a command. A file system updates the times of a folder when an entry is made, removed, renamed or
replaced in it, and no program can set the time of that change (``ctime``) to a value of its choice. So
findings are valid while a path leads to the same folder with the same times.

Two changes within one step of the file system's clock leave the same times. So the findings in a folder
that changed shortly before it was read are not remembered. File systems that are not known to keep these
times, such as network file systems and FUSE, are read every time.
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
"""Maximum number of folders, in all workspaces, that are remembered from one walk to the next."""

WALKS_MAX: Final = 200
"""Maximum number of pairs of workspace and patterns; the most recently used ones are kept."""

UNSETTLED_NS: Final = 2_500_000_000
"""How long after a change another one may leave the same times: the coarsest file systems have a
resolution of two seconds, and their time may be one tick of the kernel behind the clock."""

_FILE_SYSTEMS_WITH_TIMES: Final = frozenset(
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
"""Magic numbers of the file systems that update a folder's times at every change of its entries."""

_STATFS_BYTES: Final = 256
"""Larger than the kernel's ``struct statfs``, which begins with the magic number."""

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_LIBC: Final = ctypes.CDLL(None, use_errno=True)

Stamp = tuple[int, int, int, int]
"""Device, inode, mtime and ctime of a folder, the times in nanoseconds."""


class _SeenFolder(NamedTuple):
    """The findings in a folder; they also depend on ``key``."""

    stamp: Stamp
    key: Hashable
    found: Any


class Listing(NamedTuple):
    """The entries of a folder.

    Args:
        entries: names, each with whether it is a folder itself.
        stamp: the stamp from before they were read; None if the file system does not keep times.
    """

    entries: Sequence[tuple[str, bool]]
    stamp: Stamp | None


def listing_of(path: str, entries_max: int) -> Listing:
    """Read a folder.

    Args:
        entries_max: maximum entries; further ones are left out.

    Raises:
        OSError: it does not exist, or cannot be listed.
    """
    # One descriptor for both, because the path may lead to another folder at any time.
    descriptor = os.open(path, _FOLDER_FLAGS)
    try:
        stamp = stamp_of(os.fstat(descriptor)) if _keeps_times(descriptor) else None
        with os.scandir(descriptor) as found:
            entries = [
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry in islice(found, entries_max)
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
    return number & 0xFFFFFFFF in _FILE_SYSTEMS_WITH_TIMES


class RememberedFolders:
    """The findings in one workspace with one set of patterns, as used by one walk."""

    def __init__(self, seen: dict[str, _SeenFolder], now_ns: int) -> None:
        self._seen = seen
        self._settled_ns = now_ns - UNSETTLED_NS

    def look_up(self, folder: str, path: str, key: Hashable) -> Any:
        """Return the findings in a folder; None if it has to be read.

        Raises:
            OSError: it does not exist, or cannot be reached.
        """
        seen = self._seen.get(folder)
        if seen is None or seen.key != key or stamp_of(os.lstat(path)) != seen.stamp:
            return None
        return seen.found

    def keep(self, folder: str, stamp: Stamp | None, key: Hashable, found: Any) -> None:
        """Remember the findings in a folder that this walk has read, if changes will be noticed."""
        if stamp is None or max(stamp[2:]) >= self._settled_ns:
            self._seen.pop(folder, None)
        elif len(self._seen) < FOLDERS_MAX:
            self._seen[folder] = _SeenFolder(stamp, key, found)


class FolderMemory:
    """The findings in all workspaces.

    Args:
        wall_ns: returns the wall-clock time, which file systems use, in nanoseconds.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_ns = wall_ns
        self._lock = Lock()
        self._seen: OrderedDict[Hashable, dict[str, _SeenFolder]] = OrderedDict()

    def of(self, key: Hashable) -> RememberedFolders:
        """Return the findings for a walk that begins now.

        Args:
            key: the workspace and the patterns.
        """
        with self._lock:
            seen = self._seen.setdefault(key, {})
            self._seen.move_to_end(key)
            if len(seen) >= FOLDERS_MAX:  # some of these folders may no longer exist
                seen.clear()
            while len(self._seen) > 1 and (
                len(self._seen) > WALKS_MAX or self.folders > FOLDERS_MAX
            ):
                self._seen.popitem(last=False)
            return RememberedFolders(seen, self._wall_ns())

    @property
    def folders(self) -> int:
        """The number of folders that are remembered."""
        return sum(map(len, self._seen.values()))
