"""Moves the content of the WAL into the database, in a separate thread with a connection of its own.

A large move takes the disk a tenth of a second. Commits continue meanwhile: SQLite lets one connection
append to the WAL while another one reads it. But SQLite restarts the WAL only when all of it was moved.
So the writer itself moves the few pages that were written meanwhile (``commits.Commits.tidy``).

If the sync of the WAL fails here, pages that a commit has just written may be lost. The commit does not
count as durable nevertheless: Linux reports the failure to each open file once, so the writer's own sync
fails as well.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Final, NamedTuple

import apsw


class CheckpointResult(NamedTuple):
    """The number of pages in the WAL, how many of them are in the database, and the seconds it took."""

    pages: int
    moved: int
    seconds: float


def checkpoint(connection: apsw.Connection, mode: int) -> CheckpointResult:
    """Move all content that no reader holds back.

    Raises:
        apsw.Error: it failed, or another connection is running a checkpoint.
    """
    started = perf_counter()
    pages, moved = connection.wal_checkpoint(mode=mode)
    return CheckpointResult(pages, moved, perf_counter() - started)


class Checkpointer:
    """Runs checkpoints in the background, one at a time. Only the writer thread calls its methods.

    Args:
        database: an open connection; only its file name and VFS are used.
    """

    def __init__(self, database: apsw.Connection) -> None:
        self._file: Final = database.filename
        self._vfs: Final = database.open_vfs
        self._connection: apsw.Connection | None = None
        self._threads: Final = ThreadPoolExecutor(1, thread_name_prefix="nousd log checkpoints")
        self._moving: Future[CheckpointResult] | None = None

    def begin(self, on_done: Callable[[], None]) -> None:
        """Start a checkpoint; ``on_done`` is called in the background thread when it has ended."""
        self._moving = self._threads.submit(self._move)
        self._moving.add_done_callback(lambda _: on_done())

    @property
    def is_busy(self) -> bool:
        return self._moving is not None and not self._moving.done()

    def outcome(self) -> CheckpointResult | None:
        """Wait for the checkpoint and return its result; None if none was started since the last call.

        Raises:
            apsw.Error: it failed.
        """
        moving, self._moving = self._moving, None
        return None if moving is None else moving.result()

    def _move(self) -> CheckpointResult:
        if self._connection is None:
            self._connection = apsw.Connection(self._file, vfs=self._vfs)
            # A connection notices the WAL only when it has read something.
            self._connection.pragma("user_version")
        return checkpoint(self._connection, apsw.SQLITE_CHECKPOINT_PASSIVE)

    def disconnect(self) -> None:
        """Close the connection; none may be in progress. The next checkpoint opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Wait for the checkpoint, if any, and close the connection."""
        self._threads.shutdown()
        self.disconnect()
