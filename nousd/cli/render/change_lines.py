"""Renders the change that a file tool asks permission for as a unified diff of bounded length.

The diff comes from the arguments, for ``write`` and ``edit`` compared with the current file. The
daemon's decision depends only on the arguments.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from nousd.cli.output import harmless

Payload = Mapping[str, Any]

_LINES_MAX: Final = 80
_LINE_CHARS_MAX: Final = 300
_COMPARED_LINES_MAX: Final = 800
"""Comparing takes quadratic time; a larger change is shown as all old and all new lines."""

_FILE_BYTES_MAX: Final = 2 * 1024 * 1024

_TEXTS: Final = {
    "edit": ("oldText", "newText"),
    "write": ("content",),
    "patch": ("patch",),
}
"""Tool -> the arguments that the diff shows."""


def without_texts(request: Payload) -> dict[str, Any]:
    """Return a request without the arguments that ``change_lines`` shows."""
    if not _is_change(request):
        return dict(request)
    texts = _TEXTS[request["tool_name"]]
    args = {key: value for key, value in request["args"].items() if key not in texts}
    return {**request, "args": args}


def change_lines(request: Payload, folder: str) -> list[str]:
    """Return the diff of the change that a request would make; nothing for other tools.

    Args:
        folder: the session's workspace.
    """
    if not _is_change(request):
        return []
    args = request["args"]
    match request["tool_name"]:
        case "edit":
            lines = _of_piece(
                Path(folder, str(args.get("path", ""))), args["oldText"], args["newText"]
            )
        case "write":
            lines = _of_file(Path(folder, str(args.get("path", ""))), args["content"].split("\n"))
        case _:
            lines = _without_end(args["patch"].split("\n"))
    return [*_limit_lines(lines), *_note_shortening(request)]


def _is_change(request: Payload) -> bool:
    texts = _TEXTS.get(request["tool_name"], ())
    return bool(texts) and all(isinstance(request["args"].get(key), str) for key in texts)


def _of_piece(path: Path, old: str, new: str) -> list[str]:
    """Return the diff of one replacement, with the file's lines if ``old`` occurs exactly once in it."""
    with suppress(OSError):
        text = "\n".join(_content(path))
        if text.count(old) == 1:
            return _diff(text.split("\n"), text.replace(old, new).split("\n"))
    return _diff(old.split("\n"), new.split("\n"))


def _of_file(path: Path, new: list[str]) -> list[str]:
    try:
        old = _content(path)
    except FileNotFoundError:
        return ["(a new file)", *(f"+{line}" for line in _without_end(new))]
    except OSError:
        return ["(what the file holds now cannot be read)", *(f"+{line}" for line in new)]
    if old == new:
        return ["(the file holds that already)"]
    return _diff(old, new)


def _content(path: Path) -> list[str]:
    """Return the lines of a file. Raise OSError if it is not a text file of moderate size."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _FILE_BYTES_MAX:
            raise OSError
        with suppress(UnicodeDecodeError):
            return file.read(_FILE_BYTES_MAX).decode().split("\n")
    raise OSError


def _diff(old: list[str], new: list[str]) -> list[str]:
    from difflib import unified_diff

    if old[-1] == new[-1] == "":
        old, new = _without_end(old), _without_end(new)
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    # Keep the context around the change; the other equal lines need no comparison.
    first, last = max(0, start - 3), max(0, end - 3)
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    if len(old) + len(new) > _COMPARED_LINES_MAX:
        return [*(f"-{line}" for line in old), *(f"+{line}" for line in new)]
    hunks = list(unified_diff(old, new, lineterm=""))[2:]
    return [_shift_header(line, first) if line.startswith("@@") else line for line in hunks]


def _shift_header(header: str, lines: int) -> str:
    """Return the header of a hunk with its line numbers increased by ``lines``."""
    return re.sub(r"(?<=[-+])\d+", lambda found: str(int(found[0]) + lines), header)


def _without_end(lines: list[str]) -> list[str]:
    """Return the lines of a text without the empty one after its last line feed."""
    return lines[:-1] if lines[-1] == "" else lines


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _limit_lines(lines: list[str]) -> list[str]:
    """Return the beginning of a diff and the count of omitted lines."""
    shown = [_truncate_line(harmless(line)) for line in lines[:_LINES_MAX]]
    rest = lines[_LINES_MAX:]
    if rest:
        added = sum(line.startswith("+") for line in rest)
        removed = sum(line.startswith("-") for line in rest)
        shown.append(f"({len(rest)} more lines: {added} added, {removed} removed)")
    return shown


def _truncate_line(line: str) -> str:
    more = len(line) - _LINE_CHARS_MAX
    return f"{line[:_LINE_CHARS_MAX]} ({more} more characters)" if more > 0 else line


def _note_shortening(request: Payload) -> list[str]:
    if "args_ref" not in request:
        return []
    return [f"(shortened; the whole: nousctl artifact get {request['args_ref']})"]
