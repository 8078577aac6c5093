"""Commands in Landlock's sandbox, and the files that they attack."""

from __future__ import annotations

import os
import platform
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from nousd.tools.sandbox import seccomp
from tests.tools.sandbox_bench import CHOSEN, SandboxBench

OTHERS_MODES = (0o600, 0o644, 0o755)

_NUMBERS = {
    name: numbers[seccomp.ARCHITECTURES[platform.machine()][1]]
    for name, numbers in (seccomp.METADATA | seccomp.ATTRIBUTES).items()
}

CALLS = f"""
import ctypes, struct
numbers = {_NUMBERS}
libc = ctypes.CDLL(None, use_errno=True)
HERE, NOFOLLOW, EMPTY = -100, 0x100, 0x1000
def call(name, *arguments):
    if libc.syscall(ctypes.c_long(numbers[name]), *(
        ctypes.c_long(given) if isinstance(given, int) else given for given in arguments
    )) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def attempt(what, name, *arguments):
    if numbers[name] is not None:
        tried(what, lambda: call(name, *arguments))
old = struct.pack("=4q", 1, 2, 3, 4)
"""
"""For attacks: ``call`` makes a system call by its number, ``attempt`` reports what came of one if this
machine has it."""


def bench_in(root: Path) -> SandboxBench:
    """Return the sandbox of a folder that ``Attacked`` made."""
    shown = (*CHOSEN.read_paths, root / "shown")
    return SandboxBench(root, "landlock", msgspec.structs.replace(CHOSEN, read_paths=shown))


class Attacked:
    """A workspace, and files of the same user that its commands must not change.

    Args:
        root: an empty directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self.key = root / "outside" / "key"
        self.token = root / "work" / ".state" / "token"
        self.shown = root / "shown" / "file"
        self.protected = root / "work" / ".git" / "config"
        self.inside = root / "work" / "src" / "file"
        self.closed = (self.key, self.token, self.shown, self.protected)
        for file, mode in zip(
            (*self.closed, self.inside), (*OTHERS_MODES, 0o644, 0o600), strict=True
        ):
            file.parent.mkdir(parents=True)
            file.write_text("kept")
            file.chmod(mode)
            os.utime(file, (1_000_000_000, 1_000_000_000))
        self._before = self._facts()

    def _facts(self) -> dict[str, object]:
        folders = {path.parent for path in self.closed}
        status = {path: path.stat() for path in (*self.closed, *folders)}
        return {
            str(path): (oct(found.st_mode), found.st_uid, found.st_gid, os.listxattr(path))
            + ((found.st_mtime_ns, found.st_ctime_ns) if path.is_file() else ())
            for path, found in status.items()
        }

    def assert_unchanged(self) -> None:
        assert self._facts() == self._before

    def attack(self, script: str) -> dict[str, Any]:
        """Run attempts, see ``SandboxBench.attack``."""
        names = {"key": self.key, "token": self.token, "shown": self.shown}
        names |= {"protected": self.protected, "inside": self.inside}
        given = "".join(f"{name} = {os.fsencode(path)!r}\n" for name, path in names.items())
        return trio.run(bench_in(self.root).attack, CALLS + given + script)

    def text(self, command: str) -> str:
        """Return the output of a shell command, which must succeed."""
        result = trio.run(partial(bench_in(self.root).call, "bash", command=command))
        assert not result.is_error, result.text
        return result.text
