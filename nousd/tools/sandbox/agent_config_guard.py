"""Configuration files of agents and tools that a program in a sandbox must not create.

Existing files are mounted read-only. Mounts at all other such names would show a program dozens of files
that do not exist. So new files are renamed when all processes have ended, to names that no program
obeys, and the model gets a remark.
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
    """Finds and renames files with certain names in a directory.

    Args:
        names: paths relative to the directory, with ``*`` in the last part, in any case.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._patterns = _patterns(tuple(names))

    @cached_property
    def before(self) -> tuple[Path, ...]:
        """The matching paths that existed when this was first read."""
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
        """Return each folder with a regular expression of names in it, which ignores case."""
        return [
            (self._folder / parent, pattern.pattern) for parent, pattern in self._patterns.items()
        ]

    @contextmanager
    def set_aside_new_files(self, remarks: list[str]) -> Iterator[None]:
        """At the end of the block, rename the matching files that are new, and add remarks on them."""
        before = set(self.before)
        try:
            yield
        finally:
            remarks += [
                self._set_aside(path) for path in self._find_matching() if path not in before
            ]

    def _set_aside(self, path: Path) -> str:
        name = path.relative_to(self._folder)
        new_name = f"set-aside.{os.urandom(4).hex()}.{path.name}"
        try:
            with hold_folder(path.parent) as folder:
                os.rename(path.name, new_name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            return f"{name} was made by the command and could not be set aside: {error.strerror}"
        return (
            f"{name} is a file that agents and tools obey; made by a command, it is now {new_name}."
            " Ask for it with a file tool."
        )


@lru_cache(maxsize=8)
def _patterns(names: tuple[str, ...]) -> dict[PurePath, re.Pattern[str]]:
    """Return folder -> pattern of the names in it."""
    patterns: defaultdict[PurePath, list[str]] = defaultdict(list)
    for path in map(PurePath, names):
        patterns[path.parent].append(fnmatch.translate(path.name))
    return {
        parent: re.compile("|".join(alternatives), re.IGNORECASE)
        for parent, alternatives in patterns.items()
    }
