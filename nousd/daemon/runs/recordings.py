"""Records the raw streams of model servers in files (``--record``).

One exchange is three files in its run's directory: the request, the response, and the facts about them
(``Exchange``). They contain everything that was sent to the model, so they are as private as the log.
Keys are in headers, which are not recorded. A key that a server repeats within one line is redacted; a
key that a model spreads over several deltas is not.

A thread writes the files, so that a slow disk delays nothing. Its queue is bounded: when it is full, an
exchange is cut and marked as cut. A failure here never affects a run.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from nousd.errors import ConfigError
from nousd.providers.interface import UNRECORDED, Record, Recorder

EXCHANGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum recorded bytes of a request, and of a response; the rest is not recorded."""

WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum bytes that wait to be written."""

ENDS_BYTES_MAX: Final = 1024 * 1024
"""Additional room for the ends of exchanges, which report whether a part is missing."""

WRITE_BYTES: Final = 512
"""Bytes counted for each waiting write in addition to its data."""

RUNS_COUNTED_MAX: Final = 1024
"""Number of runs whose exchanges are counted; far more than are active at once."""

LINE_BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes of a line to search for keys at once; a longer line is searched in parts."""

_KEY_BYTES_MAX: Final = 32 * 1024
"""Longer than any key in any spelling; the parts of a line overlap by this much."""

_CLOSING_SECONDS: Final = 5.0

current_run: ContextVar[str | None] = ContextVar("current_run", default=None)
"""The run that the current trio task belongs to."""

_log = logging.getLogger(__name__)


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about an exchange.

    Args:
        path: the requested path, after the API's base URL.
        status: None if no response came.
        cut: whether a part was not recorded.
    """

    path: str
    status: int | None = None
    content_type: str = ""
    cut: bool = False


class Recordings:
    """The recordings of all runs.

    Args:
        redact: removes secrets from a text.
    """

    def __init__(self, folder: Path, redact: Callable[[str], str]) -> None:
        self._folder = folder
        self._redact = redact
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._has_failed = False

    def of(self, provider: str) -> Record:
        """Return the recorder of one provider's exchanges."""
        return partial(self._recorder, provider)

    def _recorder(self, provider: str) -> Recorder:
        run_id = current_run.get()
        if run_id is None:
            # For example, a client has requested a summary.
            return UNRECORDED
        number = self._counts.pop(run_id, 0) + 1
        self._counts[run_id] = number
        if len(self._counts) > RUNS_COUNTED_MAX:
            self._counts.popitem(last=False)
        return _Recorder(self, self._folder / run_id / f"{number}-{provider}", self._redact)

    def write(self, path: Path, data: bytes, *, is_end: bool = False) -> bool:
        """Queue bytes to be appended to a file; return False if the queue is full.

        Args:
            is_end: whether the bytes end an exchange; some room is reserved for these.
        """
        room = WAITING_BYTES_MAX + (ENDS_BYTES_MAX if is_end else 0)
        with self._lock:
            if self._queued_bytes + WRITE_BYTES + len(data) > room:
                return False
            self._queued_bytes += WRITE_BYTES + len(data)
        self._jobs.put(partial(self._append, path, data))
        return True

    # --- the writing thread ------------------------------------------------------------------

    def run(self) -> None:
        """Write until ``stop``."""
        while (job := self._jobs.get()) is not None:
            job()

    def stop(self) -> None:
        """Let the thread write the waiting bytes, and then end."""
        self._jobs.put(None)

    def _append(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path, flags, 0o600), "ab") as file:  # noqa: PTH123
                file.write(data)
        except OSError as error:
            if not self._has_failed:
                _log.error("a recording cannot be written: %s: %s", path, error.strerror)
            self._has_failed = True
        finally:
            with self._lock:
                self._queued_bytes -= WRITE_BYTES + len(data)


class _Recorder:
    """See ``providers.interface.Recorder``."""

    def __init__(self, recordings: Recordings, stem: Path, redact: Callable[[str], str]) -> None:
        self._recordings = recordings
        self._stem = stem
        self._redact = redact
        self._exchange = Exchange(path="")
        self._recorded_bytes = 0
        self._buffer = bytearray()

    def request(self, path: str, body: bytes) -> None:
        self._know(path=path)
        self._write(".request.json", body[:EXCHANGE_BYTES_MAX])
        self._know(cut=self._exchange.cut or len(body) > EXCHANGE_BYTES_MAX)

    def response(self, status: int, content_type: str) -> None:
        self._know(status=status, content_type=content_type)

    def chunk(self, data: bytes) -> None:
        room = EXCHANGE_BYTES_MAX - self._recorded_bytes
        self._recorded_bytes += len(data[:room])
        self._buffer += data[:room]
        # Keys contain no line break, so no key is cut at one.
        if b"\n" in data:
            self._write_held(lambda redacted: redacted.rfind(b"\n") + 1)
        elif len(self._buffer) > LINE_BYTES_MAX:
            self._write_held(lambda redacted: max(0, len(redacted) - _KEY_BYTES_MAX))
        if len(data) > room:
            self._write_held(len)
            self._know(cut=True)

    def end(self) -> None:
        self._write_held(len)
        exchange = msgspec.json.encode(self._exchange) + b"\n"
        if not self._recordings.write(self._file(".response.json"), exchange, is_end=True):
            _log.error("the disk is too slow for recordings: %s has no end", self._stem)

    def _write_held(self, count: Callable[[bytes], int]) -> None:
        """Redact the buffered bytes and write the first ``count`` of them."""
        # In Latin-1 each byte is a character, so all bytes come back unchanged.
        redacted = self._redact(self._buffer.decode("latin-1")).encode("latin-1")
        end = count(redacted)
        if end:
            self._write(".sse", redacted[:end])
        self._buffer = bytearray(redacted[end:])

    def _know(self, **fields: str | int | bool) -> None:
        self._exchange = msgspec.structs.replace(self._exchange, **fields)

    def _write(self, suffix: str, data: bytes) -> None:
        # Bytes after a gap are worthless.
        if self._exchange.cut or not self._recordings.write(self._file(suffix), data):
            self._know(cut=True)

    def _file(self, suffix: str) -> Path:
        return self._stem.with_name(self._stem.name + suffix)


@contextmanager
def open_recordings(folder: Path, redact: Callable[[str], str]) -> Iterator[Recordings]:
    """Provide the recordings of a daemon. The end of the block waits a bounded time for the last writes.

    Raises:
        ConfigError: the directory cannot be created.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"record: {folder} cannot be made: {error.strerror}") from error
    recordings = Recordings(folder, redact)
    thread = threading.Thread(target=recordings.run, name="nousd recordings", daemon=True)
    thread.start()
    try:
        yield recordings
    finally:
        recordings.stop()
        thread.join(_CLOSING_SECONDS)
