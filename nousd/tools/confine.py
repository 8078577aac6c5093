"""Keeps file tools inside the workdir, and away from the daemon's own state.

Theory of operation. A path is never checked as a string and then used: it is *walked*, one component
at a time, each opened relative to the descriptor of the folder before it and without following
symbolic links. A link is read, and its target is walked in its place by the same rules; ``..`` goes back
to the folder we came from, which is a descriptor and not a name. What is used in the end is a
descriptor plus one last name, opened with ``O_NOFOLLOW``. Whoever swaps a folder for a link
meanwhile finds that we hold the folder, or that the open fails; there is no gap to slip through.

The walk knows the real place it arrives at, so hidden places are recognized however the way there
was spelled, also when they do not exist yet. The same holds for places that are closed to one call
(``Confinement.closed_to``): what a rule denies is denied where it is opened, whatever was exchanged
since the rule was asked.

A file with several names (hard links) is refused: another of them may lie outside, or be our own state,
and which ones there are nothing tells. Folders cannot have several.

Why not ``openat2`` with ``RESOLVE_BENEATH``: it refuses absolute links that lead back inside, it does
not say where one arrived (which the hidden places need), and a second way beside it would be needed
for creating folders and for other kernels.

It deliberately does not know what a tool wants to do with a file. Everything here blocks: call it
in a thread. Standard library and ``nousd.errors`` only, so that the search process starts quickly.
"""

from __future__ import annotations

import copy
import errno
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from nousd.errors import ConfigError, ToolError
from nousd.tools.environment import allowed_environment
from nousd.tools.path_errors import denied, outside, shown
from nousd.tools.place import Place, Restrictions

SYMLINKS_MAX: Final = 40
"""Links followed for one path; the kernel's own bound."""

DEPTH_MAX: Final = 128
"""Folders below the workdir. Each holds a descriptor while a path is walked."""

_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\})", re.ASCII)

_Missing = Literal["fail", "create", "imagine"]
"""What becomes of a folder on the way that does not exist."""


class Confinement:
    """The part of the file system that file tools may touch.

    Args:
        workdir: the folder that no path may lead out of; must exist.
        hidden: files and folders that count as outside even when they lie inside.
        hard_links: whether files with several names may be opened all the same.

    ``restrictions``: what may not be opened although it lies inside.

    Raises:
        ConfigError: if the workdir is no folder, or is hidden itself.
    """

    def __init__(
        self, workdir: Path, hidden: tuple[Path, ...] = (), *, hard_links: bool = False
    ) -> None:
        self.workdir = workdir.resolve()
        self.spelled = workdir.absolute()
        self.hidden = hidden
        self.restrictions = Restrictions(hard_links=hard_links, own=hidden)
        if not self.workdir.is_dir():
            raise ConfigError(f"workdir: {workdir} is not a folder")
        # The folder may be reached by a link; paths spelled that way are inside as well.
        self._roots = (self.workdir.parts, self.spelled.parts)
        places = [spelling for path in hidden for spelling in (path.absolute(), path.resolve())]
        if any(self.workdir.is_relative_to(place) for place in places):
            raise ConfigError(f"workdir: {workdir} lies in the daemon's own state")
        self._hidden = {rest for place in places if (rest := self._inside(place.parts)) is not None}

    def is_hidden(self, parts: tuple[str, ...]) -> bool:
        """Whether the real place ``parts`` (from the workdir) belongs to the daemon."""
        return any(parts[: len(place)] == place for place in self._hidden)

    def closed_to(
        self,
        *,
        reading: Iterable[re.Pattern[str]] = (),
        writing: Iterable[re.Pattern[str]] = (),
    ) -> Confinement:
        """Returns a copy for one call, which refuses more: ``path_denied``, and unseen in walks.

        Args:
            reading, writing: see ``Restrictions``; places are spelled as ``real`` returns them.
        """
        now = self.restrictions
        restricted = copy.copy(self)
        restricted.restrictions = now._replace(
            reading=(*now.reading, *reading), writing=(*now.writing, *writing)
        )
        return restricted

    def is_seen(self, parts: tuple[str, ...]) -> bool:
        """Whether the real place ``parts`` turns up in lists and searches."""
        return not (self.is_hidden(parts) or self.restrictions.close_to_reading(parts))

    def real(self, given: str) -> str:
        """Returns where a path leads, with slashes from the workdir, ``.`` for the workdir itself.

        Neither the place nor the folders on the way need exist: what is not there is no link.

        Raises:
            ToolError, OSError: as ``locate``.
        """
        walk = _Walk(self, given)
        with ExitStack() as cleanup:
            cleanup.callback(walk.close)
            name = walk.to(self.names_of(_expanded(given), given), missing="imagine")
            return "/".join(walk.parts_of(name)) or "."

    @contextmanager
    def locate(self, given: str, *, create_parents: bool = False) -> Iterator[Place]:
        """Walks to a path, which need not exist except for its folder.

        Args:
            given: relative to the workdir, or absolute and inside it; ``~`` and ``$VAR`` are expanded.
            create_parents: whether missing folders on the way are made.

        Raises:
            ToolError: ``path_outside_workdir`` or ``path_invalid``, naming the path as given; or
                ``path_denied`` if a folder that is missing may not be made.
            OSError: what the operating system says of a folder on the way.
        """
        if create_parents:
            # Nothing is made on the way to what may not be made in the end.
            real = self.real(given)
            if self.restrictions.close_to_writing(tuple(real.split("/"))):
                raise denied(given, "writing")
        names = self.names_of(_expanded(given), given)
        with self._walked(names, given, create_parents=create_parents) as place:
            yield place

    @contextmanager
    def locate_real(
        self, parts: tuple[str, ...], *, create_parents: bool = False
    ) -> Iterator[Place]:
        """Walks to a place that ``real`` or an earlier walk has found.

        Raises:
            ToolError, OSError: as ``locate``; also if one of the names is a link by now.
        """
        given = "/".join(parts)
        with self._walked(list(parts), given, create_parents=create_parents) as place:
            if place.parts != parts:
                raise ToolError(f"path_changed: {shown(given)}: a folder became a link meanwhile")
            yield place

    @contextmanager
    def _walked(self, names: list[str], given: str, *, create_parents: bool) -> Iterator[Place]:
        walk = _Walk(self, given)
        with ExitStack() as cleanup:
            cleanup.callback(walk.close)
            name = walk.to(names, missing="create" if create_parents else "fail")
            yield Place(walk.folder, name, walk.parts_of(name), given, self.restrictions)

    def names_of(self, path: str, given: str) -> list[str]:
        """Splits a path into names that start at the workdir; ``..`` is left in place.

        Raises:
            ToolError: if it is absolute and does not begin with the workdir.
        """
        pure = PurePosixPath(path)
        if not pure.is_absolute():
            return list(pure.parts)
        # POSIX keeps a leading "//" apart; for Linux it is the same as "/".
        inside = self._inside(("/", *pure.parts[1:]))
        if inside is None:
            raise outside(given)
        return list(inside)

    def _inside(self, parts: tuple[str, ...]) -> tuple[str, ...] | None:
        for root in self._roots:
            if parts[: len(root)] == root:
                return parts[len(root) :]
        return None


class _Walk:
    """One way down from the workdir.

    Invariant: ``len(self._folders) == len(self._parts) + 1``; no folder is a link or hidden, and one
    that does not exist is None.
    """

    def __init__(self, confinement: Confinement, given: str) -> None:
        self._confinement = confinement
        self._given = given
        self._parts: list[str] = []
        self._folders: list[int | None] = [os.open(confinement.workdir, _FOLDER)]

    def close(self) -> None:
        for folder in self._folders:
            if folder is not None:
                os.close(folder)

    @property
    def folder(self) -> int:
        """The folder that was arrived at, which exists unless missing ones were imagined."""
        folder = self._folders[-1]
        assert folder is not None
        return folder

    def to(self, names: list[str], *, missing: _Missing) -> str:
        """Goes to the folder that holds the last name, and returns that; ``.`` for the folder itself."""
        ahead = deque(names)
        links = 0
        while ahead:
            name = ahead.popleft()
            if name == "..":
                self._up()
            elif (target := self._link_target(name)) is not None:
                links += 1
                if links > SYMLINKS_MAX:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                ahead.extendleft(reversed(self._names_behind(target)))
            elif ahead:
                self._down(name, missing)
            else:
                return name
        return "."

    def parts_of(self, name: str) -> tuple[str, ...]:
        """Returns the real way to a name in the folder that was arrived at.

        Raises:
            ToolError: ``path_outside_workdir`` if it is hidden.
        """
        if name == ".":
            return tuple(self._parts)
        parts = (*self._parts, name)
        if self._confinement.is_hidden(parts):
            raise outside(self._given)
        return parts

    def _up(self) -> None:
        if not self._parts:
            raise outside(self._given)
        self._parts.pop()
        folder = self._folders.pop()
        if folder is not None:
            os.close(folder)

    def _down(self, name: str, missing: _Missing) -> None:
        if len(self._parts) >= DEPTH_MAX:
            raise ToolError(f"path_invalid: more than {DEPTH_MAX} folders deep")
        self.parts_of(name)
        self._folders.append(self._folder_below(name, missing))
        self._parts.append(name)

    def _folder_below(self, name: str, missing: _Missing) -> int | None:
        above = self._folders[-1]
        if above is None:
            return None
        try:
            return os.open(name, _FOLDER, dir_fd=above)
        except FileNotFoundError:
            if missing == "imagine":
                return None
            if missing == "fail":
                raise
        if self._confinement.restrictions.close_to_writing((*self._parts, name)):
            raise denied(self._given, "writing")
        os.mkdir(name, dir_fd=above)
        return os.open(name, _FOLDER, dir_fd=above)

    def _link_target(self, name: str) -> str | None:
        folder = self._folders[-1]
        if folder is None:
            return None
        try:
            return os.readlink(name, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:  # it is there, but no link
                return None
            raise

    def _names_behind(self, target: str) -> list[str]:
        names = self._confinement.names_of(target, self._given)
        if target.startswith("/"):
            while self._parts:
                self._up()
        return names


def _expanded(given: str) -> str:
    if "\0" in given:
        raise ToolError(f"path_invalid: {shown(given)} holds a NUL character")
    try:
        os.fsencode(given)
    except UnicodeEncodeError:
        raise ToolError(f"path_invalid: {shown(given)} is not valid Unicode") from None
    # Only allowed variables: the name of a file must not become a way to read a secret.
    variables = allowed_environment()
    if given == "~" or given.startswith("~/"):
        given = variables.get("HOME", "~") + given[1:]
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), given)
