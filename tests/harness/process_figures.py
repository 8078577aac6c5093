"""Memory, descriptors and threads of a process, from the kernel; and whether memory has grown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024

GROWTH_SHARE_MAX: Final = 0.15
GROWTH_BYTES_MAX: Final = 10 * MIB
"""Limits of memory growth from the middle third of a period to the last; exceeding both is growth."""

_FAULT: Final = re.compile(r"Traceback|a fault of ours|Exception ignored|never awaited")


@dataclass(frozen=True)
class Figures:
    """A process at one moment; memory in bytes. ``peak``: the most that was ever resident;
    ``databases``: descriptors of files of the log.
    """

    resident: int
    peak: int
    proportional: int
    descriptors: int
    databases: int
    threads: int


def figures_of(pid: int) -> Figures:
    """Read the figures of a running process."""
    process = Path(f"/proc/{pid}")
    status = (process / "status").read_text()
    open_files = list(_open_files(process / "fd"))
    return Figures(
        resident=_kib(status, "VmRSS"),
        peak=_kib(status, "VmHWM"),
        proportional=_kib((process / "smaps_rollup").read_text(), "Pss"),
        descriptors=len(open_files),
        databases=sum("/nousd.db" in path for path in open_files),
        threads=_number(status, "Threads"),
    )


def growth_of(resident: Sequence[int]) -> str | None:
    """Return a message if memory has grown; the first third is for warming up.

    The measure compares a process with itself, so it does not depend on how fast anything is.
    """
    third = len(resident) // 3
    if third == 0:
        return "too few samples to say anything of memory"
    middle, last = max(resident[third:-third]), max(resident[-third:])
    if last <= max(middle * (1 + GROWTH_SHARE_MAX), middle + GROWTH_BYTES_MAX):
        return None
    return f"memory has grown from {middle / MIB:.1f} MiB to {last / MIB:.1f} MiB"


def thirds_of(sizes: Sequence[int]) -> str:
    """Return the maximum of each third as text, in MiB."""
    third = max(1, len(sizes) // 3)
    parts = (sizes[:third], sizes[third:-third], sizes[-third:])
    return ", ".join(f"{max(part, default=0) / MIB:.1f}" for part in parts)


def faults_in(log: str) -> list[str]:
    """Return the faults reported in a daemon's own log, each with its surrounding lines."""
    return [log[max(0, m.start() - 300) : m.start() + 2000] for m in _FAULT.finditer(log)]


def _open_files(folder: Path) -> Iterator[str]:
    for name in os.listdir(folder):  # noqa: PTH208
        # A file may be closed in the meantime.
        with suppress(FileNotFoundError):
            yield os.readlink(folder / name)  # noqa: PTH115


def _kib(text: str, name: str) -> int:
    return _number(text, name) * 1024


def _number(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    assert found, f"no {name} in {text}"
    return int(found[1])
