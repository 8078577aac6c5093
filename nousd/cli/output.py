"""Prints to a terminal or a pipe, and exits cleanly if the output cannot be written.

Text of models, tools and clients cannot control the terminal or change how other text looks.
"""

from __future__ import annotations

import errno
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

DONE: Final = 0
FAILED: Final = 1
"""Exit codes."""

_SNIPPET_CHARS_MAX: Final = 80

_INVISIBLE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control characters, format characters such as those for text direction, lone surrogates, and
separators that a terminal does not show."""

_INVISIBLE_OTHERS: Final = frozenset(
    map(ord, "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
) | {*range(0xFE00, 0xFE0F), *range(0xE0100, 0xE01F0)}
"""Invisible letters and marks, except U+FE0F, which follows many emoji."""


class _DisplayTable(dict[int, str]):
    """Code point -> its displayed form, computed at its first use."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        hidden = unicodedata.category(char) in _INVISIBLE_CATEGORIES or code in _INVISIBLE_OTHERS
        self[code] = f"<U+{code:04X}>" if hidden else char
        return self[code]


_SHOWN_IN_LINE: Final = _DisplayTable()
_SHOWN_IN_TEXT: Final = _DisplayTable({9: "\t", 10: "\n"})

_WRITE_ERRORS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE}
)


def harmless(text: str, *, one_line: bool = False) -> str:
    """Return the text with invisible characters, and those that change how others look, made visible.

    U+202E becomes ``<U+202E>``.

    Args:
        one_line: whether to make tabs and line feeds visible too.
    """
    return text.translate(_SHOWN_IN_LINE if one_line else _SHOWN_IN_TEXT)


def snippet(text: str, chars_max: int = _SNIPPET_CHARS_MAX) -> str:
    """Return the text as one line of at most ``chars_max`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= chars_max else line[: chars_max - 3] + "..."


def sanitize_output(text: str) -> str:
    """Return text for standard output: harmless on a terminal, unchanged in a pipe."""
    return harmless(text) if sys.stdout.isatty() else text


def say(text: str) -> None:
    """Print a remark to standard error, separate from the result on standard output."""
    print(harmless(text), file=sys.stderr, flush=True)


def print_line(line: bytes) -> None:
    """Print a line of the wire unchanged."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Flush standard output at the end; exit with code 1 if it cannot be written.

    If the reader closed the pipe, as ``head`` does, no message is printed.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _WRITE_ERRORS or error.filename is not None:
            raise
        _discard_output()
        if error.errno != errno.EPIPE:
            print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(FAILED)


def _discard_output() -> None:
    """Redirect standard output to ``/dev/null``, because the interpreter flushes again at its exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
