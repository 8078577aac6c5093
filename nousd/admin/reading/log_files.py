"""Opening a log to look at it, so that not one byte of its folder changes.

A plain read-only connection would not do: for a log in WAL mode SQLite makes the files ``-wal`` and
``-shm`` where they are missing, also for a reader. So there are two ways in, and the files say which:

- Both side files are there: a daemon has the log open, or was killed. SQLite is told to take
  ``-shm`` as it is (``readonly_shm``), and then knows itself whether it can be believed. While a daemon
  writes this is one more reader of a database: one transaction sees one state.
- One of them is missing: nobody has the log open. It is read through a VFS of our own that can do
  nothing but read. Its connection claims the file for itself without any lock, which makes SQLite keep
  the index of the WAL in its own memory.

A daemon that starts in the second case, between two of our reads, would change the file under us. So
whoever reads that way asks at the end whether the files are still what they were (``stamp``).
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
"""Complaints of SQLite's own that are passed on."""

Stamp = tuple[tuple[int, int, int, int] | None, ...]
"""Which files there are beside the log, how long they are and when they were written."""


def size_of(path: Path) -> int:
    """Return the bytes of a log with its WAL; 0 if there is none."""
    return sum(file.stat().st_size for file in (path, wal_of(path)) if file.exists())


def wal_of(path: Path) -> Path:
    """Return the file that holds what was committed last."""
    return path.with_name(path.name + "-wal")


def is_shared(path: Path) -> bool:
    """Whether somebody has the log open, or was killed while he had."""
    return all(path.with_name(path.name + suffix).exists() for suffix in SIDE_FILES)


def complaints(connection: apsw.Connection, schema: str) -> Iterator[str]:
    """Yield what SQLite itself finds wrong with a database, each in one line."""
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
    """Refuse a log with a rollback journal: it must be rolled back first, and a reader cannot do
    that.

    Raises:
        StoreError: there is one.
    """
    if path.with_name(f"{path.name}-journal").exists():
        raise StoreError(
            f"{path} has a rollback journal: its making or migration was cut short, the next start "
            "undoes it"
        )


@contextmanager
def open_log(path: Path) -> Iterator[apsw.Connection]:
    """Provide a connection that can only read.

    Raises:
        StoreError: the file cannot be opened, or a daemon was started on it meanwhile; or what was begun
            there is to be undone first.
    """
    require_finished(path)
    with _open(path, shared=is_shared(path)) as connection:
        yield connection


@contextmanager
def open_damaged(path: Path) -> Iterator[apsw.Connection]:
    """Provide a connection to a log that nobody is at work on, in whichever condition it may be.

    Raises:
        StoreError: see ``open_log``.
    """
    with _open(path, shared=False) as connection:
        yield connection


@contextmanager
def _open(path: Path, *, shared: bool) -> Iterator[apsw.Connection]:
    uri = _uri(path, shared=shared)
    with _opened(uri, shared=shared) as connection, _still_the_same(path, shared=shared):
        yield connection


@contextmanager
def open_log_beside(path: Path, name: str) -> Iterator[apsw.Connection]:
    """Provide a connection to an empty log of the present schema, with the log attached as ``name``.

    The empty one is on the disk, has no name in any folder and is gone when the block is left. It is
    made for speed, not to survive anything.

    Raises:
        StoreError: see ``open_log``.
    """
    shared = is_shared(path)
    with _opened("", shared=shared) as connection, _still_the_same(path, shared=shared):
        try:
            # Before the log is there: a pragma without a name goes to all that is attached.
            migrate(connection)
            connection.pragma("synchronous", "OFF")
            connection.pragma("journal_mode", "OFF")
        except apsw.Error as error:
            raise StoreError(f"there is no room for another log: {error}") from error
        try:
            connection.execute(f"ATTACH ? AS {name}", (_uri(path, shared=shared),))
        except apsw.Error as error:
            raise StoreError(f"{path} cannot be opened: {error}") from error
        yield connection


@contextmanager
def _opened(uri: str, *, shared: bool) -> Iterator[apsw.Connection]:
    made = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    how = apsw.SQLITE_OPEN_READONLY if uri else made
    try:
        connection = apsw.Connection(uri, flags=how | apsw.SQLITE_OPEN_URI)
    except apsw.Error as error:
        raise StoreError(f"the log cannot be opened: {error}") from error
    try:
        connection.set_busy_timeout(BUSY_MS_MAX)
        if not shared:
            # Before anything is read or attached, or SQLite makes the index in a file after all.
            connection.pragma("locking_mode", "EXCLUSIVE")
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        yield connection
    finally:
        connection.close()


def _uri(path: Path, *, shared: bool) -> str:
    how = "readonly_shm=1" if shared else f"vfs={_reading_vfs().name}"
    return f"file:{urllib.parse.quote(os.fsencode(path.absolute()))}?mode=ro&{how}"


@contextmanager
def _still_the_same(path: Path, *, shared: bool) -> Iterator[None]:
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
    """The system's own file access, without everything that could make, change or remove a file."""

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
            # SQLite wants a WAL for a database of that mode; this one is empty and stays it.
            path = os.devnull
        return _ReadingFile(path, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: ARG002, FBT001, N802
        raise apsw.ReadOnlyError(f"{filename} is only read")


class _ReadingFile(apsw.VFSFile):
    def __init__(self, path: str | None, flags: list[int]) -> None:
        super().__init__("", path, flags)

    def xLock(self, level: int) -> None:  # noqa: N802
        """Nobody else has the file open, so there is nobody to lock out."""

    def xUnlock(self, level: int) -> None:  # noqa: N802
        """See ``xLock``."""

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xWrite(self, data: object, offset: int) -> None:  # noqa: ARG002, N802
        raise apsw.ReadOnlyError("the log is only read")

    def xTruncate(self, newsize: int) -> None:  # noqa: ARG002, N802
        raise apsw.ReadOnlyError("the log is only read")
