"""``nousctl logs``: the end of the daemon's diagnostic log, and what is added to it."""

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
"""Lines that are shown if no number is given."""

_END_BYTES_MAX: Final = 4 * 1024 * 1024
"""The part of the file that is searched for its last lines."""

_POLL_SECONDS: Final = 0.2


def show(path: Path, lines: int, *, follow: bool, json: bool) -> None:
    """Print the last lines of a log, and with ``follow`` each that is added, also to a new file of that
    name.

    Args:
        json: print the lines as they are.

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
            *whole, rest = (rest + data).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
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
    file.seek(start + end)  # an unfinished line is shown when it is finished
    whole = data[:end].split(b"\n")[:-1]
    kept = whole[1:] if start else whole
    return [line.decode(errors="replace") for line in kept[max(0, len(kept) - count) :]]


def _current(path: Path, file: BinaryIO) -> BinaryIO:
    """Return the file of that name: the log is renamed when it is long."""
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
