"""Finds the files of a repository that a command can make and that read-only git commands obey.

Most files that make git run programs are closed to commands (``git_folders``). Files that must stay
writable, or that cannot be closed because they do not exist, are examined before and after each command:

- configs and hooks, if too many repositories exist to close those of this one
- attributes, including those in an index that the work tree lacks
- the todo lists of rebase and sequencer, and the files that name their merge program
- the configs of worktrees, and files that name another common directory
- symbolic links, wherever they are: git writes messages, logs, conflicts and more, which a command may
  have prepared, and would write them through a link into its own config
- repositories in the repository, to which a link or a file ``.git`` elsewhere can lead

The search is bounded and reports whether it reached everything. Everything here blocks.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final

from nousd.tools.fs.git_layout import is_layout
from nousd.tools.fs.regular_file import beginning_of
from nousd.tools.sandbox.git_index import attributes_in, is_read_instead
from nousd.tools.sandbox.obeyed_states import (
    BYTES_MAX,
    LINK_BYTES_MAX,
    State,
    drivers,
    folder,
    has_changed_since,
    leads_two_up,
    whole,
    whole_file,
)

ENTRIES_MAX: Final = 10_000
"""Maximum entries of one repository that are examined."""

_WORKTREES_MAX: Final = 100
_HOOKS_MAX: Final = 100

_SHARED_INDEX: Final = "sharedindex."
"""The prefix of the names of shared parts of an index."""

_INFO_ATTRIBUTES: Final = "info/attributes"

LAZYGIT: Final = "lazygit.yml"
"""Settings of lazygit for one repository, which name its pager among others."""

_TODO_LISTS: Final = ("rebase-merge/git-rebase-todo", "sequencer/todo")

_HARMLESS: Final = frozenset(
    {"pick", "p", "reword", "r", "edit", "e", "squash", "s", "fixup", "f", "drop", "d", "noop"}
)
"""Steps of a todo list that run no program."""

_STRATEGIES: Final = {
    "rebase-merge/strategy": re.compile(rb"/"),
    "sequencer/opts": re.compile(rb"strategy\s*=.*/", re.IGNORECASE | re.DOTALL),
}
"""Files that name a merge program -> a match if the name has a slash, so that git runs it by path."""

OF_A_REBASE: Final = (*_TODO_LISTS, *_STRATEGIES)
"""Files that git obeys when it continues a rebase or cherry-pick."""

_SKIPPED_FOLDERS: Final = ("hooks", "modules")
"""Folders in which a command can make no files, or whose files are compared one by one."""

_FAN_OUT: Final = re.compile(r"objects/[0-9a-f]{2}")
"""Folders of objects: there are many, and they contain only files, named after their content."""

_WORKTREE: Final = re.compile(r"worktrees/[^/]+")

_HEAD: Final = re.compile(r"(?:worktrees/[^/]+/)?HEAD")


class GitLook:
    """One examination of a git folder.

    Args:
        began_ns: when the command began, in nanoseconds since the epoch; None if it has not begun.
            Folders of objects are read only if they have changed since then.
        until: the deadline, as ``time.monotonic``.
    """

    def __init__(self, git: Path, began_ns: int | None, until: float) -> None:
        self._git = git
        self._git_text = str(git)
        self._began_ns = began_ns
        self._until = until
        self.is_partial = False

    def states(self) -> Iterator[tuple[str, State | None]]:
        """Yield files that git obeys, by their path in the folder, with their state; None if the file
        does not count.
        """
        hooks = (name for name in self._names("hooks", _HOOKS_MAX) if not name.endswith(".sample"))
        yield from self._if_there(_INFO_ATTRIBUTES, drivers)
        for name in ("config", LAZYGIT, *(f"hooks/{name}" for name in hooks)):
            yield from self._if_there(name, whole)
        # The work tree of a git folder with another name is unknown.
        top = self._git.parent if self._git.name == ".git" else None
        for index in ("index", *self._list_shared_indexes()):
            yield from self._of_index(index, top)
        for worktree in self._names("worktrees", _WORKTREES_MAX):
            part = f"worktrees/{worktree}/"
            yield from self._of_index(f"{part}index", _work_tree(self._git / part))
            yield from self._of_a_rebase(part)
            yield from self._if_there(f"{part}config.worktree", whole)
            yield from self._if_there(f"{part}commondir", _commondir)
        yield from self._of_a_rebase("")
        yield from self._walk_folder()

    def _list_shared_indexes(self) -> Iterator[str]:
        yield from (entry.name for entry in self._top if entry.name.startswith(_SHARED_INDEX))

    def _of_index(self, name: str, top: Path | None) -> Iterator[tuple[str, State | None]]:
        """Yield an index with its attributes that the work tree lacks."""
        try:
            found = attributes_in(self._git / name, is_sha256=self._is_sha256)
        except OSError:
            return
        if found is None:
            self.is_partial = True
            return
        read = {
            (path, content)
            for path, content in found
            if top is None or not is_read_instead(top / os.fsdecode(path))
        }
        yield name, ("drivers", frozenset(read))

    @cached_property
    def _top(self) -> Sequence[os.DirEntry[str]]:
        return self._entries("", ENTRIES_MAX)

    @cached_property
    def _is_sha256(self) -> bool:
        return b"sha256" in beginning_of(f"{self._git_text}/config", BYTES_MAX)

    def _of_a_rebase(self, part: str) -> Iterator[tuple[str, State | None]]:
        for name in _TODO_LISTS:
            yield from self._if_there(part + name, _todo)
        for name in _STRATEGIES:
            yield from self._if_there(part + name, _strategy)

    def _if_there(
        self, name: str, state_of: Callable[[Path, os.stat_result], State | None]
    ) -> Iterator[tuple[str, State | None]]:
        path = f"{self._git_text}/{name}"
        try:
            status = os.lstat(path)
        except OSError:  # most do not exist
            return
        yield name, state_of(Path(path), status)

    def _names(self, path: str, entries_max: int) -> list[str]:
        return [entry.name for entry in self._entries(path, entries_max)]

    def _entries(self, path: str, entries_max: int) -> Sequence[os.DirEntry[str]]:
        try:
            with os.scandir(f"{self._git_text}/{path}") as entries:
                found = list(islice(entries, entries_max + 1))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError:  # such as a folder that its owner cannot read
            self.is_partial = True
            return ()
        self.is_partial |= len(found) > entries_max
        return found[:entries_max]

    def _walk_folder(self) -> Iterator[tuple[str, State | None]]:
        """Yield the links and repositories in the whole folder."""
        ahead = deque([""])
        entries_left = ENTRIES_MAX
        while ahead:
            if entries_left <= 0 or time.monotonic() > self._until:
                self.is_partial = True
                return
            path = ahead.popleft()
            entries = self._entries(path, entries_left) if path else self._top
            entries_left -= len(entries)
            if self._is_repository(path, entries):
                yield from self._if_there(path, _there)
            for entry in entries:
                name = f"{path}/{entry.name}" if path else entry.name
                if entry.is_symlink():
                    yield name, _link(name, Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    if _FAN_OUT.fullmatch(name):
                        yield from self._in_fan_out(name)
                    elif name not in _SKIPPED_FOLDERS:
                        ahead.append(name)

    def _is_repository(self, path: str, entries: Sequence[os.DirEntry[str]]) -> bool:
        # The folder of a worktree is judged by its common directory instead.
        is_inner = path != "" and not _WORKTREE.fullmatch(path)
        return is_inner and is_layout({entry.name for entry in entries})

    def _in_fan_out(self, path: str) -> Iterator[tuple[str, State | None]]:
        """Yield all entries but files of a folder of objects, if it has changed."""
        if self._began_ns is None or not has_changed_since(
            f"{self._git_text}/{path}", self._began_ns
        ):
            return
        for entry in self._entries(path, ENTRIES_MAX):
            if not entry.is_file(follow_symlinks=False):
                yield from self._if_there(f"{path}/{entry.name}", _there)


def _work_tree(git: Path) -> Path | None:
    """Return the work tree of a worktree's git folder."""
    path = beginning_of(git / "gitdir", LINK_BYTES_MAX).rstrip(b"\r\n")
    return Path(os.path.normpath(git / os.fsdecode(path))).parent if path else None


def _there(_path: Path, status: os.stat_result) -> State:
    return folder(status)


def _link(name: str, path: Path) -> State | None:
    """Return the state of a link; None for a HEAD that leads to a ref, the only link that git makes."""
    try:
        target = path.readlink()
    except OSError:  # it is gone
        return None
    is_ref = target.parts[:1] == ("refs",) and ".." not in target.parts
    return None if is_ref and _HEAD.fullmatch(name) else ("to", str(target))


def _todo(path: Path, status: os.stat_result) -> State:
    words = (
        line.split(maxsplit=1)
        for line in beginning_of(path, BYTES_MAX).decode("utf-8", "replace").splitlines()
    )
    steps = [found[0] for found in words if found and not found[0].startswith("#")]
    is_whole = stat.S_ISREG(status.st_mode) and status.st_size <= BYTES_MAX
    is_harmless = is_whole and all(step in _HARMLESS for step in steps)
    return "todo", status.st_ino, status.st_ctime_ns, is_harmless


def _strategy(path: Path, status: os.stat_result) -> State | None:
    """Return the state of a file that names merge programs; None if it can name only git's own ones,
    whose names have no slash.
    """
    by_path = next(found for name, found in _STRATEGIES.items() if str(path).endswith(name))
    is_harmless = stat.S_ISREG(status.st_mode) and status.st_size <= LINK_BYTES_MAX
    names_program = by_path.search(beginning_of(path, BYTES_MAX)) is not None
    return None if is_harmless and not names_program else whole_file(status)


def _commondir(path: Path, _status: os.stat_result) -> State | None:
    """Return the state of a ``commondir``; None if it names its own repository, as git writes it."""
    return None if leads_two_up(path) else ("whole", beginning_of(path, BYTES_MAX))
