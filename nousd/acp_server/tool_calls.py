"""A tool call as an editor shows it: its kind, title, files and changes."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from nousd.errors import ToolError
from nousd.machine.policy.owned_names import OWNED
from nousd.tools.diff.unified_diff import FileDiff, parse

Args = Mapping[str, Any]

_KINDS: Final = {
    "read": "read",
    "ls": "read",
    "find": "search",
    "grep": "search",
    "write": "edit",
    "edit": "edit",
    "patch": "edit",
    "bash": "execute",
    "git": "execute",
    "web_fetch": "fetch",
    "todo": "think",
    "task": "think",
}
"""Tool -> kind; all others are ``other``."""

_SUBJECTS: Final = ("command", "path", "pattern", "url", "query")
"""The arguments that identify the subject of a call, the most specific first."""

_TITLE_CHARS_MAX: Final = 200
_FILE_BYTES_MAX: Final = 2 * 1024 * 1024
_DIFFS_MAX: Final = 100
_LINE_MAX: Final = 2**32 - 1
"""Editors read line numbers as 32 bits, and drop an update with a larger one."""


_CHANGING: Final = frozenset({"write", "edit", "patch"})


def is_changing(tool_name: str) -> bool:
    """Return whether calls of the tool are shown as changes of files."""
    return OWNED.get(tool_name, tool_name) in _CHANGING


def title_of(tool_name: str, args: Args) -> str:
    """Return a one-line summary of a call."""
    subject = next((args[key] for key in _SUBJECTS if isinstance(args.get(key), str)), "")
    lines = subject.strip().splitlines()
    first = lines[0] if lines else ""
    more = " ..." if len(lines) > 1 or len(first) > _TITLE_CHARS_MAX else ""
    return f"{tool_name} {first[:_TITLE_CHARS_MAX]}{more}".strip()


def describe_call(
    tool_name: str, args: Args, folder: str, *, has_run: bool = False
) -> dict[str, Any]:
    """Return the protocol's keys for a tool call. Reads the file that it is about to write.

    Args:
        folder: the session's workspace.
        has_run: whether the call has run, so that the file's previous content is no longer known.
    """
    own_name = OWNED.get(tool_name, tool_name)
    diffs = _diffs(own_name, args, folder, has_run=has_run)
    # A patch names its files only in its text.
    subject = {} if own_name != "patch" else {"path": ", ".join(_names(diffs, folder))}
    call: dict[str, Any] = {
        "title": title_of(tool_name, {**args, **subject}),
        "name": tool_name,
        "kind": _KINDS.get(own_name, "other"),
        "rawInput": dict(args),
    }
    paths = [diff["path"] for diff in diffs] or _list_named_paths(args, folder)
    if paths:
        line = args.get("offset")
        # Arguments are shown before they are validated.
        is_line_number = own_name == "read" and type(line) is int and 0 < line <= _LINE_MAX
        position = {"line": line} if is_line_number else {}
        call["locations"] = [{"path": path, **position} for path in paths]
    if diffs:
        call["content"] = diffs
    return call


def text_content(text: str) -> list[dict[str, Any]]:
    """Return a text as the content of a tool call."""
    return [{"type": "content", "content": {"type": "text", "text": text}}]


def _list_named_paths(args: Args, folder: str) -> list[str]:
    path = args.get("path")
    return [_whole_path(folder, path)] if isinstance(path, str) else []


def _diffs(tool_name: str, args: Args, folder: str, *, has_run: bool) -> list[dict[str, Any]]:
    match tool_name, args:
        case "edit", {"path": str(path), "oldText": str(old), "newText": str(new)}:
            return [_diff(folder, path, old, new)]
        case "write", {"path": str(path), "content": str(new)}:
            before = None if has_run else _text_of_file(Path(folder, path))
            return [_diff(folder, path, before, new)]
        case "patch", {"patch": str(text)}:
            strip = args.get("strip")
            with suppress(ToolError):  # the call will fail, and say why
                files = parse(text, strip if isinstance(strip, int) else None)
                return [_of_patch(file, folder) for file in files[:_DIFFS_MAX]]
    return []


def _diff(folder: str, path: str, old: str | None, new: str) -> dict[str, Any]:
    known = {} if old is None else {"oldText": old}
    absolute = _whole_path(folder, path)
    return {"type": "diff", "path": absolute, **known, "newText": new}


def _of_patch(file: FileDiff, folder: str) -> dict[str, Any]:
    old = "".join(line for hunk in file.hunks for line in hunk.old)
    new = "".join(line for hunk in file.hunks for line in hunk.new)
    return _diff(folder, file.new or file.old or "", None if file.old is None else old, new)


def _names(diffs: list[dict[str, Any]], folder: str) -> list[str]:
    return [os.path.relpath(diff["path"], folder) for diff in diffs]


def _whole_path(folder: str, path: str) -> str:
    return os.path.normpath(Path(folder, path))


def _text_of_file(path: Path) -> str | None:
    """Return the content of a text file of moderate size, else None."""
    with suppress(OSError, ValueError):  # not text, or not a path
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_size <= _FILE_BYTES_MAX:
                return file.read(_FILE_BYTES_MAX).decode()
    return None
