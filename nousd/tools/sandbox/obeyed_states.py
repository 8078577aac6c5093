"""The states of files that programs obey, to detect whether a command has changed them.

A file is parsed exactly as the program parses it: if more bytes were stripped than git strips, the check
would use another folder than git. Everything here blocks.
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
"""Larger files count as changed when they are written, even with the same content."""

LINK_BYTES_MAX: Final = 4096
"""The maximum length of a path."""

_LINE_ENDS: Final = b"\r\n"
"""The bytes that git strips from the end of a file that names a folder, any number of them."""

_GITFILE_PREFIX: Final = b"gitdir: "
_ABOVE_WORKTREES: Final = b"../.."
"""The common directory of a worktree, as git writes it."""


def whole(path: Path, status: os.stat_result) -> State:
    """Return the state of a file whose every byte counts, or of a folder regardless of its content."""
    if stat.S_ISDIR(status.st_mode):
        return folder(status)
    if stat.S_ISREG(status.st_mode) and status.st_size <= COMPARED_BYTES_MAX:
        return "content", beginning_of(path, COMPARED_BYTES_MAX)
    return whole_file(status)


def whole_file(status: os.stat_result) -> State:
    """Return the state of a file that counts as changed when it is written."""
    return "file", status.st_ino, status.st_ctime_ns, status.st_size


def folder(status: os.stat_result) -> State:
    """Return the state of a folder that counts as soon as it exists."""
    return "folder", status.st_ino


def has_changed_since(path: Path | str, began_ns: int) -> bool:
    """Return whether a file, or the list of entries of a folder, has changed since a time in nanoseconds
    since the epoch; False if it is gone.
    """
    try:
        return os.lstat(path).st_ctime_ns >= began_ns
    except OSError:
        return False


def drivers(path: Path, status: os.stat_result) -> State:
    """Return the state of a file of attributes, in which only drivers count."""
    if status.st_size > BYTES_MAX:
        return whole_file(status)
    return "drivers", frozenset(drivers_in(beginning_of(path, BYTES_MAX)))


def link_of_git(path: Path, repositories: Collection[str]) -> State:
    """Return the state of a file ``.git``.

    Args:
        repositories: the absolute paths of the workspace's repositories.
    """
    content = beginning_of(path, LINK_BYTES_MAX + 1)
    return "link", content, _names_one_of(content, path.parent, repositories)


def leads_two_up(commondir: Path) -> bool:
    """Return whether the ``commondir`` of a worktree names the folder two levels up, as usual."""
    return beginning_of(commondir, BYTES_MAX).rstrip(_LINE_ENDS) == _ABOVE_WORKTREES


def _names_one_of(content: bytes, holder: Path, repositories: Collection[str]) -> bool:
    """Return whether a file ``.git`` names a worktree or submodule of a repository of the workspace:
    such a folder uses that repository's programs, or is closed like that repository.
    """
    path = content.removeprefix(_GITFILE_PREFIX).rstrip(_LINE_ENDS)
    is_plain = content.startswith(_GITFILE_PREFIX) and path != b"" and b"\0" not in path
    if not is_plain or len(content) > LINK_BYTES_MAX:
        return False
    target = Path(os.path.realpath(holder / os.fsdecode(path)))
    if target.parent.name == "worktrees":
        # Without the usual common directory, or with its own config, it could run other programs.
        is_usual = leads_two_up(target / "commondir")
        has_config = os.path.lexists(target / "config.worktree")
        return is_usual and not has_config and str(target.parent.parent) in repositories
    return any(
        above.name == "modules" and str(above.parent) in repositories for above in target.parents
    )
