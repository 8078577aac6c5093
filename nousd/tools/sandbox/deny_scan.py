"""Searches for the files and directories that rules deny: rules are patterns, and a mount needs a path.
It also finds the files that programs obey, so that a command's changes to them can be reported.

The tree is walked from the top, so that paths near it are found first. Denied paths must be found
completely. Protected names, which may be in any directory, are searched only as long as a command can
wait: the whole tree from time to time, otherwise the part near the top. A path that was found once stays
denied, so no command can open it again by putting other files before it. A folder that certainly has not
changed is not read again (``folder_memory``).

A denied file is denied under its other names as well (``tools.fs.hard_links``). A rule of the kernel for
one name can apply to the file itself, so one missed name would open all of them.
"""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from nousd.errors import ToolError
from nousd.tools.fs.git_layout import is_layout, is_repository
from nousd.tools.fs.hard_links import OtherNames, find_linked_files, other_names, targets_of
from nousd.tools.sandbox.folder_memory import FolderMemory, RememberedFolders, listing_of

ENTRIES_MAX: Final = 200_000
"""Maximum entries of a search of the whole tree."""

SHORT_ENTRIES_MAX: Final = 10_000
"""Maximum entries of a short search before a command."""

SECONDS_MAX: Final = 1.0
"""How long a command waits for a search of the whole tree for protected names only."""

SEARCHING_SHARE_MAX: Final = 0.02
"""Maximum fraction of the time that such searches take."""

HIDDEN_MAX: Final = 1000
PROTECTED_MAX: Final = 200
"""Maximum paths of each kind: each one is a mount, whose cost grows with the number of mounts."""

WORKDIRS_MAX: Final = 100
"""Number of workspaces, the most recently used ones, whose paths are remembered."""

SEARCH_INCOMPLETE: Final = (
    "rules deny reading in this workdir, and it is too large for telling where: more than"
    f" {ENTRIES_MAX} entries or {HIDDEN_MAX} places"
)
"""Why a command might reach paths that it must not read."""

Patterns = Sequence[re.Pattern[str]]
"""They match a whole path with slashes, relative to the workspace."""


class FoundFiles(NamedTuple):
    """The files of a workspace that programs obey, as paths relative to it.

    Args:
        named: files with names that programs obey, and folders that cannot be read.
        repositories: folders that git takes for a repository, whatever their name.
        is_partial: whether more may exist.
    """

    named: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    is_partial: bool = False


class ClosedByRules(NamedTuple):
    """The existing paths that rules deny, without those below a denied one.

    Args:
        is_partial: whether more protected paths may exist.
        found: the files that programs obey, from the same search.
    """

    hidden: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()
    is_partial: bool = False
    found: FoundFiles = FoundFiles()


class Names(NamedTuple):
    """The names that programs obey, in any directory.

    Args:
        closed: matches names that a command must not change.
        obeyed: matches these names and those whose change is only reported.
        tails: matches the last part of names with slashes, as a fast test before ``paths``.
        paths: matches paths that end with a name with slashes.
        parents: matches the folders on the way to such paths, one of which may be a link.
    """

    closed: re.Pattern[str]
    obeyed: re.Pattern[str]
    tails: re.Pattern[str] | None = None
    paths: re.Pattern[str] | None = None
    parents: re.Pattern[str] | None = None

    def closes(self, path: str) -> bool:
        """Return whether a path, or a folder on the way to it, has a name that must not change."""
        return any(self.closed.match(name) for name in path.split("/"))

    def are_obeyed(self, path: str, name: str) -> bool:
        """Return whether a program obeys the file at a path, whose last part is ``name``."""
        if self.obeyed.match(name):
            return True
        if self.tails is None or self.paths is None or not self.tails.match(name):
            return False
        return self.paths.fullmatch(path) is not None

    def are_obeyed_behind(self, path: str) -> bool:
        """Return whether a program obeys files in the target of a link at a path."""
        return self.parents is not None and self.parents.fullmatch(path) is not None


class _ScanPatterns(NamedTuple):
    """The patterns that a scan searches for; ``hidden`` are paths that it skips."""

    reading: Patterns
    writing: Patterns
    names: Names
    hidden: Collection[str] = ()

    @property
    def key(self) -> Hashable:
        """A key that is equal for scans with the same patterns."""
        return tuple(self.reading), tuple(self.writing), self.names, frozenset(self.hidden)

    def hides(self, path: str) -> bool:
        return path in self.hidden or _match(self.reading, path)

    def protects(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        return self.names.closed.match(name) is not None or _match(self.writing, path)


class _KnownScan:
    """The result of a search in a workspace, and when it may be repeated."""

    def __init__(self) -> None:
        self.paths: tuple[str, ...] = ()
        self.repositories: tuple[str, ...] = ()
        self.due = float("-inf")
        self.all_found: tuple[Patterns, float] = ((), float("-inf"))
        """The patterns whose denied paths were all found, and the time until which that is assumed."""


class Search:
    """The searches of one daemon.

    Args:
        clock: returns monotonic seconds.
        memory: the results for folders that have not changed.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        memory: FolderMemory | None = None,
    ) -> None:
        self._clock = clock
        self._memory = FolderMemory() if memory is None else memory
        self._lock = Lock()
        self._known: OrderedDict[Path, _KnownScan] = OrderedDict()

    def find_closed_paths(
        self,
        workdir: Path,
        reading: Patterns,
        writing: Patterns,
        names: Names,
        *,
        shown: Sequence[Path] = (),
        may_miss: bool = False,
    ) -> ClosedByRules:
        """Return the paths that must not be read, and those that must not be written.

        Args:
            names: names that must not be written in any directory, and obeyed names to report.
            shown: further folders in which denied files may have other names.
            may_miss: whether to return an incomplete list of the paths that must not be read.

        Raises:
            ToolError: not all paths that must not be read were found.
        """
        patterns = _ScanPatterns(reading, writing, names)
        known = self._get_known(workdir)
        walk, hidden, is_missing = self._find_hidden(workdir, patterns, known, shown)
        if is_missing and not may_miss:
            raise ToolError(f"sandbox_failed: {SEARCH_INCOMPLETE}")
        existing = [path for path in known.paths if _is_still(workdir, path, patterns)]
        protected = tuple(dict.fromkeys((*existing, *walk.protected)))
        known.paths = protected[:PROTECTED_MAX]
        return ClosedByRules(
            hidden=tuple(hidden[:HIDDEN_MAX]),
            protected=tuple(workdir / path for path in known.paths),
            is_partial=is_missing or walk.is_partial or len(protected) > PROTECTED_MAX,
            found=_collect_found(workdir, patterns, known, walk),
        )

    def finds_hidden(
        self,
        workdir: Path,
        reading: Patterns,
        writing: Patterns,
        names: Names,
        *,
        shown: Sequence[Path] = (),
    ) -> bool:
        """Return whether ``find_closed_paths`` finds all paths that must not be read. The result of the
        last search is used for a while, so that a command does not wait for two searches.
        """
        known = self._get_known(workdir)
        found, until = known.all_found
        if found == tuple(reading) and self._clock() < until:
            return True
        return not self._find_hidden(workdir, _ScanPatterns(reading, writing, names), known, shown)[
            2
        ]

    def _find_hidden(
        self, workdir: Path, patterns: _ScanPatterns, known: _KnownScan, shown: Sequence[Path]
    ) -> tuple[_Walk, list[Path], bool]:
        """Return a walk, the paths that must not be read, and whether some may be missing."""
        began = self._clock()
        walk = self._walk(workdir, patterns, known)
        hidden = [workdir / path for path in walk.hidden]
        if not patterns.reading:
            return walk, hidden, False
        others = _other_names(workdir, walk, patterns, shown)
        hidden += others.paths
        is_missing = walk.is_partial or others.is_partial or len(hidden) > HIDDEN_MAX
        until = began + (self._clock() - began) / SEARCHING_SHARE_MAX
        known.all_found = (tuple(patterns.reading), float("-inf") if is_missing else until)
        return walk, hidden, is_missing

    def look(self, workdir: Path, names: Names, hidden: Collection[str] = ()) -> FoundFiles:
        """Return the files that programs obey, within the same bounds.

        Args:
            hidden: paths below which nothing can have changed, and whose content must not be reported.
        """
        patterns = _ScanPatterns((), (), names, hidden)
        known = self._get_known(workdir)
        return _collect_found(workdir, patterns, known, self._walk(workdir, patterns, known))

    def _walk(self, workdir: Path, patterns: _ScanPatterns, known: _KnownScan) -> _Walk:
        """Walk the whole tree if denied paths are searched or it is due again, else only its top."""
        began = self._clock()
        is_short = began < known.due and not patterns.reading
        until = float("inf") if patterns.reading else began + SECONDS_MAX
        entries_max = SHORT_ENTRIES_MAX if is_short else ENTRIES_MAX
        remembered = self._memory.of((workdir, patterns.key))
        walk = _Walk(workdir, patterns, remembered, entries_max, lambda: self._clock() < until)
        if not is_short:
            took = self._clock() - began
            known.due = began + took / SEARCHING_SHARE_MAX
        return walk

    def _get_known(self, workdir: Path) -> _KnownScan:
        with self._lock:
            known = self._known.setdefault(workdir, _KnownScan())
            self._known.move_to_end(workdir)
            while len(self._known) > WORKDIRS_MAX:
                self._known.popitem(last=False)
            return known


class _Content:
    """The findings of a walk in one folder.

    Args:
        entries_max: the maximum of entries to read.
        count: the number of entries that were read.
    """

    __slots__ = ("ahead", "count", "entries_max", "hidden", "is_layout", "named", "protected")

    def __init__(self, entries_max: int, count: int, *, is_layout: bool) -> None:
        self.entries_max = entries_max
        self.count = count
        self.is_layout = is_layout
        self.hidden: list[str] = []
        self.protected: list[str] = []
        self.named: list[str] = []
        self.ahead: list[tuple[str, bool]] = []
        """Its folders that are to be walked, and whether a program obeys everything in them."""

    def is_for(self, entries_max: int) -> bool:
        """Return whether a walk with another maximum would find the same."""
        return entries_max == self.entries_max or self.count < min(entries_max, self.entries_max)


class _Walk:
    """A walk through a tree from the top.

    Args:
        remembered: the findings of earlier walks with the same patterns.
        has_time: returns whether there is time for another directory.
    """

    def __init__(
        self,
        workdir: Path,
        patterns: _ScanPatterns,
        remembered: RememberedFolders,
        entries_max: int,
        has_time: Callable[[], bool],
    ) -> None:
        self._workdir = workdir
        self._patterns = patterns
        self._remembered = remembered
        # Folders to walk, each with whether a program obeys everything in it.
        self._ahead = deque([("", False)])
        self.hidden: list[str] = []
        self.protected: list[str] = []
        self.named: list[str] = []
        self.repositories: list[str] = []
        self._is_unread = False
        entries_left = entries_max
        while self._ahead and entries_left >= 0 and has_time():
            folder, is_obeyed = self._ahead.popleft()
            try:
                content = self._content(folder, entries_left + 1, is_obeyed=is_obeyed)
            except PermissionError:
                # Its owner could grant himself access, so the whole directory is denied. Programs may
                # obey files in it even if it can be entered but not listed.
                (self.hidden if patterns.reading else self.protected).append(folder)
                self.named.append(folder or ".")
            except (FileNotFoundError, NotADirectoryError):  # it has changed meanwhile
                continue
            except OSError:  # such as a path that is too long
                self._is_unread = True
            else:
                entries_left -= content.count
                self._take(folder, content)
        self.is_partial = entries_left < 0 or bool(self._ahead) or self._is_unread

    def _take(self, folder: str, content: _Content) -> None:
        if content.is_layout:
            # It is still walked: looking like a repository must not hide denied paths.
            self.repositories.append(folder or ".")
        self.hidden += content.hidden
        self.protected += content.protected
        self.named += content.named
        self._ahead += content.ahead

    def _content(self, folder: str, entries_max: int, *, is_obeyed: bool) -> _Content:
        """Return the findings in a folder, among its first ``entries_max`` entries."""
        path = f"{self._workdir}/{folder}"
        found: _Content | None = self._remembered.look_up(folder, path, is_obeyed)
        if found is not None and found.is_for(entries_max):
            return found
        listing = listing_of(path, entries_max)
        found = _Content(
            entries_max,
            len(listing.entries),
            is_layout=is_layout({name for name, _ in listing.entries}),
        )
        prefix = f"{folder}/" if folder else ""
        for name, is_folder in listing.entries:
            self._look_at(prefix + name, found, is_folder=is_folder, is_obeyed=is_obeyed)
        self._remembered.keep(folder, listing.stamp, is_obeyed, found)
        return found

    def _look_at(self, path: str, content: _Content, *, is_folder: bool, is_obeyed: bool) -> None:
        if self._patterns.hides(path):
            content.hidden.append(path)
            return
        name = _name(path)
        names = self._patterns.names
        is_obeyed = is_obeyed or names.are_obeyed(path, name)
        if not (is_folder or is_obeyed) and names.are_obeyed_behind(path):
            is_obeyed = os.path.islink(self._workdir / path)  # noqa: PTH114 - accepts any folder
        is_closed = self._patterns.protects(path)
        if is_obeyed and (is_closed or not is_folder):
            content.named.append(path)
        if is_closed:
            content.protected.append(path)
        elif is_folder:
            content.ahead.append((path, is_obeyed))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _collect_found(
    workdir: Path, patterns: _ScanPatterns, known: _KnownScan, walk: _Walk
) -> FoundFiles:
    """Return the findings of a walk, and those of earlier walks that still exist."""
    existing = [path for path in known.repositories if is_repository(workdir / path)]
    known.repositories = tuple(dict.fromkeys((*existing, *walk.repositories)))[:PROTECTED_MAX]
    of_git = [path for path in (*known.paths, *walk.named) if _name(path).lower() == ".git"]
    named = [path for path in known.paths if patterns.names.are_obeyed(path, _name(path))]
    return FoundFiles(
        named=tuple(dict.fromkeys((*walk.named, *named))),
        repositories=tuple(dict.fromkeys((*of_git, *known.repositories))),
        is_partial=walk.is_partial,
    )


def _other_names(
    workdir: Path, walk: _Walk, patterns: _ScanPatterns, shown: Sequence[Path]
) -> OtherNames:
    """Return the other names of the denied files that a walk found."""
    starts = (workdir, *shown)
    # The other hidden paths are directories that this user cannot read.
    by_rules = targets_of((workdir / name for name in filter(patterns.hides, walk.hidden)), starts)
    skipped = {str(path) for path in (*by_rules, *(workdir / name for name in walk.hidden))}
    return other_names(find_linked_files(by_rules, ENTRIES_MAX), starts, skipped, ENTRIES_MAX)


def _is_still(workdir: Path, path: str, patterns: _ScanPatterns) -> bool:
    try:
        os.lstat(workdir / path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # possibly
        pass
    return patterns.protects(path) and not any(map(patterns.hides, _ways_to(path)))


def _ways_to(path: str) -> Iterator[str]:
    """Yield a path and its parent directories."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def _match(patterns: Patterns, path: str) -> bool:
    return any(pattern.fullmatch(path) for pattern in patterns)
