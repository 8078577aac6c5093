"""Decides a sandboxed command's calls that make, rename, link or remove entries of folders.

Such calls wait for the supervisor (``call_decider``), because commands make files next to closed ones:
at the top of a workspace, and git next to its config. The supervisor only adds permissions. In parted
folders (``writable_places``) it carries out a call unless that would change something guarded; all other
calls it leaves to the kernel, which refuses everything that Landlock grants no right for. So it is
harmless if the path of such a call has changed by the time the kernel resolves it, and errors are the
kernel's own.

It acts on its own descriptors and on a last name without slashes, and never follows a link: the object
that it checked is the object that it changes. Between check and change that object can be altered only
by calls that are checked in the same way, of this command or a concurrent one, or it lies where a
command may write anyway.

Loaded by the fork server, and so standard library only.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack

from nousd.tools.process.entry_opening import Opening
from nousd.tools.process.waiting_call import (
    CONTINUED,
    DONE,
    LIBC,
    Answer,
    Call,
    check_result,
)
from nousd.tools.process.writable_places import Entry, WritablePlaces

RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

AT_REMOVEDIR = 0x200
AT_SYMLINK_FOLLOW = 0x400

KINDS_OF_FILES = {0, stat.S_IFREG}
"""File types with which ``mknod`` makes a regular file."""


class Form:
    """What a call does, and the indexes of its arguments.

    Args:
        change: the name of the operation.
        path: index of the address of its path; of the second one, if it takes two.
        folder: index of the descriptor of the folder that this path is relative to.
        flags: index of the flags.
        value: index of the mode of a new entry, or of the length of a truncated file.
        first: index of the address of its first path, or of the target of a symbolic link.
        first_folder: index of the folder that the first path is relative to.
    """

    def __init__(
        self,
        change: str,
        path: int,
        *,
        folder: int | None = None,
        flags: int | None = None,
        value: int | None = None,
        first: int = 0,
        first_folder: int | None = None,
    ) -> None:
        self.change = change
        self.path = path
        self.folder = folder
        self.flags = flags
        self.value = value
        self.first = first
        self.first_folder = first_folder


FORMS = {
    "open": Form("open", 0, flags=1, value=2),
    "openat": Form("open", 1, folder=0, flags=2, value=3),
    "creat": Form("open", 0, value=1),
    "truncate": Form("truncate", 0, value=1),
    "mkdir": Form("mkdir", 0, value=1),
    "mkdirat": Form("mkdir", 1, folder=0, value=2),
    "mknod": Form("mknod", 0, value=1),
    "mknodat": Form("mknod", 1, folder=0, value=2),
    "unlink": Form("unlink", 0),
    "unlinkat": Form("unlink", 1, folder=0, flags=2),
    "rmdir": Form("rmdir", 0),
    "symlink": Form("symlink", 1),
    "symlinkat": Form("symlink", 2, folder=1),
    "link": Form("link", 1),
    "linkat": Form("link", 3, folder=2, flags=4, first=1, first_folder=0),
    "rename": Form("rename", 1),
    "renameat": Form("rename", 3, folder=2, first=1, first_folder=0),
    "renameat2": Form("rename", 3, folder=2, flags=4, first=1, first_folder=0),
}


class EntryCalls:
    """Carries out the calls of one command."""

    def __init__(self, places: WritablePlaces) -> None:
        self._places = places
        opening = Opening(places)
        self._changes = {
            "open": opening.open,
            "truncate": opening.truncate,
            "mkdir": self._make_folder,
            "mknod": self._make_file,
            "unlink": self._remove,
            "rmdir": self._remove,
            "symlink": self._make_link,
            "link": self._add_name,
            "rename": self._rename,
        }

    def answer(self, form: Form, call: Call) -> Answer:
        """Carry out a call, or leave it to the kernel.

        Raises:
            OSError: the kernel refuses it to the supervisor.
        """
        with ExitStack() as stack:
            return self._changes[form.change](form, call, stack)

    def _own(self, form: Form, call: Call, stack: ExitStack) -> Entry | None:
        """Return the entry that a call changes; None if the call is left to the kernel."""
        if (names := call.names(stack, (form.folder, form.path))) is None:
            return None
        entry = self._places.entry(*names[0], stack)
        is_own = entry is not None and not entry.folder.is_whole and self._places.is_free(entry)
        return entry if is_own else None

    def _make_folder(self, form: Form, call: Call, stack: ExitStack) -> Answer:
        if (entry := self._own(form, call, stack)) is None:
            return CONTINUED
        call.take_umask()
        os.mkdir(entry.name, _mode(form, call), dir_fd=entry.folder.descriptor)
        return DONE

    def _make_file(self, form: Form, call: Call, stack: ExitStack) -> Answer:
        mode = _mode(form, call)
        entry = self._own(form, call, stack)
        if entry is None or entry.is_folder or stat.S_IFMT(mode) not in KINDS_OF_FILES:
            return CONTINUED
        call.take_umask()
        os.mknod(entry.name, stat.S_IFREG | mode, dir_fd=entry.folder.descriptor)
        return DONE

    def _remove(self, form: Form, call: Call, stack: ExitStack) -> Answer:
        flags = 0 if form.flags is None else call.read_unsigned(form.flags)
        removes_folder = form.change == "rmdir" or flags == AT_REMOVEDIR
        entry = self._own(form, call, stack)
        if entry is None or flags & ~AT_REMOVEDIR or (entry.is_folder and not removes_folder):
            return CONTINUED
        status = entry.status()
        if status is None or self._places.is_closed_file(status) or self._places.is_parted(entry):
            return CONTINUED
        remove = os.rmdir if removes_folder else os.unlink
        remove(entry.name, dir_fd=entry.folder.descriptor)
        self._places.forget(entry)
        return DONE

    def _make_link(self, form: Form, call: Call, stack: ExitStack) -> Answer:
        try:
            target = call.path(form.first)
        except OSError:
            return CONTINUED
        entry = self._own(form, call, stack)
        if entry is None or not target or entry.is_folder:
            return CONTINUED
        if entry.folder.is_of_git or not self._places.is_movable(entry):
            return CONTINUED
        os.symlink(target, entry.name, dir_fd=entry.folder.descriptor)
        return DONE

    def _add_name(self, form: Form, call: Call, stack: ExitStack) -> Answer:
        both = self._both(form, call, stack)
        flags = 0 if form.flags is None else call.read_unsigned(form.flags)
        if both is None or flags & ~AT_SYMLINK_FOLLOW:
            return CONTINUED
        old, new = both
        status = old.status()
        # A read-only file must not get a name under which it can be written, nor a symbolic link a name
        # in a git folder.
        if status is None or not stat.S_ISREG(status.st_mode) or old.is_folder or new.is_folder:
            return CONTINUED
        if self._places.is_closed_file(status) or not self._places.is_free(old):
            return CONTINUED
        if not self._places.is_movable(new):
            return CONTINUED
        where = {"src_dir_fd": old.folder.descriptor, "dst_dir_fd": new.folder.descriptor}
        os.link(old.name, new.name, **where, follow_symlinks=False)
        return DONE

    def _rename(self, form: Form, call: Call, stack: ExitStack) -> Answer:
        both = self._both(form, call, stack)
        flags = 0 if form.flags is None else call.read_unsigned(form.flags)
        if both is None or flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE):
            return CONTINUED
        old, new = both
        if flags & RENAME_EXCHANGE and old.folder.is_of_git is not new.folder.is_of_git:
            return CONTINUED
        if not all(self._is_movable(entry) for entry in both):
            return CONTINUED
        check_result(
            LIBC.syscall(
                RENAMEAT2[os.uname().machine],
                *(old.folder.descriptor, old.name, new.folder.descriptor, new.name),
                flags,
            )
        )
        for entry in both:
            self._places.forget(entry)
        return DONE

    def _both(self, form: Form, call: Call, stack: ExitStack) -> tuple[Entry, Entry] | None:
        """Return the two entries that a call changes; None if the call is left to the kernel."""
        pairs = ((form.first_folder, form.first), (form.folder, form.path))
        if (names := call.names(stack, *pairs)) is None:
            return None
        old, new = (self._places.entry(*name, stack) for name in names)
        if old is None or new is None:
            return None
        is_of_kernel = old.folder.is_whole and new.folder.is_whole
        # Within a git folder the kernel may not move entries between folders: they could be links.
        if is_of_kernel and not (old.folder.is_of_git and new.folder.is_of_git):
            return None
        if new.folder.is_of_git and not old.folder.is_of_git:
            return None
        return old, new

    def _is_movable(self, entry: Entry) -> bool:
        if (status := entry.status()) is None:
            return self._places.is_movable(entry)
        is_folder = stat.S_ISDIR(status.st_mode)
        if entry.is_folder and not is_folder:
            return False
        if entry.folder.is_of_git and stat.S_ISLNK(status.st_mode):
            return False
        return self._places.is_movable(entry) and not self._places.is_closed_file(status)


def _mode(form: Form, call: Call) -> int:
    assert form.value is not None
    return call.read_unsigned(form.value)
