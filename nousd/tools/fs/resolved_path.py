"""A resolved path inside the workspace, and how it is opened.

``path_sandbox`` resolves it. Standard library and ``nousd.errors`` only.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from nousd.errors import ToolError
from nousd.tools.fs.deep_folders import walk
from nousd.tools.fs.git_layout import repository_around
from nousd.tools.fs.hard_links import ClosedFiles
from nousd.tools.fs.outside_paths import Parts
from nousd.tools.fs.path_errors import make_denied_error

# O_NONBLOCK: opening a FIFO that nobody writes to must not block.
_OPEN_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

SEVERAL_NAMES: Final = (
    "it has several names (hard links), and another may lie outside of the workdir"
)
"""Why a file with several names is not opened."""

OTHER_NAME: Final = "it is another name (hard link) of a file that a rule closes to reading"

UNKNOWN_NAME: Final = (
    "it has several names (hard links), and the workspace is too large for telling whether a rule closes"
    " one of the others"
)


WhyObeyed = Callable[[Mapping[Parts, bytes | None]], str]
"""Returns why a program would obey the results of a write, "" if none would. Takes real path -> new
content of the file, None if it is removed."""


class Restrictions(NamedTuple):
    """Paths inside the workspace that may not be opened.

    Args:
        reading: patterns of paths that are neither read nor listed. They match whole paths with
            slashes, relative to the workspace, ``.`` for the workspace itself; a directory includes
            everything in it.
        writing: the same for paths that are neither created, changed nor removed.
        hard_links: whether to open files with several names, unless they are among ``own``.
        own: files and folders of the daemon.
        closed_files: the files of ``reading``, by device and inode; None if there are none.
        may_miss: whether to open a file with several names even if the search may have missed a closed
            one, because the user was asked.
        no_repository_in: the workspace in which no write may go into a folder that git takes for a
            repository, or make one; None to allow both.
        why_obeyed: a write is refused if this returns a reason.
    """

    reading: tuple[re.Pattern[str], ...] = ()
    writing: tuple[re.Pattern[str], ...] = ()
    hard_links: bool = False
    own: tuple[Path, ...] = ()
    closed_files: ClosedFiles | None = None
    may_miss: bool = False
    no_repository_in: Path | None = None
    why_obeyed: WhyObeyed | None = None

    def close_to_reading(self, parts: tuple[str, ...]) -> bool:
        """Return whether the real path ``parts`` must be neither read nor listed."""
        return _matches(self.reading, parts)

    def closes_place(self, path: str) -> bool:
        """Return whether the real path ``path``, with slashes, must not be read."""
        return self.close_to_reading(tuple(path.split("/")))

    def close_to_writing(self, parts: tuple[str, ...]) -> bool:
        """Return whether the real path ``parts`` must be neither created, changed nor removed."""
        if _matches(self.writing, parts):
            return True
        workdir = self.no_repository_in
        return workdir is not None and repository_around(workdir, (parts,)) is not None

    def require_unobeyed(self, results: Mapping[Parts, bytes | None]) -> None:
        """Raise if a program would obey the results of a write.

        Raises:
            ToolError: ``path_denied``: this was not so when the call was allowed without approval.
        """
        if self.why_obeyed is not None and (why := self.why_obeyed(results)):
            names = ", ".join("/".join(parts) for parts in results)
            raise ToolError(
                f"{make_denied_error(names, 'writing')} without approval, since meanwhile: {why}"
            )

    def refuse(self, status: os.stat_result) -> None:
        """Raise OSError if a file is not regular, or has several names: unless these are allowed, and
        none is, or may be, closed.
        """
        refuse_irregular(status)
        if status.st_nlink == 1:
            return
        if not (self.hard_links and self._is_foreign(status)):
            raise OSError(errno.EMLINK, SEVERAL_NAMES)
        if self.closed_files is None:
            return
        state = self.closed_files.state_of(status)
        if state == "closed":
            raise OSError(errno.EMLINK, OTHER_NAME)
        if state == "unknown" and not self.may_miss:
            raise OSError(errno.EMLINK, UNKNOWN_NAME)

    def open_descriptor(self, descriptor: int) -> BinaryIO:
        """Return a file object for a descriptor open for reading, which is closed if it is refused.

        Raises:
            OSError: as ``refuse``.
        """
        with ExitStack() as refused:
            # Checked first: os.fdopen fails for a directory, and does not close its descriptor.
            refused.callback(os.close, descriptor)
            self.refuse(os.fstat(descriptor))
            refused.pop_all()
        return os.fdopen(descriptor, "rb")

    def _is_foreign(self, status: os.stat_result) -> bool:
        """Return whether a file is not a file of the daemon under another name."""
        return not any(os.path.samestat(status, own) for own in _files(self.own))


def _files(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    """Yield the status of the existing files among ``paths`` and below its directories."""
    for path in paths:
        with suppress(OSError):
            if not path.is_dir():
                yield os.stat(path)
            for folder, _, names in walk(str(path)):
                yield from (os.lstat(os.path.join(folder, name)) for name in names)  # noqa: PTH118


def _matches(patterns: tuple[re.Pattern[str], ...], parts: tuple[str, ...]) -> bool:
    if not patterns:
        return False
    prefixes = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)] or ["."]
    return any(pattern.fullmatch(path) for pattern in patterns for path in prefixes)


class ResolvedPath:
    """The target of a path: a name in an open directory. Only valid inside ``PathSandbox.locate``.

    Args:
        folder: descriptor (``O_PATH``) of its directory.
        name: one component, which was not a link when checked; ``.`` for the directory itself.
        parts: the real path, relative to the workspace.
        given_path: the path as the caller gave it, for messages.
        links: the real paths of the links that were followed, which can be closed as well.
    """

    def __init__(
        self,
        folder: int,
        name: str,
        parts: tuple[str, ...],
        given_path: str,
        restrictions: Restrictions,
        *,
        links: Iterable[tuple[str, ...]] = (),
    ) -> None:
        self.folder = folder
        self.name = name
        self.parts = parts
        self._given_path = given_path
        self._restrictions = restrictions
        self._followed = (parts, *links)

    def open(self, flags: int) -> int:
        """Return a descriptor; never follow a link, never block. Restrictions are not checked."""
        return os.open(self.name, flags | _OPEN_FLAGS, dir_fd=self.folder)

    def open_file(self) -> BinaryIO:
        """Open a regular file for reading.

        Raises:
            ToolError: ``path_denied``.
            OSError: also for folders (EISDIR), for FIFOs, sockets and devices (EINVAL), and for files
                with several names (EMLINK).
        """
        self._require_readable()
        return self._restrictions.open_descriptor(self.open(os.O_RDONLY))

    @contextmanager
    def open_folder(self) -> Iterator[int]:
        """Open a folder for listing.

        Raises:
            ToolError: ``path_denied``.
            OSError: also for anything that is not a directory (ENOTDIR).
        """
        self._require_readable()
        descriptor = self.open(os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def status(self) -> os.stat_result | None:
        """Return the status of the path itself; None if it does not exist."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def require_unobeyed(self, data: bytes) -> None:
        """See ``Restrictions.require_unobeyed``."""
        self._restrictions.require_unobeyed({self.parts: data})

    def require_writable(self) -> os.stat_result | None:
        """Return the status of the path, None if it does not exist; raise if it must not be changed or
        removed.

        Raises:
            ToolError: ``path_denied``.
            OSError: as ``open_file``.
        """
        if any(map(self._restrictions.close_to_writing, self._followed)):
            raise make_denied_error(self._given_path, "writing")
        status = self.status()
        if status is not None:
            self._restrictions.refuse(status)
        return status

    def _require_readable(self) -> None:
        if any(map(self._restrictions.close_to_reading, self._followed)):
            raise make_denied_error(self._given_path, "reading")


def refuse_irregular(status: os.stat_result) -> None:
    """Raise OSError for anything but a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
