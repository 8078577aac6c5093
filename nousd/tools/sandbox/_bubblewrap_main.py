"""Mounts the folders that a program sees and that other programs can change, then becomes bubblewrap.

Its arguments: PLAN BUBBLEWRAP ARGUMENT...; PLAN is a file with a marshalled dict:

- ``roots``: (path, index of the root that contains it or -1, whether it may be written, the closed
  paths in it), outermost first. Roots in no other root are mounted at STAGING/INDEX.
- ``etc``: paths of the machine below ``/etc``. They are laid out as one folder, STAGING/etc, with copies
  of the files, because copying a small file takes less time than a mount.
- closed paths: name -> (how, content, closed below), with every folder on the way; see ``KEEP`` and
  others.

Bubblewrap takes paths, and a path can lead elsewhere right after it was checked: another command that
works in the same folder may replace any part of it by a link. So everything here uses descriptors, each
opened relative to the previous one and none through a link, in a private mount namespace; bubblewrap
finds the result at paths that no other process sees. A closed path that has become a link is skipped,
and so is a missing one, unless it is a placeholder.

A separate program: standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import signal
import stat
import struct
import sys
from typing import Any

STAGING = "/sys"
"""A folder that exists on every machine and is not visible in the sandbox."""

ETC = f"{STAGING}/etc"
FOLDER = f"{STAGING}/folder"
FILE = f"{STAGING}/file"
DEV_NULL = "/dev/null"

PARENT = "on the way"
"""A folder on the way to a closed path: it cannot be moved."""
KEEP = "keep"
"""A closed path that can be read, but neither moved nor changed."""
COVER = "cover"
"""A closed path whose content is invisible."""
PLACEHOLDER = "stand"
"""A placeholder: it is covered, and must exist."""

CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18

OPEN_TREE = 428
MOVE_MOUNT = 429
MOUNT_SETATTR = 442
OPEN_TREE_CLONE = 1
AT_RECURSIVE = 0x8000
AT_EMPTY_PATH = 0x1000
FROM_AND_TO_DESCRIPTORS = 0x04 | 0x40
READ_ONLY = 1
NO_OTHER_USERS = 2
NO_DEVICES = 4

PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

FAILED = 126
TOO_OLD = "the kernel is older than Linux 5.12"

_LIBC = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    with open(int(arguments[0]), "rb") as file:  # noqa: PTH123
        plan: dict[str, Any] = marshal.load(file)  # noqa: S302 - from our own parent
    program = arguments[1:]
    # Python ignores these two signals; a command expects to be killed by them.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        _enter_namespaces()
        _lay_out(plan["roots"], plan["etc"])
        os.execve(program[0], program, os.environ)  # noqa: S606
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"sandbox: {where}{error.strerror}\n")
        sys.exit(FAILED)


def _enter_namespaces() -> None:
    """Enter new user and mount namespaces, so that later mounts are private; needs no privileges."""
    user, group = os.getuid(), os.getgid()
    _check_result(_LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    _write("/proc/self/setgroups", b"deny")
    _write("/proc/self/uid_map", b"%d %d 1" % (user, user))
    _write("/proc/self/gid_map", b"%d %d 1" % (group, group))
    _mount(None, "/", None, MS_REC | MS_PRIVATE)


def _lay_out(roots: list[tuple[str, int, bool, dict[str, Any]]], etc: list[str]) -> None:
    # All trees are cloned before anything is mounted over one of them.
    trees = [_root(path, is_writable=is_writable) for path, _, is_writable, _ in roots]
    _mount("staging", STAGING, "tmpfs", 0)
    os.mkdir(FOLDER, 0o755)  # noqa: PTH102
    _lay_out_etc(etc)
    for number, (path, outer, _, closed) in enumerate(roots):
        tree = trees[number]
        mount_point = (
            _make_mount_point(str(number), tree)
            if outer < 0
            else _inside(trees[outer], roots[outer], path)
        )
        _attach(tree, mount_point)
        _close(tree, closed)
        if path.startswith("/etc/"):
            # Bubblewrap cannot make a mount point for it in a read-only folder.
            os.close(_make_mount_point(path[1:], tree))


def _lay_out_etc(paths: list[str]) -> None:
    os.mkdir(ETC, 0o755)  # noqa: PTH102
    for path in paths:
        # Links are followed: they belong to the machine.
        try:
            found = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            found = os.open(path, os.O_PATH | os.O_CLOEXEC)
            _show(path, found)
        else:
            status = os.fstat(found)
            if stat.S_ISREG(status.st_mode):
                _write(_place(path[1:]), os.read(found, status.st_size))
            else:
                _show(path, found)
        os.close(found)


def _show(path: str, found: int) -> None:
    tree = _tree(found)
    _set(tree, READ_ONLY | NO_OTHER_USERS | NO_DEVICES)
    mount_point = _make_mount_point(path[1:], tree)
    _attach(tree, mount_point)
    os.close(mount_point)
    os.close(tree)


def _root(path: str, *, is_writable: bool) -> int:
    try:
        tree = _tree(_open_below(os.open("/", PATH_FLAGS), path))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    if not is_writable:
        _set(tree, READ_ONLY)
    return tree


def _make_mount_point(name: str, tree: int) -> int:
    """Make a file or folder to mount a tree on in the staging folder; return its descriptor."""
    mount_point = _place(name)
    if not stat.S_ISDIR(os.fstat(tree).st_mode):
        _write(mount_point, b"")
    elif not os.path.lexists(mount_point):
        os.mkdir(mount_point, 0o755)  # noqa: PTH102
    return os.open(mount_point, PATH_FLAGS)


def _place(name: str) -> str:
    """Return a path in the staging folder, after making the folders on the way."""
    place = f"{STAGING}/{name}"
    if name.count("/") > 1:
        os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)  # noqa: PTH103, PTH120
    return place


def _inside(tree: int, outer: tuple[str, int, bool, dict[str, Any]], path: str) -> int:
    return _open_below(os.dup(tree), os.path.relpath(path, outer[0]))


def _open_below(folder: int, path: str) -> int:
    """Return a descriptor of a path below an open directory, which is closed."""
    for name in path.split("/"):
        if name:
            found = os.open(name, PATH_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = found
    if stat.S_ISLNK(os.fstat(folder).st_mode):
        raise OSError(errno.ELOOP, "has become a symbolic link", path)
    return folder


def _close(folder: int, closed: dict[str, Any]) -> None:
    for name, (closing, content, below) in closed.items():
        try:
            descriptor = os.open(name, PATH_FLAGS, dir_fd=folder)
        except PermissionError:
            # The folder's owner could grant himself access, and the path would no longer be closed.
            _set(folder, READ_ONLY)
            continue
        except (FileNotFoundError, NotADirectoryError):
            if closing == PLACEHOLDER:
                raise
            continue
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(mode):
            if closing == PLACEHOLDER:
                raise OSError(errno.ELOOP, "has become a symbolic link", name)
        else:
            tree = _closing(closing, content, descriptor, mode)
            _attach(tree, descriptor)
            _close(tree, below)
            os.close(tree)
        os.close(descriptor)


def _closing(closing: str, content: bytes | None, descriptor: int, mode: int) -> int:
    """Return the mount that closes a path, to be attached to it."""
    if closing in (COVER, PLACEHOLDER):
        cover = _cover(content, mode)
        tree = _tree(cover)
        os.close(cover)
        _set(tree, READ_ONLY | NO_DEVICES)
        return tree
    tree = _tree(descriptor)
    if closing == KEEP:
        _set(tree, READ_ONLY)
    return tree


def _cover(content: bytes | None, mode: int) -> int:
    if stat.S_ISDIR(mode):
        return os.open(FOLDER, PATH_FLAGS)
    if content is None:
        return os.open(DEV_NULL, PATH_FLAGS)
    cover = f"{FILE}.{content.hex()}"
    _write(cover, content)
    return os.open(cover, PATH_FLAGS)


def _tree(descriptor: int) -> int:
    """Return a detached copy of the mounts at and below a path."""
    flags = OPEN_TREE_CLONE | AT_RECURSIVE | AT_EMPTY_PATH | os.O_CLOEXEC
    return _check_result(_LIBC.syscall(OPEN_TREE, descriptor, b"", flags))


def _set(tree: int, attributes: int) -> None:
    changes = struct.pack("=QQQQ", attributes, 0, 0, 0)
    flags = AT_RECURSIVE | AT_EMPTY_PATH
    _check_result(_LIBC.syscall(MOUNT_SETATTR, tree, b"", flags, changes, len(changes)))


def _attach(tree: int, descriptor: int) -> None:
    _check_result(_LIBC.syscall(MOVE_MOUNT, tree, b"", descriptor, b"", FROM_AND_TO_DESCRIPTORS))


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    names = (None if name is None else name.encode() for name in (source, target, kind))
    _check_result(_LIBC.mount(*names, ctypes.c_ulong(flags), None))


def _write(path: str, data: bytes) -> None:
    # Called dozens of times per command; a file object would take twice as many system calls.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.write(file, data)
    os.close(file)


def _check_result(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        reason = TOO_OLD if number == errno.ENOSYS else os.strerror(number)
        raise OSError(number, reason)
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
