"""Formats folders and times for people."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def format_folder(folder: str | Path) -> str:
    """Return a folder's path for people; one in the home directory begins with ``~``."""
    path, home = Path(folder), Path.home()
    if path == home:
        return "~"
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def local_time(moment: str) -> str:
    """Return a time of the wire in the local time zone; return any other text unchanged."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return moment


def duration(seconds: float) -> str:
    """Return a duration in its largest unit, rounded down: ``30s``, ``5m``, ``3h``, ``2d``."""
    size, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    return f"{max(0, int(seconds // size))}{unit}"


def age(moment: str, until: str | None = None) -> str:
    """Return the time from one moment of the wire to another, or to now. Return a text that is not a
    time unchanged.
    """
    try:
        time = datetime.fromisoformat(moment).astimezone()
        end = datetime.now(UTC) if until is None else datetime.fromisoformat(until)
    except ValueError:
        return moment
    return duration((end.astimezone() - time).total_seconds())
