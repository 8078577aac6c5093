"""Removes other users' access to nousd's files, and logs a warning.

A program of the same user may have opened a directory to other users, who may then have put their own
files there. These are refused, because their owner can change them at any time.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from nousd.errors import ConfigError

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
FILE_MODE: Final = 0o600

_log = logging.getLogger(__name__)


def mend_files(paths: Iterable[Path]) -> None:
    """Make the existing regular files private; warn of each that was not.

    Raises:
        ConfigError: a file belongs to another user.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for path in paths:
        try:
            owner = path.lstat().st_uid
            if owner != os.geteuid():
                raise ConfigError(f"{path} belongs to another user (uid {owner})")
            descriptor = os.open(path, flags)
        except OSError:  # it is missing, or the code that uses it reports the fault
            continue
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_mode & OTHERS:
                change_mode(descriptor, path, status, FILE_MODE)
        finally:
            os.close(descriptor)


def change_mode(descriptor: int, path: Path, status: os.stat_result, mode: int) -> None:
    """Change the mode of an open file or directory, and warn of it.

    Args:
        status: the status before the change.

    Raises:
        OSError: the mode cannot be changed.
    """
    os.fchmod(descriptor, mode)
    before = stat.S_IMODE(status.st_mode)
    _log.warning("%s had the mode %04o, and has %04o now", path, before, mode)
