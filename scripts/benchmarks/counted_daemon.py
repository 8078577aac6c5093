"""The daemon with its fsyncs counted: ``nousd`` on a SQLite whose files count their syncs.

What SQLite asks of the operating system is counted, whatever for: commits and checkpoints alike. The
count stands in a file of eight bytes (see ``read_count``). Python is asked before each file operation,
which takes time: this is for counting and not for timing.

Arguments: the file for the count, then those of ``nousd``.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path
from typing import Any

import apsw


def read_count(path: Path) -> int:
    """Return how many syncs there have been."""
    (count,) = struct.unpack("=q", path.read_bytes())
    return int(count)


class _Count:
    def __init__(self, path: str) -> None:
        Path(path).write_bytes(bytes(8))
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)
        self._count = 0

    def add(self) -> None:
        self._count += 1
        self._memory[:] = struct.pack("=q", self._count)


class _CountingFiles(apsw.VFS):
    def __init__(self, count: _Count) -> None:
        # Named, because the default is about to be this one.
        self._base = apsw.vfs_names()[0]
        super().__init__("counting", self._base, makedefault=True)
        self._count = count

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return _CountingFile(self._base, name, flags, self._count)


class _CountingFile(apsw.VFSFile):
    def __init__(self, base: str, name: Any, flags: list[int], count: _Count) -> None:
        super().__init__(base, name, flags)
        self._count = count

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        self._count.add()
        super().xSync(flags)


def main() -> None:
    """Run ``nousd``."""
    from nousd.cli.nousd.main import main as nousd

    # It is the default as long as this object lives.
    files = _CountingFiles(_Count(sys.argv.pop(1)))
    try:
        nousd()
    finally:
        files.unregister()


if __name__ == "__main__":
    main()
