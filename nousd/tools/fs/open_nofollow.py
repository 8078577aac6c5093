"""Opens a folder by its real path, and nothing that has taken its place meanwhile.

A path whose links were resolved once holds no link. So one that is met on the way was put there since,
perhaps by somebody who may work further up, and leads where nobody has looked.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from nousd.errors import ToolError
from nousd.tools.fs.path_errors import shown

FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a folder is opened by its name in another: as a place, and never a link."""


def open_folder(path: Path) -> int:
    """Return a descriptor (``O_PATH``) of a folder; the caller closes it.

    Args:
        path: absolute, without ``..``.

    Raises:
        OSError: it is not there, or something on the way or at its end is no folder, as a link is none.
    """
    folder = os.open("/", FOLDER)
    for name in path.parts[1:]:
        try:
            below = os.open(name, FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def open_real(path: Path) -> int:
    """As ``open_folder``, for a folder that had no link on its way when it was looked at.

    Args:
        path: absolute, with its links resolved.

    Raises:
        ToolError: ``workspace_changed``, if a name on the way is a link or a file by now.
        OSError: what else the operating system says.
    """
    try:
        return open_folder(path)
    except OSError as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:
            raise changed(str(path)) from None
        raise


def changed(path: str) -> ToolError:
    """Return the error for a directory that changed after its links were resolved."""
    return ToolError(f"workspace_changed: {shown(path)} is not the folder that it was")


def require_real(path: Path) -> None:
    """Make sure that a real path leads to its folder and to no other; it may be gone.

    Raises:
        ToolError, OSError: as ``open_real``.
    """
    with suppress(FileNotFoundError):
        os.close(open_real(path))
