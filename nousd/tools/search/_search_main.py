"""The search process: runs one ``find`` or ``grep`` and prints its result.

Its arguments, PIECE..., are the pieces of the JSON that ``nousd.tools.search.process`` writes. It is a
program because matching is computation: a regular expression can run forever, and in a thread it would
block the event loop. It uses only the standard library, so that it starts quickly.

Exit codes: 0 if the result is printed; 2 if the reason is printed why the search is impossible.
"""

from __future__ import annotations

import errno
import json
import re
import resource
import stat
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

# Site packages are not available (-S), so the package is found relative to this file.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from nousd.errors import ToolError
from nousd.tools.fs.globs import Parts, glob_matcher
from nousd.tools.fs.open_nofollow import make_changed_error
from nousd.tools.fs.path_errors import explain_os_errors
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.fs.tree_walk import open_tree

MEMORY_BYTES_MAX: Final = 2 * 1024**3
"""Limit of address space, so that a directory of many millions of names harms only the search."""

LINE_BYTES_MAX: Final = 64 * 1024
"""Bytes of a line that are searched."""

LINE_CHARS_SHOWN: Final = 500
"""Characters of a line that are shown."""

LINE_CHARS_PRINTED: Final = 8 * 1024
"""Characters of a line that are printed, so that a secret that begins in the shown part is whole and
``process`` can remove it. They are followed by a NUL and the number of bytes to show."""

BINARY_PROBE_BYTES: Final = 8 * 1024
"""A file with a NUL in its first bytes is not searched."""

_BLOCK_BYTES: Final = 1024 * 1024

_SPECIAL: Final = frozenset(r".^$*+?{}[]\|()")
"""The characters with a meaning in regular expressions."""

# What every glob needs is compiled here, once for all searches that are forked from the fork server.
glob_matcher("*")

Request = dict[str, Any]


def main(arguments: list[str]) -> int:
    warnings.simplefilter("ignore")  # such as warnings about ambiguous expressions
    return _answer(json.loads("".join(arguments)))


def _answer(request: Request) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    command = request["command"]
    try:
        path_sandbox = _confinement(request)
        with explain_os_errors(command, request["path"]):
            for line in _COMMANDS[command](path_sandbox, request):
                sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
    except ToolError as error:
        sys.stdout.write(str(error))
        return 2
    return 0


def _confinement(request: Request) -> PathSandbox:
    full_sandbox = PathSandbox(
        Path(request["workdir"]),
        tuple(map(Path, request["hidden"])),
        hard_links=request["hard_links"],
    )
    if str(full_sandbox.workdir) != request["real_workdir"]:
        raise make_changed_error(request["real_workdir"])
    open_to_call = (
        full_sandbox if request["opened"] is None else full_sandbox.allow_outside(request["opened"])
    )
    return open_to_call.restrict(
        reading=[re.compile(*pattern) for pattern in request["closed"]],
        may_miss=request["may_miss"],
    )


def find(path_sandbox: PathSandbox, request: Request) -> Iterator[str]:
    """Yield the paths below ``path`` that match ``pattern``; directories end with a slash."""
    matches = _glob("find.pattern", request["pattern"])
    prefix = _prefix(request["path"])
    with open_tree(path_sandbox, request["path"]) as tree:
        found = (item for item in tree if matches(item.parts))
        for item in islice(found, request["limit"]):
            yield prefix + "/".join(item.parts) + ("/" if item.is_folder else "")
        if next(found, None) is not None:
            yield f"\n[The first {request['limit']} paths are shown; raise limit or narrow pattern.]"


class Line(NamedTuple):
    """A line that matches, or that is the context of one."""

    label: str
    number: int
    text: str
    is_match: bool

    def __str__(self) -> str:
        mark = ":" if self.is_match else "-"
        where = f"{self.label}{mark}{self.number}{mark} "
        text = self.text.replace("\0", "\ufffd")
        if len(text) <= LINE_CHARS_SHOWN:
            return where + text
        shown = f"{where}{text[:LINE_CHARS_SHOWN]}".encode("utf-8", "replace")
        return f"{where}{text[:LINE_CHARS_PRINTED]}\0{len(shown)}"


Hit = list[Line]
"""A matching line preceded by its context, or one line of context after a match."""


def grep(path_sandbox: PathSandbox, request: Request) -> Iterator[str]:
    """Yield ``path:line: text`` for matching lines and ``path-line- text`` for lines around them."""
    matches_left = request["limit"]
    left_out: list[Parts] = []
    for hit in _hits(path_sandbox, request, left_out):
        matches_left -= hit[-1].is_match
        if matches_left < 0:
            yield f"\n[The first {request['limit']} matches are shown; raise limit or narrow pattern.]"
            return
        yield from map(str, hit)
    if left_out:
        count = "1 file was" if len(left_out) == 1 else f"{len(left_out)} files were"
        yield f"\n[{count} not searched: several names each (hard links).]"


def _hits(path_sandbox: PathSandbox, request: Request, left_out: list[Parts]) -> Iterator[Hit]:
    """Yield the matches; add files with several names (hard links) to ``left_out``."""
    search = _expression(request).search
    needle = _needle(request)
    path, context = request["path"], request["context"]
    with path_sandbox.locate(path) as resolved:
        status = resolved.status()
        if status is None or not stat.S_ISDIR(status.st_mode):
            with resolved.open_file() as file:
                yield from _hits_in(_lines(file, needle), path, search, context)
            return
    matches_glob = _glob("grep.glob", request["glob"])
    with open_tree(path_sandbox, path) as tree:
        for item in tree:
            if item.is_folder or not matches_glob(item.parts):
                continue
            try:
                with tree.open_file(item.parts) as file:
                    label = _prefix(path) + "/".join(item.parts)
                    yield from _hits_in(_lines(file, needle), label, search, context)
            except OSError as error:  # removed meanwhile, unreadable, a link, or not a regular file
                if error.errno == errno.EMLINK:
                    left_out.append(item.parts)


def _hits_in(
    lines: Iterator[str], label: str, search: Callable[[str], Any], context: int
) -> Iterator[Hit]:
    context_before: deque[Line] = deque(maxlen=context)
    context_left = 0
    for number, text in enumerate(lines, 1):
        if search(text):
            yield [*context_before, Line(label, number, text, is_match=True)]
            context_before.clear()
            context_left = context
        elif context_left:
            yield [Line(label, number, text, is_match=False)]
            context_left -= 1
        elif context:
            context_before.append(Line(label, number, text, is_match=False))


def _needle(request: Request) -> bytes:
    """Return bytes that every file with a match contains: the pattern if it is a plain text, which is
    found in a file much sooner than in each of its lines.
    """
    pattern: str = request["pattern"]
    is_plain = request["literal"] or _SPECIAL.isdisjoint(pattern)
    is_exact = not request["ignore_case"] and pattern.isascii()
    return pattern.encode() if is_plain and is_exact else b""


def _lines(file: BinaryIO, needle: bytes) -> Iterator[str]:
    """Yield the lines of a file; none if it does not contain ``needle``, or is not a text."""
    beginning = file.read(LINE_BYTES_MAX)
    if b"\0" in beginning[:BINARY_PROBE_BYTES]:
        return
    if len(beginning) < LINE_BYTES_MAX:  # the whole file, in which no line is too long
        if beginning and needle in beginning:
            text = beginning.decode("utf-8", "replace").removesuffix("\n")
            yield from (line.rstrip("\r") for line in text.split("\n"))
        return
    file.seek(0)
    if not _contains(file, needle):
        return
    file.seek(0)
    while line := file.readline(LINE_BYTES_MAX):
        rest = line
        while len(rest) == LINE_BYTES_MAX and not rest.endswith(b"\n"):
            rest = file.readline(LINE_BYTES_MAX)
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def _contains(file: BinaryIO, needle: bytes) -> bool:
    end = b""
    while block := file.read(_BLOCK_BYTES):
        if needle in end + block:
            return True
        end = block[-len(needle) :]
    return False


def _expression(request: Request) -> re.Pattern[str]:
    pattern = re.escape(request["pattern"]) if request["literal"] else request["pattern"]
    try:
        return re.compile(pattern, re.IGNORECASE if request["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(f"validation_failed: grep.pattern: {error}") from error


def _glob(field: str, pattern: str) -> Callable[[Parts], bool]:
    try:
        return glob_matcher(pattern)
    except ValueError as error:
        raise ToolError(f"validation_failed: {field}: {error}") from error


def _prefix(path: str) -> str:
    """Return the prefix of printed paths, so that other tools accept them."""
    return "" if path in {".", "./"} else path.rstrip("/") + "/"


_COMMANDS: Final[dict[str, Callable[[PathSandbox, Request], Iterator[str]]]] = {
    "find": find,
    "grep": grep,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
