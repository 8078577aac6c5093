"""Runs lookups in the user's directories in a thread that may be abandoned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from nousd.errors import CommandRejected, FoldersSilent
from nousd.tools.fs import folder_threads

T = TypeVar("T")
Args = TypeVarTuple("Args")


async def in_folder_thread(look: Callable[[*Args], T], *args: *Args) -> T:
    """Return the result of ``look``, which must not leave anything open: it is abandoned when the caller
    is cancelled.

    Raises:
        CommandRejected: ``folders_do_not_answer``, because too many lookups hang.
    """
    try:
        return await folder_threads.in_folder_thread(look, *args, may_be_left=True)
    except FoldersSilent as error:
        raise CommandRejected("folders_do_not_answer", cause=str(error)) from None
