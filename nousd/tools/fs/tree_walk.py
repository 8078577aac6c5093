"""Walks through everything below a directory of the workspace, in sorted order.

Links are listed but never followed; ``.git``, and paths hidden or denied to the call, are not listed.
Every directory is opened name by name from the top, so replacing one by a link has no effect.
Standard library only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final, NamedTuple

from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.fs.path_walk import DEPTH_MAX
from nousd.tools.fs.resolved_path import ResolvedPath

SKIPPED_FOLDERS: Final = frozenset({".git"})

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Parts = tuple[str, ...]


class FoundEntry(NamedTuple):
    """An entry below the top directory; ``parts`` is its path from there."""

    parts: Parts
    is_folder: bool


class Tree:
    """A directory and everything below it. Only valid inside ``open_tree``."""

    def __init__(self, path_sandbox: PathSandbox, resolved: ResolvedPath, top: int) -> None:
        self._confinement = path_sandbox
        self._base = resolved.parts
        self._top = top

    def __iter__(self) -> Iterator[FoundEntry]:
        """Yield each name before its contents; directories that cannot be read are left out."""
        ahead = self._list_folder(())
        while ahead:
            found = ahead.pop()
            yield found
            if found.is_folder and len(found.parts) < DEPTH_MAX:
                with suppress(OSError):
                    ahead += self._list_folder(found.parts)

    @contextmanager
    def open_file(self, parts: Parts) -> Iterator[BinaryIO]:
        """Open a regular file; OSError for anything else, and for files with several names."""
        with self._folder(parts[:-1]) as folder:
            descriptor = os.open(parts[-1], _FILE_FLAGS, dir_fd=folder)
        with self._confinement.restrictions.open_descriptor(descriptor) as file:
            yield file

    def _list_folder(self, parts: Parts) -> list[FoundEntry]:
        """Return a directory's content, last name first."""
        with self._folder(parts) as folder, os.scandir(folder) as entries:
            found = [
                FoundEntry((*parts, entry.name), entry.is_dir(follow_symlinks=False))
                for entry in entries
                if entry.name not in SKIPPED_FOLDERS
                and self._confinement.is_seen((*self._base, *parts, entry.name))
            ]
        return sorted(found, reverse=True)

    @contextmanager
    def _folder(self, parts: Parts) -> Iterator[int]:
        descriptor = os.open(".", _FOLDER_FLAGS, dir_fd=self._top)
        try:
            for name in parts:
                below = os.open(name, _FOLDER_FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
                if self._confinement.is_kernels(below):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def open_tree(path_sandbox: PathSandbox, path: str) -> Iterator[Tree]:
    """Open the folder at a path.

    Raises:
        ToolError, OSError: as ``PathSandbox.locate`` and ``ResolvedPath.open_folder``.
    """
    with path_sandbox.locate(path) as resolved, resolved.open_folder() as top:
        yield Tree(path_sandbox, resolved, top)
