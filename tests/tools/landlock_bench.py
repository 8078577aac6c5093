"""Commands in Landlock's sandbox, and the files that they attack."""

from __future__ import annotations

import errno
import os
import platform
import stat
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from nousd.tools.sandbox import filter_listener, landlock, seccomp
from tests.tools.sandbox_bench import CHOSEN, SandboxBench

REFUSED = {errno.EACCES, errno.EPERM, errno.EXDEV, errno.ENOENT, errno.ELOOP}

OTHERS_MODES = (0o600, 0o644, 0o755)

_NUMBERS = {
    name: numbers[seccomp.ARCHITECTURES[platform.machine()][1]]
    for name, numbers in (seccomp.METADATA | seccomp.ATTRIBUTES | seccomp.ENTRIES).items()
}

CALLS = f"""
import ctypes, struct
numbers = {_NUMBERS}
libc = ctypes.CDLL(None, use_errno=True)
HERE, NOFOLLOW, EMPTY = -100, 0x100, 0x1000
def call(name, *arguments):
    result = libc.syscall(ctypes.c_long(numbers[name]), *(
        ctypes.c_long(given) if isinstance(given, int) else given for given in arguments
    ))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
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


def repositories_in(root: Path) -> Repositories:
    """Return repositories in a new folder; skip the test where nobody decides about calls."""
    reason = landlock.why_not() or filter_listener.why_not()
    if reason is not None:
        pytest.skip(reason)
    root.mkdir()
    return Repositories(root)


class Repositories:
    """A workspace that is a repository, with another one in ``sub``, and what stays closed in them.

    Args:
        root: an empty directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self.outside = root / "kept"
        for folder in (self.work / "src", self.work / "sub", self.outside, root / "shown"):
            folder.mkdir(parents=True)
        for top in (self.work, self.work / "sub"):
            self.git(top, "init", "-q", "-b", "main")
            hook = top / ".git" / "hooks" / "post-commit"
            hook.parent.mkdir(exist_ok=True)
            hook.write_text("#!/bin/sh\n")
            hook.chmod(0o755)
        (self.work / "AGENTS.md").write_text("kept")
        (self.outside / "file").write_text("kept")
        (self.work / "a.txt").write_text("a")
        self.git(self.work, "add", "a.txt")
        self.git(self.work, "commit", "-qm", "first")
        self._before = self.guarded()

    def git(self, folder: Path, *arguments: str) -> str:
        """Run git outside of a sandbox."""
        named = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *named, *arguments],
            cwd=folder,
            env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def guarded(self) -> dict[str, object]:
        """Return what no command may change."""
        rules = self.work / "AGENTS.md"
        found: dict[str, object] = {str(rules): _fact(rules)}
        for top in (self.work, self.work / "sub"):
            git = top / ".git"
            hooks = sorted((git / "hooks").iterdir())
            for path in (git, git / "hooks", git / "config", *hooks):
                found[str(path)] = _fact(path)
            for name in ("commondir", "config.worktree", "modules"):
                found[str(git / name)] = _fact(git / name)
        found |= {str(path): _fact(path) for path in (self.outside, *self.outside.iterdir())}
        found["names outside"] = sorted(path.name for path in self.outside.iterdir())
        return found

    def assert_unchanged(self) -> None:
        assert self.guarded() == self._before

    def attack(self, script: str) -> dict[str, Any]:
        """Run attempts, see ``SandboxBench.attack``."""
        return trio.run(bench_in(self.root).attack, CALLS + script)

    def text(self, command: str) -> str:
        """Return the output of a shell command, which must succeed."""
        result = trio.run(partial(bench_in(self.root).call, "bash", command=command))
        assert not result.is_error, result.text
        return result.text


def _fact(path: Path) -> object:
    if not os.path.lexists(path):
        return None
    status = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
    return status.st_ino, status.st_mode, content
