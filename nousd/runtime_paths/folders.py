"""The directories that the daemon writes to: made private, or refused with a reason.

There are two kinds, because the daemon may change only one of them. A directory at a default path is
named after nousd and contains nothing else: it is created with mode 0700, or restricted to it. A
directory that the user chose may contain anything and may be ``/tmp``: it is created with 0700 if it is
missing, and otherwise only checked, because another user with write access could replace nousd's files.
If a lock file in it shows that nousd has used it before, write access that others received since is
removed.

It deliberately does not check the parents of the directory: these are the user's responsibility.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from nousd.errors import ConfigError
from nousd.runtime_paths.locations import default_state_dir
from nousd.runtime_paths.locks import state_lock_file
from nousd.runtime_paths.mending import change_mode

FOLDER_MODE: Final = 0o700
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ROOT_UID: Final = 0


def prepare_own_folder(path: Path, what: str) -> None:
    """Make ``path`` a directory that only the current user can enter. For the default paths.

    Args:
        path: absolute; missing parents are created with mode 0700 as well.
        what: the purpose of the directory, as in ``"state folder"``, for errors.

    Raises:
        ConfigError: it cannot be created, is a symbolic link or not a directory, belongs to another
            user or is not writable.
    """
    _create_missing(path, what)
    with _open_directory(path, what) as descriptor:
        status = os.fstat(descriptor)
        _refuse_owner(status, {os.geteuid()}, f"the {what} {path}")
        if stat.S_IMODE(status.st_mode) & 0o777 != FOLDER_MODE:
            _tighten(descriptor, path, what, status)
    _refuse_unwritable(path, what)


def prepare_chosen_folder(
    path: Path, what: str, *, sticky_ok: bool = False, lock_file: Path | None = None
) -> None:
    """Ensure that a directory chosen by the user exists and that no other user can replace files in it.

    A symbolic link is followed if it belongs to the current user or root (``/tmp`` and ``/var/run`` are
    such links on some systems). The mode of an existing directory changes only if nousd used it before.

    Args:
        path: absolute; if missing, it is created with mode 0700.
        what: as in ``prepare_own_folder``.
        sticky_ok: accept a directory like ``/tmp``, where others may write but not remove nousd's files.
            Right for sockets, which have their own mode; wrong for a database, whose name another user
            could take first.
        lock_file: the file in it that shows that nousd used the directory before.

    Raises:
        ConfigError: it cannot be created or written to, is not a directory, belongs to neither the
            current user nor root, or is writable for others.
    """
    _create_missing(path, what)
    ours = {os.geteuid(), _ROOT_UID}
    try:
        _refuse_owner(path.lstat(), ours, f"the {what} {path}")
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"the {what} {path} cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"the {what} {path} is not a directory")
    _refuse_owner(status, ours, f"the {what} {path}")
    if lock_file is not None and is_mendable(status, lock_file):
        status = _without_writing(path, what, status)
    sticky = bool(status.st_mode & stat.S_ISVTX)
    if status.st_mode & _OTHERS_WRITE and not (sticky and sticky_ok):
        raise ConfigError(
            f"the {what} {path} can be written to by other users"
            f" (mode {stat.S_IMODE(status.st_mode):04o}); take that away with chmod go-w"
        )
    _refuse_unwritable(path, what)


def prepare_state_folder(path: Path) -> None:
    """Ensure that the state directory exists; make the default one private.

    Raises:
        ConfigError: as ``prepare_own_folder`` or ``prepare_chosen_folder``.
    """
    if path == default_state_dir():
        prepare_own_folder(path, "state folder")
    else:
        prepare_chosen_folder(path, "state folder", lock_file=state_lock_file(path))


def _create_missing(path: Path, what: str) -> None:
    if path.is_symlink():
        return  # even a dangling one; the following checks report it properly
    try:
        for folder in reversed([path, *path.parents]):
            if not folder.exists():
                folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
                # A umask can only remove bits, but it may remove those of the owner.
                folder.chmod(FOLDER_MODE)
    except OSError as error:
        raise ConfigError(f"the {what} {path} cannot be created: {error.strerror}") from error


@contextmanager
def _open_directory(path: Path, what: str) -> Iterator[int]:
    """Open the directory itself, so that checks and changes apply to the same one."""
    if path.is_symlink():
        raise ConfigError(f"the {what} {path} is a symbolic link; name the folder itself")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError as error:
        raise ConfigError(f"the {what} {path} is not a directory") from error
    except OSError as error:
        raise ConfigError(f"the {what} {path} cannot be opened: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_mendable(status: os.stat_result, lock_file: Path) -> bool:
    """Return whether a directory belongs to the current user, was used by nousd, and is writable for
    others. A sticky one like ``/tmp`` is meant for all users and is not mendable.
    """
    try:
        lock = lock_file.lstat()
    except OSError:
        return False
    is_ours = {status.st_uid, lock.st_uid} == {os.geteuid()} and stat.S_ISREG(lock.st_mode)
    return is_ours and bool(status.st_mode & _OTHERS_WRITE) and not status.st_mode & stat.S_ISVTX


def _without_writing(path: Path, what: str, status: os.stat_result) -> os.stat_result:
    """Remove the write access of other users to a directory; return its new status."""
    with _open_directory(path.resolve(), what) as descriptor:
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino):
            _change(descriptor, path, what, found, stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
        return os.fstat(descriptor)


def _tighten(descriptor: int, path: Path, what: str, status: os.stat_result) -> None:
    _change(descriptor, path, what, status, FOLDER_MODE)


def _change(descriptor: int, path: Path, what: str, status: os.stat_result, mode: int) -> None:
    try:
        change_mode(descriptor, path, status, mode)
    except OSError as error:
        raise ConfigError(f"the {what} {path} cannot be made private: {error.strerror}") from error


def _refuse_owner(status: os.stat_result, accepted: set[int], what: str) -> None:
    if status.st_uid not in accepted:
        raise ConfigError(f"{what} belongs to another user (uid {status.st_uid})")


def _refuse_unwritable(path: Path, what: str) -> None:
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"the {what} {path} cannot be written to")
