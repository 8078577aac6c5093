"""Determines whether a path is on a local file system, so that reading a file's timestamps is quick.

A network file system may not respond for minutes. Only file systems that are known to be local count; if
the system does not report its mounts, none does.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Final

_MOUNTS: Final = Path("/proc/self/mountinfo")

_LOCAL: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"}
)

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def is_local(path: Path, mounts: Path = _MOUNTS) -> bool:
    """Return whether the path, with its links resolved, is on a local file system.

    Args:
        mounts: the system's list of mounts (Linux, proc(5), ``mountinfo``).
    """
    try:
        table = mounts.read_bytes()
    except OSError:
        return False
    types = _types(table)
    folder = os.path.realpath(path)
    while folder not in types:
        if folder == "/":
            return False
        folder = folder.rpartition("/")[0] or "/"
    return types[folder] in _LOCAL


# The table is needed several times for every session, and rarely changes.
@lru_cache(maxsize=1)
def _types(table: bytes) -> dict[str, str]:
    """Return a mapping from mount point to the type of its file system."""
    lines = table.decode("utf-8", "surrogateescape").splitlines()
    # Of two mounts on one path, the later one is visible.
    return {folder: kind for folder, kind in map(_mount, lines) if folder}


def _mount(line: str) -> tuple[str, str]:
    """Return a mount point, and the type of its file system."""
    before, _, behind = line.partition(" - ")
    fields = before.split(" ")
    if len(fields) < 5:
        return "", ""
    place = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
    return place, behind.split(" ")[0]
