"""Databases that earlier versions wrote (``fixtures/stores/schema-N.db.gz``), unpacked for a test."""

from __future__ import annotations

import gzip
from pathlib import Path

import apsw

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "stores"

EARLIER = tuple(sorted(path.name.removesuffix(".db.gz") for path in FOLDER.glob("*.db.gz")))
"""The name of each."""

StoredLines = dict[int, tuple[int, str, bytes]]
"""The number of each event with its schema version, its type and its bytes."""


def unpack(name: str, path: Path) -> None:
    """Writes the database of that name to ``path``."""
    path.write_bytes(gzip.decompress((FOLDER / f"{name}.db.gz").read_bytes()))


def stored_lines(path: Path) -> StoredLines:
    """Reads the events of a database as they are stored, past all that would lift them."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute("SELECT seq, schema_version, type, line FROM events")
    lines = {seq: (version, type_, line) for seq, version, type_, line in rows}
    connection.close()
    return lines
