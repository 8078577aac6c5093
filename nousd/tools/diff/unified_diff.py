"""Parse unified diffs, as ``git diff`` and ``diff -u`` write them, completely and exactly or not at all.

An inconsistency (wrong counts, lines outside any hunk) is an error and never skipped, because half a
change must not look like a whole one. Text around the files of a diff, such as a commit message, is
allowed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from nousd.errors import ToolError
from nousd.tools.diff.file_names import Names, common_strip, git_names, parse_moved_names, unquote
from nousd.tools.fs.path_errors import format_given

_DEV_NULL: Final = "/dev/null"

_HUNK: Final = re.compile(
    r"@@ -([0-9]{1,9})(?:,([0-9]{1,9}))? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@(?: .*)?", re.ASCII
)
_EPOCH_STAMP: Final = re.compile(r"19(?:69-12-31|70-01-01)\b", re.ASCII)


class Hunk(NamedTuple):
    """Old lines and the new lines that replace them, both with the same context lines.

    Args:
        line: its line in the diff, from 1.
        start: the line of the file at which ``old`` begins, from 1.
        old, new: lines with their LF, which only the last line can lack.
    """

    line: int
    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    added: int
    removed: int


class FileDiff(NamedTuple):
    """The diff of one file.

    Args:
        line: its first line in the diff, from 1.
        old: the file's path; None for a new file.
        new: its path afterwards; None for a removed file.
        is_copy: whether ``old`` stays.
        is_executable: whether it is executable afterwards; None: unchanged.
    """

    line: int
    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...]
    is_copy: bool = False
    is_executable: bool | None = None


def parse(text: str, strip: int | None = None) -> list[FileDiff]:
    """Parse a diff.

    Args:
        strip: number of directories to remove from the front of each path. None: the prefixes before an
            equal rest (``a/`` and ``b/``), if there are any.

    Raises:
        ToolError: ``patch_failed: line <n>: ...``.
    """
    lines = text.removesuffix("\n").split("\n")
    if all(line.endswith("\r") for line in lines):
        lines = [line[:-1] for line in lines]
    files = _Reader(lines, strip).files()
    if not files:
        raise ToolError("patch_failed: there is no file in the patch: it needs --- and +++ lines")
    return files


class _Reader:
    """The lines of a diff, and the position in it."""

    def __init__(self, lines: list[str], strip: int | None) -> None:
        self._lines = lines
        self._strip = strip
        self._index = 0

    def files(self) -> list[FileDiff]:
        files = []
        while self._index < len(self._lines):
            line = self._line()
            if line.startswith("diff --git "):
                files.append(self._git_file())
            elif self._at_names():
                files.append(self._plain_file())
            elif line.startswith("@@ -"):
                raise self._fault("a hunk without a file: --- and +++ lines are missing")
            else:
                self._refuse_binary()
                self._index += 1
        return files

    # --- files -------------------------------------------------------------------------------

    def _plain_file(self) -> FileDiff:
        line = self._index + 1
        names = self._names()
        strip = common_strip(names) if self._strip is None else self._strip
        old, new = (self._path(name, strip) for name in names)
        if old is not None and new is not None and old != new:
            raise self._fault(
                f"two names for one file, {format_given(old)} and {format_given(new)}; a rename is said"
                " with 'rename from' and 'rename to'",
                line,
            )
        hunks = self._hunks()
        if not hunks:
            raise self._fault(f"no hunk for {format_given(new or old or '')}")
        return FileDiff(line, old, new, hunks)

    def _git_file(self) -> FileDiff:
        line = self._index + 1
        header = git_names(self._line().removeprefix("diff --git "))
        self._index += 1
        headers = self._git_headers()
        self._refuse_binary()
        moved = parse_moved_names(headers)
        names = self._names_of(moved or header)
        hunks = self._hunks()
        if moved is not None:
            old, new = (self._path(name, (self._strip or 1) - 1) for name in moved)
        else:
            either = names or header
            if either is None:
                raise self._fault("the names of the file cannot be told apart", line)
            strip = common_strip(header or either) if self._strip is None else self._strip
            old, new = (self._path(name, strip) for name in either)
        if "new file mode" in headers:
            old = None
        if "deleted file mode" in headers:
            new = None
        mode = headers.get("new mode") or headers.get("new file mode")
        self._refuse_special(line, headers)
        if moved is None and any(key.startswith(("rename", "copy")) for key in headers):
            raise self._fault("half of a rename or copy", line)
        if not (hunks or any(key in headers for key in _CHANGES)):
            raise self._fault(f"nothing is said of {format_given(new or old or '')}", line)
        return FileDiff(
            line,
            old,
            new,
            hunks,
            is_copy="copy from" in headers,
            is_executable=None if mode is None else mode.endswith("755"),
        )

    def _git_headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        while self._index < len(self._lines):
            line = self._line()
            key = next((key for key in _GIT_HEADERS if line.startswith(key + " ")), None)
            if key is None:
                break
            headers[key] = line[len(key) + 1 :]
            self._index += 1
        return headers

    def _refuse_special(self, line: int, headers: dict[str, str]) -> None:
        for key, mode in headers.items():
            if key.endswith("mode") and not mode.startswith("100"):
                raise self._fault(f"{key} {mode}: only regular files can be patched", line)

    def _refuse_binary(self) -> None:
        line = self._line() if self._index < len(self._lines) else ""
        if line == "GIT binary patch" or (
            line.startswith("Binary files ") and line.endswith(" differ")
        ):
            raise self._fault("binary files cannot be patched")

    # --- names -------------------------------------------------------------------------------

    def _at_names(self) -> bool:
        """Return whether the two lines with a file's names follow."""
        here = self._lines[self._index : self._index + 2]
        return len(here) == 2 and here[0].startswith("--- ") and here[1].startswith("+++ ")

    def _names(self) -> Names:
        names = []
        for _ in range(2):
            name, _tab, stamp = self._line()[4:].partition("\t")
            is_absent = name == _DEV_NULL or _EPOCH_STAMP.match(stamp)
            names.append(None if is_absent else unquote(name))
            self._index += 1
        if names == [None, None]:
            raise self._fault("neither name is a file's", self._index - 1)
        return Names(*names)

    def _names_of(self, file: Names | None) -> Names | None:
        """Read the two names if they follow and belong to this file; otherwise another file begins."""
        begin = self._index
        names = self._names() if self._at_names() else None
        if names is not None and file is not None:
            for name, own in zip(names, file, strict=True):
                if name is not None and own is not None and not name.endswith(own):
                    self._index = begin
                    return None
        return names

    def _path(self, name: str | None, strip: int) -> str | None:
        if name is None:
            return None
        folders, _slash, path = name.rpartition("/")
        parts = [*folders.split("/"), path] if _slash else [path]
        if len(parts) <= strip or not path:
            raise self._fault(f"{format_given(name)} is no path with {strip} folders to take off")
        return "/".join(parts[strip:])

    # --- hunks -------------------------------------------------------------------------------

    def _hunks(self) -> tuple[Hunk, ...]:
        hunks = []
        while self._index < len(self._lines) and self._line().startswith("@@"):
            hunks.append(self._hunk())
            self._refuse_more()
        self._refuse_more()
        return tuple(hunks)

    def _hunk(self) -> Hunk:
        header = _HUNK.fullmatch(self._line())
        if header is None:
            raise self._fault("a hunk begins with @@ -<line>,<count> +<line>,<count> @@")
        line = self._index + 1
        self._index += 1
        start, old_count, _, new_count = (
            1 if number is None else int(number) for number in header.groups()
        )
        body = _Body(old_count, new_count)
        while not body.is_whole or self._at_marker():
            if self._index == len(self._lines):
                raise self._fault(f"its end is missing: {body.missing}", line)
            if not body.take(self._lines[self._index]):
                raise self._fault(
                    f"no line of a hunk; the hunk of line {line} needs {body.missing}"
                )
            self._index += 1
        if not body.ends_well:
            raise self._fault("a line without a newline is not the last one", line)
        return Hunk(line, start, tuple(body.old), tuple(body.new), body.added, body.removed)

    def _at_marker(self) -> bool:
        return self._index < len(self._lines) and self._lines[self._index].startswith("\\ ")

    def _refuse_more(self) -> None:
        """Raise ToolError if a line of the previous hunk follows that exceeds the hunk's counts."""
        line = self._lines[self._index] if self._index < len(self._lines) else ""
        is_signature = line.rstrip() == "--"
        if line[:1] in {"+", "-", " "} and not is_signature and not self._at_names():
            raise self._fault("a line of no hunk: the one before says that it has fewer")

    # --- lines and errors --------------------------------------------------------------------

    def _line(self) -> str:
        """Return the current line as a header, without a CR."""
        return self._lines[self._index].removesuffix("\r")

    def _fault(self, reason: str, line: int | None = None) -> ToolError:
        return ToolError(f"patch_failed: line {line or self._index + 1}: {reason}")


class _Body:
    """The lines of a hunk, checked against the counts of its header."""

    def __init__(self, old_count: int, new_count: int) -> None:
        self.old: list[str] = []
        self.new: list[str] = []
        self.added = 0
        self.removed = 0
        self._old_count = old_count
        self._new_count = new_count
        self._last: tuple[list[str], ...] = ()

    @property
    def is_whole(self) -> bool:
        return len(self.old) == self._old_count and len(self.new) == self._new_count

    @property
    def ends_well(self) -> bool:
        return all(line.endswith("\n") for line in (*self.old[:-1], *self.new[:-1]))

    @property
    def missing(self) -> str:
        old, new = self._old_count - len(self.old), self._new_count - len(self.new)
        return f"{old} more old and {new} more new lines"

    def take(self, line: str) -> bool:
        """Take the next line; return False if it is not a line of a hunk or exceeds the counts."""
        take = _LINE_HANDLERS.get(line[:1])
        if take is not None:
            take(self, line[1:])
        elif line in {"", "\r"}:  # an empty line whose leading space was lost
            self.keep(line)
        else:
            return False
        return len(self.old) <= self._old_count and len(self.new) <= self._new_count

    def keep(self, text: str) -> None:
        self._append(text, self.old, self.new)

    def add(self, text: str) -> None:
        self.added += 1
        self._append(text, self.new)

    def remove(self, text: str) -> None:
        self.removed += 1
        self._append(text, self.old)

    def end_without_newline(self, _text: str) -> None:
        for lines in self._last:
            lines[-1] = lines[-1].removesuffix("\n")

    def _append(self, text: str, *sides: list[str]) -> None:
        for lines in sides:
            lines.append(text + "\n")
        self._last = sides


_LINE_HANDLERS: Final[dict[str, Callable[[Any, str], None]]] = {
    " ": _Body.keep,
    "+": _Body.add,
    "-": _Body.remove,
    "\\": _Body.end_without_newline,
}

_CHANGES: Final = (
    "new mode",
    "deleted file mode",
    "new file mode",
    "copy to",
    "rename to",
)

_GIT_HEADERS: Final = (
    *_CHANGES,
    "old mode",
    "copy from",
    "rename from",
    "similarity index",
    "dissimilarity index",
    "index",
)
"""Headers that may come between ``diff --git`` and the names; those of ``_CHANGES`` are changes."""
