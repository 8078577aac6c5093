"""What git obeys in a repository although its user only looks, and a command can have made there.

Most of what makes git run programs is closed to commands (``git_folders``). What must stay writable, or
cannot be closed at names that do not exist, is looked at before and after each:

- configs and hooks, where the repository is one too many to be closed
- attributes, also in an index that has some which the work tree lacks
- the todo lists of rebase and sequencer, and what names their merge program
- the configs of worktrees, and where else these have their common directory
- symbolic links, wherever they are: git writes messages, logs, conflicts and more that a command may
  have prepared, and would write them into its own config
- repositories in the repository, which a link or a file ``.git`` elsewhere can lead to

The look is bounded and says when it did not reach everything. Everything here blocks.
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
"""Maximum entries of one repository that are looked at."""

_WORKTREES_MAX: Final = 100
_HOOKS_MAX: Final = 100

_SHARED_INDEX: Final = "sharedindex."
"""How the name of a part of an index begins that several share."""

_INFO_ATTRIBUTES: Final = "info/attributes"

LAZYGIT: Final = "lazygit.yml"
"""Settings of another program for one repository, among them the pager of what it shows."""

_TODO_LISTS: Final = ("rebase-merge/git-rebase-todo", "sequencer/todo")

_HARMLESS: Final = frozenset(
    {"pick", "p", "reword", "r", "edit", "e", "squash", "s", "fixup", "f", "drop", "d", "noop"}
)
"""Steps of a todo list that run no program."""

_STRATEGIES: Final = {
    "rebase-merge/strategy": re.compile(rb"/"),
    "sequencer/opts": re.compile(rb"strategy\s*=.*/", re.IGNORECASE | re.DOTALL),
}
"""Files that name a merge program, which git runs by its path if there is a slash in it."""

OF_A_REBASE: Final = (*_TODO_LISTS, *_STRATEGIES)
"""What git obeys when it goes on with a rebase or cherry-pick."""

_CLOSED: Final = ("hooks", "modules")
"""Folders in which a command can make nothing, or whose files are compared."""

_FAN_OUT: Final = re.compile(r"objects/[0-9a-f]{2}")
"""Folders of objects: many, and nothing but files in them. Their names say what they hold."""

_WORKTREE: Final = re.compile(r"worktrees/[^/]+")

_HEAD: Final = re.compile(r"(?:worktrees/[^/]+/)?HEAD")


class GitLook:
    """One look at a git folder.

    Args:
        began_ns: when the command began, in nanoseconds since the epoch; None: it has not yet. Folders
            of objects that have not changed since are not looked into.
        until: when the look must be over, by ``time.monotonic``.
    """

    def __init__(self, git: Path, began_ns: int | None, until: float) -> None:
        self._git = git
        self._place = str(git)
        self._began_ns = began_ns
        self._until = until
        self.is_partial = False

    def states(self) -> Iterator[tuple[str, State | None]]:
        """Yield files that git obeys, by their place in the folder; None: it does not count."""
        hooks = (name for name in self._names("hooks", _HOOKS_MAX) if not name.endswith(".sample"))
        yield from self._if_there(_INFO_ATTRIBUTES, drivers)
        for name in ("config", LAZYGIT, *(f"hooks/{name}" for name in hooks)):
            yield from self._if_there(name, whole)
        # As another folder has it, there is no telling which work tree.
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
        """Yield an index with the attributes in it that the work tree lacks."""
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
        return b"sha256" in beginning_of(f"{self._place}/config", BYTES_MAX)

    def _of_a_rebase(self, part: str) -> Iterator[tuple[str, State | None]]:
        for name in _TODO_LISTS:
            yield from self._if_there(part + name, _todo)
        for name in _STRATEGIES:
            yield from self._if_there(part + name, _strategy)

    def _if_there(
        self, name: str, state_of: Callable[[Path, os.stat_result], State | None]
    ) -> Iterator[tuple[str, State | None]]:
        path = f"{self._place}/{name}"
        try:
            status = os.lstat(path)
        except OSError:  # as most are not there
            return
        yield name, state_of(Path(path), status)

    def _names(self, place: str, most: int) -> list[str]:
        return [entry.name for entry in self._entries(place, most)]

    def _entries(self, place: str, most: int) -> Sequence[os.DirEntry[str]]:
        try:
            with os.scandir(f"{self._place}/{place}") as entries:
                found = list(islice(entries, most + 1))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError:  # such as a folder closed to its own user
            self.is_partial = True
            return ()
        self.is_partial |= len(found) > most
        return found[:most]

    def _walk_folder(self) -> Iterator[tuple[str, State | None]]:
        """Yield links, and repositories, of the whole folder."""
        ahead = deque([""])
        left = ENTRIES_MAX
        while ahead:
            if left <= 0 or time.monotonic() > self._until:
                self.is_partial = True
                return
            place = ahead.popleft()
            entries = self._entries(place, left) if place else self._top
            left -= len(entries)
            if self._is_repository(place, entries):
                yield from self._if_there(place, _there)
            for entry in entries:
                name = f"{place}/{entry.name}" if place else entry.name
                if entry.is_symlink():
                    yield name, _link(name, Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    if _FAN_OUT.fullmatch(name):
                        yield from self._in_fan_out(name)
                    elif name not in _CLOSED:
                        ahead.append(name)

    def _is_repository(self, place: str, entries: Sequence[os.DirEntry[str]]) -> bool:
        # A worktree's own folder is judged by where it has the rest.
        is_inner = place != "" and not _WORKTREE.fullmatch(place)
        return is_inner and is_layout({entry.name for entry in entries})

    def _in_fan_out(self, place: str) -> Iterator[tuple[str, State | None]]:
        """Yield whatever is no file in a folder that has changed."""
        if self._began_ns is None or not has_changed_since(
            f"{self._place}/{place}", self._began_ns
        ):
            return
        for entry in self._entries(place, ENTRIES_MAX):
            if not entry.is_file(follow_symlinks=False):
                yield from self._if_there(f"{place}/{entry.name}", _there)


def _work_tree(git: Path) -> Path | None:
    """Return the work tree of a worktree's git folder."""
    place = beginning_of(git / "gitdir", LINK_BYTES_MAX).rstrip(b"\r\n")
    return Path(os.path.normpath(git / os.fsdecode(place))).parent if place else None


def _there(_path: Path, status: os.stat_result) -> State:
    return folder(status)


def _link(name: str, path: Path) -> State | None:
    """Return the state of a link. Git makes none, unless HEAD is to lead to a ref."""
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
    """A strategy is the end of a program's name: one of git's own has no slash."""
    by_path = next(found for name, found in _STRATEGIES.items() if str(path).endswith(name))
    is_harmless = stat.S_ISREG(status.st_mode) and status.st_size <= LINK_BYTES_MAX
    names_program = by_path.search(beginning_of(path, BYTES_MAX)) is not None
    return None if is_harmless and not names_program else whole_file(status)


def _commondir(path: Path, _status: os.stat_result) -> State | None:
    """A worktree of the repository itself names the folder two above."""
    return None if leads_two_up(path) else ("whole", beginning_of(path, BYTES_MAX))
