"""``nousctl logs``: prints the end of the daemon's diagnostic log, and follows it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from nousd.cli.output import sanitize_output
from nousd.cli.render.people import local_time
from nousd.errors import ClientError

LINES: Final = 50
"""Default number of lines."""

_END_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes at the end of the file in which the last lines are searched."""

_POLL_SECONDS: Final = 0.2


def show(path: Path, lines: int, *, follow: bool, json: bool) -> None:
    """Print the last lines of a log; with ``follow``, also print new lines, across rotations.

    Args:
        json: whether to print the lines unchanged.

    Raises:
        ClientError: the file cannot be read.
    """
    try:
        for line in _lines(path, lines, follow=follow):
            print(sanitize_output(line if json else _for_people(line)), flush=True)
    except OSError as error:
        raise ClientError(f"the log {path} cannot be read: {error.strerror}") from None


def _lines(path: Path, count: int, *, follow: bool) -> Iterator[str]:
    file: BinaryIO = path.open("rb")
    try:
        yield from _last_lines(file, count)
        rest = b""
        while follow:
            data = file.read()
            *lines, rest = (rest + data).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
            if not data:
                file = _current(path, file)
                time.sleep(_POLL_SECONDS)
    finally:
        file.close()


def _last_lines(file: BinaryIO, count: int) -> list[str]:
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - _END_BYTES_MAX)
    file.seek(start)
    data = file.read(size - start)
    end = data.rfind(b"\n") + 1
    file.seek(start + end)  # an incomplete line is shown when it is complete
    lines = data[:end].split(b"\n")[:-1]
    kept = lines[1:] if start else lines
    return [line.decode(errors="replace") for line in kept[max(0, len(kept) - count) :]]


def _current(path: Path, file: BinaryIO) -> BinaryIO:
    """Return the file that now has the path, because a long log is rotated."""
    try:
        if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return file
        following = path.open("rb")
    except FileNotFoundError:
        return file
    file.close()
    return following


def _for_people(line: str) -> str:
    """Return a line of the log for people: time, level, message and the other fields."""
    try:
        fields: Any = json.loads(line)
        head = f"{local_time(fields.pop('ts'))} {fields.pop('level')} {fields.pop('message')}"
    except (ValueError, KeyError, AttributeError, TypeError):
        return line
    fields.pop("logger", None)
    return " ".join([head, *(f"{key}={value}" for key, value in fields.items())])
