"""The file of the daemon's diagnostic log: private, and rotated.

Imported only if a log file is configured, because ``logging.handlers`` needs half a megabyte of memory.
"""

from __future__ import annotations

import os
from logging.handlers import RotatingFileHandler
from typing import Any


class PrivateRotatingFile(RotatingFileHandler):
    """Creates its files with mode 0600 under any umask and rotates them by renaming."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    """Open a file, or create it with mode 0600 under any umask."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(descriptor, 0o600)
    return descriptor
