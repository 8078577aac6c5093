"""Searches for the files and directories that rules deny: rules are patterns, and a mount needs a path.

The tree is walked from the top, so that what lies near it is found first. Denied paths must be found
completely. Protected names, which may be in any directory, are searched as long as a command can wait:
usually the whole tree now and then, otherwise what is near the top. A path that was found once stays
denied, so no command can open it again by putting other files before it.
"""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from nousd.errors import ToolError

ENTRIES_MAX: Final = 200_000
"""Maximum entries of a search of the whole tree."""

SHORT_ENTRIES_MAX: Final = 10_000
"""Maximum entries of a search before a command that does not wait for more."""

SECONDS_MAX: Final = 1.0
"""How long a command waits for a whole search that only finds protected names."""

SEARCHING_SHARE_MAX: Final = 0.02
"""Fraction of the time that such searches may take."""

HIDDEN_MAX: Final = 1000
PROTECTED_MAX: Final = 200
"""Maximum paths of each kind: every one is a mount, and mounts get more expensive with their number."""

WORKDIRS_MAX: Final = 100
"""Number of workspaces whose paths are remembered: the most recently used ones."""

Patterns = Sequence[re.Pattern[str]]
"""They match a whole path with slashes, relative to the workspace."""


class ClosedByRules(NamedTuple):
    """Existing paths. Paths below a denied one are left out.

    Args:
        is_partial: whether more protected paths may exist.
    """

    hidden: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()
    is_partial: bool = False


class _Wanted(NamedTuple):
    """The patterns that a scan looks for."""

    reading: Patterns
    writing: Patterns
    names: re.Pattern[str]

    def hides(self, place: str) -> bool:
        return _match(self.reading, place)

    def protects(self, place: str) -> bool:
        name = place.rpartition("/")[2]
        return self.names.match(name) is not None or _match(self.writing, place)


class _Known:
    """The result of a search in a workspace, and when it may be repeated."""

    def __init__(self) -> None:
        self.places: tuple[str, ...] = ()
        self.due = float("-inf")


class Search:
    """The searches of one daemon.

    Args:
        clock: returns seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._known: OrderedDict[Path, _Known] = OrderedDict()

    def closed_by(
        self, workdir: Path, reading: Patterns, writing: Patterns, names: re.Pattern[str]
    ) -> ClosedByRules:
        """Return the paths that must not be read, and those that must not be written.

        Args:
            names: names that must not be written in any directory.

        Raises:
            ToolError: the paths that must not be read could not be found in time.
        """
        wanted = _Wanted(reading, writing, names)
        known = self._known_in(workdir)
        began = self._clock()
        is_short = began < known.due and not reading
        until = float("inf") if reading else began + SECONDS_MAX
        entries_max = SHORT_ENTRIES_MAX if is_short else ENTRIES_MAX
        walk = _Walk(workdir, wanted, entries_max, lambda: self._clock() < until)
        if reading and (walk.is_partial or len(walk.hidden) > HIDDEN_MAX):
            raise ToolError(
                "sandbox_failed: rules deny reading in this workdir, and it is too large for telling"
                f" where: more than {entries_max} entries or {HIDDEN_MAX} places"
            )
        if not is_short:
            took = self._clock() - began
            known.due = began + took / SEARCHING_SHARE_MAX
        still = [place for place in known.places if _is_still(workdir, place, wanted)]
        protected = tuple(dict.fromkeys((*still, *walk.protected)))
        known.places = protected[:PROTECTED_MAX]
        return ClosedByRules(
            hidden=tuple(workdir / place for place in walk.hidden),
            protected=tuple(workdir / place for place in known.places),
            is_partial=walk.is_partial or len(protected) > PROTECTED_MAX,
        )

    def _known_in(self, workdir: Path) -> _Known:
        with self._lock:
            known = self._known.setdefault(workdir, _Known())
            self._known.move_to_end(workdir)
            while len(self._known) > WORKDIRS_MAX:
                self._known.popitem(last=False)
            return known


class _Walk:
    """Walks a tree from the top.

    Args:
        goes_on: returns whether there is time for another directory.
    """

    def __init__(
        self, workdir: Path, wanted: _Wanted, entries_max: int, goes_on: Callable[[], bool]
    ) -> None:
        self._wanted = wanted
        self._ahead = deque([""])
        self.hidden: list[str] = []
        self.protected: list[str] = []
        left = entries_max
        while self._ahead and left >= 0 and goes_on():
            folder = self._ahead.popleft()
            try:
                for place, is_folder in _entries(workdir / folder, folder, left + 1):
                    left -= 1
                    self._look_at(place, is_folder=is_folder)
            except PermissionError:
                # Its owner could grant himself access, so the whole directory is denied.
                (self.hidden if wanted.reading else self.protected).append(folder)
            except OSError:  # it is gone, or no longer a directory
                continue
        self.is_partial = left < 0 or bool(self._ahead)

    def _look_at(self, place: str, *, is_folder: bool) -> None:
        if self._wanted.hides(place):
            self.hidden.append(place)
        elif self._wanted.protects(place):
            self.protected.append(place)
        elif is_folder:
            self._ahead.append(place)


def _entries(path: Path, folder: str, most: int) -> Collection[tuple[str, bool]]:
    """Return so many entries of a directory, and whether they are directories themselves."""
    prefix = f"{folder}/" if folder else ""
    with os.scandir(path) as entries:
        return [
            (prefix + entry.name, entry.is_dir(follow_symlinks=False))
            for entry in islice(entries, most)
        ]


def _is_still(workdir: Path, place: str, wanted: _Wanted) -> bool:
    try:
        os.lstat(workdir / place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # possibly
        pass
    return wanted.protects(place) and not any(map(wanted.hides, _ways_to(place)))


def _ways_to(place: str) -> Iterator[str]:
    """Yield a path and its parent directories."""
    while place:
        yield place
        place = place.rpartition("/")[0]


def _match(patterns: Patterns, place: str) -> bool:
    return any(pattern.fullmatch(place) for pattern in patterns)
