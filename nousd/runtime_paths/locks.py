"""One daemon per socket and one per state directory, by ``flock`` on a file beside the guarded one.

Why flock: the kernel releases it when the holder ends for any reason, so no lock is ever stale. The
pid in the file is only shown, never relied on. The lock belongs to the open file, which no child
inherits (Python opens files close-on-exec).

Why a lock file is never removed: a second daemon may have opened the file and be about to lock it
when the first one removes it and exits. The second then locks a file without a name, a third creates
and locks a new file of that name, and both believe they are alone. An empty file left behind costs
nothing.

Another program may still remove one, such as a cleaner of ``/tmp``. For the socket there is a second
guard: a socket that answers is never considered stale (``nousd.net.unix_sockets``).
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nousd.errors import AnotherDaemonRuns, ConfigError


@contextmanager
def lock_socket(path: Path) -> Iterator[None]:
    """Hold ``PATH.lock``: the right to create, and to remove, ``PATH`` and ``PATH.events``.

    Raises:
        AnotherDaemonRuns: another daemon holds it (with its pid).
        ConfigError: the lock file is unusable.
    """
    with _hold(socket_lock_file(path), f"the socket {path}"):
        yield


def socket_lock_file(path: Path) -> Path:
    """Return the file that guards a command socket and its event socket."""
    return path.with_name(f"{path.name}.lock")


@contextmanager
def lock_state_folder(folder: Path) -> Iterator[None]:
    """Hold ``nousd.lock`` in the directory: the right to open its log for writing.

    Raises:
        AnotherDaemonRuns: another daemon holds it (with its pid).
        ConfigError: the lock file is unusable.
    """
    with _hold(state_lock_file(folder), f"the state folder {folder}"):
        yield


def state_lock_file(folder: Path) -> Path:
    """Return the file that guards the log in a state directory."""
    return folder / "nousd.lock"


def holder_of(lock_file: Path) -> str | None:
    """Return the holder of a lock, such as ``pid 17``; None if it is free. Nothing is written.

    The lock is taken and released at once. A daemon that tries in the same instant is refused.

    Raises:
        ConfigError: the lock file cannot be opened.
    """
    try:
        descriptor = os.open(lock_file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"the lock file {lock_file} cannot be opened: {error.strerror}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(descriptor) or "pid unknown"
    finally:
        os.close(descriptor)
    return None


@contextmanager
def _hold(lock_file: Path, guarded: str) -> Iterator[None]:
    descriptor = _open_lock_file(lock_file)
    try:
        _lock_nowait(descriptor, lock_file, guarded)
        _write_content(descriptor, b"%d\n" % os.getpid())
        try:
            yield
        finally:
            # Otherwise a third process could read this pid just after the next holder took the lock.
            _write_content(descriptor, b"")
    finally:
        os.close(descriptor)


def _open_lock_file(lock_file: Path) -> int:
    """Open or create the file; never one that another user could have put there."""
    try:
        # For reading and writing, because flock on a network file system needs a file open for writing.
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(
            f"the lock file {lock_file} cannot be opened: {error.strerror}"
        ) from error
    status = os.fstat(descriptor)
    # With a second link, writing the pid would overwrite a file elsewhere.
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
        os.close(descriptor)
        raise ConfigError(f"the lock file {lock_file} is not a plain file of our own")
    # A umask may have removed the owner's bits, and the next start could not open the file.
    os.fchmod(descriptor, 0o600)
    return descriptor


def _lock_nowait(descriptor: int, lock_file: Path, guarded: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = _pid_in(descriptor)
        holder = f"another daemon ({pid})" if pid else "another daemon"
        raise AnotherDaemonRuns(f"{holder} already uses {guarded}") from error
    except OSError as error:
        raise ConfigError(
            f"the lock file {lock_file} cannot be locked: {error.strerror}"
        ) from error


def _pid_in(descriptor: int) -> str:
    pid = os.pread(descriptor, 32, 0).strip()
    return f"pid {int(pid)}" if pid.isdigit() else ""


def _write_content(descriptor: int, content: bytes) -> None:
    # The pid only helps the reader of an error; other code reports a full disk.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)
