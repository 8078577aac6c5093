"""Walks through and removes folders of any depth.

A command can nest thousands of folders; the functions of the standard library fail at some depth, at
least up to Python 3.11 and 3.12. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Final, TypeVar

T = TypeVar("T", str, bytes)

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk(top: T) -> Iterator[tuple[T, list[T], list[T]]]:
    """Yield each folder, outermost first, with the names of its folders and of its other entries.

    Links are not followed and do not count as folders. A folder that cannot be read, or whose path is
    too long for the system, is yielded without entries.
    """
    ahead = [top]
    while ahead:
        folder = ahead.pop()
        folders: list[T] = []
        others: list[T] = []
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                (folders if is_folder else others).append(entry.name)
        yield folder, folders, others
        ahead += [os.path.join(folder, name) for name in reversed(folders)]  # noqa: PTH118


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Remove a folder and everything in it, as far as that is possible; links are not followed.

    The entries of an inner folder are moved to the top before that folder is removed. So no path gets
    long, and few descriptors are enough.
    """
    with suppress(OSError):
        with _open_folder(path) as top:
            _empty(top)
        os.rmdir(path)  # noqa: PTH106


def _empty(top: int) -> None:
    # No existing name begins with this random text.
    new_names = (f"{os.urandom(8).hex()}-{number}" for number in count())
    while names := os.listdir(top):
        removed = [name for name in names if _is_removed(name, top, new_names)]
        if not removed:
            return


def _is_removed(name: str, top: int, new_names: Iterator[str]) -> bool:
    try:
        if _is_unlinked(name, top):
            return True
        with _open_folder(name, top) as folder:
            for inner in os.listdir(folder):  # noqa: PTH208
                if not _is_unlinked(inner, folder):
                    # Only a folder that its owner may write into can be moved.
                    with _open_folder(inner, folder):
                        os.rename(inner, next(new_names), src_dir_fd=folder, dst_dir_fd=top)
        os.rmdir(name, dir_fd=top)
    except OSError:
        return False
    return True


def _is_unlinked(name: str, folder: int) -> bool:
    """Remove an entry of a folder; return False if it is a folder itself."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True


@contextmanager
def _open_folder(name: str | os.PathLike[str], parent: int | None = None) -> Iterator[int]:
    """Open a folder, even if its mode denies its owner all access."""
    descriptor = os.open(name, os.O_PATH | _FOLDER_FLAGS, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
        folder = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    finally:
        os.close(descriptor)
    try:
        yield folder
    finally:
        os.close(folder)
