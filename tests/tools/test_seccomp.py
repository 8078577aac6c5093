"""The system call filter, interpreted step by step, for every supported machine."""

from __future__ import annotations

import errno
import os
import platform
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from nousd.tools.sandbox import seccomp

ALLOWED = "allowed"
ASKED = "asked"
NUMBERS = {
    **seccomp.REFUSED,
    **seccomp.SHARED_MEMORY_AND_QUEUES,
    **seccomp.METADATA,
    **seccomp.ATTRIBUTES,
    **seccomp.ENTRIES,
}
CALLS = {
    **{name: numbers for name, (numbers, _) in seccomp.OF_A_PROCESS.items()},
    "openat2": (437, 437),
    "read": (0, 63),
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "execve": (59, 221),
}

YOUNG = {"fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469}
"""Calls of Linux 6.6 and later, which the headers of a machine may not have yet."""

every_machine = pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)


def decision(
    program: bytes, machine: str, name: str, *arguments: int, architecture: int | None = None
) -> object:
    """Return the decision of the filter on a call: allowed, or the number of an error."""
    usual, column = seccomp.ARCHITECTURES[machine]
    number = (NUMBERS | CALLS)[name][column]
    assert number is not None
    return verdict(program, number, architecture or usual, *arguments)


def verdict(program: bytes, number: int, architecture: int, *arguments: int) -> object:
    given = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=iIQ6Q", number, architecture, 0, *given)
    steps = list(struct.iter_unpack("=HBBI", program))
    place = loaded = 0
    while True:
        code, then, otherwise, value = steps[place]
        place += 1
        if code == 0x06:
            error: int = value & 0xFFFF
            return {0x7FFF0000: ALLOWED, 0x7FC00000: ASKED}.get(value, error)
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}
            place += then if holds[code] else otherwise


@every_machine
def test_system_calls_that_leave_a_sandbox_are_refused(machine: str) -> None:
    program = seccomp.program(families=(), machine=machine)
    column = seccomp.ARCHITECTURES[machine][1]
    refused = [name for name, numbers in seccomp.REFUSED.items() if numbers[column] is not None]
    assert len(refused) > 40
    assert {decision(program, machine, name) for name in refused} == {errno.EPERM}
    for name in ("read", "execve"):
        assert decision(program, machine, name) == ALLOWED


@every_machine
@pytest.mark.parametrize("name", ["clone", "unshare"])
def test_clone_and_unshare_cannot_create_a_namespace(machine: str, name: str) -> None:
    program = seccomp.program(families=(), machine=machine)
    thread = 0x003D0F00
    assert decision(program, machine, name, thread) == ALLOWED
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert decision(program, machine, name, thread | 1 << bit) == errno.EPERM
    assert decision(program, machine, "clone3") == errno.ENOSYS


@every_machine
def test_only_sockets_of_the_given_families_are_allowed(machine: str) -> None:
    every = [value for name, value in vars(socket).items() if name.startswith("AF_")]
    none = seccomp.program(families=(), machine=machine)
    assert {decision(none, machine, "socket", family) for family in every} == {errno.EPERM}
    some = seccomp.program(families=seccomp.INTERNET, machine=machine)
    allowed = {family for family in every if decision(some, machine, "socket", family) == ALLOWED}
    assert allowed == {socket.AF_INET, socket.AF_INET6}


@every_machine
def test_only_pairs_that_stay_connected_are_allowed(machine: str) -> None:
    for families in ((), seccomp.INTERNET):
        program = seccomp.program(families=families, machine=machine)
        for flags in (0, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
            allowed = {
                (family, kind)
                for family in range(64)
                for kind in range(16)
                if decision(program, machine, "socketpair", family, kind | flags) == ALLOWED
            }
            pairs = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
            assert allowed == {(socket.AF_UNIX, kind) for kind in pairs}


@every_machine
def test_input_cannot_be_injected_into_a_terminal(machine: str) -> None:
    program = seccomp.program(families=(), machine=machine)
    assert decision(program, machine, "ioctl", 0, 0x5412) == errno.EPERM
    assert decision(program, machine, "ioctl", 0, 0x541C) == errno.EPERM
    # Only the lower half of a request counts for the kernel.
    assert decision(program, machine, "ioctl", 0, 0x5412 | 1 << 32) == errno.EPERM
    assert decision(program, machine, "ioctl", 0, 0x5401) == ALLOWED


@every_machine
def test_system_calls_of_another_architecture_are_refused(machine: str) -> None:
    program = seccomp.program(families=seccomp.INTERNET, machine=machine)
    for architecture in (0x40000003, 0x40000028, 0xC00000B7, 0xC000003E):
        if architecture != seccomp.ARCHITECTURES[machine][0]:
            got = decision(program, machine, "read", architecture=architecture)
            assert got == errno.EPERM
    ours = seccomp.ARCHITECTURES[machine][0]
    assert verdict(program, 0x40000000 + 41, ours, socket.AF_UNIX) == errno.EPERM


@every_machine
def test_shared_memory_and_queues_are_refused_if_shared_with_the_machine(
    machine: str,
) -> None:
    own = seccomp.program(families=(), machine=machine)
    shared = seccomp.program(families=(), shares_machine=True, machine=machine)
    for name in seccomp.SHARED_MEMORY_AND_QUEUES:
        assert decision(own, machine, name) == ALLOWED
        assert decision(shared, machine, name) == errno.EPERM


@every_machine
def test_a_process_can_restrict_only_itself_if_processes_are_shared_with_the_machine(
    machine: str,
) -> None:
    own = seccomp.program(families=(), machine=machine)
    shared = seccomp.program(families=(), shares_machine=True, machine=machine)
    for name, (_, wanted) in seccomp.OF_A_PROCESS.items():
        usual = [wanted.get(place, 7) for place in range(4)]
        assert decision(shared, machine, name, *usual) == ALLOWED
        for place, value in wanted.items():
            given = [other if n != place else value + 2 for n, other in enumerate(usual)]
            assert decision(own, machine, name, *given) == ALLOWED
            assert decision(shared, machine, name, *given) == errno.EPERM


@every_machine
def test_a_setuid_file_cannot_be_created(machine: str) -> None:
    program = seccomp.program(families=(), machine=machine)
    column = seccomp.ARCHITECTURES[machine][1]
    checked = 0
    for name, argument in (seccomp.MODES | seccomp.OPENING).items():
        if NUMBERS[name][column] is None:
            continue
        checked += 1
        creates = [0] * argument
        opens = name in seccomp.OPENING
        creates.append(os.O_CREAT | os.O_WRONLY if opens else 0o100755)
        usual = [*creates, 0o2777] if opens else creates
        assert decision(program, machine, name, *usual) == ALLOWED
        assert decision(program, machine, name, *usual[:-1], 0o104755) == errno.EPERM
        if opens:
            temporary = [*[0] * argument, os.O_TMPFILE, 0o4755]
            assert decision(program, machine, name, *temporary) == errno.EPERM
            assert decision(program, machine, name, *[0] * argument, os.O_RDONLY, 0o4755) == ALLOWED
    assert checked == {"x86_64": 9, "aarch64": 5}[machine]
    assert decision(program, machine, "openat2") == errno.ENOSYS


@every_machine
def test_changes_of_metadata_are_asked_about_or_refused_where_files_are_the_machines(
    machine: str,
) -> None:
    own = seccomp.program(families=(), machine=machine)
    asking = seccomp.program(families=(), shares_machine=True, asks=True, machine=machine)
    refusing = seccomp.program(families=(), shares_machine=True, machine=machine)
    column = seccomp.ARCHITECTURES[machine][1]
    for name, numbers in seccomp.METADATA.items():
        if numbers[column] is not None:
            verdicts = [decision(program, machine, name) for program in (own, asking, refusing)]
            assert verdicts == [ALLOWED, ASKED, errno.EPERM]
    for name, argument in seccomp.MODES.items():
        if NUMBERS[name][column] is not None:
            setuid = [0] * argument + [0o4755]
            assert decision(asking, machine, name, *setuid) == errno.EPERM
    for name in seccomp.ATTRIBUTES:
        verdicts = [decision(program, machine, name) for program in (own, asking, refusing)]
        assert verdicts == [ALLOWED, errno.EOPNOTSUPP, errno.EOPNOTSUPP]
    for request in seccomp.FLAGS_OF_FILES:
        verdicts = [decision(program, machine, "ioctl", 3, request) for program in (own, asking)]
        assert verdicts == [ALLOWED, errno.EOPNOTSUPP]


@every_machine
def test_calls_that_change_entries_are_asked_about_where_that_is_wanted(machine: str) -> None:
    plain, entries, reading = (
        seccomp.program(
            families=(),
            shares_machine=True,
            asks=True,
            asks_about_entries=wanted > 0,
            asks_about_reading=wanted > 1,
            machine=machine,
        )
        for wanted in range(3)
    )
    column = seccomp.ARCHITECTURES[machine][1]
    there = {name for name, numbers in seccomp.ENTRIES.items() if numbers[column] is not None}
    for name in there - set(seccomp.OPENING):
        verdicts = [decision(program, machine, name) for program in (plain, entries, reading)]
        assert verdicts == [ALLOWED, ASKED, ASKED]
    for name, argument in seccomp.OPENING.items():
        if name not in there:
            continue
        before = [0] * argument
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TMPFILE | os.O_RDWR, 1 << 32 | 1):
            verdicts = [
                decision(program, machine, name, *before, flags, 0o644)
                for program in (plain, entries, reading)
            ]
            assert verdicts == [ALLOWED, ASKED, ASKED]
        for flags in (os.O_RDONLY, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY):
            verdicts = [
                decision(program, machine, name, *before, flags, 0o4755)
                for program in (plain, entries, reading)
            ]
            assert verdicts == [ALLOWED, ALLOWED, ASKED]
        setuid = (*before, os.O_CREAT | os.O_WRONLY, 0o4755)
        assert decision(reading, machine, name, *setuid) == errno.EPERM
    setuid = (*[0] * seccomp.MODES["mknodat"], 0o104755)
    assert decision(entries, machine, "mknodat", *setuid) == errno.EPERM


def test_an_unsupported_machine_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert platform.machine() not in seccomp.ARCHITECTURES or seccomp.why_not() is None
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert seccomp.why_not() == "there are no numbers of system calls for riscv64"


LOADING = """
import ctypes, os, signal, struct, sys
signal.alarm(10)
libc = ctypes.CDLL(None, use_errno=True)
program = bytes.fromhex(sys.argv[1])
steps = ctypes.create_string_buffer(program, len(program))
described = struct.pack("@HP", len(program) // 8, ctypes.addressof(steps))
libc.prctl(38, 1, 0, 0, 0)
if libc.prctl(22, 2, described, 0, 0) != 0:
    sys.exit(f"refused by the kernel: {os.strerror(ctypes.get_errno())}")
if libc.syscall(ctypes.c_long(int(sys.argv[2])), 0x20000) == 0 or ctypes.get_errno() != 1:
    os.kill(os.getpid(), signal.SIGKILL)
os._exit(0)
"""


@every_machine
def test_the_kernel_accepts_the_filter(machine: str) -> None:
    """A filter for another architecture refuses every call of this one, its own exit included."""
    if platform.machine() not in seccomp.ARCHITECTURES:
        pytest.skip("there is no filter for this machine")
    filter_ = seccomp.program(families=(), shares_machine=True, machine=machine).hex()
    column = seccomp.ARCHITECTURES[platform.machine()][1]
    unshare = str(CALLS["unshare"][column])
    ended = subprocess.run(
        [sys.executable, "-I", "-c", LOADING, filter_, unshare],
        check=False,
        capture_output=True,
        timeout=30,
    )
    is_own = machine == platform.machine()
    assert ended.stderr == b""
    assert ended.returncode == 0 if is_own else ended.returncode < 0


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@every_machine
def test_the_system_call_numbers_match_the_kernel_headers(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    words = [line.split() for line in header.read_text().splitlines()]
    known = {
        line[1].removeprefix("__NR_").removeprefix("__NR3264_"): int(line[2])
        for line in words
        if len(line) >= 3 and line[0] == "#define" and line[2].isdigit()
    }
    column = seccomp.ARCHITECTURES[machine][1]
    for name, numbers in (NUMBERS | CALLS).items():
        if numbers[column] is not None:
            assert known.get(name, YOUNG.get(name)) == numbers[column], name
