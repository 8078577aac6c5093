"""Configuration files of agents and tools that a program in a sandbox must not create.

Existing ones are mounted read-only. Mounts that prevent every such name would show a program dozens of
files that nobody has. So new ones are renamed when everything has ended, to a name that nobody obeys,
and the model is told.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path, PurePath

from nousd.tools.sandbox.nofollow_stat import hold_folder, names_below


class AgentConfigGuard:
    """File names in a directory.

    Args:
        names: relative to the directory, with ``*`` in the last part, in any case.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._patterns = _patterns(tuple(names))

    @cached_property
    def before(self) -> tuple[Path, ...]:
        """The matching paths that existed when this was first asked for."""
        return self._find_matching()

    def _find_matching(self) -> tuple[Path, ...]:
        try:
            with hold_folder(self._folder) as folder:
                return tuple(
                    self._folder / parent / name
                    for parent, pattern in self._patterns.items()
                    for name in names_below(folder, parent.parts)
                    if pattern.match(name)
                )
        except OSError:
            return ()

    def patterns(self) -> list[tuple[Path, str]]:
        """Return (folder, regular expression of names in it, in any case)."""
        return [
            (self._folder / parent, pattern.pattern) for parent, pattern in self._patterns.items()
        ]

    @contextmanager
    def set_aside_new_files(self, remarks: list[str]) -> Iterator[None]:
        """Rename the matching files that were not there before the block, and report them."""
        before = set(self.before)
        try:
            yield
        finally:
            remarks += [
                self._set_aside(path) for path in self._find_matching() if path not in before
            ]

    def _set_aside(self, path: Path) -> str:
        name = path.relative_to(self._folder)
        aside = f"set-aside.{os.urandom(4).hex()}.{path.name}"
        try:
            with hold_folder(path.parent) as folder:
                os.rename(path.name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            return f"{name} was made by the command and could not be set aside: {error.strerror}"
        return (
            f"{name} is a file that agents and tools obey; made by a command, it is now {aside}."
            " Ask for it with a file tool."
        )


@lru_cache(maxsize=8)
def _patterns(names: tuple[str, ...]) -> dict[PurePath, re.Pattern[str]]:
    """Return the folders with the patterns of the names in them."""
    patterns: defaultdict[PurePath, list[str]] = defaultdict(list)
    for place in map(PurePath, names):
        patterns[place.parent].append(fnmatch.translate(place.name))
    return {
        parent: re.compile("|".join(several), re.IGNORECASE) for parent, several in patterns.items()
    }
