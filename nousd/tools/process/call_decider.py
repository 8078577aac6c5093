"""Answers the system calls of a sandboxed command that its filter passes to the supervisor.

There are two kinds, see ``nousd.tools.sandbox.seccomp``: calls that change the mode, times or owner of
files (``metadata_calls``), and calls that make, open for writing, rename or remove entries of folders
(``entry_calls``). ``writable_places`` determines where they may act.

It runs in a thread of the supervisor, so that no call, and no number of calls, keeps the supervisor from
its duties. The thread has no capabilities, as the command has none, so the kernel refuses it what it
would refuse the command. When the thread ends, for whatever reason, calls fail with ENOSYS. No answer
waits for anything but a file system: no file is opened whose opening another process could delay.

Loaded by the fork server, and so standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from nousd.tools.process import entry_calls, metadata_calls
from nousd.tools.process.entry_calls import EntryCalls
from nousd.tools.process.metadata_calls import MetadataCalls
from nousd.tools.process.waiting_call import (
    LIBC,
    NOTIFICATION_BYTES,
    Answer,
    Call,
    check_result,
)
from nousd.tools.process.writable_places import WritablePlaces

RECEIVE = 0xC0502100  # SECCOMP_IOCTL_NOTIF_RECV
SEND = 0xC0182101  # SECCOMP_IOCTL_NOTIF_SEND
ADD_DESCRIPTOR = 0x40182103  # SECCOMP_IOCTL_NOTIF_ADDFD
CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
AND_SEND = 2  # SECCOMP_ADDFD_FLAG_SEND

CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION = 0x20080522


def decide_calls(receiver: socket.socket) -> None:
    """Wait for the listener, then decide calls until no process is left that could make one.

    Args:
        receiver: the socket over which ``_landlock_main`` sends the listener and its plan.
    """
    # Signals are for the main thread, and would interrupt the calls of this one.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with receiver:
        _, received, _, _ = socket.recv_fds(receiver, 1, 2)
    if not received:
        return
    listener, plan_descriptor = received
    try:
        with open(plan_descriptor, "rb") as file:  # noqa: PTH123
            file.seek(0)
            plan: dict[str, Any] = marshal.load(file)  # noqa: S302 - from our own daemon
        _drop_capabilities()
        Decider(listener, plan).run()
    finally:
        os.close(listener)


def _drop_capabilities() -> None:
    """Drop the capabilities of this thread, so that the kernel treats it like the command; the other
    threads keep theirs.
    """
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    check_result(LIBC.syscall(CAPSET[os.uname().machine], header, bytes(24)))


class Decider:
    """Decides the calls of one command.

    Args:
        listener: the descriptor of the command's filter.
        plan: ``calls`` (number -> name of the calls that are passed on) and the plan of
            ``WritablePlaces``.
    """

    def __init__(self, listener: int, plan: dict[str, Any]) -> None:
        places = WritablePlaces(plan)
        metadata, entries = MetadataCalls(places), EntryCalls(places)
        self._listener = listener
        self._answers: dict[int, Callable[[Call], Answer]] = {
            number: partial(metadata.answer, metadata_calls.FORMS[name])
            if name in metadata_calls.FORMS
            else partial(entries.answer, entry_calls.FORMS[name])
            for number, name in plan["calls"].items()
        }

    def run(self) -> None:
        """Decide one call after another."""
        while (call := self._next()) is not None:
            try:
                self._send(call, self._answers[call.number](call))
            except OSError as error:
                self._reply(call, -(error.errno or errno.EPERM))

    def _next(self) -> Call | None:
        while True:
            notification = bytearray(NOTIFICATION_BYTES)
            try:
                fcntl.ioctl(self._listener, RECEIVE, notification)
                return Call(self._listener, notification)
            except FileNotFoundError:  # the caller is dead, or every process of the command is
                poll = select.poll()
                poll.register(self._listener, 0)
                if poll.poll(0):
                    return None

    def _send(self, call: Call, answer: Answer) -> None:
        if answer.descriptor < 0:
            self._reply(call, 0, CONTINUE if answer.is_continued else 0)
            return
        flags = 0 if answer.is_inherited else os.O_CLOEXEC
        request = struct.pack("=QIIII", call.id, AND_SEND, answer.descriptor, 0, flags)
        try:
            fcntl.ioctl(self._listener, ADD_DESCRIPTOR, request)
        finally:
            os.close(answer.descriptor)

    def _reply(self, call: Call, result: int, flags: int = 0) -> None:
        try:
            fcntl.ioctl(self._listener, SEND, struct.pack("=QqiI", call.id, 0, result, flags))
        except FileNotFoundError:  # the caller is dead
            return
