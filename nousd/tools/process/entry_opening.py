"""Opens and creates files on behalf of a sandboxed command (``entry_calls``).

The command gets a copy of the descriptor, so it has the access to the file that it asked for, within
its own resource limits. A file is checked before it is opened or truncated, through a descriptor, so
that it cannot be replaced in between. Pipes and devices, which can block, are never opened.

Loaded by the fork server, and so standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
from collections.abc import Container
from contextlib import ExitStack
from typing import Protocol

from nousd.tools.process.waiting_call import (
    CONTINUED,
    DONE,
    RESOLVE_NO_XDEV,
    Answer,
    Call,
    OpenDescriptor,
    error,
)
from nousd.tools.process.writable_places import FOLDER, PARTED, UNREAD, Entry, WritablePlaces

LINKS_MAX = 40
"""Maximum links followed at the end of a path; the kernel's own limit."""

ACCESS = os.O_WRONLY | os.O_RDWR
EXCLUSIVE = os.O_CREAT | os.O_EXCL
CREATING = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
"""The flags that ``creat`` implies."""

UNNAMED = os.O_TMPFILE


class Form(Protocol):
    """See ``entry_calls.Form``."""

    folder: int | None
    path: int
    flags: int | None
    value: int | None


class Opening:
    """Opens files for one command."""

    def __init__(self, places: WritablePlaces) -> None:
        self._places = places

    def open(self, form: Form, call: Call, stack: ExitStack) -> Answer:
        """Carry out ``open``, ``openat`` or ``creat``."""
        flags = CREATING if form.flags is None else call.read_unsigned(form.flags)
        if flags & os.O_PATH or flags & ACCESS == ACCESS:
            return CONTINUED
        if (names := call.names(stack, (form.folder, form.path))) is None:
            return CONTINUED
        if flags & os.O_DIRECTORY:
            return self._refuse_unnamed(flags, *names[0], stack)
        kinds = (PARTED, UNREAD) if flags & (ACCESS | os.O_CREAT) else (UNREAD,)
        is_exclusive = flags & EXCLUSIVE == EXCLUSIVE
        follows = not is_exclusive and not flags & os.O_NOFOLLOW
        if (found := self._look_up(*names[0], stack, kinds=kinds, follows=follows)) is None:
            return CONTINUED
        entry, file = found
        if file is not None:
            return CONTINUED if is_exclusive else self._open_existing(file, flags)
        if not flags & os.O_CREAT:
            return CONTINUED
        assert form.value is not None
        return _make_file(entry, flags, call.read_unsigned(form.value), call)

    def truncate(self, form: Form, call: Call, stack: ExitStack) -> Answer:
        """Carry out ``truncate``."""
        assert form.value is not None
        size = call.arguments[form.value]
        if size >> 63 or (names := call.names(stack, (form.folder, form.path))) is None:
            return CONTINUED
        _, file = self._look_up(*names[0], stack) or (None, None)
        if file is None:
            return CONTINUED
        _require_size(size, call)
        if (opened := self._open_existing(file, os.O_WRONLY)) is CONTINUED:
            return CONTINUED
        try:
            os.ftruncate(opened.descriptor, size)
        finally:
            os.close(opened.descriptor)
        return DONE

    def _look_up(
        self,
        start: int,
        path: bytes,
        stack: ExitStack,
        *,
        kinds: Container[str] = (PARTED, UNREAD),
        follows: bool = True,
    ) -> tuple[Entry, int | None] | None:
        """Return the entry that a path finally leads to, and a descriptor (O_PATH) of its file; None
        instead of a descriptor if there is no file.

        Args:
            kinds: of folders in which the call is not left to the kernel.
            follows: whether a link at the end is followed.

        Returns:
            None if the call is left to the kernel.
        """
        for _ in range(LINKS_MAX):
            entry = self._places.entry(start, path, stack)
            if entry is None or entry.folder.kind not in kinds or entry.is_folder:
                return None
            if not self._places.is_free(entry):
                return None
            parent = entry.folder.descriptor
            try:
                # A mounted file is not for us to open.
                opened = OpenDescriptor(
                    entry.name, os.O_PATH, parent, follows=False, resolving=RESOLVE_NO_XDEV
                )
            except FileNotFoundError:
                return entry, None
            except OSError:
                return None
            file = stack.enter_context(opened)
            if not stat.S_ISLNK(os.fstat(file).st_mode):
                return entry, file
            if not follows:
                return None
            start, path = parent, os.readlink(b"", dir_fd=file)
        return None

    def _refuse_unnamed(self, flags: int, start: int, path: bytes, stack: ExitStack) -> Answer:
        """Answer like a file system that does not support files without names."""
        if flags & UNNAMED == UNNAMED:
            try:
                folder = self._places.folder(
                    stack.enter_context(OpenDescriptor(path, FOLDER, start)), stack
                )
            except OSError:
                return CONTINUED
            if folder is not None and not folder.is_whole:
                raise error(errno.EOPNOTSUPP)
        return CONTINUED

    def _open_existing(self, file: int, flags: int) -> Answer:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or self._places.is_closed_file(status):
            return CONTINUED
        # O_NONBLOCK: do not even wait for a process that holds a lease on the file.
        opening = (flags | os.O_NONBLOCK | os.O_CLOEXEC) & ~(EXCLUSIVE | os.O_NOFOLLOW)
        descriptor = os.open(b"/proc/self/fd/%d" % file, opening)
        if not flags & os.O_NONBLOCK:
            has = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, has & ~os.O_NONBLOCK)
        return _build_answer(descriptor, flags)


def _make_file(entry: Entry, flags: int, mode: int, call: Call) -> Answer:
    # The filter refuses this already; checked again in case the filter ever changes.
    if mode & stat.S_ISUID:
        raise error(errno.EPERM)
    call.take_umask()
    creation_flags = flags | EXCLUSIVE | os.O_NOFOLLOW | os.O_CLOEXEC
    parent = entry.folder.descriptor
    return _build_answer(os.open(entry.name, creation_flags, mode & 0o7777, dir_fd=parent), flags)


def _build_answer(descriptor: int, flags: int) -> Answer:
    return Answer(descriptor=descriptor, is_inherited=not flags & os.O_CLOEXEC)


def _require_size(size: int, call: Call) -> None:
    """Refuse a size beyond the caller's own limit, which does not apply to the supervisor."""
    size_max, _ = resource.prlimit(call.thread, resource.RLIMIT_FSIZE)
    call.require_alive()
    if size_max != resource.RLIM_INFINITY and size > size_max:
        raise error(errno.EFBIG)
