"""The limits of a program in a sandbox that are not about places.

The supervisor sets those that the kernel keeps for each process, and counts what it keeps for none. Time
and output are limited for every command, by ``tools.bash``.
"""

from __future__ import annotations

from typing import Final

import msgspec

MEBIBYTE: Final = 1024 * 1024

MEMORY_MB: Final = 8192
"""Of one process, where nothing else is set. What only reserves addresses costs nothing of it."""

PROCESSES_MAX: Final = 1024
"""Processes and threads of one call, where nothing else is set."""

FILE_BYTES_MAX: Final = 16 * 1024 * MEBIBYTE
"""The longest file that a program in a sandbox can write."""

TEMPORARY_BYTES_MAX: Final = 1024 * MEBIBYTE
"""What the temporary folder of a call holds where it lies in memory."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Zero means that there is no such limit.

    Args:
        memory_bytes: that one process may write to.
        processes: of the call at one time, threads included.
        file_bytes: of one file.
    """

    memory_bytes: int = 0
    processes: int = 0
    file_bytes: int = 0

    def facts(self) -> dict[str, int]:
        """Return name -> value of those that are in force."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}
