"""Reads instruction files: the project's ``AGENTS.md`` files and the user's own.

The project's files are looked up in every directory from the root of the repository down to the
workspace, or in the workspace alone if there is no repository; the user's file is next to the settings.
Files in a repository may have been written by another person. So only regular files whose real path is
below that root count (``tools.fs.path_sandbox``), with a bounded size; FIFOs and devices are not opened.
An unusable file is reported with the reason and is not an error.
"""

from __future__ import annotations

import codecs
import errno
import os
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nousd.daemon.workspace.folder_threads import in_folder_thread
from nousd.errors import ConfigError, ToolError
from nousd.machine.context.prompt_sections import SourceText, build_unused_source, of_file
from nousd.runtime_paths.filesystems import is_local
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.fs.path_walk import DEPTH_MAX
from nousd.wire.limits import INSTRUCTIONS_BYTES_MAX, INSTRUCTIONS_FILE_BYTES_MAX

FILE_NAME: Final = "AGENTS.md"

_UNSETTLED_NS: Final = 100_000_000
"""More than a tick of the system's clock, within which a file can change twice and have the same
timestamps."""

_USER: Final = "user_instructions"
_PROJECT: Final = "project_instructions"


class Places(NamedTuple):
    """The folders of instruction files.

    Args:
        user_file: the user's file; None to skip it.
        project: whether to read the project's files.
        hidden: paths that are never read.
    """

    workdir: Path
    user_file: Path | None
    project: bool
    hidden: tuple[Path, ...] = ()


ReadInstructions = Callable[[], Awaitable[Sequence[SourceText]]]
"""Reads the current instructions, the most specific last."""


async def no_instructions() -> Sequence[SourceText]:
    """Return no instructions."""
    return (build_unused_source(_USER, "off"), build_unused_source(_PROJECT, "off"))


def reader(places: Places) -> ReadInstructions:
    """Return a function that reads the instructions in a thread, because a directory may be remote and
    not respond.

    If all files are on this machine, they are read again only when a timestamp has changed: a thread
    before each model call would be a noticeable delay.
    """
    return _CachedTexts(places).read


_Stamp = tuple[int, ...]


class _CachedTexts:
    """The last texts, and the stamps that their files had before the texts were read."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watched = _list_watched(places)
        self._stamps: tuple[_Stamp, ...] | None = None
        self._sources: Sequence[SourceText] = ()

    async def read(self) -> Sequence[SourceText]:
        stamps = self._stamps_now()
        if stamps is None or stamps != self._stamps:
            self._sources = await in_folder_thread(read_instructions, self._places)
            # The stamps from before the read: a file that changed meanwhile has a new stamp next time.
            self._stamps = stamps
        return self._sources

    def _stamps_now(self) -> tuple[_Stamp, ...] | None:
        """Return the stamps; None if they cannot show every change."""
        settled_ns = time.time_ns() - _UNSETTLED_NS
        stamps = tuple(map(_stamp, self._watched))
        is_certain = stamps and all(_is_plain(stamp, settled_ns) for stamp in stamps)
        return stamps if is_certain else None


def _list_watched(places: Places) -> tuple[Path, ...]:
    """Return every path whose stamp matters; none if a stamp could take long to get."""
    workdir = places.workdir.resolve()
    folders = [workdir, *workdir.parents][:DEPTH_MAX] if places.project else []
    users = [] if places.user_file is None else [places.user_file]
    if not all(map(is_local, [*folders, *users])):
        return ()
    names = (".git", FILE_NAME)
    return (*users, *(folder / name for folder in folders for name in names))


def _stamp(path: Path) -> _Stamp:
    """Return a stamp that changes with the file; empty if the file does not exist."""
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    return (
        status.st_mode,
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _is_plain(stamp: _Stamp, settled_ns: int) -> bool:
    """Return whether a stamp shows every change: not for a link, nor within one clock tick."""
    return not stamp or (not stat.S_ISLNK(stamp[0]) and max(stamp[-2:]) < settled_ns)


def read_instructions(places: Places) -> tuple[SourceText, ...]:
    """Return the user's instructions and then the project's, the most specific last."""
    users = _users(places)
    room = INSTRUCTIONS_BYTES_MAX - len(users.text.encode())
    return (users, *_projects(places, room))


def _users(places: Places) -> SourceText:
    path = places.user_file
    if path is None:
        return build_unused_source(_USER, "off")
    found = _read_source(_USER, path.parent, path, places.hidden, INSTRUCTIONS_FILE_BYTES_MAX)
    return found or build_unused_source(_USER, "not_found", str(path))


def _projects(places: Places, room: int) -> Sequence[SourceText]:
    if not places.project:
        return (build_unused_source(_PROJECT, "off"),)
    root, folders = _folders(places.workdir.resolve())
    found: list[SourceText] = []
    # The most specific file is the first to get room.
    for folder in reversed(folders):
        bytes_max = min(room, INSTRUCTIONS_FILE_BYTES_MAX)
        source = _read_source(_PROJECT, root, folder / FILE_NAME, places.hidden, bytes_max)
        if source is not None:
            found.append(source)
            room -= len(source.text.encode())
    return found[::-1] or (build_unused_source(_PROJECT, "not_found"),)


def project_root(workdir: Path) -> Path:
    """Return the root directory of the project: that of the repository, or the workspace itself."""
    return _folders(workdir.resolve())[0]


def _folders(workdir: Path) -> tuple[Path, list[Path]]:
    """Return the root, and the directories from there down to the workspace."""
    ancestors = [workdir, *workdir.parents][:DEPTH_MAX]
    for index, folder in enumerate(ancestors):
        if _is_repository(folder):
            return folder, ancestors[index::-1]
    return workdir, [workdir]


def _is_repository(folder: Path) -> bool:
    try:
        return (folder / ".git").exists()
    except OSError:
        return False


def _read_source(
    kind: str, root: Path, path: Path, hidden: tuple[Path, ...], bytes_max: int
) -> SourceText | None:
    """Return the text of a file, or the reason why it cannot be used; None if it does not exist."""
    try:
        # Usually the file does not exist, and then no directory on its path needs to be opened.
        if not (os.path.lexists(path) and root.is_dir()):
            return None
        with PathSandbox(root, hidden).locate(str(path)) as place, place.open_file() as file:
            data = file.read(bytes_max + 1)
    except (ToolError, ConfigError):
        return build_unused_source(kind, "outside", str(path))
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, "unreadable")
        return None if reason == "not_found" else build_unused_source(kind, reason, str(path))
    if not bytes_max:
        return build_unused_source(kind, "no_room", str(path))
    return of_file(kind, str(path), *_text_of(data, bytes_max))


_REASONS: Final = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.EISDIR: "not_a_file",
    errno.EINVAL: "not_a_file",
    errno.ENXIO: "not_a_file",
    errno.ENODEV: "not_a_file",
}


def _text_of(data: bytes, bytes_max: int) -> tuple[str, str]:
    """Return the text, and the reason if it is not the whole file unchanged."""
    is_cut = len(data) > bytes_max
    reasons = ["cut"] if is_cut else []
    kept = data[:bytes_max].removeprefix(codecs.BOM_UTF8)
    try:
        # A character that the bound splits is dropped without a remark.
        text = _Utf8("strict").decode(kept, final=not is_cut)
    except UnicodeDecodeError:
        # Each invalid byte becomes three.
        repaired = _Utf8("replace").decode(kept, final=not is_cut).encode()
        text = repaired[:bytes_max].decode(errors="ignore")
        reasons = ["cut"] if is_cut or len(repaired) > bytes_max else []
        reasons.append("not_utf8")
    return text, ",".join(reasons)


_Utf8: Final = codecs.getincrementaldecoder("utf-8")
