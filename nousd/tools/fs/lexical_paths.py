"""Tests by name whether paths lie in folders.

Sandboxes compare all their paths with each other before every command. ``Path.is_relative_to`` parses
both paths each time, which took half of the time to prepare a command.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path


def folders_around(paths: Iterable[Path | str]) -> set[str]:
    """Return absolute paths and all folders that contain them, to test many folders at once."""
    parents: set[str] = set()
    for path in paths:
        folder = str(path)
        while folder not in parents:
            parents.add(folder)
            folder = folder.rpartition("/")[0] or "/"
    return parents


def lies_in(path: Path | str, folder: Path | str) -> bool:
    """Return whether a path is a folder or below it. Both are absolute."""
    outer = str(folder)
    return f"{path}/".startswith(outer if outer == "/" else f"{outer}/")


def lies_in_any(path: Path | str, folders: Iterable[Path | str]) -> bool:
    """Return whether a path is one of the folders or below one."""
    return any(lies_in(path, folder) for folder in folders)


def lies_in_one_of(path: Path | str, folders: AbstractSet[str]) -> bool:
    """Like ``lies_in_any``, in a time that does not depend on the number of folders."""
    return not folders.isdisjoint(folders_around((path,)))
