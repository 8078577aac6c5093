"""Opens a log for reading, without changing a byte of its directory.

A plain read-only connection is not enough: for a log in WAL mode SQLite creates missing ``-wal`` and
``-shm`` files even for a reader. So there are two cases, depending on the files:

- Both side files exist: a daemon has the log open, or was killed. SQLite uses ``-shm`` unchanged
  (``readonly_shm``) and checks its validity itself. To a running daemon this is an ordinary reader: a
  transaction is one snapshot.
- One of them is missing: no process has the log open. It is read through a read-only VFS. The connection
  uses exclusive locking mode without taking a lock, so that SQLite keeps the index of the WAL in memory.

In the second case a daemon that starts between two reads would change the file under the reader. So the
state of the files is compared at the end (``stamp``).
"""

from __future__ import annotations

import functools
import os
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from nousd.errors import StoreError
from nousd.store.sqlite.database import BUSY_MS_MAX
from nousd.store.sqlite.migrations import migrate

SIDE_FILES: Final = ("-wal", "-shm")

_VFS: Final = "nousd-reading"

_COMPLAINTS_MAX: Final = 100
"""Maximum messages of SQLite's integrity check."""

Stamp = tuple[tuple[int, int, int, int] | None, ...]
"""Device, inode, size and modification time of the log and its WAL; None for a missing file."""


def size_of(path: Path) -> int:
    """Return the size of a log with its WAL in bytes; 0 if there is none."""
    return sum(file.stat().st_size for file in (path, wal_of(path)) if file.exists())


def wal_of(path: Path) -> Path:
    """Return the path of the log's WAL."""
    return path.with_name(path.name + "-wal")


def is_shared(path: Path) -> bool:
    """Return whether a process has the log open, or was killed with the log open."""
    return all(path.with_name(path.name + suffix).exists() for suffix in SIDE_FILES)


def complaints(connection: apsw.Connection, schema: str) -> Iterator[str]:
    """Yield the faults that SQLite itself finds in a database, one line each."""
    try:
        for (text,) in connection.execute(f"PRAGMA {schema}.integrity_check({_COMPLAINTS_MAX})"):
            if text != "ok":
                yield " ".join(text.split())
    except apsw.Error as error:
        yield str(error)


def stamp(path: Path) -> Stamp:
    """Return a stamp that changes with every write to the log."""
    return tuple(map(_stamp, (path, wal_of(path))))


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def require_finished(path: Path) -> None:
    """Raise if the log has a rollback journal, which a reader cannot roll back.

    Raises:
        StoreError: there is a rollback journal.
    """
    if path.with_name(f"{path.name}-journal").exists():
        raise StoreError(
            f"{path} has a rollback journal: its making or migration was cut short, the next start "
            "undoes it"
        )


@contextmanager
def open_log(path: Path) -> Iterator[apsw.Connection]:
    """Provide a read-only connection to a log.

    Raises:
        StoreError: the file cannot be opened, a daemon was started on it meanwhile, or an interrupted
            change must be undone first.
    """
    require_finished(path)
    with _open(path, shared=is_shared(path)) as connection:
        yield connection


@contextmanager
def open_damaged(path: Path) -> Iterator[apsw.Connection]:
    """Provide a connection to a log that no process uses, in any condition.

    Raises:
        StoreError: see ``open_log``.
    """
    with _open(path, shared=False) as connection:
        yield connection


@contextmanager
def _open(path: Path, *, shared: bool) -> Iterator[apsw.Connection]:
    uri = _uri(path, shared=shared)
    with (
        _open_connection(uri, shared=shared) as connection,
        _require_unchanged(path, shared=shared),
    ):
        yield connection


@contextmanager
def open_log_beside(path: Path, name: str) -> Iterator[apsw.Connection]:
    """Provide a connection to an empty log of the current schema, with the log attached as ``name``.

    The empty log is in an unnamed temporary file, which is gone at the end of the block. It is not
    durable.

    Raises:
        StoreError: see ``open_log``.
    """
    shared = is_shared(path)
    with _open_connection("", shared=shared) as connection, _require_unchanged(path, shared=shared):
        try:
            # Before the log is attached: a pragma without a name applies to all attached databases.
            migrate(connection)
            connection.pragma("synchronous", "OFF")
            connection.pragma("journal_mode", "OFF")
        except apsw.Error as error:
            raise StoreError(f"there is no space for another log: {error}") from error
        try:
            connection.execute(f"ATTACH ? AS {name}", (_uri(path, shared=shared),))
        except apsw.Error as error:
            raise StoreError(f"{path} cannot be opened: {error}") from error
        yield connection


@contextmanager
def _open_connection(uri: str, *, shared: bool) -> Iterator[apsw.Connection]:
    read_write = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    mode = apsw.SQLITE_OPEN_READONLY if uri else read_write
    try:
        connection = apsw.Connection(uri, flags=mode | apsw.SQLITE_OPEN_URI)
    except apsw.Error as error:
        raise StoreError(f"the log cannot be opened: {error}") from error
    try:
        connection.set_busy_timeout(BUSY_MS_MAX)
        if not shared:
            # Before anything is read or attached; otherwise SQLite would create the index as a file.
            connection.pragma("locking_mode", "EXCLUSIVE")
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        yield connection
    finally:
        connection.close()


def _uri(path: Path, *, shared: bool) -> str:
    option = "readonly_shm=1" if shared else f"vfs={_reading_vfs().name}"
    return f"file:{urllib.parse.quote(os.fsencode(path.absolute()))}?mode=ro&{option}"


@contextmanager
def _require_unchanged(path: Path, *, shared: bool) -> Iterator[None]:
    if shared:
        yield
        return
    before = stamp(path)
    yield
    if stamp(path) != before:
        raise StoreError(
            f"{path} was written to while it was read: a daemon was started; try again"
        )


@functools.cache
def _reading_vfs() -> _ReadingVFS:
    return _ReadingVFS()


class _ReadingVFS(apsw.VFS):
    """The system's default file access, except operations that could create, change or remove a file."""

    name: Final = _VFS

    def __init__(self) -> None:
        super().__init__(self.name, base="")

    def xOpen(  # noqa: N802  the names are SQLite's
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[0] &= ~(apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_READWRITE)
        flags[0] |= apsw.SQLITE_OPEN_READONLY
        if flags[0] & apsw.SQLITE_OPEN_WAL and path is not None and not Path(path).exists():
            # SQLite requires a WAL for a database of that mode; this one is always empty.
            path = os.devnull
        return _ReadingFile(path, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: ARG002, FBT001, N802
        raise apsw.ReadOnlyError(f"{filename} is only read")


class _ReadingFile(apsw.VFSFile):
    def __init__(self, path: str | None, flags: list[int]) -> None:
        super().__init__("", path, flags)

    def xLock(self, level: int) -> None:  # noqa: N802
        """No other process has the file open, so no lock is needed."""

    def xUnlock(self, level: int) -> None:  # noqa: N802
        """See ``xLock``."""

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xWrite(self, data: object, offset: int) -> None:  # noqa: ARG002, N802
        raise apsw.ReadOnlyError("the log is only read")

    def xTruncate(self, newsize: int) -> None:  # noqa: ARG002, N802
        raise apsw.ReadOnlyError("the log is only read")
