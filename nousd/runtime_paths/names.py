"""Which paths can be told: a log, a model and a client take UTF-8 alone, a file system any bytes."""

from __future__ import annotations


def is_utf8(path: str) -> bool:
    """Return whether a path, as the operating system gave it to us, is UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
