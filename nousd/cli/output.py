"""Prints to a terminal or a pipe, and ends in order if the output cannot be written.

Text of models, tools and clients never controls the terminal.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

DONE: Final = 0
FAILED: Final = 1
"""Exit codes."""

_SNIPPET_CHARS_MAX: Final = 80

_CONTROLS: Final = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in [*range(0x20), *range(0x7F, 0xA0)]
    if code not in (9, 10)
}
"""Characters that move the cursor or change the terminal; all except tab and line feed."""

_CANNOT_WRITE: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE}
)


def harmless(text: str) -> str:
    """Return the text with control characters replaced."""
    return text.translate(_CONTROLS)


def snippet(text: str) -> str:
    """Return the text as one short line."""
    line = " ".join(text.split())
    return line if len(line) <= _SNIPPET_CHARS_MAX else line[: _SNIPPET_CHARS_MAX - 3] + "..."


def shown(text: str) -> str:
    """Return text for standard output: harmless on a terminal, unchanged in a pipe."""
    return harmless(text) if sys.stdout.isatty() else text


def say(text: str) -> None:
    """Print a remark to standard error, apart from the result on standard output."""
    print(harmless(text), file=sys.stderr, flush=True)


def print_line(line: bytes) -> None:
    """Print a line of the wire unchanged."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Flush standard output at the end; exit with code 1 if it cannot be written.

    A reader that closed the pipe, such as ``head``, has seen enough: there is no message then.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        _discard_output()
        if error.errno != errno.EPIPE:
            print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(FAILED)


def _discard_output() -> None:
    """Redirect standard output to nothing, because the interpreter flushes once more while it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
