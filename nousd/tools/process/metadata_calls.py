"""Decides a sandboxed command's calls that change the mode, the times or the owner of a file.

Landlock has no right for these, so the command's filter (``nousd.tools.sandbox.seccomp``) makes them
wait until the supervisor has answered (``call_decider``). No call is left to the kernel: the supervisor
opens the path as the command would, checks the real path of the opened file, and acts on its own
descriptor.

- Mode and times can be changed where the command may write anyway, also through a descriptor.
- The owner can be "changed" to the current one, as programs do that unpack or install. The only effect,
  and only where the command may write, is the one it has without a sandbox: the setgid bit is cleared.

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
"""The value of a user or group that is not to be changed."""

OWN_DESCRIPTORS = frozenset({b"/proc/self/fd", b"/proc/thread-self/fd", b"/dev/fd"})
"""Folders by which C libraries name a descriptor for calls that take only paths. In the supervisor they
hold its own descriptors."""

DIGITS_MAX = 9


class Form:
    """What a call changes, and the indexes of its arguments.

    Args:
        change: ``mode``, ``times`` or ``owner``.
        value: index of the new value.
        folder: index of a descriptor: of the folder that the path is relative to or, without a path, of
            the file.
        path: index of the address of the path.
        flags: index of the AT_ flags.
        follows: whether a link at the end of the path is followed, unless the flags forbid it.
        packing: ``struct`` format of the times.
        has_microseconds: whether the second part of each time is in microseconds, not nanoseconds.
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
        """Carry out a call.

        Raises:
            OSError: it is refused, by the supervisor or by the kernel.
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
    """Return a descriptor (O_PATH) of the file that a call changes, and the times that it sets."""
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
    """Return the caller's descriptor that a path names; None if the path does not name one."""
    folder, _, name = path.rpartition(b"/")
    is_descriptor = folder in OWN_DESCRIPTORS and name.isdigit() and len(name) <= DIGITS_MAX
    return int(name) if is_descriptor else None


def _read_times(call: Call, form: Form) -> bytes | None:
    """Return two ``struct timespec``; None for the current time."""
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


def _require_owner(file: int, call: Call, address: int) -> None:
    status = os.fstat(file)
    user, group = (call.arguments[address + offset] & 0xFFFFFFFF for offset in (0, 1))
    if user not in (UNCHANGED, status.st_uid) or group not in (UNCHANGED, status.st_gid):
        raise error(errno.EPERM)


def _drop_special_bits(file: int) -> None:
    """Clear the bits that the kernel clears when the owner of a file is set, even to the current one."""
    # The kernel refuses this for files of other users, which stay unchanged.
    LIBC.fchownat(file, b"", -1, -1, AT_EMPTY_PATH)


def _set_mode(file: int, mode: int) -> None:
    # The filter refuses this already; checked again in case the filter ever changes.
    if mode & stat.S_ISUID:
        raise error(errno.EPERM)
    check_result(LIBC.syscall(FCHMODAT2, file, b"", mode & 0o7777, AT_EMPTY_PATH))


def _set_times(file: int, times: bytes | None) -> None:
    number = UTIMENSAT[os.uname().machine]
    check_result(LIBC.syscall(number, file, b"", times, AT_EMPTY_PATH))
