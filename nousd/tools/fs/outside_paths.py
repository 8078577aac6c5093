"""The spelling of paths outside the workspace, and the kernel's file systems.

A real path is a tuple of names relative to the workspace; outside, it begins with exactly as many ``..``
as needed. So each path has one spelling. Pure except for ``kernel_devices``; standard library only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Final

Parts = tuple[str, ...]

UP: Final = ".."

KERNEL_PLACES: Final = (Path("/proc"), Path("/sys"), Path("/dev"))
"""Directories in which the kernel exposes data of programs, such as keys in their environment; never
opened."""


def is_kernels(path: Path) -> bool:
    """Return whether an absolute real path lies in one of ``KERNEL_PLACES``."""
    return any(path.is_relative_to(kernels) for kernels in KERNEL_PLACES)


def leads_out(parts: Parts) -> bool:
    """Return whether a real path lies outside of the workspace."""
    return parts[:1] == (UP,)


def from_workdir(workdir: PurePath, path: PurePath) -> Parts:
    """Return the spelling of ``path``. Both paths are absolute, without links and ``..``."""
    here, there = workdir.parts, path.parts
    shared = 0
    while shared < min(len(here), len(there)) and here[shared] == there[shared]:
        shared += 1
    return (UP,) * (len(here) - shared) + there[shared:]


def normalize_parts(workdir: PurePath, parts: Parts) -> Parts:
    """Return the one spelling of a path below an outside directory, which may lead back inside."""
    if not leads_out(parts):
        return parts
    above = next((count for count, name in enumerate(parts) if name != UP), len(parts))
    root = workdir.parts[: max(1, len(workdir.parts) - above)]
    return from_workdir(workdir, PurePath(*root, *parts[above:]))


def kernel_devices() -> frozenset[int]:
    """Return the device numbers of kernel file systems, wherever they are mounted."""
    devices = set()
    for path in KERNEL_PLACES[:2]:
        with suppress(OSError):
            devices.add(os.stat(path).st_dev)
    return frozenset(devices)
