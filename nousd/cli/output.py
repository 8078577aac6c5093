"""How a program ends whose output cannot be written: on a full disk, or when the reader has left."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_FAILED: Final = 1

_CANNOT_WRITE: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE}
)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Flushes the output at the end. If it cannot be written, ends the program with exit code 1 and a
    line that says why; without one if whoever read it has seen enough, as ``head`` does.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        _write_no_more()
        if error.errno != errno.EPIPE:
            print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(_FAILED)


def _write_no_more() -> None:
    """The interpreter tries once more on its way out, and would complain about it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
