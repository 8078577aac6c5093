"""Reads and replaces whole text files, for ``write`` and ``edit``.

A file is replaced by renaming a finished one over it (``staged_file``). Blocks: call it in a thread,
with ``WRITING`` as its limiter.
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from typing import Final

import trio

from nousd.errors import ToolError
from nousd.tools.fs.path_errors import format_given
from nousd.tools.fs.resolved_path import ResolvedPath
from nousd.tools.fs.staged_file import stage_file

TEXT_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest file that can be edited."""

BINARY_PROBE_BYTES: Final = 8 * 1024
"""A file with a NUL in its first bytes counts as binary."""

WRITING: Final = trio.CapacityLimiter(1)
"""Allows one change at a time in the daemon, so that concurrent edits of a file do not get lost."""


_IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"BM": "image/bmp",
    b"RIFF": "image/webp",
}
"""First bytes -> media type, looked up only for binary files."""


def binary_kind(probe: bytes) -> str | None:
    """Return the name of the binary format that begins with ``probe``; None for text."""
    if b"\0" not in probe[:BINARY_PROBE_BYTES]:
        return None
    for magic, media_type in _IMAGES.items():
        if probe.startswith(magic):
            return f"an image ({media_type})"
    return "a binary file"


def read_text(resolved: ResolvedPath, path: str) -> tuple[bytes, str]:
    """Read a whole file.

    Returns:
        Its byte order mark or nothing, and the text after it with unchanged line endings.

    Raises:
        ToolError: it is too large, or not UTF-8 text.
        OSError: it cannot be read.
    """
    with resolved.open_file() as file:
        data = file.read(TEXT_BYTES_MAX + 1)
    if len(data) > TEXT_BYTES_MAX:
        raise ToolError(f"edit_failed: {format_given(path)} is larger than {TEXT_BYTES_MAX} bytes")
    if (kind := binary_kind(data)) is not None:
        raise ToolError(f"edit_failed: {format_given(path)} is {kind}")
    bom = BOM_UTF8 if data.startswith(BOM_UTF8) else b""
    try:
        return bom, data[len(bom) :].decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"edit_failed: {format_given(path)} is not UTF-8 text") from error


def replace_file(resolved: ResolvedPath, data: bytes) -> None:
    """Create a file, or replace a regular file.

    A replaced file keeps its mode; a new file gets 0666 less the umask.

    Raises:
        ToolError, OSError: as ``writable``, ``ResolvedPath.require_unobeyed`` and ``StagedFile.put``.
    """
    resolved.require_unobeyed(data)
    with stage_file(resolved, data, writable(resolved)) as staged:
        staged.put(resolved)


def writable(resolved: ResolvedPath) -> os.stat_result | None:
    """Return the existing file if it may be changed; None if it does not exist.

    Raises:
        ToolError, OSError: as ``ResolvedPath.require_writable``; also for files that may not be written.
    """
    old = resolved.require_writable()
    if old is not None:
        # Renaming needs only permission for the directory; a write should need it for the file.
        os.close(resolved.open(os.O_WRONLY))
    return old
