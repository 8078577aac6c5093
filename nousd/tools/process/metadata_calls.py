"""Decides a sandboxed command's calls that change the mode, the times or the owner of a file.

Landlock has no right for these, so the command's filter (``nousd.tools.sandbox.seccomp``) lets them wait
until the supervisor has answered. Nothing is left to the command's own call: the supervisor reads its
arguments once, opens the path itself as the command would, looks where the opened file really lies, and
acts on its own descriptor. Whatever the command changes meanwhile, its memory, its descriptors or the
path, is not looked at again.

- Mode and times change where the command may write anyway, also by a descriptor.
- An owner can be "changed" to the one that the file has, as programs do that unpack or install. All that
  this does, and only where the command may write, is what it does outside: the setgid bit goes.

It runs in a thread of the supervisor, which goes on with its duties whatever the calls are and however
many. The thread has no capabilities, as the command has none, so the kernel refuses it what it would
refuse the command. When it ends, for whatever reason, calls fail with ENOSYS.

Loaded by the fork server, and so standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import marshal
import os
import select
import signal
import socket
import stat
import struct
from contextlib import ExitStack
from typing import Any

RECEIVE = 0xC0502100  # SECCOMP_IOCTL_NOTIF_RECV
SEND = 0xC0182101  # SECCOMP_IOCTL_NOTIF_SEND
IS_VALID = 0x40082102  # SECCOMP_IOCTL_NOTIF_ID_VALID
NOTIFICATION_BYTES = 80

OPENAT2 = 437
FCHMODAT2 = 452
UTIMENSAT = {"x86_64": 280, "aarch64": 88}
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION = 0x20080522

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000
RESOLVE_NO_MAGICLINKS = 2

PATH_BYTES_MAX = 4096
ADDRESS_MAX = (1 << 63) - 1
MICROSECONDS = 1_000_000
UNCHANGED = 0xFFFFFFFF
"""Means "leave it" in place of a user or group."""

OWN_DESCRIPTORS = frozenset({b"/proc/self/fd", b"/proc/thread-self/fd", b"/dev/fd"})
"""Where C libraries name a descriptor if a call takes only paths. We would find our own there."""

DIGITS_MAX = 9

_LIBC = ctypes.CDLL(None, use_errno=True)


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


class Call:
    """A waiting call; ``thread`` is who made it."""

    def __init__(self, notification: bytearray) -> None:
        fields: tuple[int, ...] = struct.unpack("=QIIiIQ6Q", notification)
        self.id, self.thread, _, self.number, *_ = fields
        self.arguments = fields[6:]

    def signed(self, place: int) -> int:
        """Return the lower half of an argument, in which the kernel looks for a descriptor."""
        number = self.arguments[place] & 0xFFFFFFFF
        return number - (1 << 32) if number >> 31 else number


def decide_calls(receiver: socket.socket) -> None:
    """Wait for the listener, then decide calls until nobody is left that could make one.

    Args:
        receiver: from where ``_landlock_main`` sends the listener and its plan.
    """
    # They are for the thread that waits for them, and would interrupt this one's calls.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with receiver:
        _, received, _, _ = socket.recv_fds(receiver, 1, 2)
    if not received:
        return
    listener, plan = received
    try:
        with open(plan, "rb") as file:  # noqa: PTH123
            file.seek(0)
            wanted: dict[str, Any] = marshal.load(file)  # noqa: S302 - of our own daemon
        _drop_capabilities()
        Decider(listener, wanted["calls"], frozenset(wanted["writable"])).run()
    finally:
        os.close(listener)


def _drop_capabilities() -> None:
    """Make the kernel judge this thread as it judges the command; the others keep what they have."""
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    _checked(_LIBC.syscall(CAPSET[os.uname().machine], header, bytes(24)))


class Decider:
    """The calls of one command.

    Args:
        listener: of the command's filter.
        calls: number -> name of the calls that come.
        writable: real paths at and below which the command may write.
    """

    def __init__(self, listener: int, calls: dict[int, str], writable: frozenset[bytes]) -> None:
        self._listener = listener
        self._calls = calls
        self._writable = writable

    def run(self) -> None:
        """Decide one call after the other."""
        while (call := self._next()) is not None:
            try:
                self._carry_out(call)
                result = 0
            except OSError as error:
                result = -(error.errno or errno.EPERM)
            try:
                fcntl.ioctl(self._listener, SEND, struct.pack("=QqiI", call.id, 0, result, 0))
            except FileNotFoundError:  # who called is dead
                continue

    def _next(self) -> Call | None:
        while True:
            notification = bytearray(NOTIFICATION_BYTES)
            try:
                fcntl.ioctl(self._listener, RECEIVE, notification)
                return Call(notification)
            except FileNotFoundError:  # who called is dead, or all are
                poll = select.poll()
                poll.register(self._listener, 0)
                if poll.poll(0):
                    return None

    def _carry_out(self, call: Call) -> None:
        """Do what a call asks for.

        Raises:
            OSError: it is refused, by us or by the kernel.
        """
        form = FORMS[self._calls[call.number]]
        with ExitStack() as stack:
            file, times = self._opened(call, form, stack)
            if form.change == "owner":
                _require_owner(file, call, form.value)
                if self._is_writable(file):
                    _drop_special_bits(file)
                return
            if not self._is_writable(file):
                raise _error(errno.EPERM)
            if form.change == "mode":
                _set_mode(file, call.arguments[form.value])
            else:
                _set_times(file, times)

    def _opened(self, call: Call, form: Form, stack: ExitStack) -> tuple[int, bytes | None]:
        """Return a descriptor (O_PATH) of the file that a call is about, and the times it gives."""
        flags = 0 if form.flags is None else call.arguments[form.flags] & 0xFFFFFFFF
        if flags & ~(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH):
            raise _error(errno.EINVAL)
        path = None if form.path is None else _read_path(call, call.arguments[form.path])
        times = _read_times(call, form) if form.change == "times" else None
        follows = form.follows and not flags & AT_SYMLINK_NOFOLLOW
        descriptor = AT_FDCWD if form.folder is None else call.signed(form.folder)
        if path is None and descriptor == AT_FDCWD:
            raise _error(errno.EBADF if form.path is None else errno.EFAULT)
        if path is not None and follows and (own := _own_descriptor(path)) is not None:
            path, descriptor = None, own
        if path == b"" and flags & AT_EMPTY_PATH:
            path = None
        start = AT_FDCWD
        if path is None or not path.startswith(b"/"):
            start = stack.enter_context(_started(call.thread, descriptor))
        # From here on nothing of the process is looked at: what was opened until now was its own.
        self._require_alive(call)
        if path is None:
            return start, times
        return stack.enter_context(_Opened(path, os.O_PATH, start, follows=follows)), times

    def _require_alive(self, call: Call) -> None:
        """Refuse if the caller is gone, and its number may be another process's."""
        fcntl.ioctl(self._listener, IS_VALID, struct.pack("=Q", call.id))

    def _is_writable(self, file: int) -> bool:
        """Return whether the command may write a file, or in a directory."""
        place = os.readlink(b"/proc/self/fd/%d" % file)  # noqa: PTH115
        while place:
            if place in self._writable:
                return True
            place = place.rpartition(b"/")[0]
        return False


class _Opened:
    """A descriptor that is closed at the end of a block.

    Args:
        start: of the folder from which a path leads. What lies in other processes, or in our own, is
            not followed from there.
    """

    def __init__(
        self, path: str | bytes, flags: int, start: int | None = None, *, follows: bool = True
    ) -> None:
        flags |= os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW)
        if start is None:
            self._descriptor = os.open(path, flags)
            return
        how = struct.pack("=QQQ", flags, 0, RESOLVE_NO_MAGICLINKS)
        self._descriptor = _checked(_LIBC.syscall(OPENAT2, start, path, how, len(how)))

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _started(thread: int, descriptor: int) -> _Opened:
    """Open what a descriptor of a process means, or its working directory."""
    if descriptor == AT_FDCWD:
        return _Opened(f"/proc/{thread}/cwd", os.O_PATH)
    if descriptor < 0:
        raise _error(errno.EBADF)
    try:
        return _Opened(f"/proc/{thread}/fd/{descriptor}", os.O_PATH)
    except FileNotFoundError:
        raise _error(errno.EBADF) from None


def _own_descriptor(path: bytes) -> int | None:
    """Return the descriptor that a path means to its caller; None if it is another path."""
    folder, _, name = path.rpartition(b"/")
    is_one = folder in OWN_DESCRIPTORS and name.isdigit() and len(name) <= DIGITS_MAX
    return int(name) if is_one else None


def _read_path(call: Call, address: int) -> bytes | None:
    """Return None if there is none."""
    if address == 0:
        return None
    text, end, _ = _read(call, address, PATH_BYTES_MAX).partition(b"\0")
    if not end:
        raise _error(errno.ENAMETOOLONG if len(text) == PATH_BYTES_MAX else errno.EFAULT)
    return text


def _read_times(call: Call, form: Form) -> bytes | None:
    """Return two ``struct timespec``; None for now."""
    address = call.arguments[form.value]
    if address == 0:
        return None
    size = struct.calcsize(form.packing)
    data = _read(call, address, size)
    if len(data) < size:
        raise _error(errno.EFAULT)
    numbers = struct.unpack(form.packing, data)
    if len(numbers) == 2:
        return struct.pack("=4q", numbers[0], 0, numbers[1], 0)
    if not form.has_microseconds:
        return data
    if not all(0 <= part < MICROSECONDS for part in numbers[1::2]):
        raise _error(errno.EINVAL)
    return struct.pack("=4q", numbers[0], numbers[1] * 1000, numbers[2], numbers[3] * 1000)


def _read(call: Call, address: int, size: int) -> bytes:
    """Read the memory of who calls, up to what is not there."""
    if address > ADDRESS_MAX:
        raise _error(errno.EFAULT)
    with _Opened(f"/proc/{call.thread}/mem", os.O_RDONLY) as memory:
        try:
            return os.pread(memory, size, address)
        except OSError:
            raise _error(errno.EFAULT) from None


def _require_owner(file: int, call: Call, place: int) -> None:
    status = os.fstat(file)
    user, group = (call.arguments[place + offset] & 0xFFFFFFFF for offset in (0, 1))
    if user not in (UNCHANGED, status.st_uid) or group not in (UNCHANGED, status.st_gid):
        raise _error(errno.EPERM)


def _drop_special_bits(file: int) -> None:
    """Do what else the kernel does when a file gets an owner, even the one that it has."""
    # It refuses this for files of other users, which stay as they are.
    _LIBC.fchownat(file, b"", -1, -1, AT_EMPTY_PATH)


def _set_mode(file: int, mode: int) -> None:
    # The filter refuses it before; it must stay so if that should ever change.
    if mode & stat.S_ISUID:
        raise _error(errno.EPERM)
    _checked(_LIBC.syscall(FCHMODAT2, file, b"", mode & 0o7777, AT_EMPTY_PATH))


def _set_times(file: int, times: bytes | None) -> None:
    number = UTIMENSAT[os.uname().machine]
    _checked(_LIBC.syscall(number, file, b"", times, AT_EMPTY_PATH))


def _checked(result: int) -> int:
    if result < 0:
        raise _error(ctypes.get_errno())
    return result


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
