"""The resource limits of a program in a sandbox.

The supervisor sets those that the kernel enforces for each process, and checks the others itself. Every
command also has limits of time and output, set by ``tools.builtin.bash``.
"""

from __future__ import annotations

from typing import Final

import msgspec

MEBIBYTE: Final = 1024 * 1024

MEMORY_MB: Final = 8192
"""Default memory of one process in MiB. Reserved addresses do not count."""

PROCESSES_MAX: Final = 1024
"""Default maximum of processes and threads of one call."""

FILE_BYTES_MAX: Final = 16 * 1024 * MEBIBYTE
"""The largest file that a program in a sandbox can write."""

TEMPORARY_BYTES_MAX: Final = 1024 * MEBIBYTE
"""Maximum size of a call's temporary directory if it is in memory."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one call; zero means no limit.

    Args:
        memory_bytes: writable memory of one process.
        processes: simultaneous processes of the call, including threads.
        file_bytes: size of one file.
    """

    memory_bytes: int = 0
    processes: int = 0
    file_bytes: int = 0

    def facts(self) -> dict[str, int]:
        """Return name -> value of the limits that are not zero."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}
