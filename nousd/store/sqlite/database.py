"""Opens the database file; only this module knows its ownership, permissions and mode."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from nousd.errors import StoreError, StoreFull, StoreTooNew
from nousd.store.schema.m001_log_and_rows import APPLICATION_ID
from nousd.store.session_list import fold_text
from nousd.store.sqlite.migrations import MIGRATIONS, Migration, migrate

Connect = Callable[[str], apsw.Connection]

UNREADABLE: Final = (apsw.Error, msgspec.MsgspecError, UnicodeError)
"""Errors of SQLite, and of decoding texts in its rows: a failing disk damages texts too, and SQLite does
not check them."""

_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100

BUSY_MS_MAX: Final = 5000
"""Milliseconds that a statement waits for another process (a backup, a check) to release the file."""

WAL_PAGES: Final = 4000
"""Pages (16 MiB) in the WAL at which its content moves to the database file. Four times SQLite's
default: fewer checkpoints and their syncs, for a file that is still small."""

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

READER_CACHE_KIB: Final = 512
"""Page cache of a reading connection: a quarter of SQLite's default. Only the upper levels of an index
are read twice; other pages are read once, and the kernel caches them anyway."""

WAL_BYTES_KEPT: Final = 64 * 1024 * 1024
"""Size to which a WAL that grew behind a slow reader is truncated once it is empty."""


class OpenedLog(NamedTuple):
    """A log that is open for writing.

    Args:
        head: the number of the newest event, 0 in an empty log.
        next_seq: the first number that was certainly never used.
        was_closed: whether it was closed cleanly. If not, content that is visible may not be on disk.
        reopen: opens another such connection; raises ``apsw.Error``.
    """

    connection: apsw.Connection
    head: int
    next_seq: int
    was_closed: bool
    reopen: Callable[[], apsw.Connection]


def open_for_writing(
    path: pathlib.Path, connect: Connect, migrations: Sequence[Migration] = MIGRATIONS
) -> OpenedLog:
    """Open the database in WAL mode; create or migrate it if necessary.

    Raises:
        StoreTooNew, StoreError: see ``inspect``; or the file cannot be created, opened or migrated.
        StoreFull: the disk lacks space; nothing was changed.
    """
    inspect(path, version_max=len(migrations))
    path = path.resolve()  # SQLite's side files are beside the target of a symbolic link.
    if not any(map(_has_content, (path, _side_file(path, "-journal"), _side_file(path, "-wal")))):
        _make_new(path, connect, migrations)
    _make_private(path)
    was_closed = not _has_content(_side_file(path, "-wal"))
    with contextlib.ExitStack() as undo:
        connection = _connect(path, connect)
        undo.callback(connection.close)
        with _translate_errors(path, connection):
            head, next_seq = _prepare(connection, migrations)
        undo.pop_all()
    return OpenedLog(connection, head, next_seq, was_closed, partial(_reopen, path, connect))


def _reopen(path: pathlib.Path, connect: Connect) -> apsw.Connection:
    connection = connect(str(path))
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        _set_up(connection)
        _use_wal(connection)
        undo.pop_all()
    return connection


def _connect(path: pathlib.Path, connect: Connect) -> apsw.Connection:
    try:
        return connect(str(path))
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be opened: {error}") from error


@contextlib.contextmanager
def _translate_errors(path: pathlib.Path, connection: apsw.Connection) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        kind = StoreFull if is_for_want_of_space(error, connection) else StoreError
        raise kind(f"{path} cannot be opened: {error}") from error


def _make_new(path: pathlib.Path, connect: Connect, migrations: Sequence[Migration]) -> None:
    """Create an empty log under another name, and rename it once it is complete and durable. Creating it
    in place would take the syncs of two commits with a rollback journal, and the first start waits for
    each.
    """
    beside = _side_file(path, ".new")
    try:
        beside.unlink(missing_ok=True)
        _make_private(beside)
        connection = _connect(beside, connect)
        with contextlib.closing(connection), _translate_errors(path, connection):
            migrate(connection, migrations, synchronous="OFF")
            connection.pragma("journal_mode", "WAL")
        flush_to_disk(beside)
        beside.rename(path)
        flush_to_disk(path.parent)
    except OSError as error:
        raise _failure(f"{beside} cannot be made", error) from error


def _failure(message: str, error: OSError) -> StoreError:
    kind = StoreFull if error.errno in _NO_SPACE else StoreError
    return kind(f"{message}: {error.strerror}")


def flush_to_disk(path: pathlib.Path) -> None:
    """Wait until the content of a file, or the names in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _prepare(connection: apsw.Connection, migrations: Sequence[Migration]) -> tuple[int, int]:
    _set_up(connection)
    migrate(connection, migrations)
    _use_wal(connection)
    head, next_seq = connection.execute(_POSITION).get
    return head, next_seq


def _set_up(connection: apsw.Connection) -> None:
    connection.set_busy_timeout(BUSY_MS_MAX)
    connection.pragma("secure_delete", True)


def _use_wal(connection: apsw.Connection) -> None:
    connection.pragma("journal_mode", "WAL")
    connection.pragma("journal_size_limit", WAL_BYTES_KEPT)


_POSITION: Final = "SELECT coalesce((SELECT max(seq) FROM events), 0), next_seq FROM log_state"


def is_for_want_of_space(error: Exception, connection: apsw.Connection) -> bool:
    """Return whether the disk, or the user's quota, is full. Call it right after the failure."""
    if isinstance(error, apsw.IOError):
        return connection.system_errno in _NO_SPACE
    return isinstance(error, apsw.FullError)


def open_for_reading(path: pathlib.Path) -> apsw.Connection:
    """Open a read-only connection to a database that is open for writing."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(BUSY_MS_MAX)
    connection.pragma("cache_size", -READER_CACHE_KIB)
    connection.create_scalar_function("folded", _fold_or_none, 1, deterministic=True)
    return connection


def _fold_or_none(*texts: Any) -> str | None:
    (text,) = texts
    return None if text is None else fold_text(text)


def inspect(path: pathlib.Path, *, version_max: int = len(MIGRATIONS)) -> None:
    """Check only the header of a file, so that a foreign file is not touched.

    A missing or empty file is accepted: the database is created in it.

    Raises:
        StoreTooNew: a newer version of nousd has migrated it.
        StoreError: it is not a SQLite database, belongs to another program, or cannot be read.
    """
    header = _header(path)
    if not header:
        return
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        if _side_file(path, "-journal").exists():
            # The creation of the database was interrupted; SQLite undoes it on opening.
            return
        raise StoreError(f"{path} is no SQLite database: it begins with {header[:16]!r}")
    version, application_id = _number(header, 60), _number(header, 68)
    if application_id != APPLICATION_ID:
        raise StoreError(
            f"{path} is a database of another program (application_id {application_id:#x})"
        )
    if version > version_max:
        raise StoreTooNew(
            f"{path} has schema version {version}, this nousd knows up to {version_max}: "
            "it was written by a newer version and was left untouched"
        )


def _header(path: pathlib.Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error


def _side_file(path: pathlib.Path, suffix: str) -> pathlib.Path:
    return path.with_name(path.name + suffix)


def _has_content(path: pathlib.Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _number(header: bytes, offset: int) -> int:
    return int.from_bytes(header[offset : offset + 4], "big")


def _make_private(path: pathlib.Path) -> None:
    """Create the file if it is missing; let only its owner read it. SQLite's side files get its mode."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(handle, 0o600)
        finally:
            os.close(handle)
    except OSError as error:
        raise _failure(f"{path} cannot be opened", error) from error
