"""Reads the pages of a database and its WAL without SQLite, for logs that SQLite cannot read.

Theory of operation (SQLite's file format, sections 1.6, 2.1 and 4). Every row is on a leaf page of its
table's b-tree, or begins there and continues over a chain of overflow pages. Interior pages point to the
leaves; if one of them is lost, SQLite finds nothing below it. But a leaf is recognizable by its type
byte, and the rows of a log by their content: an event is a line that begins with its number, and an
artifact's id is the hash of its bytes (of all its chunks together, so the caller verifies it). So this
module reads every page, regardless of its table, and needs no other page except the overflow pages of a
long row.

The newest version of a page, which may be in the WAL, is read first. Frames up to the last commit are
accepted by their salt alone: a wrong checksum means that a part of this frame or of one before it is
damaged, not that all of it is.

In a damaged leaf, events are found by a search for their lines (``_loose_events``). A match is accepted
only with the row's other columns right before it: a tool's output may contain whole event lines, of
this log or of another one.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from nousd.admin.reading.lines import StoredLine

_LEAF: Final = 0x0D
_PAGE_SIZES: Final = frozenset(2**power for power in range(9, 17))
_PAGE_BYTES: Final = 4096
"""SQLite's default page size, which every log uses."""

_WAL_HEADER: Final = 32
_FRAME_HEADER: Final = 24

_LINE: Final = re.compile(
    rb'\{"v":"1","id":"evt-(\d{1,18})","type":"([a-z_]{1,64})","payload":[^\n]+\}\n'
)
_ARTIFACT_ID: Final = re.compile("sha256:[0-9a-f]{64}")
_PREFIX: Final = b'{"v":"1","id":"evt-'
_NAMESPACE: Final = b"default"

_PAYLOAD_BYTES_MAX: Final = 2**31
_HEADER_BYTES_MAX: Final = 256
"""Maximum header size of a log's record, which has few columns."""


class RawArtifact(NamedTuple):
    """An artifact in the form of schemas before 3, with its hash verified."""

    artifact_id: str
    media_type: str
    data: bytes


class RawChunk(NamedTuple):
    """A row with the form of a chunk of an artifact."""

    artifact_id: str
    idx: int
    data: bytes


class RawInfo(NamedTuple):
    """A row with the form of an artifact's description."""

    artifact_id: str
    media_type: str
    size_bytes: int
    created_at: str


RawRow = StoredLine | RawArtifact | RawChunk | RawInfo


class PageReader:
    """Reads all pages of the database at ``path`` and of its WAL. Use it as a context manager."""

    def __init__(self, path: Path, wal: Path) -> None:
        with ExitStack() as files:
            self._database = _map_file(path, files)
            self._wal = _map_file(wal, files)
            self._files = files.pop_all()
        self._page_bytes = self._find_page_bytes()
        self._newest: dict[int, int] = {}
        self._older: list[tuple[int, int]] = []
        for number, offset in self._find_committed_frames():
            if number in self._newest:
                self._older.append((number, self._newest[number]))
            self._newest[number] = offset

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    @property
    def wal_frames(self) -> int:
        """The number of frames up to the last commit."""
        return len(self._newest) + len(self._older)

    def rows(self) -> Iterator[RawRow]:
        """Yield every event and artifact on any page, newest pages first; some more than once."""
        for number, page in self._pages():
            yield from self._rows_of(number, page)

    # --- pages ---------------------------------------------------------------------------------

    def _pages(self) -> Iterator[tuple[int, bytes]]:
        in_file = -(-len(self._database) // self._page_bytes)
        # A damaged frame may have any page number, so numbers beyond the file are not enumerated.
        beyond = sorted(number for number in self._newest if number > in_file)
        for number in itertools.chain(range(1, in_file + 1), beyond):
            yield number, self._page(number)
        for number, offset in reversed(self._older):
            yield number, self._wal[offset : offset + self._page_bytes]
        for number in self._newest:
            if number <= in_file:
                yield number, self._in_database(number)

    def _page(self, number: int) -> bytes:
        offset = self._newest.get(number)
        if offset is None:
            return self._in_database(number)
        return self._wal[offset : offset + self._page_bytes]

    def _in_database(self, number: int) -> bytes:
        start = (number - 1) * self._page_bytes
        return self._database[start : start + self._page_bytes]

    def _find_page_bytes(self) -> int:
        in_header = int.from_bytes(self._database[16:18], "big")
        in_wal = int.from_bytes(self._wal[8:12], "big")
        return next(
            (
                size
                for size in (65536 if in_header == 1 else in_header, in_wal)
                if size in _PAGE_SIZES
            ),
            _PAGE_BYTES,
        )

    def _find_committed_frames(self) -> Iterator[tuple[int, int]]:
        """Yield (page number, offset of the page) of each frame up to the last commit."""
        step = _FRAME_HEADER + self._page_bytes
        headers = [
            (offset, self._wal[offset : offset + _FRAME_HEADER])
            for offset in range(_WAL_HEADER, len(self._wal) - step + 1, step)
        ]
        salt = self._salt([header for _, header in headers])
        of_this_log = [(offset, header) for offset, header in headers if header[8:16] == salt]
        last_commit = max(
            (index for index, (_, header) in enumerate(of_this_log) if any(header[4:8])), default=-1
        )
        for offset, header in of_this_log[: last_commit + 1]:
            number = int.from_bytes(header[:4], "big")
            if number:
                yield number, offset + _FRAME_HEADER

    def _salt(self, headers: Sequence[bytes]) -> bytes:
        """Return the salt of the frames since the WAL was last reset.

        Both the WAL's header and its first frame contain it; one of them may be damaged.
        """
        salts = [header[8:16] for header in headers]
        return max((self._wal[16:24], *salts[:1]), key=salts.count)

    # --- rows ----------------------------------------------------------------------------------

    def _rows_of(self, number: int, page: bytes) -> Iterator[RawRow]:
        is_complete = True
        for rowid, payload in self._cells(number, page):
            if payload is None:
                is_complete = False
                continue
            row = _row(rowid, payload)
            if row is not None:
                yield row
        if not is_complete or page[self._start_of(number) : self._start_of(number) + 1] != b"\x0d":
            yield from _loose_events(page)

    @staticmethod
    def _start_of(number: int) -> int:
        return 100 if number == 1 else 0

    def _cells(self, number: int, page: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the rowid and record of each cell of a table's leaf; the record is None if damaged."""
        start = self._start_of(number)
        if len(page) < start + 8 or page[start] != _LEAF:
            return
        count = int.from_bytes(page[start + 3 : start + 5], "big")
        for index in range(count):
            at = start + 8 + 2 * index
            try:
                yield self._cell(page, int.from_bytes(page[at : at + 2], "big"))
            except ValueError:
                yield 0, None

    def _cell(self, page: bytes, at: int) -> tuple[int, bytes]:
        if not 8 <= at < len(page):
            raise ValueError("a cell that is not on the page")
        size, at = _varint(page, at)
        rowid, at = _varint(page, at)
        if not 0 < size <= _PAYLOAD_BYTES_MAX:
            raise ValueError("a row of an impossible length")
        local = self._local_bytes(size)
        if at + local > len(page):
            raise ValueError("a cell that goes over the end of the page")
        record = page[at : at + local]
        if local == size:
            return rowid, record
        return rowid, self._with_overflow(record, page[at + local : at + local + 4], size)

    def _local_bytes(self, size: int) -> int:
        """Return how many bytes of a row of that size are stored on its leaf."""
        usable = self._page_bytes
        if size <= usable - 35:
            return size
        least = (usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (usable - 4)
        return local if local <= usable - 35 else least

    def _with_overflow(self, begin: bytes, pointer: bytes, size: int) -> bytes:
        pieces, remaining = [begin], size - len(begin)
        while remaining > 0:
            page = self._page(int.from_bytes(pointer, "big") or 2**32)
            if len(page) < self._page_bytes:
                raise ValueError("an overflow page that is not there")
            pointer, piece = page[:4], page[4 : 4 + remaining]
            pieces.append(piece)
            remaining -= len(piece)
        return b"".join(pieces)


def _map_file(path: Path, files: ExitStack) -> mmap.mmap | bytes:
    """Return the memory-mapped content of a file; empty bytes if it is missing or empty."""
    if not path.is_file() or path.stat().st_size == 0:
        return b""
    file = files.enter_context(path.open("rb"))
    return files.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


# --- records -----------------------------------------------------------------------------------


def _row(rowid: int, payload: bytes) -> RawRow | None:
    """Return the row in a record, if its content identifies its table."""
    try:
        values = _values(payload)
    except ValueError:
        return None
    match values:
        case [None, _, int(version), str(), str(), str() | None, bytes(line), *_]:
            columns = "".join(filter(None, values[3:6])).encode()
            return StoredLine(rowid, version, columns, line) if line.startswith(_PREFIX) else None
        case [str(artifact_id), _, *_] if not _ARTIFACT_ID.fullmatch(artifact_id):
            return None
        case [str(artifact_id), _, int(index), bytes(data)]:
            return RawChunk(artifact_id, index, data)
        case [str(artifact_id), _, str(media_type), int(size_bytes), str(created_at)]:
            return RawInfo(artifact_id, media_type, size_bytes, created_at)
        case [str(artifact_id), _, str(media_type), bytes(data)]:
            if artifact_id == f"sha256:{hashlib.sha256(data).hexdigest()}":
                return RawArtifact(artifact_id, media_type, data)
    return None


def _values(record: bytes) -> list[Any]:
    header_bytes, at = _varint(record, 0)
    if not at <= header_bytes <= min(len(record), _HEADER_BYTES_MAX):
        raise ValueError("a record's header of an impossible length")
    kinds = []
    while at < header_bytes:
        kind, at = _varint(record, at)
        kinds.append(kind)
    values = []
    at = header_bytes
    for kind in kinds:
        size = _INT_BYTES[kind] if kind < len(_INT_BYTES) else (kind - 12) // 2
        if at + size > len(record):
            raise ValueError("a column that is not in the record")
        values.append(_value(kind, record[at : at + size]))
        at += size
    return values


def _value(kind: int, content: bytes) -> Any:
    if kind == 0:
        return None
    if kind in (8, 9):
        return kind - 8
    if kind < 7:
        return int.from_bytes(content, "big", signed=True)
    if kind < 12:
        raise ValueError("a fraction, which no column of ours has")
    if kind % 2 == 0:
        return content
    return content.decode()


_INT_BYTES: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)
"""Size in bytes of each serial type below 12."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the offset after it: seven bits per byte, eight bits of a ninth byte."""
    value = 0
    for index, byte in enumerate(data[at : at + 9]):
        if index == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number that does not end")


def _loose_events(page: bytes) -> Iterator[StoredLine]:
    """Yield the complete lines on a page that follow the other columns of their row."""
    for match in _LINE.finditer(page):
        before = page[: match.start()]
        type_at = before.rfind(match.group(2))
        # The version is between namespace and type: 1 takes no byte, a small number takes one.
        for version_bytes in (0, 1):
            namespace_end = type_at - version_bytes
            if type_at >= 0 and before[:namespace_end].endswith(_NAMESPACE):
                version = before[namespace_end] if version_bytes else 1
                yield StoredLine(int(match.group(1)), version, before[type_at:], match.group())
