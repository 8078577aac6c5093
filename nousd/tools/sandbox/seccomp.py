"""The filter of system calls for programs in a sandbox, which the kernel runs (classic BPF).

It refuses calls that leave a sandbox or reach objects other than files: namespaces and mounts, other
processes' memory, keys, kernel modules, io_uring (whose operations no filter sees), input into a
terminal, and sockets of all but the given families. Unix sockets (AF_UNIX) are never allowed: their
names lie in folders that a program may see, and Landlock does not check those elsewhere. ``socketpair``
is allowed for pairs that stay connected: a datagram socket could send to any other socket, or connect
to it.

It also refuses to make setuid files, which outside of the sandbox would run as their owner for every
user of the machine. The setgid bit is allowed: on a folder it means that new files belong to the
folder's group, and a call does not say whether it is about a file or a folder.

Landlock has no right for the mode, the times and the owner of a file: in a sandbox without mounts of its
own, a program could change them on all files of its user. There the supervisor decides these calls
(``nousd.tools.process.metadata_calls``), and opens the path itself; extended attributes are reported as
unsupported. Nor does Landlock have a right to make files in a folder that does not allow replacing the
folder's config: where that matters, the supervisor also decides calls that make, rename and remove
entries (``nousd.tools.process.entry_calls``). Calls that open a file only for reading wait only if a
folder contains a path that must not be read, because Landlock does not let a command read files that are
made there later.

All calls with the numbers of another architecture, such as 32-bit calls on a 64-bit machine, are
refused. ``clone3`` and ``openat2`` are reported as missing, because a filter cannot read their flags,
which lie in memory; programs then use ``clone`` and ``openat``. All other refused calls give EPERM,
which programs can report.

The numbers are the kernel's, for x86_64 and aarch64; on other machines there is no filter.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_IF_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_REFUSE: Final = _ERRNO | errno.EPERM
_DOES_NOT_EXIST: Final = _ERRNO | errno.ENOSYS
_UNSUPPORTED: Final = _ERRNO | errno.EOPNOTSUPP
_ASK: Final = 0x7FC00000  # SECCOMP_RET_USER_NOTIF

# Offsets in struct seccomp_data. Those of arguments are of the lower half: both machines are
# little-endian.
_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
_ARGUMENTS: Final = 16

_X32: Final = 0x40000000
"""The bit in the numbers of x32 calls, which x86_64 kernels accept under the same architecture."""

NEW_NAMESPACES: Final = 0x7E020080
"""CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET and TIME, in the flags of clone and unshare."""

_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C

FLAGS_OF_FILES: Final = (
    *(0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40086604),
    *(0x40806685, 0x800C6613),
    *(0x50009401, 0x5000940E, 0x5000940F, 0x50009417, 0x50009418, 0x5000943F),
    *(0x4008941A, 0xC0C89425),
)
"""``ioctl`` requests to file systems for which the file's owner needs only a descriptor for reading:
FS_IOC_SETFLAGS and its 32-bit form, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION and that of ext4;
FS_IOC_ENABLE_VERITY, FS_IOC_SET_ENCRYPTION_POLICY; those of btrfs that make and remove subvolumes, and
change their flags and their origin."""

ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine -> its AUDIT_ARCH, and the index of its numbers in ``_Numbers``."""

_Numbers = tuple[int, int | None]
"""The numbers of one call on x86_64 and aarch64; None if it does not exist there."""

REFUSED: Final[dict[str, _Numbers]] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "acct": (163, 89),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
}
"""Calls that no program in a sandbox may make, whatever their arguments."""

SHARED_MEMORY_AND_QUEUES: Final[dict[str, _Numbers]] = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}
"""Calls for memory and queues that processes share without files, for sandboxes in the machine's own
namespaces."""

OF_A_PROCESS: Final[dict[str, tuple[_Numbers, dict[int, int]]]] = {
    "prlimit64": ((302, 261), {0: 0}),
    "setpriority": ((141, 140), {0: 0, 1: 0}),
    "ioprio_set": ((251, 30), {0: 1, 1: 0}),
    "sched_setaffinity": ((203, 122), {0: 0}),
    "sched_setattr": ((314, 274), {0: 0}),
    "sched_setparam": ((142, 118), {0: 0}),
    "sched_setscheduler": ((144, 119), {0: 0}),
}
"""Calls that can starve other processes of the same user, for sandboxes in the machine's own namespaces,
and the required values of some arguments: the call must be about a process, and that the caller."""

METADATA: Final[dict[str, _Numbers]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
"""Calls that change a file's mode, owner or times, by its path or by a descriptor, which may have been
opened for reading only."""

ATTRIBUTES: Final[dict[str, _Numbers]] = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
"""Calls that change attributes which programs accept as unsupported by a file system."""

ENTRIES: Final[dict[str, _Numbers]] = {
    "open": (2, None),
    "openat": (257, 56),
    "creat": (85, None),
    "truncate": (76, 45),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rmdir": (84, None),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "link": (86, None),
    "linkat": (265, 37),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
}
"""Calls that make, change or remove an entry of a folder by its path."""

MODES: Final = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "creat": 1,
    "mknod": 1,
    "mknodat": 2,
}
"""Calls that set the mode of a file -> the index of that argument."""

OPENING: Final = {"open": 1, "openat": 2}
"""Calls that set the mode of a file only if they make it -> the index of their flags; the mode is the
next argument."""

_CREATES: Final = 0x400040
"""O_CREAT and O_TMPFILE."""

_CREATES_OR_WRITES: Final = _CREATES | 0o3
"""O_CREAT, O_TMPFILE, O_WRONLY and O_RDWR."""

_RUNS_AS_OWNER: Final = 0o4000

_CLONE: Final[_Numbers] = (56, 220)
_CLONE3: Final[_Numbers] = (435, 435)
_OPENAT2: Final[_Numbers] = (437, 437)
_UNSHARE: Final[_Numbers] = (272, 97)
_IOCTL: Final[_Numbers] = (16, 29)
_SOCKET: Final[_Numbers] = (41, 198)
_SOCKETPAIR: Final[_Numbers] = (53, 199)

_NO_STREAM: Final = 0b1010
"""Bits of a socket type: SOCK_STREAM (1) and SOCK_SEQPACKET (5) have none of them, all other odd types
have one."""

INTERNET: Final = (socket.AF_INET, socket.AF_INET6)
"""Families of sockets for the network, or for the sandbox's own empty one."""


def why_not() -> str | None:
    """Return why there is no filter for this machine; None if there is one."""
    machine = platform.machine()
    if machine in ARCHITECTURES:
        return None
    return f"there are no numbers of system calls for {machine}"


def map_call_numbers(*, entries: bool) -> dict[int, str]:
    """Return number -> name of the calls in ``METADATA``, and if ``entries`` of those in ``ENTRIES``."""
    column = ARCHITECTURES[platform.machine()][1]
    calls = METADATA | ENTRIES if entries else METADATA
    return {
        number: name for name, numbers in calls.items() if (number := numbers[column]) is not None
    }


@lru_cache(maxsize=16)
def program(
    *,
    families: tuple[int, ...],
    shares_machine: bool = False,
    asks: bool = False,
    asks_about_entries: bool = False,
    asks_about_reading: bool = False,
    machine: str | None = None,
) -> bytes:
    """Return the filter, an array of ``struct sock_filter``.

    Args:
        families: the families of sockets that may be made.
        shares_machine: whether the program runs in the machine's own namespaces.
        asks: whether the holder of the filter's listener then decides the calls in ``METADATA``, which
            are refused otherwise.
        asks_about_entries: whether it also decides the calls in ``ENTRIES`` that do not open a file only
            for reading; they are allowed otherwise.
        asks_about_reading: whether it also decides those that do.
        machine: the machine of the filter; this one by default.
    """
    architecture, column = ARCHITECTURES[machine or platform.machine()]
    refused = {**REFUSED, **(SHARED_MEMORY_AND_QUEUES if shares_machine else {})}
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_IF_EQUAL, architecture, then=1),
        _step(_RETURN, _REFUSE),
        _step(_LOAD, _NUMBER),
        *_when(_IF_AT_LEAST, _X32, _REFUSE),
        *_when(_IF_EQUAL, _CLONE3[column], _DOES_NOT_EXIST),
        *_when(_IF_EQUAL, _OPENAT2[column], _DOES_NOT_EXIST),
    ]
    for numbers in refused.values():
        steps += _when(_IF_EQUAL, numbers[column], _REFUSE)
    for numbers in (_CLONE, _UNSHARE):
        steps += _call(numbers[column], 0, _when(_IF_ANY_BIT, NEW_NAMESPACES, _REFUSE), _ALLOW)
    verdicts = dict.fromkeys(METADATA if shares_machine else (), _ASK if asks else _REFUSE)
    verdicts |= dict.fromkeys(ENTRIES if asks_about_entries else (), _ASK)
    steps += _of_files(column, verdicts, _ASK if asks_about_reading else _ALLOW)
    for numbers in ATTRIBUTES.values() if shares_machine else ():
        steps += _when(_IF_EQUAL, numbers[column], _UNSUPPORTED)
    for numbers, arguments in OF_A_PROCESS.values() if shares_machine else ():
        steps += _only_with(numbers[column], arguments)
    keys = [*_when(_IF_EQUAL, _TIOCSTI, _REFUSE), *_when(_IF_EQUAL, _TIOCLINUX, _REFUSE)]
    for request in FLAGS_OF_FILES if shares_machine else ():
        keys += _when(_IF_EQUAL, request, _UNSUPPORTED)
    steps += _call(_IOCTL[column], 1, keys, _ALLOW)
    allowed = [step for family in families for step in _when(_IF_EQUAL, family, _ALLOW)]
    steps += _call(_SOCKET[column], 0, allowed, _REFUSE)
    steps += _within(_SOCKETPAIR[column], _pair())
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def _of_files(column: int, verdicts: Mapping[str, int], reading: int) -> Iterator[bytes]:
    """Yield the steps for calls that make or change files.

    Args:
        verdicts: name -> verdict on a call, unless it is refused anyway.
        reading: the verdict on a call that opens a file only for reading.
    """
    for name, numbers in (METADATA | ENTRIES).items():
        number, default = numbers[column], verdicts.get(name, _ALLOW)
        if number is None:
            continue
        if name in MODES:
            yield from _within(number, _mode(MODES[name], default))
        elif name in OPENING:
            yield from _within(number, _opening(OPENING[name], default, reading))
        elif name in verdicts:
            yield from _when(_IF_EQUAL, number, default)


def _call(number: int | None, argument: int, steps: Iterable[bytes], otherwise: int) -> list[bytes]:
    """Return the steps that test one argument of one call."""
    return _within(number, [_loading(argument), *steps, _step(_RETURN, otherwise)])


def _only_with(number: int | None, arguments: Mapping[int, int]) -> list[bytes]:
    """Return the steps that refuse one call unless its arguments have these values."""
    pairs = ((_loading(argument), _only(value)) for argument, value in arguments.items())
    body = [step for loading, only in pairs for step in (loading, *only)]
    return _within(number, [*body, _step(_RETURN, _ALLOW)])


def _mode(argument: int, default: int) -> list[bytes]:
    refusal = _when(_IF_ANY_BIT, _RUNS_AS_OWNER, _REFUSE)
    return [_loading(argument), *refusal, _step(_RETURN, default)]


def _opening(flags: int, writing: int, reading: int) -> list[bytes]:
    """Return the steps for a call that opens a file. Its mode is undefined unless it makes the file."""
    steps = [_loading(flags + 1), *_when(_IF_ANY_BIT, _RUNS_AS_OWNER, _REFUSE)]
    return [
        _loading(flags),
        _step(_IF_ANY_BIT, _CREATES, otherwise=len(steps)),
        *steps,
        _loading(flags),
        *_when(_IF_ANY_BIT, _CREATES_OR_WRITES, writing),
        _step(_RETURN, reading),
    ]


def _pair() -> list[bytes]:
    """Return the steps for a call that makes a pair of connected sockets."""
    return [
        _loading(0),
        *_only(socket.AF_UNIX),
        _loading(1),
        *_when(_IF_ANY_BIT, _NO_STREAM, _REFUSE),
        *_when(_IF_ANY_BIT, 1, _ALLOW),
        _step(_RETURN, _REFUSE),
    ]


def _only(value: int) -> list[bytes]:
    return [_step(_IF_EQUAL, value, then=1), _step(_RETURN, _REFUSE)]


def _within(number: int | None, body: Sequence[bytes]) -> list[bytes]:
    """Return steps that run only for one call."""
    assert number is not None
    return [_step(_IF_EQUAL, number, otherwise=len(body)), *body]


def _loading(argument: int) -> bytes:
    return _step(_LOAD, _ARGUMENTS + 8 * argument)


def _when(condition: int, value: int | None, verdict: int) -> Iterator[bytes]:
    if value is not None:
        yield _step(condition, value, otherwise=1)
        yield _step(_RETURN, verdict)


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)
