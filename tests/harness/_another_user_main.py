"""Becomes a program of another user, to whom the folders that he needs are open.

Its arguments: PLAN PROGRAM ARGUMENT...; PLAN is JSON:

- ``user``: the number of a user, and of his only group
- ``covered``: folders that are empty for him and his, outermost first
- ``shown``: files and folders that are there nevertheless

All of this is mounted in a namespace that ends with the program: nothing on the machine changes. It is
started by root, with ``-I``: standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18

_LIBC = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    plan = json.loads(arguments[0])
    program = arguments[1:]
    user, covered = plan["user"], [Path(path) for path in plan["covered"]]
    folder = Path.cwd()
    _checked(_LIBC.unshare(CLONE_NEWNS))
    _mount(None, Path("/"), None, MS_REC | MS_PRIVATE)
    shown = {Path(path): os.open(path, os.O_PATH) for path in plan["shown"]}
    for path in covered:
        path.mkdir(parents=True, exist_ok=True)  # one may lie in another
        _mount("tmpfs", path, "tmpfs", 0, f"mode=0755,uid={user},gid={user}")
    for path, descriptor in shown.items():
        if any(path.is_relative_to(cover) for cover in covered):
            _make_place(path, user)
            _mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
        os.close(descriptor)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.chdir(folder)
    os.execvp(program[0], program)


def _make_place(path: Path, user: int) -> None:
    """Make a folder to mount onto, and those around it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir()
        os.chown(folder, user, user)


def _mount(source: str | None, place: Path, kind: str | None, flags: int, how: str = "") -> None:
    names = (None if name is None else name.encode() for name in (source, str(place), kind))
    _checked(_LIBC.mount(*names, ctypes.c_ulong(flags), how.encode()))


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(sys.argv[1:])
