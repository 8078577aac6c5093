"""Files that a command left behind and that programs obey although their user only looks.

A sandbox closes such files where they exist (``visible_paths``). It cannot close every name at which a
command could make one, and some must stay writable, since git itself replaces them. So the workspace is
looked at before and after a command, and what is new or different is named in an event and to the model.
Nothing is removed.

The look is as bounded as the one before each command (``deny_scan``) and says when it did not reach
everything. The names come from the table of protected paths; what git obeys besides is known here:
repositories by their layout, their worktrees, drivers in ``.gitattributes``, the todo lists of rebase
and sequencer, which can hold programs, and links through which git would write its messages and logs
into its own config. Everything here blocks.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from nousd.tools.fs.deep_folders import walk
from nousd.tools.fs.git_layout import drivers_in, is_repository
from nousd.tools.fs.regular_file import beginning_of
from nousd.tools.sandbox.deny_scan import Found, Names
from nousd.wire.objects.policy import ObeyedFile

NAMED_MAX: Final = 20
"""Maximum files that an event names, those near the top first."""

_GIT: Final = "git"
_GIT_FOLDER: Final = ".git"
_ATTRIBUTES: Final = ".gitattributes"
_ANY_COMMAND: Final = "runs any git command in the folder"

_TODO_LISTS: Final = ("rebase-merge/git-rebase-todo", "sequencer/todo")

_HARMLESS: Final = frozenset(
    {"pick", "p", "reword", "r", "edit", "e", "squash", "s", "fixup", "f", "drop", "d", "noop"}
)
"""Steps of a todo list that run no program."""

_STRATEGIES: Final = ("rebase-merge/strategy", "sequencer/opts")
"""Files that name a merge program, which git runs by its path if there is a slash in it."""

_PROGRAM_OF_STRATEGY: Final = re.compile(rb"\A[^\n=]*/|strategy\s*=.*/", re.IGNORECASE | re.DOTALL)

_INFO_ATTRIBUTES: Final = "info/attributes"

_WRITTEN_IN: Final = (
    "",
    *("logs", "logs/refs", "logs/refs/heads", "rebase-apply", "rebase-merge", "sequencer"),
)
"""Folders of a repository in which git writes what was prepared: messages, logs, notes of a rebase."""

_ENTRIES_MAX: Final = 1000
"""Maximum entries of each that are looked at."""

_WORKTREES_MAX: Final = 100

_FILES_MAX: Final = 100
"""Maximum hooks of a repository, and files to which one link leads, that are looked at."""

_BYTES_MAX: Final = 1024 * 1024
_COMPARED_BYTES_MAX: Final = 64 * 1024
"""Larger files count as changed once they were written, whatever they hold."""

_LINK_BYTES_MAX: Final = 4096
"""A path cannot be longer."""

SECONDS_MAX: Final = 1.0
"""How long the files that a search found may be read."""

_CLOCK_STEP_NS: Final = 20_000_000
"""A file system's time may be behind the clock by one tick of the kernel."""

State = tuple[object, ...]
"""Equal if and only if a file was not changed."""


class Obeyed(NamedTuple):
    """Files that one program obeys, with everything in them, in any directory and any case.

    Args:
        when: what the user does while the program obeys them.
        names: with ``*`` for any characters but slashes.
    """

    program: str
    when: str
    names: tuple[str, ...]


class Left(NamedTuple):
    """The files that a command left; ``is_partial`` if the look did not reach everything."""

    files: tuple[ObeyedFile, ...] = ()
    is_partial: bool = False


def remark_of(files: Sequence[ObeyedFile]) -> str:
    """Return the sentence for people and models."""
    listed = "; ".join(f"{file.path} ({file.program}, when one {file.when})" for file in files)
    return f"the command made or changed files that programs obey although one only looks: {listed}"


class TrapWatch:
    """One look at a workspace before a command, to be compared with one after it.

    Args:
        look: finds the files, as bounded as it wants to be.
        before: the result of the look before the command.
    """

    def __init__(
        self, workdir: Path, rows: Sequence[Obeyed], look: Callable[[], Found], before: Found
    ) -> None:
        self._workdir = workdir
        self._rows = rows
        self._look = look
        self._before, self._was_partial = _read(workdir, before)
        self._began_ns = time.time_ns() - _CLOCK_STEP_NS

    def left(self) -> Left:
        """Look again, and return what is new or different."""
        states, is_partial = _read(self._workdir, self._look())
        new = {place for place, state in states.items() if self._is_new(place, state)}
        # What lies in a new folder is named by that.
        changed = [place for place in states if place in new and new.isdisjoint(_above(place))]
        named = tuple(map(self._named, changed[:NAMED_MAX]))
        return Left(named, is_partial or len(changed) > NAMED_MAX)

    def _is_new(self, place: str, state: State) -> bool:
        before = self._before.get(place)
        match state:
            case ("drivers", frozenset() as drivers):
                known = before[1] if before is not None else frozenset()
                return bool(drivers - known if isinstance(known, frozenset) else drivers)
            case ("link", _, True):  # a worktree or submodule of a repository that was there
                return False
            case ("todo", _, _, is_harmless) if is_harmless:
                return False
        if before is not None or not self._was_partial:
            return state != before
        return _changed_since(self._workdir / place, self._began_ns)

    def _named(self, place: str) -> ObeyedFile:
        path = _printable(place)
        if place.endswith((*_TODO_LISTS, *_STRATEGIES)):
            return ObeyedFile(path=path, program=_GIT, when="continues the rebase or cherry-pick")
        for row in self._rows:
            if _pattern(row.names).fullmatch(place):
                return ObeyedFile(path=path, program=row.program, when=row.when)
        return ObeyedFile(path=path, program=_GIT, when=_ANY_COMMAND)


@contextmanager
def watched(traps: TrapWatch | None) -> Iterator[list[Left]]:
    """Provide a list that holds the one result at the end of the block."""
    results: list[Left] = []
    try:
        yield results
    finally:
        results.append(Left() if traps is None else traps.left())


def _above(place: str) -> Iterator[str]:
    """Yield the folders above a place."""
    while place := place.rpartition("/")[0]:
        yield place


def _changed_since(path: Path, began_ns: int) -> bool:
    try:
        return os.lstat(path).st_ctime_ns >= began_ns
    except OSError:
        return False


def _printable(place: str) -> str:
    """Return a path for people and events: a file's name may hold line ends, and need not be UTF-8."""
    text = os.fsencode(place).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _read(workdir: Path, found: Found) -> tuple[dict[str, State], bool]:
    """Return the state of each file, and whether more may exist than were found and read in time."""
    until = time.monotonic() + SECONDS_MAX
    states: dict[str, State] = {}
    for place, state in _states(workdir, found):
        if state is not None:
            states[place] = state
        if time.monotonic() > until:
            return states, True
    return states, found.is_partial


def _states(workdir: Path, found: Found) -> Iterator[tuple[str, State | None]]:
    """Yield each file with its state, None if it is gone or does not count."""
    known = frozenset(str(workdir / place) for place in found.repositories)
    for place in dict.fromkeys((*found.repositories, *found.named)):
        yield place, _state(workdir / place, known)
    for place in found.repositories:
        yield from _states_in_repository(workdir, place)


def _state(path: Path, repositories: Collection[str]) -> State | None:
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return "to", str(path.readlink()), *_target_states(path)
    except OSError:
        return None
    name = path.name.lower()
    if stat.S_ISDIR(status.st_mode):
        # What stands there for another command's sandbox is no repository.
        is_obeyed = name != _GIT_FOLDER or is_repository(path)
        return ("folder", status.st_ino) if is_obeyed else None
    if name == _ATTRIBUTES:
        return _drivers(path, status)
    if name == _GIT_FOLDER:
        content = beginning_of(path, _LINK_BYTES_MAX + 1)
        return "link", content, _names_one_of(content, path.parent, repositories)
    return _whole(path, status)


def _target_states(link: Path) -> Iterator[State]:
    """Yield the states of the files to which a link leads."""
    target = Path(os.path.realpath(link))
    several = (target, *(islice(_files_below(target), _FILES_MAX)))
    for path in several:
        with suppress(OSError):
            yield (str(path), *_whole(path, os.lstat(path)))


def _files_below(folder: Path) -> Iterator[Path]:
    for above, _, names in walk(str(folder)):
        yield from (Path(above, name) for name in names)


def _whole(path: Path, status: os.stat_result) -> State:
    if stat.S_ISDIR(status.st_mode):
        return "folder", status.st_ino
    if stat.S_ISREG(status.st_mode) and status.st_size <= _COMPARED_BYTES_MAX:
        return "content", beginning_of(path, _COMPARED_BYTES_MAX)
    return _whole_file(status)


def _whole_file(status: os.stat_result) -> State:
    return "file", status.st_ino, status.st_ctime_ns, status.st_size


def _drivers(path: Path, status: os.stat_result) -> State:
    if status.st_size > _BYTES_MAX:
        return _whole_file(status)
    return "drivers", frozenset(drivers_in(beginning_of(path, _BYTES_MAX)))


def _names_one_of(content: bytes, folder: Path, repositories: Collection[str]) -> bool:
    """Return whether a file ``.git`` names a worktree or submodule of a repository of the workspace,
    which has the programs of that repository, or is closed as that is.
    """
    prefix, _, place = content.decode("utf-8", "surrogateescape").rstrip("\n").partition(" ")
    if prefix != "gitdir:" or not place or "\0" in place or len(content) > _LINK_BYTES_MAX:
        return False
    target = Path(os.path.realpath(folder / place))
    if target.parent.name == "worktrees":
        # Without a common directory its own config applies.
        is_plain = beginning_of(
            target / "commondir", _BYTES_MAX
        ).strip() == b"../.." and not os.path.lexists(target / "config.worktree")
        return is_plain and str(target.parent.parent) in repositories
    return any(
        above.name == "modules" and str(above.parent) in repositories for above in target.parents
    )


def _states_in_repository(workdir: Path, place: str) -> Iterator[tuple[str, State | None]]:
    folder = workdir / place
    yield from _if_there(workdir, f"{place}/{_INFO_ATTRIBUTES}", _drivers)
    # Mostly closed; not in those beyond the number that is.
    for name in ("config", *_hooks(folder)):
        yield from _if_there(workdir, f"{place}/{name}", _whole)
    for part in ("", *_worktrees(folder)):
        for name in _TODO_LISTS:
            yield from _if_there(workdir, f"{place}/{part}{name}", _todo)
        for name in _STRATEGIES:
            yield from _if_there(workdir, f"{place}/{part}{name}", _strategy)
        if part:
            yield from _if_there(workdir, f"{place}/{part}config.worktree", _whole)
            yield from _if_there(workdir, f"{place}/{part}commondir", _commondir)
        for name in _links(folder / part):
            yield f"{place}/{part}{name}", ("to", str((folder / part / name).readlink()))


def _hooks(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder / "hooks") as entries:
            names = (entry.name for entry in entries if not entry.name.endswith(".sample"))
            yield from (f"hooks/{name}" for name in islice(names, _FILES_MAX))
    except OSError:
        return


def _links(folder: Path) -> Iterator[str]:
    """Yield the symbolic links where git writes. It makes none, unless HEAD is to lead to a ref."""
    for above in _WRITTEN_IN:
        with suppress(OSError), os.scandir(folder / above) as entries:
            for entry in islice(entries, _ENTRIES_MAX):
                name = f"{above}/{entry.name}" if above else entry.name
                if entry.is_symlink() and not (name == "HEAD" and _is_ref(Path(entry))):
                    yield name


def _is_ref(link: Path) -> bool:
    target = link.readlink()
    return target.parts[:1] == ("refs",) and ".." not in target.parts


def _worktrees(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder / "worktrees") as entries:
            for entry in islice(entries, _WORKTREES_MAX):
                yield f"worktrees/{entry.name}/"
    except OSError:
        return


def _if_there(
    workdir: Path, place: str, state_of: Callable[[Path, os.stat_result], State | None]
) -> Iterator[tuple[str, State | None]]:
    try:
        status = os.lstat(workdir / place)
    except OSError:
        return
    yield place, state_of(workdir / place, status)


def _todo(path: Path, status: os.stat_result) -> State:
    words = (
        line.split(maxsplit=1)
        for line in beginning_of(path, _BYTES_MAX).decode("utf-8", "replace").splitlines()
    )
    steps = [found[0] for found in words if found and not found[0].startswith("#")]
    is_whole = stat.S_ISREG(status.st_mode) and status.st_size <= _BYTES_MAX
    is_harmless = is_whole and all(step in _HARMLESS for step in steps)
    return "todo", status.st_ino, status.st_ctime_ns, is_harmless


def _strategy(path: Path, status: os.stat_result) -> State | None:
    """A strategy is the end of a program's name: one of git's own has no slash."""
    is_harmless = stat.S_ISREG(status.st_mode) and status.st_size <= _LINK_BYTES_MAX
    names_program = _PROGRAM_OF_STRATEGY.search(beginning_of(path, _BYTES_MAX)) is not None
    return None if is_harmless and not names_program else _whole_file(status)


def _commondir(path: Path, _status: os.stat_result) -> State | None:
    """A worktree of the repository itself names the folder two above."""
    content = beginning_of(path, _BYTES_MAX)
    return None if content.strip() == b"../.." else ("whole", content)


@lru_cache(maxsize=64)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Match the paths of files with such names in any directory, and everything in them."""
    return re.compile(rf"(?:.*/)?(?:{_choice(names)})(?:/.*)?", re.IGNORECASE | re.DOTALL)


@lru_cache(maxsize=8)
def names_of(closed: tuple[str, ...], rows: tuple[Obeyed, ...]) -> Names:
    """Return the names for a search.

    Args:
        closed: those of the rows that a command must not change.
    """
    longer = tuple(name for row in rows for name in row.names if "/" in name)
    simple = tuple(name for row in rows for name in row.names if "/" not in name)
    shut = tuple(name for name in closed if "/" not in name)
    return Names(
        closed=re.compile(rf"(?:{_choice((_GIT_FOLDER, *shut))})\Z", re.IGNORECASE),
        obeyed=re.compile(
            rf"(?:{_choice((_GIT_FOLDER, _ATTRIBUTES, *simple, *shut))})\Z", re.IGNORECASE
        ),
        tails=frozenset(name.rpartition("/")[2].lower() for name in longer),
        paths=_pattern(longer) if longer else None,
    )


def _choice(names: Sequence[str]) -> str:
    return "|".join(re.escape(name).replace(r"\*", "[^/]*") for name in names)
