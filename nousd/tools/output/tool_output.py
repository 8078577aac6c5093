"""The bounds of a tool's output: for the model, for subscribers, and for the artifact store.

Memory use does not grow with the output: a command may print gigabytes.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Final

import trio

from nousd.tools.interface import Emit, ToolResult
from nousd.tools.output.output_capture import OutputCapture
from nousd.tools.secrets_interface import Secrets
from nousd.tools.spooled_file import SpooledFile
from nousd.wire.limits import (
    EVENT_TEXT_BYTES_MAX,
    TOOL_RESULT_BYTES_MAX,
    TOOL_RESULT_LINES_MAX,
    TOOL_UPDATES_BYTES_MAX,
)
from nousd.wire.objects.field_types import OutputKind

RUNS_MAX: Final = 64
"""Pieces in one pause that keep their order if streams alternate."""

_STREAMS_MAX: Final = 2
"""The number of streams of one program."""

STREAM_PAUSE_SECONDS: Final = 0.05
"""Pause between two pieces of a stream, so that a thousand short lines become a few pieces."""

_SHORT_BYTES_MAX: Final = EVENT_TEXT_BYTES_MAX - 2048
"""An output up to this size is whole in every event, together with the notes about it."""

_TAIL_BYTES: Final = (
    TOOL_RESULT_BYTES_MAX + 4
)  # one character more than is shown, to notice that there is more


class OutputCollector:
    """Collects output as it arrives: an excerpt for the model, and all of it for the artifact store.

    The excerpt is text without trailing newlines, with U+FFFD for bytes that are not UTF-8. The stored
    output is equal to the original byte for byte.

    Args:
        folder: the directory in which a long output is kept until it is stored; None for the default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._excerpt = _Excerpt()
        self._capture = OutputCapture(folder)

    def feed(self, chunk: bytes) -> None:
        self._excerpt.feed(chunk)
        self._capture.feed(chunk)

    async def wait_room(self) -> None:
        """Wait until more may be fed; call it after each chunk of a large output."""
        if self._capture.wants_to_spill:
            await trio.to_thread.run_sync(self._capture.spill)
        else:
            await trio.lowlevel.checkpoint()

    async def finish(self) -> None:
        """Finish the output; the results are available afterwards."""
        if self._capture.is_short:
            self._capture.finish()
        else:
            await trio.to_thread.run_sync(self._capture.finish)

    def head(self) -> ToolResult:
        """Return the beginning of the output, with a note if it was cut."""
        return self._excerpt.head(self._capture)

    def tail(self) -> ToolResult:
        """Return the end of the output, with a note if it was cut."""
        return self._excerpt.tail(self._capture)


class _Excerpt:
    """An output's first and last 50 KiB, and its size."""

    def __init__(self) -> None:
        self._first = bytearray()
        self._last = bytearray()
        self._bytes = 0
        self._newlines = 0

    def feed(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        self._newlines += chunk.count(b"\n")
        self._first += chunk[: _TAIL_BYTES - len(self._first)]
        self._last += chunk
        if len(self._last) > 4 * _TAIL_BYTES:
            del self._last[:-_TAIL_BYTES]

    def head(self, capture: OutputCapture) -> ToolResult:
        return self._result(first_part(bytes(self._first)), "first", capture)

    def tail(self, capture: OutputCapture) -> ToolResult:
        return self._result(last_part(bytes(self._last[-_TAIL_BYTES:])), "last", capture)

    def _result(self, part: str, position: str, capture: OutputCapture) -> ToolResult:
        part = part.rstrip("\n")
        if self._is_all(part):
            is_short = max(self._bytes, len(part.encode())) <= _SHORT_BYTES_MAX
            # Events show the beginning of a longer text, which lacks the output's last newlines.
            return ToolResult(text=part, full=None if is_short else capture.content)
        lines = self._newlines + (not self._last.endswith(b"\n"))
        note = (
            f"[Output cut: the {position} {part.count(chr(10)) + 1} of {lines} lines are shown,"
            f" {self._bytes} bytes in all.{capture.remark}]"
        )
        return ToolResult(text=f"{part}\n\n{note}", full=capture.content)

    def _is_all(self, part: str) -> bool:
        if self._bytes > TOOL_RESULT_BYTES_MAX:
            return False
        return part == self._first.decode("utf-8", "replace").rstrip("\n")


def head_of(text: str, secrets: Secrets) -> ToolResult:
    """Return the beginning of a text, with a note if it was cut.

    Args:
        secrets: removed before the text is cut, because a part of one would not be recognised.
    """
    data = secrets.redact_output(text).encode("utf-8", "replace")
    excerpt = _Excerpt()
    excerpt.feed(data)
    return excerpt.head(_whole_of(data))


def within_bounds(full: bytes | SpooledFile) -> bytes | SpooledFile | None:
    """Return the part to keep of an output that was assembled elsewhere."""
    return _whole_of(full).content if isinstance(full, bytes) else full


def _whole_of(data: bytes) -> OutputCapture:
    capture = OutputCapture(in_memory=True)
    capture.feed(data)
    capture.finish()
    return capture


def first_part(data: bytes) -> str:
    """Return the beginning, within both bounds; ends with a whole line unless there is none."""
    data = data.decode("utf-8", "replace").encode()
    if len(data) > TOOL_RESULT_BYTES_MAX:
        data = data[:TOOL_RESULT_BYTES_MAX]
        data = data[: data.rfind(b"\n") + 1] or data
    lines = data.decode("utf-8", "ignore").split("\n", TOOL_RESULT_LINES_MAX)
    return "\n".join(lines[:TOOL_RESULT_LINES_MAX])


def last_part(data: bytes) -> str:
    """Return the end, within both bounds; begins with a whole line unless there is none."""
    data = data.decode("utf-8", "replace").encode().removesuffix(b"\n")
    if len(data) > TOOL_RESULT_BYTES_MAX:
        data = data[-TOOL_RESULT_BYTES_MAX:]
        data = data[data.find(b"\n") + 1 :]
    lines = data.decode("utf-8", "ignore").rsplit("\n", TOOL_RESULT_LINES_MAX)
    return "\n".join(lines[-TOOL_RESULT_LINES_MAX:])


class WholeCharacters:
    """Holds back an incomplete character at the end of a chunk, so that the output of another stream
    cannot split it.
    """

    def __init__(self) -> None:
        self._incomplete = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes without an incomplete character at the end, which is held back."""
        data = self._incomplete + chunk
        self._incomplete = data[len(data) - _count_partial_bytes(data) :]
        return data[: len(data) - len(self._incomplete)]

    def finish(self) -> bytes:
        """Return the held-back rest."""
        return self._incomplete


def _count_partial_bytes(data: bytes) -> int:
    """Return the number of bytes at the end that begin a character in UTF-8 without completing it."""
    for count, byte in enumerate(reversed(data[-3:]), 1):
        if byte >= 0xC0:
            return count if count < 2 + (byte >= 0xE0) + (byte >= 0xF0) else 0
        if byte < 0x80:
            break
    return 0


class OutputStream:
    """Passes output to ``emit`` in pieces as it appears, up to a bound. Each piece belongs to one
    stream. Pieces keep the order in which they were fed, except that after ``RUNS_MAX`` pieces in one
    pause the rest is joined to the last piece of its stream.

    ``feed`` never waits: at most ``TOOL_UPDATES_BYTES_MAX`` bytes are buffered for a slow ``emit``.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._decoders: dict[OutputKind | None, codecs.IncrementalDecoder] = {}
        self._bytes_left = TOOL_UPDATES_BYTES_MAX
        self._pending: list[tuple[OutputKind | None, list[str]]] = []
        self._changed = trio.Event()
        self._finished = trio.Event()

    def feed(self, chunk: bytes, stream: OutputKind | None = None) -> None:
        """Take a chunk of one stream."""
        if self._bytes_left < 0:  # the bound is reached, and a note says so
            return
        piece = chunk[: self._bytes_left]
        self._bytes_left -= len(piece)
        if stream not in self._decoders:
            self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        self._add(self._decoders[stream].decode(piece), stream)
        if len(piece) < len(chunk):
            self._bytes_left = -1
            self._add("\n[Output goes on; no more of it is streamed.]\n", stream)

    @property
    def is_fed(self) -> bool:
        """True if any output was fed."""
        return self._bytes_left != TOOL_UPDATES_BYTES_MAX

    def finish(self) -> None:
        """Finish the stream."""
        for stream, decoder in self._decoders.items():
            self._add(decoder.decode(b"", final=True), stream)
        self._finished.set()
        self._changed.set()

    async def run(self) -> None:
        """Emit the fed output until ``finish`` was called and all of it is emitted."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            last = self._finished.is_set()
            pending, self._pending = self._pending, []
            for stream, texts in pending:
                await self._emit("".join(texts), stream)
            if last:
                return
            with trio.move_on_after(STREAM_PAUSE_SECONDS):
                await self._finished.wait()

    def _add(self, text: str, stream: OutputKind | None) -> None:
        if not text:
            return
        same = [texts for other, texts in self._pending[-_STREAMS_MAX:] if other == stream]
        continues_last = bool(self._pending) and self._pending[-1][0] == stream
        if continues_last or (same and len(self._pending) >= RUNS_MAX):
            same[-1].append(text)
        else:
            self._pending.append((stream, [text]))
        self._changed.set()
