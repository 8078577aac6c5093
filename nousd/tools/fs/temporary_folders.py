"""Temporary folders of a daemon. A killed daemon leaves its own, which the next one removes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nousd.tools.fs.deep_folders import remove_folder


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Create a folder that only this user can enter, and remove it at the end of the block.

    Args:
        prefix: the beginning of its name, followed by the daemon's process id.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))
    try:
        yield folder
    finally:
        remove_folder(folder)


def sweep(prefix: str) -> None:
    """Remove the temporary folders of daemons that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        process = path.name.removeprefix(prefix).partition("-")[0]
        with suppress(OSError):
            is_ours = path.lstat().st_uid == os.getuid() and not path.is_symlink()
            if is_ours and process.isdigit() and not Path("/proc", process).exists():
                remove_folder(path)
