"""Decides a sandboxed command's calls that change the mode, the times or the owner of a file.

Landlock has no right for these, so the command's filter (``nousd.tools.sandbox.seccomp``) lets them wait
until the supervisor has answered (``call_decider``). Nothing is left to the command's own call: the
supervisor opens the path itself as the command would, looks where the opened file really lies, and acts
on its own descriptor.

- Mode and times change where the command may write anyway, also by a descriptor.
- An owner can be "changed" to the one that the file has, as programs do that unpack or install. All that
  this does, and only where the command may write, is what it does outside: the setgid bit goes.

Loaded by the fork server, and so standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from contextlib import ExitStack

from nousd.tools.process.waiting_call import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    DONE,
    LIBC,
    Answer,
    Call,
    OpenDescriptor,
    check_result,
    error,
)
from nousd.tools.process.writable_places import WritablePlaces

FCHMODAT2 = 452
UTIMENSAT = {"x86_64": 280, "aarch64": 88}

AT_SYMLINK_NOFOLLOW = 0x100

MICROSECONDS = 1_000_000
UNCHANGED = 0xFFFFFFFF
"""Means "leave it" in place of a user or group."""

OWN_DESCRIPTORS = frozenset({b"/proc/self/fd", b"/proc/thread-self/fd", b"/dev/fd"})
"""Where C libraries name a descriptor if a call takes only paths. We would find our own there."""

DIGITS_MAX = 9


class Form:
    """Where a call has its arguments.

    Args:
        change: ``mode``, ``times`` or ``owner``.
        value: of what is to be set.
        folder: of a descriptor: of the folder from which the path leads or, without a path, of the file.
        path: of the path's address.
        flags: of the AT_ flags.
        follows: whether a link at the end of the path is followed; flags may say otherwise.
        packing: of the times.
        has_microseconds: whether the second part of each time counts these, not nanoseconds.
    """

    def __init__(
        self,
        change: str,
        value: int,
        *,
        folder: int | None = None,
        path: int | None = None,
        flags: int | None = None,
        follows: bool = True,
        packing: str = "=4q",
        has_microseconds: bool = False,
    ) -> None:
        self.change = change
        self.value = value
        self.folder = folder
        self.path = path
        self.flags = flags
        self.follows = follows
        self.packing = packing
        self.has_microseconds = has_microseconds


FORMS = {
    "chmod": Form("mode", 1, path=0),
    "fchmod": Form("mode", 1, folder=0),
    "fchmodat": Form("mode", 2, folder=0, path=1),
    "fchmodat2": Form("mode", 2, folder=0, path=1, flags=3),
    "chown": Form("owner", 1, path=0),
    "lchown": Form("owner", 1, path=0, follows=False),
    "fchown": Form("owner", 1, folder=0),
    "fchownat": Form("owner", 2, folder=0, path=1, flags=4),
    "utime": Form("times", 1, path=0, packing="=2q"),
    "utimes": Form("times", 1, path=0, has_microseconds=True),
    "futimesat": Form("times", 2, folder=0, path=1, has_microseconds=True),
    "utimensat": Form("times", 2, folder=0, path=1, flags=3),
}


class MetadataCalls:
    """Carries out the calls of one command."""

    def __init__(self, places: WritablePlaces) -> None:
        self._places = places

    def answer(self, form: Form, call: Call) -> Answer:
        """Do what a call asks for.

        Raises:
            OSError: it is refused, by us or by the kernel.
        """
        with ExitStack() as stack:
            file, times = _open_target(call, form, stack)
            if form.change == "owner":
                _require_owner(file, call, form.value)
                if self._places.may_change(file):
                    _drop_special_bits(file)
                return DONE
            if not self._places.may_change(file):
                raise error(errno.EPERM)
            if form.change == "mode":
                _set_mode(file, call.arguments[form.value])
            else:
                _set_times(file, times)
            return DONE


def _open_target(call: Call, form: Form, stack: ExitStack) -> tuple[int, bytes | None]:
    """Return a descriptor (O_PATH) of the file that a call is about, and the times it gives."""
    flags = 0 if form.flags is None else call.read_unsigned(form.flags)
    if flags & ~(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH):
        raise error(errno.EINVAL)
    path = None if form.path is None else call.path(form.path)
    times = _read_times(call, form) if form.change == "times" else None
    follows = form.follows and not flags & AT_SYMLINK_NOFOLLOW
    descriptor = AT_FDCWD if form.folder is None else call.read_signed(form.folder)
    if path is None and descriptor == AT_FDCWD:
        raise error(errno.EBADF if form.path is None else errno.EFAULT)
    if path is not None and follows and (own := _own_descriptor(path)) is not None:
        path, descriptor = None, own
    if path == b"" and flags & AT_EMPTY_PATH:
        path = None
    start = AT_FDCWD
    if path is None or not path.startswith(b"/"):
        start = stack.enter_context(call.open_start(descriptor))
    call.require_alive()
    if path is None:
        return start, times
    return stack.enter_context(OpenDescriptor(path, os.O_PATH, start, follows=follows)), times


def _own_descriptor(path: bytes) -> int | None:
    """Return the descriptor that a path means to its caller; None if it is another path."""
    folder, _, name = path.rpartition(b"/")
    is_one = folder in OWN_DESCRIPTORS and name.isdigit() and len(name) <= DIGITS_MAX
    return int(name) if is_one else None


def _read_times(call: Call, form: Form) -> bytes | None:
    """Return two ``struct timespec``; None for now."""
    address = call.arguments[form.value]
    if address == 0:
        return None
    size = struct.calcsize(form.packing)
    data = call.memory(address, size)
    if len(data) < size:
        raise error(errno.EFAULT)
    numbers = struct.unpack(form.packing, data)
    if len(numbers) == 2:
        return struct.pack("=4q", numbers[0], 0, numbers[1], 0)
    if not form.has_microseconds:
        return data
    if not all(0 <= part < MICROSECONDS for part in numbers[1::2]):
        raise error(errno.EINVAL)
    return struct.pack("=4q", numbers[0], numbers[1] * 1000, numbers[2], numbers[3] * 1000)


def _require_owner(file: int, call: Call, place: int) -> None:
    status = os.fstat(file)
    user, group = (call.arguments[place + offset] & 0xFFFFFFFF for offset in (0, 1))
    if user not in (UNCHANGED, status.st_uid) or group not in (UNCHANGED, status.st_gid):
        raise error(errno.EPERM)


def _drop_special_bits(file: int) -> None:
    """Do what else the kernel does when a file gets an owner, even the one that it has."""
    # It refuses this for files of other users, which stay as they are.
    LIBC.fchownat(file, b"", -1, -1, AT_EMPTY_PATH)


def _set_mode(file: int, mode: int) -> None:
    # The filter refuses it before; it must stay so if that should ever change.
    if mode & stat.S_ISUID:
        raise error(errno.EPERM)
    check_result(LIBC.syscall(FCHMODAT2, file, b"", mode & 0o7777, AT_EMPTY_PATH))


def _set_times(file: int, times: bytes | None) -> None:
    number = UTIMENSAT[os.uname().machine]
    check_result(LIBC.syscall(number, file, b"", times, AT_EMPTY_PATH))
