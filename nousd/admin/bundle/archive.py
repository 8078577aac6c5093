"""The archive of a support bundle: a tar.gz whose whole content has passed the redactor.

Each ``add`` method takes its content whole, redacts it and only then writes it. The manifest, the last
file, lists the files of the bundle and the omissions.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import IO, Any, Final

import msgspec

from nousd.redaction.redactor import Redactor

MANIFEST: Final = "manifest.json"

FOLDER: Final = "nousd-bundle"
"""The only top-level directory, so that unpacking makes one entry."""

_IN_MEMORY_BYTES_MAX: Final = 8 * 1024 * 1024
"""A longer file is kept on disk until its length is known."""

_GZIP: Final = 16 + zlib.MAX_WBITS
"""Selects zlib's largest window, and the header and checksum of a gzip file."""


class File(msgspec.Struct, frozen=True):
    """A file of the bundle, with its size in the bundle."""

    name: str
    bytes: int


class LeftOut(msgspec.Struct, frozen=True):
    """An omission from the bundle, with its reason."""

    what: str
    reason: str


class Archive:
    """Writes a bundle.

    Args:
        output: receives the compressed bytes.
        now: the modification time of all files.

    ``is_broken`` is True once a write has failed: nothing can be added after a partial file.
    """

    def __init__(self, output: IO[bytes], redactor: Redactor, now: datetime) -> None:
        self.files: list[File] = []
        self.left_out: list[LeftOut] = []
        self.is_broken = False
        self._redactor = redactor
        self._now = now
        self._compressed = _Compressed(output)
        self._tar = tarfile.open(fileobj=self._compressed, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def leave_out(self, item: str, reason: str) -> None:
        """Record an omission from the bundle."""
        self.left_out.append(LeftOut(item, reason))

    def add_json(self, name: str, value: Any) -> None:
        """Add a file that is one JSON document."""
        self._put(name, [_encode_json(self._redactor.redact_json(value), indent=2)])

    def add_json_lines(self, name: str, values: Iterable[Any]) -> None:
        """Add a file with one JSON value on each line."""
        self._put(name, (_encode_json(self._redactor.redact_json(value)) for value in values))

    def add_text(self, name: str, text: str) -> None:
        """Add a text file. Lines that are JSON objects are redacted as JSON."""
        self._put(name, self._redact_lines(text))

    def add_document(self, name: str, text: str) -> None:
        """Add a file that is one JSON document if it can be parsed, else text."""
        value = _json_or_none(text)
        if value is None:
            self.add_text(name, text)
        else:
            self._put(name, [_encode_json(self._redactor.redact_json(value))])

    def close(self, facts: dict[str, Any]) -> None:
        """Add the manifest and end the file.

        Args:
            facts: the keys of the manifest other than files, omissions and redactions.
        """
        self.add_json(
            MANIFEST,
            {
                **facts,
                "files": msgspec.to_builtins(self.files),
                "left_out": msgspec.to_builtins(self.left_out),
                # As a list: names of kinds look like names of secrets.
                "redacted": [
                    {"kind": kind, "count": count}
                    for kind, count in sorted(self._redactor.counts.items())
                ],
            },
        )
        self._tar.close()
        self._compressed.end()

    def _redact_lines(self, text: str) -> Iterator[bytes]:
        """Yield the text in pieces: JSON lines one by one, other text whole, because a private key
        spans many lines.
        """
        other_lines: list[str] = []
        for line in text.splitlines(keepends=True):
            value = _json_or_none(line) if line.startswith("{") else None
            if value is None:
                other_lines.append(line)
                continue
            yield self._redact_text(other_lines)
            other_lines = []
            yield _encode_json(self._redactor.redact_json(value))
        yield self._redact_text(other_lines)

    def _redact_text(self, lines: list[str]) -> bytes:
        return self._redactor.redact("".join(lines)).encode("utf-8", "backslashreplace")

    def _put(self, name: str, pieces: Iterable[bytes]) -> None:
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES_MAX) as file:
            for piece in pieces:
                file.write(piece)
            info = tarfile.TarInfo(f"{FOLDER}/{name}")
            info.size = file.tell()
            info.mode = 0o600
            info.mtime = int(self._now.timestamp())
            file.seek(0)
            self.is_broken = True
            self._tar.addfile(info, file)
            self.is_broken = False
        self.files.append(File(name, info.size))


class _Compressed(io.RawIOBase):
    """A stream that compresses its input.

    Unlike a ``GzipFile`` it writes nothing when it is garbage-collected: a partial bundle has no end,
    and its output may be closed by then.
    """

    def __init__(self, output: IO[bytes]) -> None:
        self._output = output
        self._gzip = zlib.compressobj(level=zlib.Z_BEST_COMPRESSION, wbits=_GZIP)
        self._size = 0

    def write(self, data: Any) -> int:
        self._output.write(self._gzip.compress(data))
        self._size += len(data)
        return len(data)

    def tell(self) -> int:
        return self._size

    def end(self) -> None:
        """Write the remaining bytes and the checksum."""
        self._output.write(self._gzip.flush())


def _json_or_none(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _encode_json(value: Any, *, indent: int | None = None) -> bytes:
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    # A lone surrogate is not text; as an escape it can be decoded again.
    return text.encode("utf-8", "backslashreplace") + b"\n"
