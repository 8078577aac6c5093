"""The states of files that programs obey, for telling whether a command has changed them.

A file is read as the program reads it, byte for byte: what strips more than git does takes another
folder for the one that git goes to. Everything here blocks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

from nousd.tools.fs.git_layout import drivers_in
from nousd.tools.fs.regular_file import beginning_of

State = tuple[object, ...]
"""Equal if and only if a file was not changed."""

BYTES_MAX: Final = 1024 * 1024
COMPARED_BYTES_MAX: Final = 64 * 1024
"""Larger files count as changed once they were written, whatever they hold."""

LINK_BYTES_MAX: Final = 4096
"""A path cannot be longer."""

_ENDS_OF_LINES: Final = b"\r\n"
"""So many of these at its end git leaves out of a file that names a folder, and nothing else."""

_OF_GITFILE: Final = b"gitdir: "
_ABOVE_WORKTREES: Final = b"../.."
"""What the common directory of a worktree is, as git writes it."""


def whole(path: Path, status: os.stat_result) -> State:
    """Return the state of a file of which every byte counts, or of a folder, whatever is in it."""
    if stat.S_ISDIR(status.st_mode):
        return folder(status)
    if stat.S_ISREG(status.st_mode) and status.st_size <= COMPARED_BYTES_MAX:
        return "content", beginning_of(path, COMPARED_BYTES_MAX)
    return whole_file(status)


def whole_file(status: os.stat_result) -> State:
    """Return the state of a file that is changed once it was written."""
    return "file", status.st_ino, status.st_ctime_ns, status.st_size


def folder(status: os.stat_result) -> State:
    """Return the state of a folder that counts as soon as it is there."""
    return "folder", status.st_ino


def has_changed_since(path: Path | str, began_ns: int) -> bool:
    """Return whether a file, or the content of a folder, has changed since a time after the epoch."""
    try:
        return os.lstat(path).st_ctime_ns >= began_ns
    except OSError:
        return False


def drivers(path: Path, status: os.stat_result) -> State:
    """Return the state of attributes, of which only the drivers count."""
    if status.st_size > BYTES_MAX:
        return whole_file(status)
    return "drivers", frozenset(drivers_in(beginning_of(path, BYTES_MAX)))


def link_of_git(path: Path, repositories: Collection[str]) -> State:
    """Return the state of a file ``.git``.

    Args:
        repositories: of the workspace.
    """
    content = beginning_of(path, LINK_BYTES_MAX + 1)
    return "link", content, _names_one_of(content, path.parent, repositories)


def leads_two_up(commondir: Path) -> bool:
    """Return whether a worktree's git folder has the one two above for the rest, as usual."""
    return beginning_of(commondir, BYTES_MAX).rstrip(_ENDS_OF_LINES) == _ABOVE_WORKTREES


def _names_one_of(content: bytes, holder: Path, repositories: Collection[str]) -> bool:
    """Return whether a file ``.git`` names a worktree or submodule of a repository of the workspace,
    which has the programs of that repository, or is closed as that is.
    """
    place = content.removeprefix(_OF_GITFILE).rstrip(_ENDS_OF_LINES)
    is_plain = content.startswith(_OF_GITFILE) and place != b"" and b"\0" not in place
    if not is_plain or len(content) > LINK_BYTES_MAX:
        return False
    target = Path(os.path.realpath(holder / os.fsdecode(place)))
    if target.parent.name == "worktrees":
        # Without a common directory its own config applies.
        is_usual = leads_two_up(target / "commondir")
        has_config = os.path.lexists(target / "config.worktree")
        return is_usual and not has_config and str(target.parent.parent) in repositories
    return any(
        above.name == "modules" and str(above.parent) in repositories for above in target.parents
    )
