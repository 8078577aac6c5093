"""Which system calls a program in a sandbox may not make: a filter that the kernel runs (classic BPF).

Refused are those by which one leaves a sandbox or reaches what is not a file: namespaces and mounts,
other processes' memory, keys, kernel modules, io_uring (whose operations no filter sees), typing into a
terminal, and sockets except those of the families that are named. Sockets between files of this machine
(AF_UNIX) are never among them: their names lie in folders that a program may see, and Landlock does not
ask about those that lie elsewhere. ``socketpair`` stays for pairs that are for good: from one of
datagrams a program can send, and connect it, to any other socket.

Nor can a file be made that runs as its owner whoever starts it: outside of the sandbox it would, for
every user of the machine. One that runs with its owner's group can: folders have the same bit, so that
what is made in them belongs to their group, and a call does not say which of the two it is about.

Landlock has no right to the mode, the times and the owner of a file: where a sandbox has no mounts of
its own, a program could change them on everything that its user owns. Calls that do so are decided by
the supervisor there (``nousd.tools.process.metadata_calls``), which opens the path itself; extended
attributes do not exist. Nor has it a right to make files in a folder that would not also replace its
config: where that matters, the supervisor decides calls that make, rename and remove entries, too
(``nousd.tools.process.entry_calls``). Those that open a file for reading only wait where a folder holds
something that must not be read: Landlock does not let a command read what is made there meanwhile.

A call with the numbers of another architecture, such as 32-bit calls of a 64-bit machine, is refused
whatever it is. ``clone3`` and ``openat2`` do not exist here: their flags lie in memory, where a filter
cannot look, and programs use ``clone`` and ``openat`` then. Everything refused gives EPERM, so that
programs can say so.

The numbers are the kernel's, for x86_64 and for aarch64; on other machines there is no filter.
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

# Offsets in struct seccomp_data; of the arguments the lower half, both machines being little-endian.
_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
_ARGUMENTS: Final = 16

_X32: Final = 0x40000000
"""Bit of the calls of the x32 ABI, which x86_64 kernels answer under the same architecture."""

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
"""Requests to file systems that need a descriptor for reading only, and the file's owner:
FS_IOC_SETFLAGS and its form of 32 bits, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION and that of ext4;
FS_IOC_ENABLE_VERITY, FS_IOC_SET_ENCRYPTION_POLICY; those of btrfs that make and remove subvolumes, and
change their flags and their origin."""

ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine -> AUDIT_ARCH, and the column of its numbers."""

_Numbers = tuple[int, int | None]
"""Of one call on x86_64 and on aarch64; None where it does not exist."""

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
"""Calls to what processes of a machine share without files, where a sandbox has none of its own."""

OF_A_PROCESS: Final[dict[str, tuple[_Numbers, dict[int, int]]]] = {
    "prlimit64": ((302, 261), {0: 0}),
    "setpriority": ((141, 140), {0: 0, 1: 0}),
    "ioprio_set": ((251, 30), {0: 1, 1: 0}),
    "sched_setaffinity": ((203, 122), {0: 0}),
    "sched_setattr": ((314, 274), {0: 0}),
    "sched_setparam": ((142, 118), {0: 0}),
    "sched_setscheduler": ((144, 119), {0: 0}),
}
"""Calls that can starve another process of the same user, where a sandbox has no processes of its own,
and what some of their arguments must be: so that they are about a process, and that is who calls."""

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
"""Calls that change a file's mode, owner or times, by its path or by a descriptor. A program has
descriptors of what it may only read as well."""

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
"""Calls that change what programs take for a feature that a file system may lack."""

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
"""Calls that give a file its mode, and which of their arguments that is."""

OPENING: Final = {"open": 1, "openat": 2}
"""Calls that do so only if they make the file, and which of their arguments are the flags that say so;
the mode comes behind those."""

_CREATES: Final = 0x400040
"""O_CREAT and O_TMPFILE."""

_CREATES_OR_WRITES: Final = _CREATES | 0o3
"""Besides, O_WRONLY and O_RDWR."""

_RUNS_AS_OWNER: Final = 0o4000

_CLONE: Final[_Numbers] = (56, 220)
_CLONE3: Final[_Numbers] = (435, 435)
_OPENAT2: Final[_Numbers] = (437, 437)
_UNSHARE: Final[_Numbers] = (272, 97)
_IOCTL: Final[_Numbers] = (16, 29)
_SOCKET: Final[_Numbers] = (41, 198)
_SOCKETPAIR: Final[_Numbers] = (53, 199)

_NO_STREAM: Final = 0b1010
"""Bits of a socket's type that neither SOCK_STREAM (1) nor SOCK_SEQPACKET (5) has, and every other has
that is odd."""

INTERNET: Final = (socket.AF_INET, socket.AF_INET6)
"""Families of sockets that reach a network, or the sandbox's own empty one."""


def why_not() -> str | None:
    """Return why there is no filter for this machine, None if there is one."""
    machine = platform.machine()
    if machine in ARCHITECTURES:
        return None
    return f"there are no numbers of system calls for {machine}"


def map_call_numbers(*, entries: bool) -> dict[int, str]:
    """Return number -> name of this machine's calls in ``METADATA``, and of those in ``ENTRIES``."""
    column = ARCHITECTURES[platform.machine()][1]
    calls = METADATA | ENTRIES if entries else METADATA
    return {number: name for name, both in calls.items() if (number := both[column]) is not None}


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
        families: of the sockets that may be made.
        shares_machine: whether the program stands in the machine's own namespaces.
        asks: whether the calls in ``METADATA`` are then decided by who holds the filter's listener; they
            are refused otherwise.
        asks_about_entries: whether those in ``ENTRIES`` are, too, unless they open a file only for
            reading; they are allowed otherwise.
        asks_about_reading: whether those that do are as well.
        machine: for which one; this one by default.
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
    """Steps on what makes files, and on what changes them.

    Args:
        verdicts: name -> verdict on a call, unless it is refused anyway.
        reading: verdict on one that opens a file only for reading.
    """
    for name, numbers in (METADATA | ENTRIES).items():
        number, usual = numbers[column], verdicts.get(name, _ALLOW)
        if number is None:
            continue
        if name in MODES:
            yield from _within(number, _mode(MODES[name], usual))
        elif name in OPENING:
            yield from _within(number, _opening(OPENING[name], usual, reading))
        elif name in verdicts:
            yield from _when(_IF_EQUAL, number, usual)


def _call(number: int | None, argument: int, steps: Iterable[bytes], otherwise: int) -> list[bytes]:
    """Steps on one argument of one call."""
    return _within(number, [_loading(argument), *steps, _step(_RETURN, otherwise)])


def _only_with(number: int | None, arguments: Mapping[int, int]) -> list[bytes]:
    """Steps that refuse one call unless these arguments have these values."""
    pairs = ((_loading(argument), _only(value)) for argument, value in arguments.items())
    body = [step for loading, only in pairs for step in (loading, *only)]
    return _within(number, [*body, _step(_RETURN, _ALLOW)])


def _mode(argument: int, usual: int) -> list[bytes]:
    refusal = _when(_IF_ANY_BIT, _RUNS_AS_OWNER, _REFUSE)
    return [_loading(argument), *refusal, _step(_RETURN, usual)]


def _opening(flags: int, writing: int, reading: int) -> list[bytes]:
    """Steps on a call that opens a file. If none is made, there may be anything in the mode's place."""
    made = [_loading(flags + 1), *_when(_IF_ANY_BIT, _RUNS_AS_OWNER, _REFUSE)]
    return [
        _loading(flags),
        _step(_IF_ANY_BIT, _CREATES, otherwise=len(made)),
        *made,
        _loading(flags),
        *_when(_IF_ANY_BIT, _CREATES_OR_WRITES, writing),
        _step(_RETURN, reading),
    ]


def _pair() -> list[bytes]:
    """Steps on a call that makes a pair of sockets, connected to each other."""
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
    """Steps that are only for one call."""
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
