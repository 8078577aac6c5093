"""Temporary folders of a daemon. One that was killed leaves its own, which the next daemon removes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nousd.tools.fs.deep_folders import remove_folder


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Provide a folder that only this user can enter.

    Args:
        prefix: the beginning of its name; the daemon's process id is next.
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
