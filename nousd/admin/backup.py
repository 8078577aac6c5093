"""``nousd backup``: a consistent copy of a log, even while a daemon writes to it.

It uses SQLite's online backup, with all pages in one step. A step is one read transaction, and in WAL
mode a writer in another process neither waits for a reader nor changes its snapshot. In several steps
the copy would restart whenever the other process had written in between, and never end beside a busy
daemon. ``VACUUM INTO`` also holds one transaction, but it rebuilds every page and is not a copy. The
cost for the daemon is a WAL that cannot be reset while the copy is made.

The copy gets its final name when it is complete, durable and verified. Until then it has a temporary
name; if anything fails, it is removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw
import msgspec

from nousd.admin.reading.log_files import complaints, open_log
from nousd.errors import StoreError
from nousd.store.sqlite.database import flush_to_disk, inspect


class BackupReport(msgspec.Struct, frozen=True):
    """The content of a backup; ``head`` is the number of its last event."""

    path: str
    events: int
    head: int
    bytes: int

    @property
    def summary(self) -> str:
        """One line for people."""
        return f"{self.path}: {self.events} events up to evt-{self.head}, {self.bytes} bytes"


def backup(path: Path, target: Path) -> BackupReport:
    """Copy the log at ``path`` to ``target``, which a daemon can start on.

    Raises:
        StoreError: there is no log, ``target`` exists or cannot be written, or the copy is damaged.
            Nothing is left at ``target``.
    """
    inspect(path)
    if not path.exists() or path.stat().st_size == 0:
        raise StoreError(f"there is no log at {path}")
    if os.path.lexists(target):
        raise StoreError(f"{target} exists; a backup overwrites nothing")
    try:
        with _create_partial_file(target) as half:
            _copy(path, half)
            events, head = _check_copy(half)
            flush_to_disk(half)
            half.rename(target)
            flush_to_disk(target.parent)
            return BackupReport(str(target), events, head, target.stat().st_size)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error


@contextmanager
def _create_partial_file(target: Path) -> Iterator[Path]:
    """Provide an empty private file beside the target; remove it if it still exists at the end."""
    half = target.with_name(f".{target.name}.{os.getpid()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(half, flags, 0o600)
    try:
        os.fchmod(handle, 0o600)
        os.close(handle)
        yield half
    finally:
        with suppress(FileNotFoundError):
            half.unlink()


def _copy(path: Path, half: Path) -> None:
    with open_log(path) as source:
        copy = apsw.Connection(str(half), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            # A failed copy is removed, and a successful one is synced once at the end.
            copy.pragma("journal_mode", "OFF")
            copy.pragma("synchronous", "OFF")
            with copy.backup("main", source, "main") as copying:
                copying.step(-1)
        except apsw.FullError as error:
            raise StoreError("the disk is full: nothing was written") from error
        except apsw.Error as error:
            raise StoreError(f"{path} cannot be copied: {error}") from error
        finally:
            copy.close()


def _check_copy(half: Path) -> tuple[int, int]:
    """Verify the copy; return how many events it holds, and the number of the last."""
    try:
        with open_log(half) as copy:
            for complaint in complaints(copy, "main"):
                raise StoreError(f"the log is damaged ({complaint}); see nousd check")
            events, head = copy.execute("SELECT count(*), coalesce(max(seq), 0) FROM events").get
    except apsw.Error as error:
        raise StoreError(f"the log is damaged ({error}); see nousd check") from error
    return events, head
