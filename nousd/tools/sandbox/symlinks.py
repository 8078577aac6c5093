"""Keeps symbolic links what they are while programs run in a sandbox.

A mount cannot cover a link. So one by which a closed place is reached is made again, if it is not what
it was, when everything has ended.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nousd.tools.sandbox.nofollow_stat import opened_folder


@contextmanager
def kept(links: Iterable[Path]) -> Iterator[None]:
    """Make symbolic links what they were, once the block is left."""
    targets: dict[Path, str] = {}
    for link in links:
        with suppress(OSError):  # it is gone, or no link any more
            targets[link] = str(link.readlink())
    try:
        yield
    finally:
        for link, target in targets.items():
            with suppress(OSError), opened_folder(link.parent) as folder:
                _keep(folder, link.name, target)


def _keep(folder: int, name: str, target: str) -> None:
    mode = _mode(folder, name)
    if stat.S_ISLNK(mode) and os.readlink(name, dir_fd=folder) == target:
        return
    mark = os.urandom(4).hex()
    if stat.S_ISDIR(mode):
        os.rename(name, f"{name}.replaced-{mark}", src_dir_fd=folder, dst_dir_fd=folder)
    os.symlink(target, f".{name}.{mark}", dir_fd=folder)
    os.rename(f".{name}.{mark}", name, src_dir_fd=folder, dst_dir_fd=folder)


def _mode(folder: int, name: str) -> int:
    """Return 0 where nothing is."""
    try:
        return os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return 0
