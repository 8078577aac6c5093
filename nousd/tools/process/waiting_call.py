"""A system call of a sandboxed command that waits for the supervisor's answer, and its arguments.

Everything about a call is read once: its arguments, its paths, the targets of its descriptors. After
that the caller must still be alive, because otherwise its process id may have been reused. From then on
only the supervisor's own descriptors count: the memory, descriptors and working directory of the
caller, which may change meanwhile, are not read again.

Loaded by the fork server, and so standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from contextlib import ExitStack

IS_VALID = 0x40082102  # SECCOMP_IOCTL_NOTIF_ID_VALID
NOTIFICATION_BYTES = 80

OPENAT2 = 437

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000

RESOLVE_NO_XDEV = 1
RESOLVE_NO_MAGICLINKS = 2
RESOLVE_NO_SYMLINKS = 4
RESOLVE_BENEATH = 8

PATH_BYTES_MAX = 4096
ADDRESS_MAX = (1 << 63) - 1
STATUS_BYTES_MAX = 4096

LIBC = ctypes.CDLL(None, use_errno=True)


class Answer:
    """The answer to a call that does not fail.

    Args:
        is_continued: whether the kernel carries out the call itself.
        descriptor: the supervisor's descriptor that the caller gets a copy of; -1 if none.
        is_inherited: whether that copy stays open when the caller executes a program.
    """

    def __init__(
        self, *, is_continued: bool = False, descriptor: int = -1, is_inherited: bool = False
    ) -> None:
        self.is_continued = is_continued
        self.descriptor = descriptor
        self.is_inherited = is_inherited


DONE = Answer()

CONTINUED = Answer(is_continued=True)


class Call:
    """A waiting call.

    Args:
        listener: the descriptor that delivered it.
        notification: its ``struct seccomp_notif``.

    ``thread`` is the id of the calling thread.
    """

    def __init__(self, listener: int, notification: bytearray) -> None:
        fields: tuple[int, ...] = struct.unpack("=QIIiIQ6Q", notification)
        self.id, self.thread, _, self.number, *_ = fields
        self.arguments = fields[6:]
        self._listener = listener

    def read_unsigned(self, index: int) -> int:
        """Return the lower half of an argument, which the kernel uses for flags and modes."""
        return self.arguments[index] & 0xFFFFFFFF

    def read_signed(self, index: int) -> int:
        """Return the lower half of an argument, which the kernel uses for a descriptor."""
        number = self.read_unsigned(index)
        return number - (1 << 32) if number >> 31 else number

    def require_alive(self) -> None:
        """Raise OSError if the caller is gone, because its process id may have been reused."""
        fcntl.ioctl(self._listener, IS_VALID, struct.pack("=Q", self.id))

    def path(self, index: int) -> bytes | None:
        """Return the path that an argument points to; None for a null pointer."""
        address = self.arguments[index]
        if address == 0:
            return None
        text, end, _ = self.memory(address, PATH_BYTES_MAX).partition(b"\0")
        if not end:
            raise error(errno.ENAMETOOLONG if len(text) == PATH_BYTES_MAX else errno.EFAULT)
        return text

    def memory(self, address: int, size: int) -> bytes:
        """Read the caller's memory, up to the first unmapped byte."""
        if address > ADDRESS_MAX:
            raise error(errno.EFAULT)
        with OpenDescriptor(f"/proc/{self.thread}/mem", os.O_RDONLY) as memory:
            try:
                return os.pread(memory, size, address)
            except OSError:
                raise error(errno.EFAULT) from None

    def take_umask(self) -> None:
        """Adopt the caller's umask for the next file that the supervisor makes."""
        with OpenDescriptor(f"/proc/{self.thread}/status", os.O_RDONLY) as status:
            text = os.read(status, STATUS_BYTES_MAX)
        self.require_alive()
        # Only the line above holds the program's name, and line ends in it are escaped.
        os.umask(int(text.partition(b"\nUmask:")[2].split(None, 1)[0], 8))

    def open_start(self, descriptor: int) -> OpenDescriptor:
        """Open the target of a descriptor of the caller, or its working directory."""
        if descriptor == AT_FDCWD:
            return OpenDescriptor(f"/proc/{self.thread}/cwd", os.O_PATH)
        if descriptor < 0:
            raise error(errno.EBADF)
        try:
            return OpenDescriptor(f"/proc/{self.thread}/fd/{descriptor}", os.O_PATH)
        except FileNotFoundError:
            raise error(errno.EBADF) from None

    def names(
        self, stack: ExitStack, *places: tuple[int | None, int]
    ) -> list[tuple[int, bytes]] | None:
        """Return paths of the caller, each with the folder that it is relative to.

        Args:
            places: indexes of the arguments with the caller's descriptor of that folder, None if there
                is none, and with the address of the path.

        Returns:
            (descriptor, path) of each; None if one cannot be read.
        """
        try:
            found = [self._name(folder, path, stack) for folder, path in places]
            self.require_alive()
        except OSError:
            return None
        return found if all(path for _, path in found) else None

    def _name(self, folder: int | None, index: int, stack: ExitStack) -> tuple[int, bytes]:
        path = self.path(index) or b""
        if path.startswith(b"/"):
            return AT_FDCWD, path
        descriptor = AT_FDCWD if folder is None else self.read_signed(folder)
        return stack.enter_context(self.open_start(descriptor)), path


class OpenDescriptor:
    """A descriptor that is closed at the end of a block.

    Args:
        start: descriptor of the folder that the path is relative to. Magic links, such as those in
            /proc, are then not followed.
        resolving: further RESOLVE_ flags for a path with a start.
    """

    def __init__(
        self,
        path: str | bytes,
        flags: int,
        start: int | None = None,
        *,
        follows: bool = True,
        resolving: int = 0,
    ) -> None:
        flags |= os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW)
        if start is None:
            self._descriptor = os.open(path, flags)
            return
        open_how = struct.pack("=QQQ", flags, 0, RESOLVE_NO_MAGICLINKS | resolving)
        self._descriptor = check_result(LIBC.syscall(OPENAT2, start, path, open_how, len(open_how)))

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def place_of(file: int) -> bytes:
    """Return the real path of an opened file."""
    return os.readlink(b"/proc/self/fd/%d" % file)  # noqa: PTH115


def check_result(result: int) -> int:
    """Return the result of a function of the C library.

    Raises:
        OSError: the result is negative.
    """
    if result < 0:
        raise error(ctypes.get_errno())
    return result


def error(number: int) -> OSError:
    """Return the exception for an error number."""
    return OSError(number, os.strerror(number))
