"""A project's files as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Payload = Mapping[str, Any]


def project_files(payload: Payload) -> Iterator[str]:
    """Yield the lines that show ``list_trust``."""
    for file in payload["files"]:
        yield from file_lines(file)
    if not payload["files"]:
        yield f"the project at {payload['root']} has no settings of its own"


def file_lines(file: Payload) -> Iterator[str]:
    """Yield the lines that show one file."""
    state = "trusted" if file["trusted"] else "not trusted"
    yield f"{file['path']}: {state}"
    yield f"  {file['hash'] or 'it is not there, or cannot be read'}"
    for name, says in (
        ("restricts", "counts in any case"),
        ("adds", "counts if trusted"),
        ("problems", "never counts"),
    ):
        yield from (f"  {says}: {line}" for line in file.get(name, ()))
