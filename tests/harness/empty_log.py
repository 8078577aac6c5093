"""Puts an empty log where a test opens one.

Creating a log takes six times as long as opening it, and most tests need one. ``tests/store/`` and the
tests that start processes let the store create it.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from pathlib import Path

import apsw

from nousd.store.sqlite.database import open_for_writing


def place_empty_log(path: Path) -> None:
    """Write a log without events to ``path``, unless there is a file already."""
    with contextlib.suppress(FileExistsError), path.open("xb") as file:
        file.write(_empty_log())


@functools.cache
def _empty_log() -> bytes:
    """Return the bytes of the file that the store creates."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nousd.db"
        open_for_writing(path, apsw.Connection).connection.close()
        return path.read_bytes()
