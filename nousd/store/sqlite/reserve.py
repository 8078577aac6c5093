"""Disk space reserved for the closing events of open runs: a file that only occupies blocks.

While it is in place, these events can be written even when the disk is full, because its blocks can be
released to the filesystem. ``commits`` releases them; ``writer`` decides what may then still be written.
"""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nousd.errors import StoreFull

RESERVE_BYTES: Final = 4 * 1024 * 1024
"""Enough for the closing events of a few hundred runs, with a few WAL pages each, or of one or two with
a long answer."""

_ZEROS: Final = bytes(64 * 1024)
_BLOCK_BYTES: Final = 512  # the unit of ``st_blocks``, on every filesystem
_NO_FALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class Reserve:
    """The file at ``path``, with or without blocks. ``in_place`` is true if ``size`` bytes of the disk
    are reserved.
    """

    def __init__(self, path: pathlib.Path, size: int) -> None:
        self.in_place = False
        self._obstacle = "it was never asked for"
        self._path = path
        self._size = size

    def place(self) -> bool:
        """Reserve the space unless it is reserved already; return ``in_place``."""
        if self.in_place:
            return True
        try:
            with _open_reserve(self._path) as handle:
                if not _is_allocated(handle, self._size):
                    _allocate(handle, self._size)
        except OSError as error:
            self._obstacle = error.strerror or str(error)
        else:
            self.in_place = True
        return self.in_place

    def require(self) -> None:
        """Like ``place``, but raise if there is no space.

        Raises:
            StoreFull: the space cannot be reserved.
        """
        if not self.place():
            raise StoreFull(f"the space for the log's reserve is missing: {self._obstacle}")

    def give_back(self) -> None:
        """Release the space to the filesystem."""
        self.in_place = False
        try:
            with _open_reserve(self._path) as handle:
                os.ftruncate(handle, 0)
        except OSError as error:
            self._obstacle = error.strerror or str(error)


@contextmanager
def _open_reserve(path: pathlib.Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(handle, 0o600)
        yield handle
    finally:
        os.close(handle)


def _is_allocated(handle: int, size: int) -> bool:
    """Return whether the file has its blocks; a copied state directory may have lost them."""
    status = os.fstat(handle)
    return status.st_size == size and status.st_blocks * _BLOCK_BYTES >= size


def _allocate(handle: int, size: int) -> None:
    """Allocate the blocks of the file.

    Raises:
        OSError: the disk lacks space; the file then has no blocks.
    """
    try:
        os.ftruncate(handle, 0)
        _fill(handle, size)
    except OSError:
        os.ftruncate(handle, 0)
        raise


def _fill(handle: int, size: int) -> None:
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno not in _NO_FALLOCATE:
            raise
        while (remaining := size - os.lseek(handle, 0, os.SEEK_CUR)) > 0:
            os.write(handle, _ZEROS[:remaining])
        os.fsync(handle)  # some filesystems report a lack of space only now
