"""A walk from the workspace, or from the root, to a path: name by name, with descriptors.

``path_sandbox`` decides where a walk may lead. Standard library and ``nousd.errors`` only.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from pathlib import Path
from typing import Final, Literal, Protocol

from nousd.errors import ToolError
from nousd.tools.fs.open_nofollow import open_real
from nousd.tools.fs.path_errors import make_denied_error, make_outside_error
from nousd.tools.fs.resolved_path import Restrictions

SYMLINKS_MAX: Final = 40
"""Maximum links followed for one path; the kernel's own limit."""

DEPTH_MAX: Final = 128
"""Maximum depth of directories. Each one takes a descriptor during a walk."""

_FOLDER_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Missing = Literal["fail", "create", "imagine"]
"""What to do with a directory on the way that does not exist."""


class WalkRules(Protocol):
    """The rules of a walk."""

    restrictions: Restrictions
    allowed_outside: tuple[str, ...] | None

    @property
    def top(self) -> Path:
        """The directory where every walk begins."""
        ...

    def from_top(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return names relative to the top as names relative to the workspace."""
        ...

    def names_of(self, path: str, given_path: str) -> list[str]:
        """Split the target of a link into names; raise ToolError if it leads outside."""
        ...

    def is_hidden(self, parts: tuple[str, ...]) -> bool:
        """Return whether the real path is out of reach."""
        ...

    def is_kernels(self, folder: int) -> bool:
        """Return whether an open directory belongs to a kernel file system."""
        ...

    def may_pass(self, parts: tuple[str, ...]) -> bool:
        """Return whether a directory may be created at the real path."""
        ...


class PathWalk:
    """A walk down from the top of a path sandbox.

    Invariant: ``len(self._folders) == len(self._names) + 1``; no folder is a link or hidden, and a
    missing one is None.
    """

    def __init__(self, rules: WalkRules, given_path: str) -> None:
        self._rules = rules
        self._given_path = given_path
        self._names: list[str] = []
        self._folders: list[int | None] = [open_real(rules.top)]
        self.links: list[tuple[str, ...]] = []
        """The real paths, relative to the workspace, of the links that were followed."""

    def close(self) -> None:
        for folder in self._folders:
            if folder is not None:
                os.close(folder)

    @property
    def folder(self) -> int:
        """The current directory of the walk; it must exist, so not after ``missing="imagine"``."""
        folder = self._folders[-1]
        assert folder is not None
        return folder

    def to(self, names: list[str], *, missing: Missing) -> str:
        """Walk to the directory of the last name, and return that name; ``.`` for the
        directory itself.
        """
        ahead = deque(names)
        while ahead:
            name = ahead.popleft()
            if name == "..":
                self._up()
            elif (target := self._link_target(name)) is not None:
                self.links.append(self._rules.from_top((*self._names, name)))
                if len(self.links) > SYMLINKS_MAX:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                ahead.extendleft(reversed(self._names_of_target(target)))
            elif ahead:
                self._down(name, missing)
            else:
                return name
        return "."

    def parts_of(self, name: str) -> tuple[str, ...]:
        """Return the real path, relative to the workspace, of a name in the current directory.

        Raises:
            ToolError: ``path_outside_workdir`` if it is hidden.
        """
        names = tuple(self._names) if name == "." else (*self._names, name)
        parts = self._rules.from_top(names)
        if self._rules.is_hidden(parts):
            raise make_outside_error(self._given_path)
        return parts

    def _up(self) -> None:
        if not self._names:
            if self._rules.allowed_outside is not None:
                return  # the parent of the root is the root
            raise make_outside_error(self._given_path)
        self._names.pop()
        folder = self._folders.pop()
        if folder is not None:
            os.close(folder)

    def _down(self, name: str, missing: Missing) -> None:
        if len(self._names) >= DEPTH_MAX:
            raise ToolError(f"path_invalid: more than {DEPTH_MAX} folders deep")
        parts = self.parts_of(name)
        folder = self._folder_below(name, parts, missing)
        self._folders.append(folder)
        self._names.append(name)
        if folder is not None and self._rules.is_kernels(folder):
            raise make_outside_error(self._given_path)

    def _folder_below(self, name: str, parts: tuple[str, ...], missing: Missing) -> int | None:
        parent = self._folders[-1]
        if parent is None:
            return None
        try:
            return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            if missing == "imagine":
                return None
            if missing == "fail":
                raise
        if not self._rules.may_pass(parts):
            raise make_outside_error(self._given_path)
        if self._rules.restrictions.close_to_writing(parts):
            raise make_denied_error(self._given_path, "writing")
        os.mkdir(name, dir_fd=parent)
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)

    def _link_target(self, name: str) -> str | None:
        folder = self._folders[-1]
        if folder is None:
            return None
        try:
            return os.readlink(name, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:  # it exists, but is not a link
                return None
            raise

    def _names_of_target(self, target: str) -> list[str]:
        names = self._rules.names_of(target, self._given_path)
        if target.startswith("/"):
            while self._names:
                self._up()
        return names
