"""The limits of a program in a sandbox besides paths.

The supervisor sets those that the kernel enforces for each process, and counts the others. Every
command has limits of time and output, set by ``tools.builtin.bash``.
"""

from __future__ import annotations

from typing import Final

import msgspec

MEBIBYTE: Final = 1024 * 1024

MEMORY_MB: Final = 8192
"""Default for one process. Reserved addresses do not count."""

PROCESSES_MAX: Final = 1024
"""Default maximum of processes and threads of one call."""

FILE_BYTES_MAX: Final = 16 * 1024 * MEBIBYTE
"""The longest file that a program in a sandbox can write."""

TEMPORARY_BYTES_MAX: Final = 1024 * MEBIBYTE
"""Size of a call's temporary directory if it is in memory."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Zero means no limit.

    Args:
        memory_bytes: memory that one process may write to.
        processes: processes of the call at one time, threads included.
        file_bytes: size of one file.
    """

    memory_bytes: int = 0
    processes: int = 0
    file_bytes: int = 0

    def facts(self) -> dict[str, int]:
        """Return name -> value of those in force."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}
