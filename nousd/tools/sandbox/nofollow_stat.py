"""Opens and lists folders without following symbolic links.

Where a command may write, it can replace any folder by a link at any time. So the daemon makes its own
changes there through descriptors of folders, and never affects anything outside. Everything here blocks.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from nousd.tools.fs.open_nofollow import FOLDER, open_below, open_folder

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def hold_folder(path: Path) -> Iterator[int]:
    """Provide a descriptor of a directory, for access to names in it.

    Args:
        path: absolute, without ``..``.

    Raises:
        OSError: as ``open_folder``.
    """
    folder = open_folder(path)
    try:
        yield folder
    finally:
        os.close(folder)


def steps_to(path: Path) -> Generator[tuple[int, Path]]:
    """Yield each prefix of a path, shortest first, with a descriptor of its parent folder, which stays
    open until the next step.

    Raises:
        OSError: there is no next step, because a part of the path is not a folder.
    """
    folder = os.open("/", FOLDER)
    try:
        for part in (*reversed(path.parents[:-1]), path):
            yield folder, part
            if part != path:
                below = os.open(part.name, FOLDER, dir_fd=folder)
                os.close(folder)
                folder = below
    finally:
        os.close(folder)


def names_below(folder: int, names: Sequence[str]) -> list[str]:
    """Return the sorted names in a folder below an open one; none if it does not exist or may not be
    listed.

    Args:
        names: the names from the open folder to the other one.
    """
    try:
        below = open_below(os.dup(folder), names)
        try:
            return sorted(list_names(below, "."))
        finally:
            os.close(below)
    except OSError:
        return []


def list_names(folder: int, name: str) -> list[str]:
    """Return the names in a folder that lies in an open one."""
    descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
    try:
        return os.listdir(descriptor)  # noqa: PTH208 - only this lists a descriptor
    finally:
        os.close(descriptor)
