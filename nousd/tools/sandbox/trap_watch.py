"""Reports files that a command left and that programs obey although their user only looks at the folder.

A sandbox closes such files where they exist (``visible_paths``). It cannot close every name under which
a command could make one, and some must stay writable, because git itself replaces them. So the
workspace is searched before and after a command, and new and changed files are named in an event and to
the model. No file is removed.

The search has the same bounds as the one before each command (``deny_scan``) and reports whether it
reached everything. The names come from the table of protected paths. In addition, git obeys
repositories by their layout, drivers in ``.gitattributes``, and files in repositories (``git_traps``),
including those outside of the workspace that a command may write in. Everything here blocks.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from nousd.tools.fs.deep_folders import walk
from nousd.tools.fs.git_layout import is_repository
from nousd.tools.sandbox.deny_scan import FoundFiles, Names
from nousd.tools.sandbox.git_traps import LAZYGIT, OF_A_REBASE, GitLook
from nousd.tools.sandbox.obeyed_states import (
    State,
    drivers,
    folder,
    has_changed_since,
    link_of_git,
    whole,
)
from nousd.wire.objects.policy import ObeyedFile

NAMED_MAX: Final = 20
"""Maximum files that an event names, those near the top first."""

_GIT: Final = "git"
_GIT_FOLDER: Final = ".git"
_ATTRIBUTES: Final = ".gitattributes"
_ANY_COMMAND: Final = "runs any git command in the folder"

_FILES_MAX: Final = 100
"""Maximum files below the target of one link that are read."""

SECONDS_MAX: Final = 1.0
"""Maximum time for reading the files that a search has found."""

_CLOCK_STEP_NS: Final = 20_000_000
"""The time of a file system may be one tick of the kernel behind the clock."""


class ObeyedNames(NamedTuple):
    """Files that one program obeys, in any directory and case; of a folder, everything in it.

    Args:
        when: the action of the user at which the program obeys them.
        names: names in which ``*`` matches any characters but slashes.
    """

    program: str
    when: str
    names: tuple[str, ...]


class LeftFiles(NamedTuple):
    """The files that a command left; ``is_partial`` if the search did not reach everything."""

    files: tuple[ObeyedFile, ...] = ()
    is_partial: bool = False


def remark_of(files: Sequence[ObeyedFile]) -> str:
    """Return the sentence that reports the files to people and models."""
    listed = "; ".join(f"{file.path} ({file.program}, when one {file.when})" for file in files)
    return f"the command made or changed files that programs obey although one only looks: {listed}"


class TrapWatch:
    """The state of a workspace before a command, to be compared with the state after it.

    Args:
        find_files: finds the files; it bounds its search itself.
        before: the result of the search before the command.
        outside: git folders elsewhere that commands may write in.
    """

    def __init__(
        self,
        workdir: Path,
        rows: Sequence[ObeyedNames],
        find_files: Callable[[], FoundFiles],
        before: FoundFiles,
        outside: Sequence[Path] = (),
    ) -> None:
        self._workdir = workdir
        self._rows = rows
        self._find_files = find_files
        self._outside = tuple(map(str, outside))
        self._before, self._was_partial = _read(workdir, self._and_outside(before), None)
        self._began_ns = time.time_ns() - _CLOCK_STEP_NS

    def _and_outside(self, found: FoundFiles) -> FoundFiles:
        return found._replace(repositories=(*found.repositories, *self._outside))

    def look_again(self) -> LeftFiles:
        """Search the workspace again, and return the files that are new or changed."""
        states, is_partial = _read(
            self._workdir, self._and_outside(self._find_files()), self._began_ns
        )
        new = {path for path, state in states.items() if self._is_new(path, state)}
        # Files in a new folder are reported by the folder.
        changed = [path for path in states if path in new and new.isdisjoint(_above(path))]
        named = tuple(map(self._describe_file, changed[:NAMED_MAX]))
        return LeftFiles(named, is_partial or len(changed) > NAMED_MAX)

    def _is_new(self, path: str, state: State) -> bool:
        before = self._before.get(path)
        match state:
            case ("drivers", frozenset() as drivers):
                known = before[1] if before is not None else frozenset()
                return bool(drivers - known if isinstance(known, frozenset) else drivers)
            case ("link", _, True):  # a worktree or submodule of a known repository
                return False
            case ("todo", _, _, is_harmless) if is_harmless:
                return False
        if before is not None or not self._was_partial:
            return state != before
        return has_changed_since(self._workdir / path, self._began_ns)

    def _describe_file(self, name: str) -> ObeyedFile:
        path = _printable(name)
        if name.endswith(OF_A_REBASE):
            return ObeyedFile(path=path, program=_GIT, when="continues the rebase or cherry-pick")
        if name.endswith(f"/{LAZYGIT}"):
            return ObeyedFile(path=path, program="lazygit", when="runs it in the folder or below")
        for row in self._rows:
            patterns = filter(None, (_pattern(row.names), _ways(row.names)))
            if any(pattern.fullmatch(name) for pattern in patterns):
                return ObeyedFile(path=path, program=row.program, when=row.when)
        return ObeyedFile(path=path, program=_GIT, when=_ANY_COMMAND)


@contextmanager
def watch_traps(traps: TrapWatch | None) -> Iterator[list[LeftFiles]]:
    """Provide a list that gets the one result at the end of the block."""
    results: list[LeftFiles] = []
    try:
        yield results
    finally:
        results.append(LeftFiles() if traps is None else traps.look_again())


def _above(path: str) -> Iterator[str]:
    """Yield the folders above a path."""
    while path := path.rpartition("/")[0]:
        yield path


def _printable(path: str) -> str:
    """Return a printable path: a file name may contain line ends, and need not be UTF-8."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _read(workdir: Path, found: FoundFiles, began_ns: int | None) -> tuple[dict[str, State], bool]:
    """Return the state of each file, and whether some may not have been found, or read in time.

    Args:
        began_ns: see ``GitLook``.
    """
    until = time.monotonic() + SECONDS_MAX
    looks = {path: GitLook(workdir / path, began_ns, until) for path in found.repositories}
    states: dict[str, State] = {}
    for path, state in _states(workdir, found, looks):
        if state is not None:
            states[path] = state
        if time.monotonic() > until:
            return states, True
    return states, found.is_partial or any(look.is_partial for look in looks.values())


def _states(
    workdir: Path, found: FoundFiles, looks: Mapping[str, GitLook]
) -> Iterator[tuple[str, State | None]]:
    """Yield each file with its state; None if it is gone or does not count."""
    known = frozenset(str(workdir / path) for path in found.repositories)
    for path in dict.fromkeys((*found.repositories, *found.named)):
        yield path, _state(workdir / path, known)
    for path, look in looks.items():
        for name, state in look.states():
            yield f"{path}/{name}", state


def _state(path: Path, repositories: Collection[str]) -> State | None:
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return "to", str(path.readlink()), *_target_states(path)
    except OSError:
        return None
    name = path.name.lower()
    if stat.S_ISDIR(status.st_mode):
        # A placeholder of another command's sandbox is not a repository.
        is_obeyed = name != _GIT_FOLDER or is_repository(path)
        return folder(status) if is_obeyed else None
    if name == _ATTRIBUTES:
        return drivers(path, status)
    if name == _GIT_FOLDER:
        return link_of_git(path, repositories)
    return whole(path, status)


def _target_states(link: Path) -> Iterator[State]:
    """Yield the states of the target of a link and of the files below it."""
    target = Path(os.path.realpath(link))
    files = (target, *(islice(_files_below(target), _FILES_MAX)))
    for path in files:
        with suppress(OSError):
            yield (str(path), *whole(path, os.lstat(path)))


def _files_below(folder: Path) -> Iterator[Path]:
    for above, _, names in walk(str(folder)):
        yield from (Path(above, name) for name in names)


@lru_cache(maxsize=64)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern of paths with such names in any directory, and of all paths below them."""
    return re.compile(rf"(?:.*/)?(?:{_choice(names)})(?:/.*)?", re.IGNORECASE | re.DOTALL)


@lru_cache(maxsize=8)
def names_of(closed: tuple[str, ...], rows: tuple[ObeyedNames, ...]) -> Names:
    """Return the names for a search.

    Args:
        closed: the names that a command must not change.
    """
    longer = tuple(name for row in rows for name in row.names if "/" in name)
    simple = tuple(name for row in rows for name in row.names if "/" not in name)
    closed_names = tuple(name for name in closed if "/" not in name)
    return Names(
        closed=_whole_names((_GIT_FOLDER, *closed_names)),
        obeyed=_whole_names((_GIT_FOLDER, _ATTRIBUTES, *simple, *closed_names)),
        tails=_whole_names(tuple(name.rpartition("/")[2] for name in longer)) if longer else None,
        paths=_pattern(longer) if longer else None,
        parents=_ways(longer),
    )


@lru_cache(maxsize=64)
def _ways(names: tuple[str, ...]) -> re.Pattern[str] | None:
    """Return a pattern of the folders on the way to such files; None if no name has a slash."""
    parents = {str(parent) for name in names for parent in PurePath(name).parents} - {"."}
    if not parents:
        return None
    return re.compile(rf"(?:.*/)?(?:{_choice(sorted(parents))})", re.IGNORECASE | re.DOTALL)


def _whole_names(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"(?:{_choice(names)})\Z", re.IGNORECASE)


def _choice(names: Sequence[str]) -> str:
    return "|".join(re.escape(name).replace(r"\*", "[^/]*") for name in names)
