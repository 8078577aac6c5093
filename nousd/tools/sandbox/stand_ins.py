"""Keeps closed places closed that a mount cannot cover: what is not there, and symbolic links.

A mount needs something to stand on. Where a program must not make a file or folder, an empty folder
(for a file of git's one that says nothing) stands there for as long as a sandbox needs it, and goes when
the last one has ended. Nothing that anybody put there meanwhile is removed. A link cannot be covered; if
it is not what it was when everything has ended, it is made so again.

A daemon that is killed leaves what stood in. It can be told from what anybody else would make, so the
next sandbox that needs it takes it over.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final

_FOLDER_MODE: Final = stat.S_ISVTX | 0o755
"""Of what stands in: nobody else makes an empty folder that is sticky."""

_FILES: Final = {"config": b"", "config.worktree": b"", "commondir": b".\n"}
"""What a folder must not stand in for, because whoever finds one there fails, and what says as little as
no file."""


class StandIns:
    """Those of one daemon, shared by the calls that run side by side."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users: Counter[Path] = Counter()

    @contextmanager
    def made(self, closed: Iterable[Path]) -> Iterator[tuple[Path, ...]]:
        """Gives something to stand on for each path that does not exist, or would not without another
        call or a daemon that was killed: the first missing part of it.

        Raises:
            OSError: it cannot be made.
        """
        taken: list[Path] = []
        try:
            for path in closed:
                with self._lock:
                    taken += self._take(path)
            yield tuple(taken)
        finally:
            with self._lock:
                for path in taken:
                    self._release(path)

    def _take(self, path: Path) -> Iterator[Path]:
        mine = next((used for used in self._users if path.is_relative_to(used)), None)
        stands = mine or _first_missing(path)
        if stands is None:
            return
        if mine is None:
            _make(stands)
        self._users[stands] += 1
        yield stands

    def _release(self, path: Path) -> None:
        self._users[path] -= 1
        if self._users[path] == 0:
            del self._users[path]
            with suppress(OSError):  # it holds something, or somebody took it away
                _remove(path)


def _first_missing(path: Path) -> Path | None:
    return next((part for part in (*reversed(path.parents), path) if _is_missing(part)), None)


def _is_missing(path: Path) -> bool:
    """Whether nothing is there, or what a killed daemon left."""
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            return bool(status.st_mode & stat.S_ISVTX) and not any(path.iterdir())
        content = _FILES.get(path.name)
        return content is not None and _is_file_of(path, status, content)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _is_file_of(path: Path, status: os.stat_result, content: bytes) -> bool:
    is_plain = stat.S_ISREG(status.st_mode) and status.st_size == len(content)
    return is_plain and path.read_bytes() == content


def _make(path: Path) -> None:
    with suppress(FileExistsError):
        if (content := _FILES.get(path.name)) is None:
            path.mkdir(_FOLDER_MODE)
        else:
            with path.open("xb") as file:
                file.write(content)


def _remove(path: Path) -> None:
    if (content := _FILES.get(path.name)) is None:
        path.rmdir()
    elif _is_file_of(path, path.lstat(), content):
        path.unlink()


@contextmanager
def kept(links: Iterable[Path]) -> Iterator[None]:
    """Makes symbolic links what they were, once the block is left."""
    targets = {link: str(link.readlink()) for link in links}
    try:
        yield
    finally:
        for link, target in targets.items():
            with suppress(OSError):
                if not link.is_symlink() or str(link.readlink()) != target:
                    _restore(link, target)


def _restore(link: Path, target: str) -> None:
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    if link.is_dir() and not link.is_symlink():
        link.rename(link.with_name(f"{link.name}.replaced-{os.urandom(4).hex()}"))
    os.symlink(target, fresh)
    fresh.rename(link)
