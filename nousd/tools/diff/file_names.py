"""File names in diffs, with git's quotes and with prefixes that are not directories.

Pure; standard library only.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_ESCAPE: Final = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPED: Final = {
    b"a": b"\a",
    b"b": b"\b",
    b"t": b"\t",
    b"n": b"\n",
    b"v": b"\v",
    b"f": b"\f",
    b"r": b"\r",
}


class Names(NamedTuple):
    """The two names of a file in a diff; None for ``/dev/null``."""

    old: str | None
    new: str | None


def parse_moved_names(headers: dict[str, str]) -> Names | None:
    """Return the names of a renamed or copied file."""
    for verb in ("rename", "copy"):
        if f"{verb} from" in headers and f"{verb} to" in headers:
            return Names(unquote(headers[f"{verb} from"]), unquote(headers[f"{verb} to"]))
    return None


def git_names(text: str) -> Names | None:
    """Return the two names of a ``diff --git`` line; None if they belong to different files."""
    if text.startswith('"'):
        end = text.find('" ', 1) + 1
        return Names(unquote(text[:end]), unquote(text[end + 1 :])) if end else None
    # Names may contain spaces; the two names of one file are equally long.
    middle = len(text) // 2
    return Names(text[:middle], text[middle + 1 :]) if text[middle : middle + 1] == " " else None


def common_strip(names: Names) -> int:
    """Return 1 if the names differ only in their first folder, or the only name begins with ``a/`` or
    ``b/``; otherwise 0.
    """
    if names.old is None or names.new is None:
        only_name = names.new or names.old or ""
        return int(only_name.startswith("b/" if names.old is None else "a/"))
    old, new = (name.partition("/")[2] for name in (names.old, names.new))
    return int(names.old != names.new and old == new != "")


def unquote(name: str) -> str:
    """Return a name without the quotes and escapes of git."""
    if len(name) < 2 or not (name.startswith('"') and name.endswith('"')):
        return name

    def character(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(character, name[1:-1].encode("utf-8", "surrogateescape")).decode(
        "utf-8", "surrogateescape"
    )
