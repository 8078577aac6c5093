"""Files that are complete before they get a name.

No reader finds half a file, even after a crash or on a full disk, and a file that is not put into place
leaves nothing behind: until then it has no name (``O_TMPFILE``), so the kernel removes it with its
descriptor, however the process ends. Renaming needs a name, which exists between two system calls.

A process killed between these two leaves a complete file called ``.HEX.tmp``. On a file system without
unnamed files (NFS, FAT, most of FUSE) a kill at any earlier time leaves one, possibly incomplete.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from nousd.tools.fs.resolved_path import ResolvedPath

_NO_TMPFILE_ERRORS: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR})
"""Errors of file systems that do not support files without names."""


class StagedFile:
    """A complete file that is not in its place yet.

    Args:
        descriptor: its descriptor.
        folder: descriptor of the directory that ``name`` is in.
        name: its temporary name; None if it has no name.
    """

    def __init__(self, descriptor: int, folder: int, name: str | None) -> None:
        self._descriptor = descriptor
        self._folder = folder
        self._name = name

    def put(self, resolved: ResolvedPath) -> None:
        """Move it into place, atomically and durably.

        Raises:
            OSError: nothing has changed, or the change may not be durable.
        """
        if self._name is not None:
            os.replace(
                self._name, resolved.name, src_dir_fd=self._folder, dst_dir_fd=resolved.folder
            )
        else:
            name = _new_name()
            # The link in /proc leads to the file itself, which has no other path.
            os.link(f"/proc/self/fd/{self._descriptor}", name, dst_dir_fd=resolved.folder)
            with ExitStack() as undo:
                undo.callback(_remove, resolved.folder, name)
                os.replace(
                    name, resolved.name, src_dir_fd=resolved.folder, dst_dir_fd=resolved.folder
                )
                undo.pop_all()
        sync_folder(resolved)


@contextmanager
def stage_file(
    resolved: ResolvedPath,
    data: bytes,
    old: os.stat_result | None = None,
    *,
    mode: int | None = None,
    executable: bool = False,
) -> Iterator[StagedFile]:
    """Write a file durably, to be put into place inside the block; otherwise it is discarded.

    Args:
        old: the file whose owner and mode are kept.
        mode: the mode, instead of that of ``old``; with neither, 0666 less the umask.
        executable: whether everyone who may read it may also run it.
    """
    with ExitStack() as stack:
        descriptor, name = _create_file(resolved.folder)
        file = stack.enter_context(os.fdopen(descriptor, "wb"))
        folder = resolved.folder
        if name is not None:
            # The directory may have been moved by the end of the block.
            folder = os.dup(folder)
            stack.callback(os.close, folder)
            stack.callback(_remove, folder, name)
        if old is not None:
            _keep_owner_and_mode(descriptor, old)
        if mode is not None:
            os.fchmod(descriptor, mode)
        if executable:
            os.fchmod(descriptor, runnable(stat.S_IMODE(os.fstat(descriptor).st_mode)))
        file.write(data)
        file.flush()
        os.fsync(descriptor)
        yield StagedFile(descriptor, folder, name)


def runnable(mode: int) -> int:
    """Return a mode that lets everyone who may read a file run it."""
    return mode | (mode & 0o444) >> 2


def sync_folder(resolved: ResolvedPath) -> None:
    """Make the names in a directory durable."""
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=resolved.folder)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _create_file(folder: int) -> tuple[int, str | None]:
    """Return a new file in a directory, and its name if it has one."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(".", flags | os.O_TMPFILE, 0o666, dir_fd=folder), None
    except OSError as error:
        if error.errno not in _NO_TMPFILE_ERRORS:
            raise
    name = _new_name()
    flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.open(name, flags, 0o666, dir_fd=folder), name


def _new_name() -> str:
    return f".{secrets.token_hex(8)}.tmp"


def _remove(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _keep_owner_and_mode(descriptor: int, old: os.stat_result) -> None:
    with suppress(PermissionError):  # only root may give files away
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
