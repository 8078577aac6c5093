"""An anonymous file with bytes for the artifact store, which disappears with its descriptor.

The bytes are hashed as they are written, so the artifact's id is known with the last byte.
"""

from __future__ import annotations

import errno
import hashlib
import os
import weakref
from pathlib import Path
from typing import Final

import trio

HEADROOM_BYTES: Final = 1024 * 1024
"""Space that stays free on the filesystem, because the log is on it too and must be able to report an
output that fills it."""


class SpooledFile:
    """A private file: written from start to end, then read from any offset.

    Args:
        folder: its directory; None for the system's directory of temporary files.

    Raises:
        OSError: the file cannot be created; other methods raise it if the disk fails.
    """

    def __init__(self, folder: Path | None = None) -> None:
        import tempfile

        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            self._handle = os.dup(file.fileno())
        # Frees the space even if the holder is cancelled, or forgets to close the file.
        self._finalizer = weakref.finalize(self, os.close, self._handle)
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    @property
    def artifact_id(self) -> str:
        """The artifact id of the bytes written so far."""
        return f"sha256:{self._digest.hexdigest()}"

    def write(self, data: bytes | bytearray) -> None:
        """Append all of the data or none; blocks."""
        disk = os.fstatvfs(self._handle)
        if disk.f_bavail * disk.f_frsize < len(data) + HEADROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = memoryview(data)
        written = 0
        while written < len(view):
            written += os.pwrite(self._handle, view[written:], self.size_bytes + written)
        self._digest.update(view)
        self.size_bytes += written

    async def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from ``offset`` on, ``length`` of them unless the file ends before."""
        return await trio.to_thread.run_sync(self._read, offset, length)

    def _read(self, offset: int, length: int) -> bytes:
        pieces = []
        while length > 0 and (piece := os.pread(self._handle, length, offset)):
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Free the space; may be called twice."""
        self._finalizer()
