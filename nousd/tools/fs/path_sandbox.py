"""Keeps file tools inside the workspace, and away from the daemon's own state.

Theory of operation. A path is never checked as a string and then used. It is *walked*, one component at
a time, each opened relative to the descriptor of its parent and without following symbolic links. A
link is read, and its target is walked by the same rules; ``..`` goes back to the previous directory,
which is held as a descriptor, not as a name. A walk that leaves the workspace is refused: ``..`` above
its top by ``PathWalk._up``, an absolute target by ``names_of``. The result is a descriptor plus one last
name, opened with ``O_NOFOLLOW``. If a directory is replaced by a link meanwhile, the walk still holds
the directory, or the open fails; there is no race.

The walk knows the real path of its result, so hidden paths are recognized in any spelling, even if they
do not exist yet. The same holds for paths that are denied to one call (``PathSandbox.restrict``): rules
are applied when a path is opened, so it does not matter what was replaced since the decision.

A path outside can be opened to one call (``PathSandbox.allow_outside``), after the user has approved
exactly that path. Its walks begin at the root, follow the same rules, and succeed only if they end
inside or at such a path, so a link that was replaced since the approval is useless. The files of the
daemon and of the kernel stay out of reach.

A file with several names (hard links) is refused: another name may lie outside or in the daemon's own
state, and the kernel does not list them. If the user allows such files, ``hard_links`` finds those that
are closed to the call under another name. A directory has only one name.

Why not ``openat2`` with ``RESOLVE_BENEATH``: it refuses absolute links that lead back inside, it does
not report the real path (needed to recognize hidden paths), and a second method would be needed for
creating directories and for other kernels.

This module does not know what a tool does with a file. Everything here blocks: call it in a thread.
Standard library and ``nousd.errors`` only, so that the search process starts quickly.
"""

from __future__ import annotations

import copy
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from nousd.errors import ConfigError, ToolError
from nousd.tools.environment import filter_environment
from nousd.tools.fs.hard_links import ClosedFiles
from nousd.tools.fs.lexical_paths import lies_in_any
from nousd.tools.fs.outside_paths import (
    KERNEL_PLACES,
    Parts,
    from_workdir,
    kernel_devices,
    leads_out,
    normalize_parts,
)
from nousd.tools.fs.path_errors import format_given, make_denied_error, make_outside_error
from nousd.tools.fs.path_walk import Missing, PathWalk
from nousd.tools.fs.real_paths import real_paths
from nousd.tools.fs.resolved_path import ResolvedPath, Restrictions, WhyObeyed

_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\})", re.ASCII)

_ROOT: Final = Path("/")


class PathSandbox:
    """The part of the file system that file tools may access.

    ``restrictions``: paths inside that must not be opened. ``asks``: whether the user can be asked
    about outside paths. ``allowed_outside``: outside paths that are allowed, with everything below; None
    if no path may lead outside.

    Args:
        workdir: the workspace, which paths must not leave; must exist.
        hidden: files and directories that count as outside even if they lie inside.
        hard_links: whether files with several names may be opened.

    Raises:
        ConfigError: the workspace is not a directory, or is hidden itself.
    """

    def __init__(
        self, workdir: Path, hidden: tuple[Path, ...] = (), *, hard_links: bool = False
    ) -> None:
        self.workdir = workdir.resolve()
        self.spelled = workdir.absolute()
        self.hidden = hidden
        self.restrictions = Restrictions(hard_links=hard_links, own=hidden)
        self.asks = False
        self.allowed_outside: tuple[str, ...] | None = None
        self._allowed_parts: frozenset[Parts] = frozenset()
        self._kernel_devices: frozenset[int] = frozenset()
        if not self.workdir.is_dir():
            raise ConfigError(f"workdir: {workdir} is not a directory")
        # The workspace may be named through a link; paths spelled that way are inside as well.
        self._roots = (self.workdir.parts, self.spelled.parts)
        absolute = [path.absolute() for path in hidden]
        spellings = dict.fromkeys((*absolute, *map(Path, real_paths(absolute))))
        if lies_in_any(self.workdir, spellings):
            raise ConfigError(f"workdir: {workdir} lies in the daemon's own state")
        self._hidden = {
            rest for spelling in spellings if (rest := self._inside(spelling.parts)) is not None
        }
        outside = (from_workdir(self.workdir, path) for path in (*spellings, *KERNEL_PLACES))
        self._hidden |= {parts for parts in outside if leads_out(parts)}

    def is_hidden(self, parts: Parts) -> bool:
        """Return whether the real path ``parts`` belongs to the daemon or, outside of the workspace, to
        the kernel.
        """
        return any(parts[: len(hidden)] == hidden for hidden in self._hidden)

    def restrict(
        self,
        *,
        reading: Iterable[re.Pattern[str]] = (),
        writing: Iterable[re.Pattern[str]] = (),
        repositories: bool = False,
        why_obeyed: WhyObeyed | None = None,
        may_miss: bool = False,
    ) -> PathSandbox:
        """Return a copy for one call with more restrictions. Restricted paths are refused with
        ``path_denied``; those closed to reading are not listed either.

        Args:
            reading, writing: see ``Restrictions``; they match paths as ``real`` returns them.
            repositories: whether to close folders that git takes for repositories to writing.
            why_obeyed: see ``Restrictions``.
            may_miss: see ``Restrictions``.
        """
        now = self.restrictions
        restricted = copy.copy(self)
        closing = now._replace(
            reading=(*now.reading, *reading),
            writing=(*now.writing, *writing),
            may_miss=may_miss or now.may_miss,
            no_repository_in=self.workdir if repositories else now.no_repository_in,
            why_obeyed=why_obeyed or now.why_obeyed,
        )
        closed_files = ClosedFiles(self.workdir, closing.closes_place) if closing.reading else None
        restricted.restrictions = closing._replace(closed_files=closed_files)
        return restricted

    def is_unknown(self, path: str) -> bool:
        """Return whether a path leads to a file with several names, of which an incomplete search may
        have missed a closed one.
        """
        if self.restrictions.closed_files is None or not self.restrictions.hard_links:
            return False
        try:
            with self.locate(path) as resolved:
                status = resolved.status()
        except (ToolError, OSError):
            return False
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_nlink == 1:
            return False
        return self.restrictions.closed_files.state_of(status) == "unknown"

    def asking(self) -> PathSandbox:
        """Return a copy for a call that can ask the user about outside paths: see ``beyond``."""
        asking = copy.copy(self)
        asking.asks = True
        return asking

    def beyond(self, path: str) -> str | None:
        """Return the real, absolute target of a path that leads outside; None if it does not, if the
        user cannot be asked, or if the target is not printable.
        """
        if not self.asks:
            return None
        try:
            self.real(path)
        except ToolError:
            return self._find_beyond(path)
        except OSError:
            return None
        return None

    def _find_beyond(self, path: str) -> str | None:
        try:
            real = self.allow_outside(()).real(path)
        except (ToolError, OSError):
            return None
        absolute = os.path.normpath(self.workdir / real)
        return absolute if absolute.isprintable() else None

    def allow_outside(self, paths: Iterable[str]) -> PathSandbox:
        """Return a copy for one call that may also use the given outside paths and everything below
        them.

        Args:
            paths: as ``beyond`` returns them.
        """
        opened = copy.copy(self)
        opened.allowed_outside = tuple(paths)
        opened._allowed_parts = frozenset(  # noqa: SLF001
            from_workdir(self.workdir, Path(path)) for path in opened.allowed_outside
        )
        opened._kernel_devices = kernel_devices()  # noqa: SLF001
        return opened

    def make_relative(self, path: str) -> str:
        """Return the spelling of ``real`` for a path that ``beyond`` has returned."""
        return "/".join(from_workdir(self.workdir, Path(path))) or "."

    def is_seen(self, parts: Parts) -> bool:
        """Return whether the real path ``parts`` appears in lists and searches."""
        parts = normalize_parts(self.workdir, parts)
        return not (self.is_hidden(parts) or self.restrictions.close_to_reading(parts))

    def is_kernels(self, folder: int) -> bool:
        """Return whether an open directory belongs to a kernel file system; False if no walk can lead
        outside.
        """
        return bool(self._kernel_devices) and os.fstat(folder).st_dev in self._kernel_devices

    def may_pass(self, parts: Parts) -> bool:
        """Return whether a directory may be created at a real path on the way to an allowed path."""
        return not leads_out(parts) or any(
            allowed[: len(parts)] == parts for allowed in self._allowed_parts
        )

    def real(self, path: str) -> str:
        """Return the real path, with slashes, relative to the workspace; ``.`` for the workspace itself.

        Neither the target nor the directories on the way need to exist; a missing name is not a link.
        With opened paths the target may be outside, spelled with ``..``.

        Raises:
            ToolError, OSError: as ``locate``.
        """
        return self.real_and_links(path)[0]

    def real_and_links(self, path: str) -> tuple[str, list[str]]:
        """Return the real path, and the real paths of the links that were followed.

        Raises:
            ToolError, OSError: as ``real``.
        """
        walk = PathWalk(self, path)
        with ExitStack() as cleanup:
            cleanup.callback(walk.close)
            name = walk.to(self._names_from_top(path), missing="imagine")
            return "/".join(walk.parts_of(name)) or ".", ["/".join(link) for link in walk.links]

    @contextmanager
    def locate(self, path: str, *, create_parents: bool = False) -> Iterator[ResolvedPath]:
        """Walk to a path; only its directory needs to exist.

        Args:
            path: relative to the workspace, or absolute and inside it; ``~`` and ``$VAR`` are
                expanded.
            create_parents: whether to create missing directories on the way.

        Raises:
            ToolError: ``path_outside_workdir`` or ``path_invalid``, naming the path as given; or
                ``path_denied`` if a missing directory may not be created.
            OSError: the operating system refuses a directory on the way.
        """
        if create_parents:
            # Create nothing on the way to a path that must not be created.
            real = tuple(self.real(path).split("/"))
            self._require_open(real, path)
            if self.restrictions.close_to_writing(real):
                raise make_denied_error(path, "writing")
        names = self._names_from_top(path)
        with self._walk_to(names, path, create_parents=create_parents) as resolved:
            self._require_open(resolved.parts, path)
            yield resolved

    @contextmanager
    def locate_real(
        self, parts: Parts, *, create_parents: bool = False, in_passing: bool = False
    ) -> Iterator[ResolvedPath]:
        """Walk to a path that ``real`` or an earlier walk has returned.

        Args:
            in_passing: also allow a directory on the way to an opened path.

        Raises:
            ToolError, OSError: as ``locate``; also if one of the names has become a link.
        """
        path = "/".join(parts)
        names = [*self._names_of_workdir, *parts]
        with self._walk_to(names, path, create_parents=create_parents) as resolved:
            if resolved.parts != parts:
                raise ToolError(
                    f"path_changed: {format_given(path)}: a folder became a link meanwhile"
                )
            if not (in_passing and self.may_pass(parts)):
                self._require_open(parts, path)
            yield resolved

    @contextmanager
    def _walk_to(
        self, names: list[str], path: str, *, create_parents: bool
    ) -> Iterator[ResolvedPath]:
        walk = PathWalk(self, path)
        missing: Missing = "create" if create_parents else "fail"
        with ExitStack() as cleanup:
            cleanup.callback(walk.close)
            name = walk.to(names, missing=missing)
            parts = walk.parts_of(name)
            yield ResolvedPath(walk.folder, name, parts, path, self.restrictions, links=walk.links)

    def _require_open(self, parts: Parts, path: str) -> None:
        if leads_out(parts) and parts not in self._allowed_parts:
            raise make_outside_error(path)

    # --- names ---------------------------------------------------------------------------------

    @property
    def top(self) -> Path:
        """The start of every walk: the workspace, or the root if paths may lead outside."""
        return self.workdir if self.allowed_outside is None else _ROOT

    def from_top(self, names: Parts) -> Parts:
        """Return the real path, relative to the workspace, of names from the top."""
        return (
            names
            if self.allowed_outside is None
            else from_workdir(self.workdir, _ROOT.joinpath(*names))
        )

    @property
    def _names_of_workdir(self) -> tuple[str, ...]:
        return () if self.allowed_outside is None else self.workdir.parts[1:]

    def _names_from_top(self, path: str) -> list[str]:
        expanded = _expand_path(path)
        names = self.names_of(expanded, path)
        return names if expanded.startswith("/") else [*self._names_of_workdir, *names]

    def names_of(self, path: str, given_path: str) -> list[str]:
        """Split a path into names; those of an absolute one start at the top. ``..`` is left in place.

        Raises:
            ToolError: it is absolute and outside of the workspace, and no path may lead outside.
        """
        pure_path = PurePosixPath(path)
        if not pure_path.is_absolute():
            return list(pure_path.parts)
        if self.allowed_outside is not None:
            return list(pure_path.parts[1:])
        # POSIX allows "//" at the beginning to differ from "/"; on Linux they are the same.
        inside = self._inside(("/", *pure_path.parts[1:]))
        if inside is None:
            raise make_outside_error(given_path)
        return list(inside)

    def _inside(self, parts: tuple[str, ...]) -> tuple[str, ...] | None:
        for root in self._roots:
            if parts[: len(root)] == root:
                return parts[len(root) :]
        return None


def _expand_path(path: str) -> str:
    if "\0" in path:
        raise ToolError(f"path_invalid: {format_given(path)} holds a NUL character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ToolError(f"path_invalid: {format_given(path)} is not valid Unicode") from None
    if not path.startswith("~") and "$" not in path:
        return path
    # Only allowed variables are expanded, so that a file name cannot reveal a secret.
    variables = filter_environment()
    if path == "~" or path.startswith("~/"):
        path = variables.get("HOME", "~") + path[1:]
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), path)
