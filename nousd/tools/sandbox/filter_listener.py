"""Determines whether the supervisor of a command can decide some of its system calls.

That requires a listener for the command's filter, and access to the command's memory, which holds the
paths. In a container whose own filter has a listener no second one is possible; a setting may forbid
access to the memory of processes. Such calls are then refused.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from nousd.tools.sandbox._landlock_main import (
    NEW_KILLABLE_LISTENER,
    PR_SET_NO_NEW_PRIVS,
    SECCOMP,
    SECCOMP_SET_MODE_FILTER,
)

_ALLOW_ALL: Final = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)

_YAMA: Final = Path("/proc/sys/kernel/yama/ptrace_scope")

_YAMA_ADMIN_ONLY: Final = 2


@lru_cache(maxsize=1)
def why_not() -> str | None:
    """Return why calls cannot be decided; None if they can. The first call blocks for a moment."""
    with suppress(OSError, ValueError):
        if int(_YAMA.read_text()) >= _YAMA_ADMIN_ONLY:
            return f"{_YAMA} forbids looking into one's own processes"
    reasons: list[str] = []
    # A filter cannot be removed, so it is tried in a thread that ends.
    trial = threading.Thread(target=lambda: reasons.extend(_try_listener()))
    trial.start()
    trial.join()
    return reasons[0] if reasons else None


def _try_listener() -> list[str]:
    """Give this thread a filter with a listener; return the reason if that fails, else nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = ctypes.create_string_buffer(_ALLOW_ALL, len(_ALLOW_ALL))
    described = struct.pack("@HP", 1, ctypes.addressof(steps))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    flags = NEW_KILLABLE_LISTENER
    number = SECCOMP[platform.machine()]
    listener = libc.syscall(number, SECCOMP_SET_MODE_FILTER, flags, described)
    if listener < 0:
        reason = os.strerror(ctypes.get_errno())
        return [f"the kernel gives a filter of system calls no listener: {reason}"]
    os.close(listener)
    return []
