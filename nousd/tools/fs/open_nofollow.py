"""Opens a directory by its real path, and refuses anything that has replaced it since.

A path whose links were resolved contains no link. So a link on the way was put there later, perhaps by
someone who may write in a directory above, and its target has not been checked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from nousd.errors import ToolError
from nousd.tools.fs.path_errors import format_given

FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a directory by its name in another one, as a path only, without following a link."""


def open_folder(path: Path) -> int:
    """Return a descriptor (``O_PATH``) of a directory; the caller closes it.

    Args:
        path: absolute, without ``..``.

    Raises:
        OSError: a component of the path does not exist, or is not a directory, such as a link.
    """
    return open_below(os.open("/", FOLDER), path.parts[1:])


def open_below(folder: int, names: Sequence[str]) -> int:
    """Return such a descriptor of a directory below an open one, which is closed."""
    for name in names:
        try:
            below = os.open(name, FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def open_real(path: Path) -> int:
    """Like ``open_folder``, for a directory that had no link on its way when it was checked.

    Args:
        path: absolute, with its links resolved.

    Raises:
        ToolError: ``workspace_changed``: a name on the way is now a link or a file.
        OSError: any other error of the operating system.
    """
    try:
        return open_folder(path)
    except OSError as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:
            raise make_changed_error(str(path)) from None
        raise


def make_changed_error(path: str) -> ToolError:
    """Return the error for a directory that changed after its links were resolved."""
    return ToolError(f"workspace_changed: {format_given(path)} is not the folder that it was")


def require_real(path: Path) -> None:
    """Raise if a link or a file has replaced a directory on a real path; the path may be gone.

    Raises:
        ToolError, OSError: as ``open_real``.
    """
    with suppress(FileNotFoundError):
        os.close(open_real(path))
