"""Changes several files together: all of them, or none.

Every step that can fail for lack of space or permission is done beside the files first; then each file
is moved into place in one step. If that fails half-way, the moved files are restored. A process that is
killed during this step leaves some files changed and some not, each of them complete.

Blocks: call it in a thread, with ``WRITING`` as its limiter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from nousd.errors import ToolError
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.fs.staged_file import StagedFile, stage_file, sync_folder
from nousd.tools.fs.text_files import writable

Parts = tuple[str, ...]


class Content(NamedTuple):
    """The content of a file. ``mode`` None: that of a new file, possibly ``executable``."""

    data: bytes
    mode: int | None = None
    executable: bool = False


class Change(NamedTuple):
    """The new content of one file; None removes it."""

    parts: Parts
    before: Content | None
    after: Content | None


def change_files(path_sandbox: PathSandbox, changes: Sequence[Change]) -> None:
    """Make all changes, or none.

    Raises:
        ToolError, OSError: nothing has changed, or the text names the files that were not restored.
    """
    path_sandbox.restrictions.require_unobeyed(
        {change.parts: None if change.after is None else change.after.data for change in changes}
    )
    unrestored: list[str] = []
    try:
        with ExitStack() as created_folders, ExitStack() as staging, ExitStack() as undo:
            staged = [
                _stage_change(path_sandbox, change, created_folders, staging) for change in changes
            ]
            for change, file in zip(changes, staged, strict=True):
                # Registered first, because the file may be in place even if moving it fails.
                undo.callback(_take_back, path_sandbox, change, unrestored)
                _put(path_sandbox, change, file)
            undo.pop_all()
            created_folders.pop_all()
    except (OSError, ToolError) as error:
        if not unrestored:
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise ToolError(
            f"patch_failed: {reason}; these files could not be put back: {', '.join(unrestored)}"
        ) from error


def _stage_change(
    path_sandbox: PathSandbox, change: Change, created_folders: ExitStack, staging: ExitStack
) -> StagedFile | None:
    """Prepare a change as far as possible before anything changes; return the staged file.

    Args:
        created_folders: gets callbacks that remove the directories that are created.
        staging: gets a callback that discards the staged file if it was not put into place.
    """
    for folder in _missing_folders(path_sandbox, change):
        created_folders.callback(_remove_folder, path_sandbox, folder)
    makes = change.after is not None
    with path_sandbox.locate_real(change.parts, create_parents=makes) as resolved:
        old = writable(resolved)
        if (old is None) != (change.before is None):
            raise ToolError(f"path_changed: {'/'.join(change.parts)}: it came or went meanwhile")
        if change.after is None:
            return None
        after = change.after
        return staging.enter_context(
            stage_file(resolved, after.data, old, mode=after.mode, executable=after.executable)
        )


def _put(path_sandbox: PathSandbox, change: Change, file: StagedFile | None) -> None:
    with path_sandbox.locate_real(change.parts) as resolved:
        if file is not None:
            file.put(resolved)
            return
        resolved.require_writable()
        os.unlink(resolved.name, dir_fd=resolved.folder)
        sync_folder(resolved)


def _take_back(path_sandbox: PathSandbox, change: Change, unrestored: list[str]) -> None:
    try:
        with path_sandbox.locate_real(change.parts) as resolved:
            if change.before is None:
                with suppress(FileNotFoundError):
                    os.unlink(resolved.name, dir_fd=resolved.folder)
                return
            before = change.before
            with stage_file(resolved, before.data, resolved.status(), mode=before.mode) as file:
                file.put(resolved)
    except (OSError, ToolError):
        unrestored.append("/".join(change.parts))


def _missing_folders(path_sandbox: PathSandbox, change: Change) -> Iterator[Parts]:
    """Yield the directories that the change creates, outermost first."""
    if change.after is None:
        return
    for length in range(1, len(change.parts)):
        folder = change.parts[:length]
        try:
            with path_sandbox.locate_real(folder, in_passing=True) as resolved:
                is_missing = resolved.status() is None
        except FileNotFoundError:
            is_missing = True
        if is_missing:
            yield folder


def _remove_folder(path_sandbox: PathSandbox, folder: Parts) -> None:
    """Remove a directory if it is empty."""
    with (
        suppress(OSError, ToolError),
        path_sandbox.locate_real(folder, in_passing=True) as resolved,
    ):
        os.rmdir(resolved.name, dir_fd=resolved.folder)
