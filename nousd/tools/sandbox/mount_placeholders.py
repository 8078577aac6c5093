"""Denies paths that do not exist, by creating placeholders for mounts.

Where a program must not create a file or directory, an empty directory (or for some files of git, a file
without effect) is a placeholder for as long as a sandbox needs it. It is removed only when the last
sandbox of any daemon that uses it has ended, because its removal would remove the mounts on it. So each
daemon holds a shared lock on the placeholders it needs, and removes one only with an exclusive lock.
Programs in a sandbox see a mount instead of the placeholder, and so cannot lock it. Files that another
program has put there meanwhile are not removed.

A killed daemon leaves its placeholders without a lock. Their mode distinguishes them from files that
other programs would create, so the next sandbox that needs one takes it over.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Final

from nousd.tools.sandbox.nofollow_stat import hold_folder, list_names, steps_to

_FOLDER_MODE: Final = stat.S_ISVTX | 0o755
_FILE_MODE: Final = stat.S_ISVTX | 0o644
"""Modes of placeholders. Other programs make only directories sticky, and only those that several users
may write in. The content alone proves nothing: an empty ``config`` may be the user's."""

_FILES: Final = {"config": b"", "config.worktree": b"", "commondir": b".\n"}
"""Files whose placeholder must be a file, because programs fail if they find a directory there, with a
content that has no effect."""

_TRIES_MAX: Final = 100
_TRY_SECONDS: Final = 0.01
"""Pause between two attempts; another daemon needs less time to remove its placeholder."""

_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def content_of(path: Path) -> bytes | None:
    """Return the content of the placeholder at a path; None if it is a directory."""
    return _FILES.get(path.name)


class _StandingPlaceholder:
    """A placeholder, this daemon's lock on it, and the number of calls that use it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.users = 0

    def is_in(self, folder: int) -> bool:
        try:
            status = os.lstat(self.path.name, dir_fd=folder)
        except FileNotFoundError:
            return False
        return os.path.samestat(status, os.fstat(self.descriptor))


class MountPlaceholders:
    """The placeholders of one daemon, shared by concurrent calls."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._placeholders: dict[Path, _StandingPlaceholder] = {}

    @contextmanager
    def provide(self, closed: Iterable[Path]) -> Iterator[tuple[Path, ...]]:
        """Provide a placeholder for each path that does not exist, or exists only as a placeholder of
        another call, another daemon or a killed one. It is at the first missing part of the path.

        Args:
            closed: absolute paths, with no link on the way.

        Raises:
            OSError: it cannot be created.
        """
        acquired: list[_StandingPlaceholder] = []
        try:
            # Grouped by folder, because walking to a folder takes longer than the work in it.
            for _, siblings in groupby(dict.fromkeys(closed), key=lambda path: path.parent):
                self._take([*siblings], acquired)
            yield tuple(dict.fromkeys(placeholder.path for placeholder in acquired))
        finally:
            self._release(acquired)

    def _take(self, remaining: list[Path], acquired: list[_StandingPlaceholder]) -> None:
        """Acquire the placeholders for the missing paths of one folder.

        Args:
            remaining: the paths that are not done yet; they are removed from it.
            acquired: gets the placeholders.
        """
        with self._lock:
            for _ in range(_TRIES_MAX):
                try:
                    return self._try(remaining, acquired)
                except _Removing:
                    time.sleep(_TRY_SECONDS)
        raise OSError(
            errno.EBUSY, "what stands in for it is held by another program", str(remaining[0])
        )

    def _try(self, remaining: list[Path], acquired: list[_StandingPlaceholder]) -> None:
        with closing(steps_to(remaining[0])) as steps:
            while (step := _next(steps)) is not None:
                folder, part = step
                if part == remaining[0]:
                    return self._try_in(folder, remaining, acquired)
                if _is_missing(folder, part.name):
                    acquired.append(self._acquire(folder, part))
                    return None
        return None

    def _try_in(
        self, folder: int, remaining: list[Path], acquired: list[_StandingPlaceholder]
    ) -> None:
        while remaining:
            if _is_missing(folder, remaining[0].name):
                acquired.append(self._acquire(folder, remaining[0]))
            del remaining[0]

    def _acquire(self, folder: int, path: Path) -> _StandingPlaceholder:
        placeholder = self._placeholders.get(path)
        if placeholder is None or not placeholder.is_in(folder):
            placeholder = self._placeholders[path] = _make_and_lock(folder, path)
        placeholder.users += 1
        return placeholder

    def _release(self, acquired: Iterable[_StandingPlaceholder]) -> None:
        with self._lock:
            for parent, siblings in groupby(
                acquired, key=lambda placeholder: placeholder.path.parent
            ):
                if unused := [
                    placeholder for placeholder in siblings if self._is_unused(placeholder)
                ]:
                    _remove(parent, unused)

    def _is_unused(self, placeholder: _StandingPlaceholder) -> bool:
        """Count one user less; return whether that was the last one."""
        placeholder.users -= 1
        if placeholder.users:
            return False
        if self._placeholders.get(placeholder.path) is placeholder:
            del self._placeholders[placeholder.path]
        return True


def _next(steps: Iterator[tuple[int, Path]]) -> tuple[int, Path] | None:
    """Return the next step; None at the end, or if a part is not a folder or cannot be entered."""
    try:
        return next(steps, None)
    except (NotADirectoryError, PermissionError):
        return None


class _Removing(Exception):
    """Another daemon is about to remove the placeholder."""


def _is_missing(folder: int, name: str) -> bool:
    """Return whether a name does not exist, or is only a placeholder."""
    try:
        status = os.lstat(name, dir_fd=folder)
        if not _is_marked(status.st_mode):
            return False
        if stat.S_ISDIR(status.st_mode):
            return not list_names(folder, name)
        content = _FILES.get(name)
        return content is not None and _is_file_of(folder, name, status, content)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _is_marked(mode: int) -> bool:
    return bool(mode & stat.S_ISVTX) and not mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_file_of(folder: int, name: str, status: os.stat_result, content: bytes) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    descriptor = os.open(name, _OPEN_FLAGS, dir_fd=folder)
    try:
        # A killed daemon may have written only a part of it.
        return content.startswith(os.read(descriptor, len(content) + 1))
    finally:
        os.close(descriptor)


def _make_and_lock(folder: int, path: Path) -> _StandingPlaceholder:
    """Make a placeholder, unless it exists, and lock it against removal by other daemons."""
    name, content = path.name, content_of(path)
    with suppress(FileExistsError):
        if content is None:
            os.mkdir(name, _FOLDER_MODE, dir_fd=folder)
        else:
            _write(folder, name, content)
    try:
        placeholder = _StandingPlaceholder(path, os.open(name, _OPEN_FLAGS, dir_fd=folder))
    except FileNotFoundError:
        raise _Removing from None
    with ExitStack() as stack:
        stack.callback(os.close, placeholder.descriptor)
        _lock(placeholder.descriptor)
        if not placeholder.is_in(folder):
            raise _Removing
        stack.pop_all()
    return placeholder


def _write(folder: int, name: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, _FILE_MODE, dir_fd=folder)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _Removing from None
    except OSError:
        # On a file system without locks no daemon gets the lock for removing it either.
        return


def _remove(parent: Path, placeholders: Sequence[_StandingPlaceholder]) -> None:
    """Remove the placeholders in one folder that no other daemon needs and that are still unchanged."""
    with ExitStack() as stack:
        for placeholder in placeholders:
            stack.callback(os.close, placeholder.descriptor)
        with suppress(OSError), hold_folder(parent) as folder:
            for placeholder in placeholders:
                with suppress(OSError):
                    _remove_from(folder, placeholder)


def _remove_from(folder: int, placeholder: _StandingPlaceholder) -> None:
    name = placeholder.path.name
    fcntl.flock(placeholder.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not (placeholder.is_in(folder) and _is_missing(folder, name)):
        return
    if content_of(placeholder.path) is None:
        os.rmdir(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)
