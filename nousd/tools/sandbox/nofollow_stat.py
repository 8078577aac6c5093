"""The status of a path without following symbolic links.

A command can turn any folder that it may write in into a link, at any time. What the daemon changes in
such a folder for its sandboxes it changes through a descriptor of that folder, so that nothing outside
is meant by it. Everything here blocks.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from nousd.tools.fs.open_nofollow import FOLDER, open_below, open_folder

_LISTED: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def hold_folder(path: Path) -> Iterator[int]:
    """Provide a descriptor of a directory, for names below it.

    Args:
        path: absolute, without ``..``.

    Raises:
        OSError: it is not there, or something on the way or at its end is no folder, as a link is none.
    """
    folder = open_folder(path)
    try:
        yield folder
    finally:
        os.close(folder)


def steps_to(path: Path) -> Generator[tuple[int, Path]]:
    """Yield each part of a path from above, with its folder, open until the next.

    Raises:
        OSError: the next part cannot be yielded, because one before is no folder.
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


def names_below(folder: int, way: Sequence[str]) -> list[str]:
    """Return the names in what an open folder has behind some names, sorted; none if it is not there or
    may not be listed.
    """
    try:
        below = open_below(os.dup(folder), way)
        try:
            return sorted(list_names(below, "."))
        finally:
            os.close(below)
    except OSError:
        return []


def list_names(folder: int, name: str) -> list[str]:
    """Return the names in a folder of an open one."""
    descriptor = os.open(name, _LISTED, dir_fd=folder)
    try:
        return os.listdir(descriptor)  # noqa: PTH208 - no other lists a descriptor
    finally:
        os.close(descriptor)
