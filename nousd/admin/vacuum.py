"""``nousd vacuum``: joins all deltas of a log that no daemon has open, and returns the disk space.

A daemon joins deltas after a week (``nousd.daemon.eventlog.retention``); this joins those of everything
that has ended. That frees space inside the file for new events; to make the file shorter, SQLite
rewrites it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import apsw
import msgspec

from nousd.admin.reading.log_files import size_of
from nousd.errors import ConfigError, StoreError, StoreFull
from nousd.runtime_paths.locations import database_file
from nousd.runtime_paths.locks import lock_state_folder
from nousd.store.records import OldDeltas
from nousd.store.sqlite.artifacts import drop_all_unused
from nousd.store.sqlite.database import UNREADABLE, Connect, is_for_want_of_space, open_for_writing
from nousd.store.sqlite.deleting import drop_all
from nousd.store.sqlite.pruning import prune

_EVERYTHING: Final = OldDeltas(ended_before="9999", until=2**63 - 1)


class VacuumReport(msgspec.Struct, frozen=True, kw_only=True):
    """The space that was freed. Bytes are the size on disk of the database with its WAL.

    Args:
        deltas_joined: number of removed lines of deltas.
        artifacts_dropped: number of artifacts that were unused for a day or never completely uploaded.
    """

    bytes_before: int
    bytes_after: int
    deltas_joined: int
    artifacts_dropped: int


def vacuum(state_dir: Path, *, connect: Connect = apsw.Connection) -> VacuumReport:
    """Prune the log of a state folder regardless of the age of its deltas, and shrink its file.

    Args:
        connect: opens the connection. Tests pass one whose disk fails.

    Raises:
        ConfigError: there is no log, or a daemon has it open.
        StoreFull: there is no space to rewrite the file. The log is intact, and joined deltas stay
            joined.
        StoreError: the log cannot be read or written.
    """
    path = database_file(state_dir)
    if not path.exists():
        raise ConfigError(f"state_dir: there is no log in {state_dir}")
    with lock_state_folder(state_dir):
        bytes_before = size_of(path)
        with _open_log(path, connect) as connection:
            connection.pragma("synchronous", "NORMAL")
            drop_all(connection)
            deltas_joined = _prune_all(connection)
            artifacts_dropped = len(set(drop_all_unused(connection, _a_day_ago())))
            connection.pragma("synchronous", "FULL")
            connection.execute("VACUUM")
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        return VacuumReport(
            bytes_before=bytes_before,
            bytes_after=size_of(path),
            deltas_joined=deltas_joined,
            artifacts_dropped=artifacts_dropped,
        )


@contextmanager
def _open_log(path: Path, connect: Connect) -> Iterator[apsw.Connection]:
    connection = open_for_writing(path, connect).connection
    try:
        yield connection
    except UNREADABLE as error:
        if is_for_want_of_space(error, connection):
            raise StoreFull(_space_needed(path)) from error
        raise StoreError(f"{path} cannot be vacuumed: {error}") from error
    finally:
        # Closing runs a checkpoint, which may fail too; committed data is safe in the WAL.
        with suppress(apsw.Error):
            connection.close()


def _a_day_ago() -> str:
    return (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _prune_all(connection: apsw.Connection) -> int:
    dropped = 0
    more = True
    while more:
        with connection:
            pruned = prune(connection, _EVERYTHING)
        dropped += pruned.deltas
        more = pruned.more
    return dropped


def _space_needed(path: Path) -> str:
    """Return the error text. SQLite writes the data twice: to an unnamed temporary file, and the WAL."""
    mib = size_of(path) // 2**20 + 1
    return (
        f"the disk is full, and the log is whole: to write its file anew takes up to {mib} MiB in "
        f"{path.parent} and as much for a temporary file (in SQLITE_TMPDIR, else TMPDIR, else /var/tmp)"
    )
