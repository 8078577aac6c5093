"""Takes from others what they may do with our own files, and says so.

A program of the same user may have changed a mode. Others may have put files of their own there then:
these are refused, since their owner can change them at any time.
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
    """Make plain files private, those that exist, and warn of each that was not.

    Raises:
        ConfigError: one belongs to another user.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for path in paths:
        try:
            owner = path.lstat().st_uid
            if owner != os.geteuid():
                raise ConfigError(f"{path} belongs to another user (uid {owner})")
            descriptor = os.open(path, flags)
        except OSError:  # it is not there, or whoever uses it tells what is wrong
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
        status: as it was found.

    Raises:
        OSError: the mode cannot be changed.
    """
    os.fchmod(descriptor, mode)
    before = stat.S_IMODE(status.st_mode)
    _log.warning("%s had the mode %04o, and has %04o now", path, before, mode)
