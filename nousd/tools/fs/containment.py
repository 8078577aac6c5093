"""Which paths lie in which folders, by their names.

Sandboxes compare each of their paths with each other one before every command. ``Path.is_relative_to``
takes both apart each time, which was half of the preparation of a command.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def lies_in(path: Path, folder: Path | str) -> bool:
    """Return whether a path is a folder or below it. Both are absolute."""
    return lies_in_any(path, (folder,))


def lies_in_any(path: Path, folders: Iterable[Path | str]) -> bool:
    """Return whether a path is one of the folders or below one."""
    inner = f"{path}/"
    for folder in folders:
        outer = str(folder)
        if inner.startswith(outer if outer == "/" else f"{outer}/"):
            return True
    return False
