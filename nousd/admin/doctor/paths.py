"""Checks of directories and files: their owners, their permissions and the disk space."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nousd.admin.doctor.examination import Check, World
from nousd.runtime_paths import locations
from nousd.runtime_paths.folders import is_mendable
from nousd.runtime_paths.locks import socket_lock_file, state_lock_file
from nousd.store.sqlite.store import RESERVE_SUFFIX

FREE_BYTES_LOW: Final = 1024**3
FREE_BYTES_TOO_LOW: Final = 64 * 1024**2
"""Free space below the first is a warning; below the second a few long answers can fill the disk."""

_MIB: Final = 1024**2
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ROOT_UID: Final = 0


def runtime_folder(world: World) -> Iterator[Check]:
    """Check the directory of the sockets."""
    socket = world.settings.socket
    is_default = socket == locations.default_socket()
    lock_file = socket_lock_file(socket)
    yield _folder(
        "runtime folder", socket.parent, is_default=is_default, sticky_ok=True, lock_file=lock_file
    )


def state_folder(world: World) -> Iterator[Check]:
    """Check the directory of the log."""
    folder = world.settings.state_dir
    is_default = folder == locations.default_state_dir()
    lock_file = state_lock_file(folder)
    yield _folder(
        "state folder", folder, is_default=is_default, sticky_ok=False, lock_file=lock_file
    )


def workdir(world: World) -> Iterator[Check]:
    """Check the default workspace."""
    yield _check_writable("workdir", world.settings.workdir, "--workdir")


def workspaces(world: World) -> Iterator[Check]:
    """Check the other allowed workspaces."""
    for number, folder in enumerate(world.settings.workspaces, 1):
        yield _check_writable(f"workspace {number}", folder, "--workspace")


def _check_writable(name: str, folder: Path, flag: str) -> Check:
    if os.access(folder, os.W_OK | os.X_OK):
        return Check(name, "ok", f"{folder} can be written to")
    advice = f"name another with {flag}, or give yourself the right to write there"
    return Check(name, "warning", f"{folder} cannot be written to: tools only read", advice)


def files(world: World) -> Iterator[Check]:
    """Check the database, the files beside it, and the sockets."""
    database = locations.database_file(world.settings.state_dir)
    names = [database, *(database.with_name(database.name + end) for end in ("-wal", "-shm"))]
    yield _files("database files", [path for path in names if os.path.lexists(path)], stat.S_ISREG)
    sockets = [world.settings.socket, world.settings.events_socket]
    yield _files("socket files", [path for path in sockets if os.path.lexists(path)], stat.S_ISSOCK)


def disk(world: World) -> Iterator[Check]:
    """Check the disk space for the log, and the reserve for the ends of runs."""
    folder = _nearest_existing(world.settings.state_dir)
    free = shutil.disk_usage(folder).free
    found = f"{free // _MIB} MiB are free where the log is"
    advice = "make room; nousd vacuum gives back what old deltas take"
    if free >= FREE_BYTES_LOW:
        yield Check("disk space", "ok", found)
    else:
        yield Check(
            "disk space", "failed" if free < FREE_BYTES_TOO_LOW else "warning", found, advice
        )
    reserve = locations.database_file(world.settings.state_dir).with_suffix(RESERVE_SUFFIX)
    if not reserve.exists():
        yield Check("disk reserve", "skipped", "is taken when the daemon starts")
    elif reserve.stat().st_blocks:
        yield Check("disk reserve", "ok", f"{reserve.stat().st_size // _MIB} MiB are put by")
    else:
        found = "is spent: the disk was full"
        yield Check("disk reserve", "warning", found, f"{advice}; then the daemon takes it again")


def _folder(name: str, path: Path, *, is_default: bool, sticky_ok: bool, lock_file: Path) -> Check:
    """Check a folder as ``runtime_paths.folders`` does before it is used.

    Args:
        is_default: whether it is the default directory, which a start makes private and which is not a
            link.
    """
    if not os.path.lexists(path):
        return Check(name, "skipped", f"{path} is not there; the first start makes it")
    if path.is_symlink() and is_default:
        return Check(name, "failed", f"{path} is a symbolic link", "name the folder itself")
    try:
        status = path.stat()
    except OSError as error:
        return Check(name, "failed", f"{path}: {error.strerror}", "see to the way that leads there")
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        return Check(name, "failed", f"{path} is not a directory", "name another, or move it away")
    if status.st_uid not in {os.geteuid(), *(() if is_default else (_ROOT_UID,))}:
        return Check(
            name, "failed", f"{path} belongs to uid {status.st_uid}", _FOREIGN_OWNER_ADVICE
        )
    if not os.access(path, os.W_OK | os.X_OK):
        return Check(name, "failed", f"{path} cannot be written to", f"chmod u+rwx {path}")
    sticky = bool(mode & stat.S_ISVTX) and sticky_ok
    if mode & _OTHERS_WRITE and not is_default and not sticky:
        mends = is_mendable(status, lock_file)
        found = f"others may write to {path} ({mode:04o})"
        if mends:
            found += "; the next start takes that away"
        return Check(name, "warning" if mends else "failed", found, f"chmod go-w {path}")
    if mode & _OTHERS and not sticky:
        found = f"others may look into {path} ({mode:04o})"
        return Check(name, "warning", found, f"chmod 700 {path}")
    return Check(name, "ok", f"{path} ({mode:04o})")


def _files(name: str, paths: list[Path], is_right: object) -> Check:
    if not paths:
        return Check(name, "skipped", "there are none yet")
    for path in paths:
        status = path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid():
            return Check(
                name, "failed", f"{path} belongs to uid {status.st_uid}", _FOREIGN_OWNER_ADVICE
            )
        if stat.S_ISLNK(status.st_mode):
            found = f"{path} is a symbolic link"
            return Check(name, "warning", found, "put the file itself there")
        if not is_right(status.st_mode):  # type: ignore[operator]
            found = f"{path} is something else"
            return Check(name, "failed", found, "move it away, or name another place")
        if mode & _OTHERS:
            found = f"others may use {path} ({mode:04o})"
            return Check(name, "warning", found, f"chmod 600 {path}")
    return Check(name, "ok", f"{', '.join(path.name for path in paths)} are yours alone")


_FOREIGN_OWNER_ADVICE: Final = "run as that user, or name a place of your own"


def _nearest_existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())
