"""Whether a folder lies on a disk of this machine, so that asking for a file's times cannot take long.

A network's file system may not answer for minutes, and whoever asks waits. Only what is known to be
local counts; where the system does not tell, nothing is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_MOUNTS: Final = Path("/proc/self/mountinfo")

_LOCAL: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"}
)

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def is_local(path: Path, mounts: Path = _MOUNTS) -> bool:
    """Returns whether the path, with its links resolved, lies on a local file system.

    Args:
        mounts: where the system lists what is mounted (Linux, proc(5), ``mountinfo``).
    """
    try:
        table = mounts.read_text("utf-8", "surrogateescape")
    except OSError:
        return False
    resolved = path.resolve()
    # Of two on one place the later one is seen.
    types = {folder: kind for folder, kind in map(_mount, table.splitlines()) if folder}
    for folder in (resolved, *resolved.parents):
        if str(folder) in types:
            return types[str(folder)] in _LOCAL
    return False


def _mount(line: str) -> tuple[str, str]:
    """Returns where something is mounted, and the type of its file system."""
    before, _, behind = line.partition(" - ")
    fields = before.split(" ")
    if len(fields) < 5:
        return "", ""
    place = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
    return place, behind.split(" ")[0]
