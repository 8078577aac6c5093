"""Links by which programs obey a file that has a name of no interest: ``.vscode -> settings``, or
``.husky/pre-commit -> ../scripts/check``.

A file tool cannot make a link, and one that a sandboxed command makes is reported (``trap_watch``); but
links come with repositories. A command looks for them where the search before it found such names; a
file tool, which cannot wait for that, only where links are. Everything here blocks.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from nousd.tools.fs.deep_folders import walk
from nousd.tools.fs.outside_paths import Parts
from nousd.tools.sandbox.deny_scan import SHORT_ENTRIES_MAX, Names

LINKS_MAX: Final = 200
"""Maximum links of a workspace that count, those near the top first."""

_ENTRIES_MAX: Final = 1000
"""Maximum entries of folders with such a name that are searched for links."""

_GIT_FOLDER: Final = ".git"


class Link(NamedTuple):
    """A link and where it leads in the end, relative to the workspace."""

    place: str
    target: str


class ObeyedLinks:
    """The links of workspaces.

    Args:
        names: returns the names that programs obey; None: there are none.
    """

    def __init__(self, names: Callable[[], Names] | None = None) -> None:
        self._names = names

    def leading_to(self, workdir: Path, paths: Collection[Parts]) -> str:
        """Return why a program would obey one of these files, for people; "" if none would.

        Args:
            paths: real paths, relative to the workspace.
        """
        if self._names is None:
            return ""
        links = tuple(_resolve_links(workdir, _walk_links(workdir, self._names())))
        for place in ("/".join(parts) for parts in paths):
            for link in links:
                if place == link.target or place.startswith(f"{link.target}/"):
                    return (
                        f"the link {link.place} leads to it, and programs obey what has that name"
                    )
        return ""


NO_LINKS: Final = ObeyedLinks()


def links_among(workdir: Path, named: Sequence[str]) -> tuple[Link, ...]:
    """Return the links that lead to somewhere else in the workspace.

    Args:
        named: files and folders with names that programs obey, relative to it.
    """
    return tuple(_resolve_links(workdir, _links_at(workdir, named)))


def _walk_links(workdir: Path, names: Names) -> Iterator[str]:
    """Yield the links with such names, and those in folders with such names, near the top first."""
    ahead = deque([("", False)])
    left = SHORT_ENTRIES_MAX
    while ahead and left >= 0:
        folder, is_obeyed = ahead.popleft()
        try:
            with os.scandir(workdir / folder) as entries:
                for entry in islice(entries, left + 1):
                    left -= 1
                    # Most are files, and cost no more than this.
                    is_link = entry.is_symlink()
                    if not is_link and not entry.is_dir(follow_symlinks=False):
                        continue
                    place = f"{folder}/{entry.name}" if folder else entry.name
                    counts = is_obeyed or names.are_obeyed(place, entry.name)
                    if is_link and (counts or names.are_obeyed_behind(place)):
                        yield place
                    elif not is_link and entry.name.lower() != _GIT_FOLDER:
                        ahead.append((place, counts))
        except OSError:  # it has changed meanwhile, or cannot be read
            continue


def _resolve_links(workdir: Path, places: Iterator[str]) -> Iterator[Link]:
    for place in islice(dict.fromkeys(islice(places, _ENTRIES_MAX)), LINKS_MAX):
        # Unlike Path.resolve, this bears loops.
        target = Path(os.path.realpath(workdir / place))
        if target != workdir and target.is_relative_to(workdir):
            yield Link(place, str(target.relative_to(workdir)))


def _links_at(workdir: Path, named: Sequence[str]) -> Iterator[str]:
    for place in named:
        path = workdir / place
        # Unlike those of Path, these work in directories that we cannot read.
        if os.path.islink(path):  # noqa: PTH114
            yield place
        # Hooks that are links are known to git_folders.
        elif path.name.lower() != _GIT_FOLDER and os.path.isdir(path):  # noqa: PTH112
            yield from _links_below(workdir, place)


def _links_below(workdir: Path, place: str) -> Iterator[str]:
    entries_left = _ENTRIES_MAX
    for folder, folders, files in walk(str(workdir / place)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)  # noqa: PTH118
            if os.path.islink(path):  # noqa: PTH114
                yield os.path.relpath(path, workdir)
        entries_left -= len(folders) + len(files)
        if entries_left < 0:
            return
