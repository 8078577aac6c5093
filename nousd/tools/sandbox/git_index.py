"""Reads the attributes in a git index, which git uses where the work tree lacks the file.

The format is git's own, versions 2 to 4, see ``gitformat-index``. Everything here blocks.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from nousd.tools.fs.regular_file import beginning_of

BYTES_MAX: Final = 32 * 1024 * 1024
"""The largest index that is read."""

Attributes = frozenset[tuple[bytes, bytes]]
"""Paths of ``.gitattributes`` files, each with the object name of its content."""

_NAME: Final = b".gitattributes"
_HEADER: Final = struct.Struct(">4sII")
_STATUS_BYTES: Final = 40
_EXTENDED: Final = 0x4000
_PREFIX_VERSION: Final = 4
"""The first version in which a path reuses the beginning of the previous one."""

_READ_BYTES_MAX: Final = 100 * 1024 * 1024
"""Git ignores larger files of attributes."""


def attributes_in(index: Path, *, is_sha256: bool) -> Attributes | None:
    """Return the attributes in an index; None if it is too large or cannot be parsed.

    Raises:
        OSError: it does not exist.
    """
    status = index.lstat()
    facts = (status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size)
    return _attributes_in(index, facts, 32 if is_sha256 else 20)


@lru_cache(maxsize=256)
def _attributes_in(index: Path, _facts: tuple[int, ...], name_bytes: int) -> Attributes | None:
    """See ``attributes_in``; ``_facts`` differ if the index has changed."""
    data = beginning_of(index, BYTES_MAX + 1)
    try:
        magic, version, count = _HEADER.unpack_from(data)
        if magic != b"DIRC" or len(data) > BYTES_MAX:
            return None
        if version < _PREFIX_VERSION and _NAME not in data:
            return frozenset()
        entries = _entries(data, version, count, name_bytes)
        return frozenset(found for found in entries if found[0].rpartition(b"/")[2] == _NAME)
    except (struct.error, IndexError, ValueError):
        return None


def _entries(
    data: bytes, version: int, count: int, name_bytes: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the path and the object name of each entry.

    Raises:
        IndexError, ValueError: it is not an index of this version.
    """
    offset = _HEADER.size
    path = b""
    for _ in range(count):
        began = offset
        offset += _STATUS_BYTES
        content = data[offset : offset + name_bytes]
        offset += name_bytes
        is_extended = data[offset] << 8 & _EXTENDED
        offset += 4 if is_extended else 2
        if version >= _PREFIX_VERSION:
            left_out, offset = _number(data, offset)
            path = path[: len(path) - left_out]
        else:
            path = b""
        end = data.index(b"\0", offset)
        path += data[offset:end]
        yield path, content
        offset = end + 1 if version >= _PREFIX_VERSION else began + ((end - began + 8) & ~7)


def _number(data: bytes, offset: int) -> tuple[int, int]:
    """Return a number of variable length, and the offset of its end."""
    value = data[offset] & 127
    while data[offset] & 128:
        offset += 1
        value = (value + 1 << 7) + (data[offset] & 127)
    return value, offset + 1


def is_read_instead(file: Path) -> bool:
    """Return whether git reads attributes from this file of a work tree instead of from an index."""
    try:
        status = file.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISREG(status.st_mode) and status.st_size <= _READ_BYTES_MAX
    return is_plain and os.access(file, os.R_OK)
