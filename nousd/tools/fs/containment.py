"""Which paths lie in which folders, by their names.

Sandboxes compare each of their paths with each other one before every command. ``Path.is_relative_to``
takes both apart each time, which was half of the preparation of a command.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path


def folders_around(paths: Iterable[Path | str]) -> set[str]:
    """Return absolute paths and all folders that they lie in, for asking about many folders at once."""
    around: set[str] = set()
    for path in paths:
        folder = str(path)
        while folder not in around:
            around.add(folder)
            folder = folder.rpartition("/")[0] or "/"
    return around


def lies_in(path: Path | str, folder: Path | str) -> bool:
    """Return whether a path is a folder or below it. Both are absolute."""
    outer = str(folder)
    return f"{path}/".startswith(outer if outer == "/" else f"{outer}/")


def lies_in_any(path: Path | str, folders: Iterable[Path | str]) -> bool:
    """Return whether a path is one of the folders or below one."""
    return any(lies_in(path, folder) for folder in folders)


def lies_in_one_of(path: Path | str, folders: AbstractSet[str]) -> bool:
    """Return the same for many folders, in a time that does not depend on their number."""
    return not folders.isdisjoint(folders_around((path,)))
