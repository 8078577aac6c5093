"""Finds links through which programs obey a file whose own name is harmless: ``.vscode -> settings``, or
``.husky/pre-commit -> ../scripts/check``.

A file tool cannot make a link, and one that a sandboxed command makes is reported (``trap_watch``); but
repositories contain links. For a command, they are searched among the obeyed names that its search has
found; for a file tool, which cannot wait for that search, in a walk for links only. Everything here
blocks.
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
"""Maximum links of a workspace that are examined, those near the top first."""

_ENTRIES_MAX: Final = 1000
"""Maximum entries of a folder with an obeyed name that are searched for links."""

_GIT_FOLDER: Final = ".git"


class Link(NamedTuple):
    """A link and its final target, relative to the workspace."""

    path: str
    target: str


class ObeyedLinks:
    """The links of workspaces.

    Args:
        names: returns the names that programs obey; None if there are none.
    """

    def __init__(self, names: Callable[[], Names] | None = None) -> None:
        self._names = names

    def leading_to(self, workdir: Path, paths: Collection[Parts]) -> str:
        """Return the reason, for people, why a program would obey one of these files; "" if none would.

        Args:
            paths: real paths, relative to the workspace.
        """
        if self._names is None:
            return ""
        links = tuple(_resolve_links(workdir, _walk_links(workdir, self._names())))
        for path in ("/".join(parts) for parts in paths):
            for link in links:
                if path == link.target or path.startswith(f"{link.target}/"):
                    return f"the link {link.path} leads to it, and programs obey what has that name"
        return ""


NO_LINKS: Final = ObeyedLinks()


def links_among(workdir: Path, named: Sequence[str]) -> tuple[Link, ...]:
    """Return the links at or below some paths that lead to another path in the workspace.

    Args:
        named: files and folders with names that programs obey, relative to the workspace.
    """
    return tuple(_resolve_links(workdir, _links_at(workdir, named)))


def _walk_links(workdir: Path, names: Names) -> Iterator[str]:
    """Yield the links with obeyed names, and those in folders with obeyed names, near the top first."""
    ahead = deque([("", False)])
    entries_left = SHORT_ENTRIES_MAX
    while ahead and entries_left >= 0:
        folder, is_obeyed = ahead.popleft()
        try:
            with os.scandir(workdir / folder) as entries:
                for entry in islice(entries, entries_left + 1):
                    entries_left -= 1
                    # Most entries are files, which need no further check.
                    is_link = entry.is_symlink()
                    if not is_link and not entry.is_dir(follow_symlinks=False):
                        continue
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    counts = is_obeyed or names.are_obeyed(path, entry.name)
                    if is_link and (counts or names.are_obeyed_behind(path)):
                        yield path
                    elif not is_link and entry.name.lower() != _GIT_FOLDER:
                        ahead.append((path, counts))
        except OSError:  # it has changed meanwhile, or cannot be read
            continue


def _resolve_links(workdir: Path, paths: Iterator[str]) -> Iterator[Link]:
    for path in islice(dict.fromkeys(islice(paths, _ENTRIES_MAX)), LINKS_MAX):
        # Unlike Path.resolve, this accepts loops.
        target = Path(os.path.realpath(workdir / path))
        if target != workdir and target.is_relative_to(workdir):
            yield Link(path, str(target.relative_to(workdir)))


def _links_at(workdir: Path, named: Sequence[str]) -> Iterator[str]:
    for name in named:
        path = workdir / name
        # Unlike the methods of Path, these work in directories that we cannot read.
        if os.path.islink(path):  # noqa: PTH114
            yield name
        # git_folders finds hooks that are links.
        elif path.name.lower() != _GIT_FOLDER and os.path.isdir(path):  # noqa: PTH112
            yield from _links_below(workdir, name)


def _links_below(workdir: Path, parent: str) -> Iterator[str]:
    entries_left = _ENTRIES_MAX
    for folder, folders, files in walk(str(workdir / parent)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)  # noqa: PTH118
            if os.path.islink(path):  # noqa: PTH114
                yield os.path.relpath(path, workdir)
        entries_left -= len(folders) + len(files)
        if entries_left < 0:
            return
