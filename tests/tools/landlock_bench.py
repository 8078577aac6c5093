"""Commands in Landlock's sandbox, of this user and of another one, and the files that they attack."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from nousd.tools.sandbox import seccomp
from tests.tools.bench import REPOSITORY
from tests.tools.sandbox_bench import CHOSEN, SandboxBench, show

SOMEBODY_ELSE = 65_534

OTHERS_MODES = (0o600, 0o644, 0o755)

DRIVER = """
import json, sys, trio
from pathlib import Path
from tests.tools.landlock_bench import bench_in
kind, root, script = sys.argv[1:4]
async def main():
    held = bench_in(Path(root))
    if kind == "attack":
        return await held.attack(script)
    result = await held.call("bash", command=script)
    return {"text": result.text, "is_error": result.is_error}
told = trio.run(main)
print("\\n" + json.dumps(told))
"""

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
    """Return the sandbox of a folder that ``Attacked`` made, for who runs this."""
    shown = (*CHOSEN.read_paths, root / "shown")
    return SandboxBench(root, "landlock", msgspec.structs.replace(CHOSEN, read_paths=shown))


class Attacked:
    """A workspace, and files of the same user that its commands must not change.

    Args:
        root: an empty directory of that user's.
        user: whose commands and files they are; None for our own.
    """

    def __init__(self, root: Path, user: int | None) -> None:
        self.root = root
        self._user = user
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
        if user is not None:
            for path in (root, *root.rglob("*")):
                os.chown(path, user, user)
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
        outcomes: dict[str, Any] = self._driven("attack", CALLS + given + script)
        return outcomes

    def text(self, command: str) -> str:
        """Return the output of a shell command, which must succeed."""
        told = self._driven("bash", command)
        assert not told["is_error"], told["text"]
        return str(told["text"])

    def _driven(self, kind: str, script: str) -> Any:
        ended = subprocess.run(
            [sys.executable, "-c", DRIVER, kind, str(self.root), script],
            cwd=REPOSITORY,
            env={**os.environ, "HOME": str(self.root / "home"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **({} if self._user is None else _as_user(self._user)),
        )
        show(f"{ended.stdout}\n{ended.stderr}")
        assert ended.returncode == 0
        return json.loads(ended.stdout.splitlines()[-1])


def _as_user(user: int) -> dict[str, Any]:
    return {"user": user, "group": user, "extra_groups": []}


def can_be_used_by(user: int) -> bool:
    """Return whether another user can run this code."""
    try:
        ended = subprocess.run(
            [sys.executable, "-c", "import tests.tools.landlock_bench"],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            check=False,
            **_as_user(user),
        )
    except PermissionError:
        return False
    return ended.returncode == 0
