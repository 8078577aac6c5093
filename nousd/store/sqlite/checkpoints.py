"""Moves the content of the WAL into the database, in a thread and on a connection of their own.

To move much takes the disk a tenth of a second, and commits can go on meanwhile: SQLite lets one
connection append to the WAL while another one reads it. But only a WAL that was moved to its end is
begun anew. So the writer moves the few pages itself that were written meanwhile
(``commits.Commits.tidy``).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Final, NamedTuple

import apsw


class CheckpointResult(NamedTuple):
    """How many pages the WAL had, how many of them are in the database, and the seconds that it took."""

    pages: int
    moved: int
    seconds: float


def checkpoint(connection: apsw.Connection, mode: int) -> CheckpointResult:
    """Move what no reader holds back.

    Raises:
        apsw.Error: it failed, or another connection is at it.
    """
    begun = perf_counter()
    pages, moved = connection.wal_checkpoint(mode=mode)
    return CheckpointResult(pages, moved, perf_counter() - begun)


class Checkpointer:
    """Moves in the background, once at a time. The writer's thread alone calls its methods.

    Args:
        database: an open connection to the database; it is only asked for its file.
    """

    def __init__(self, database: apsw.Connection) -> None:
        self._file: Final = database.filename
        self._vfs: Final = database.open_vfs
        self._connection: apsw.Connection | None = None
        self._threads: Final = ThreadPoolExecutor(1, thread_name_prefix="nousd log checkpoints")
        self._moving: Future[CheckpointResult] | None = None

    def begin(self, then: Callable[[], None]) -> None:
        """Begin to move; ``then`` is called in the other thread when that is over."""
        self._moving = self._threads.submit(self._move)
        self._moving.add_done_callback(lambda _: then())

    @property
    def is_busy(self) -> bool:
        return self._moving is not None and not self._moving.done()

    def outcome(self) -> CheckpointResult | None:
        """Wait for what was begun, and return its outcome; None if there is no news.

        Raises:
            apsw.Error: it failed.
        """
        moving, self._moving = self._moving, None
        return None if moving is None else moving.result()

    def _move(self) -> CheckpointResult:
        if self._connection is None:
            self._connection = apsw.Connection(self._file, vfs=self._vfs)
            # It knows of the WAL when it has read something.
            self._connection.pragma("user_version")
        return checkpoint(self._connection, apsw.SQLITE_CHECKPOINT_PASSIVE)

    def close(self) -> None:
        """Wait for what was begun, and close the connection."""
        self._threads.shutdown()
        if self._connection is not None:
            self._connection.close()
