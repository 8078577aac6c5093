"""Permanently gives up all access that a plan does not grant, then becomes a program.

Its arguments: PLAN PROGRAM ARGUMENT...; PLAN is a file with a marshalled dict:

- ``rules``: (path, rights, whether it is plain) of paths that may be used; a path that no longer exists
  is skipped, and so is a plain one with a symbolic link in it, which another program may just have made
- ``of_files``: the rights that a file can have; a folder can have all
- ``handled``: all rights that Landlock controls; those that no rule grants are refused
- ``filter``: the filter of system calls, see ``seccomp``
- ``sender``: the socket over which the filter's listener is sent to the supervisor, together with this
  plan; -1 if the filter leaves no calls to it
- all other keys are for the supervisor, see ``call_decider``

A separate program: standard library only. These restrictions apply to every process that it starts, even
as root: no capabilities, no privileges gained by executing a program, and neither signals nor abstract
sockets to processes outside.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import signal
import stat
import struct
import sys
from typing import Any

PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SECCOMP = {"x86_64": 317, "aarch64": 277}
SECCOMP_SET_MODE_FILTER = 1
NEW_KILLABLE_LISTENER = (1 << 3) | (1 << 5)
SCM_RIGHTS = 1
SOL_SOCKET = 1

AT_FDCWD = -100
OPENAT2 = 437
RESOLVE_NO_SYMLINKS = 4
CREATE_RULESET = 444
ADD_RULE = 445
RESTRICT_SELF = 446
RULE_PATH_BENEATH = 1
SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3

CAPABILITIES_MAX = 64
CAPABILITY_VERSION = 0x20080522
CAPSET = {"x86_64": 126, "aarch64": 91}

FAILED = 126

_LIBC = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    with open(int(arguments[0]), "rb", closefd=False) as file:
        plan: dict[str, Any] = marshal.load(file)  # noqa: S302 - from our own parent
    program = arguments[1:]
    # Python ignores these two signals; a command expects to be killed by them.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        ruleset = _ruleset(plan)
        _drop_capabilities()
        _check_result(_LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _check_result(_LIBC.syscall(RESTRICT_SELF, ruleset, 0))
        os.close(ruleset)
        _filter_calls(plan["filter"], plan["sender"], int(arguments[0]))
    except OSError as error:
        sys.stderr.write(f"sandbox: {error.strerror}\n")
        sys.exit(FAILED)
    try:
        os.execve(program[0], program, os.environ)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        sys.exit(127)


def _ruleset(plan: dict[str, Any]) -> int:
    attributes = struct.pack("=QQQ", plan["handled"], 0, SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = _check_result(_LIBC.syscall(CREATE_RULESET, attributes, len(attributes), 0))
    for path, rights, is_plain in plan["rules"]:
        try:
            descriptor = _open_path(path, is_plain=is_plain)
        except OSError:
            continue
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        possible = plan["handled" if is_folder else "of_files"]
        rule = struct.pack("=Qi", rights & possible, descriptor)
        _check_result(_LIBC.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0))
        os.close(descriptor)
    return ruleset


def _open_path(path: str, *, is_plain: bool) -> int:
    flags = os.O_PATH | os.O_CLOEXEC
    if not is_plain:
        return os.open(path, flags)
    open_how = struct.pack("=QQQ", flags, 0, RESOLVE_NO_SYMLINKS)
    return _check_result(
        _LIBC.syscall(OPENAT2, AT_FDCWD, os.fsencode(path), open_how, len(open_how))
    )


def _drop_capabilities() -> None:
    for capability in range(CAPABILITIES_MAX):
        # Failure is harmless: without the right to drop one, NO_NEW_PRIVS keeps it from coming back.
        _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    _check_result(_LIBC.syscall(CAPSET[os.uname().machine], header, bytes(24)))


def _filter_calls(program: bytes, sender: int, plan: int) -> None:
    steps = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(steps))
    if sender < 0:
        _check_result(_LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, described, 0, 0))
    else:
        number, flags = SECCOMP[os.uname().machine], NEW_KILLABLE_LISTENER
        listener = _check_result(_LIBC.syscall(number, SECCOMP_SET_MODE_FILTER, flags, described))
        _send(sender, listener, plan)
        os.close(listener)
        os.close(sender)
    os.close(plan)


def _send(sender: int, *descriptors: int) -> None:
    """Send descriptors over a socket, without Python's socket module, which is slow to import."""
    content = ctypes.create_string_buffer(b"l", 1)
    piece = ctypes.create_string_buffer(struct.pack("@PN", ctypes.addressof(content), 1))
    packed = struct.pack(f"@{len(descriptors)}i", *descriptors)
    head = struct.pack("@Nii", 16 + len(packed), SOL_SOCKET, SCM_RIGHTS)
    rights = ctypes.create_string_buffer(head + packed)
    message = struct.pack(
        "@PIPNPNi",
        *(0, 0, ctypes.addressof(piece), 1),
        *(ctypes.addressof(rights), len(head + packed), 0),
    )
    _check_result(_LIBC.sendmsg(sender, message, 0))


def _check_result(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
