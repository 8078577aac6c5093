"""The daemon's diagnostic log, for the person who operates it; not the event log.

JSON lines go to a file, and to standard error if it is not a terminal; a terminal gets a short form.
Every line is redacted and has a bounded length.

The event loop only puts records into a bounded queue; one thread formats and writes them. Otherwise a
slow disk, a stopped terminal or an unread pipe would block every client. When the queue is full, lines
are dropped, and the next line reports their number.

Nothing here is called per event: the log has the daemon's start and stop and its errors; with
``verbose``, also every refusal.
"""

from __future__ import annotations

import copy
import logging
import os
import queue
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from nousd.errors import ConfigError
from nousd.redaction.redactor import Redactor
from nousd.wire.codec.envelope import scrub

LOG_BYTES_MAX: Final = 10 * 1024 * 1024
"""Size at which the log file is renamed to ``FILE.1``; with the older files at most 40 MiB are used."""

_OLD_FILES: Final = 3

TEXT_CHARS_MAX: Final = 16 * 1024
"""Maximum characters of one message, value or traceback; the middle of a longer one is left out."""

_STDERR_FD: Final = 2

_QUEUED_LINES_MAX: Final = 4096

_DRAIN_SECONDS: Final = 2.0
"""Maximum time that the daemon waits at its stop for the queue, and then for the writing thread."""

_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({})))
"""The attributes of every record; any other came from ``extra=``."""

_OWN_FIELDS: Final = frozenset({"ts", "level", "logger", "message", "exception"})
"""Field names that ``extra=`` cannot set."""

_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that could break a line or control a terminal."""


@contextmanager
def configure_logging(
    log_file: Path | None,
    *,
    verbose: bool = False,
    redactor: Redactor | None = None,
    stderr_fd: int = _STDERR_FD,
) -> Iterator[None]:
    """Send the log of this process to ``log_file`` and to standard error during the block.

    The end of the block waits for the last lines, but only for a few seconds.

    Args:
        log_file: created with mode 0600, appended to, rotated; None for standard error alone.
        verbose: also log details that only help to find a bug in nousd.
        redactor: knows the secrets; more can be added at any time.

    Raises:
        ConfigError: the log file cannot be opened.
    """
    redactor = redactor or Redactor()
    sinks = [_stderr_sink(stderr_fd, redactor)]
    if log_file is not None:
        sinks.append(_file_sink(log_file, redactor))
    handler = _QueueingHandler(sinks)
    root, nousd_logger = logging.getLogger(), logging.getLogger("nousd")
    before = root.level, nousd_logger.level, logging.raiseExceptions
    root.setLevel(logging.WARNING)  # other libraries
    nousd_logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    # The standard library's report of a failed write would print the arguments unredacted.
    logging.raiseExceptions = False
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
        root.level, nousd_logger.level, logging.raiseExceptions = before


def _stderr_sink(descriptor: int, redactor: Redactor) -> logging.Handler:
    sink = _DescriptorHandler(descriptor)
    human = os.isatty(descriptor)
    sink.setFormatter(HumanFormatter(redactor) if human else JsonLinesFormatter(redactor))
    return sink


def _file_sink(path: Path, redactor: Redactor) -> logging.Handler:
    from nousd.daemon.ops.rotating_file import PrivateRotatingFile

    try:
        sink = PrivateRotatingFile(
            path, maxBytes=LOG_BYTES_MAX, backupCount=_OLD_FILES, encoding="utf-8"
        )
    except OSError as error:
        raise ConfigError(f"the log file {path} cannot be opened: {error.strerror}") from error
    sink.setFormatter(JsonLinesFormatter(redactor))
    return sink


class _DescriptorHandler(logging.Handler):
    """Writes to a descriptor without a Python buffer. A thread that hangs in such a write holds no lock
    that the end of the process would need.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        rest = f"{self.format(record)}\n".encode()
        with suppress(OSError):  # there is nothing left to report to
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]


# --- the queue and the writing thread --------------------------------------------------------


class _QueueingHandler(logging.Handler):
    """Passes records to a thread that writes them to the sinks."""

    def __init__(self, sinks: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._sinks = sinks
        self._queue: queue.Queue[logging.LogRecord | None] = queue.Queue(_QUEUED_LINES_MAX)
        self._dropped = 0  # changed under the handler's lock only
        # A daemon thread, because one that hangs in a write must not keep the process from ending.
        self._thread = threading.Thread(target=self._write_all, name="log writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._queue.put_nowait(_freeze_record(record))
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Let the thread finish the queue, within bounds."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=_DRAIN_SECONDS)
            self._thread.join(_DRAIN_SECONDS)
        super().close()

    def _write_all(self) -> None:
        while (record := self._queue.get()) is not None:
            self._write(record)
            if dropped := self._take_dropped():
                self._write(_record_of_dropped(dropped))
        for sink in self._sinks:
            sink.close()

    def _write(self, record: logging.LogRecord) -> None:
        for sink in self._sinks:
            # Not ``handle``, which takes the sink's lock: only this thread ever writes, and the process
            # waits for the locks of all handlers when it ends.
            sink.emit(record)

    def _take_dropped(self) -> int:
        self.acquire()
        try:
            dropped, self._dropped = self._dropped, 0
        finally:
            self.release()
        return dropped


def _freeze_record(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy with final texts, because arguments may change and tracebacks keep frames alive."""
    detached = copy.copy(record)
    try:
        detached.msg = record.getMessage()
    except (TypeError, ValueError, KeyError):
        detached.msg = f"{record.msg} (its arguments do not fit)"
    detached.args = None
    if record.exc_info:
        detached.exc_text = logging.Formatter().formatException(record.exc_info)
        detached.exc_info = None
    for key, value in _extras(record).items():
        setattr(detached, key, value if _is_plain(value) else str(value))
    return detached


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES}


def _is_plain(value: object) -> bool:
    """Return whether a value is logged as it is; others are logged as text, which can be encoded."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63  # the encoder accepts no others
    return value is None or isinstance(value, float)


def _record_of_dropped(count: int) -> logging.LogRecord:
    return logging.makeLogRecord(
        {
            "name": __name__,
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": f"{count} log lines were dropped: they came faster than they could be written",
        }
    )


# --- formatters ------------------------------------------------------------------------------


class _Formatter(logging.Formatter):
    """The base of both formatters, for records from ``_freeze_record``."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def _extras(self, record: logging.LogRecord) -> dict[str, Any]:
        return {
            key: self._safe(value) if isinstance(value, str) else value
            for key, value in _extras(record).items()
            if key not in _OWN_FIELDS
        }

    def _safe(self, text: str) -> str:
        """Redact a text, then cut it: half a secret would not be recognised."""
        text = self._redactor.redact(scrub(text))
        surplus = len(text) - TEXT_CHARS_MAX
        if surplus <= 0:
            return text
        half = TEXT_CHARS_MAX // 2
        return f"{text[:half]} ... {surplus} characters left out ... {text[-half:]}"


class JsonLinesFormatter(_Formatter):
    """One JSON object per record: ``ts`` (RFC 3339, UTC), ``level``, ``logger``, ``message``,
    ``exception`` (the traceback as text) if there is one, and the ``extra`` values.
    """

    def format(self, record: logging.LogRecord) -> str:
        ts = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "ts": ts.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._safe(record.getMessage()),
        }
        if record.exc_text:
            fields["exception"] = self._safe(record.exc_text)
        return msgspec.json.encode(fields | self._extras(record)).decode()


class HumanFormatter(_Formatter):
    """``12:03:04 warning hub: message key=value``; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        words = [
            datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S"),
            record.levelname.lower(),
            f"{record.name.rpartition('.')[2]}:",
            self._safe(record.getMessage()),
            *(f"{key}={value}" for key, value in self._extras(record).items()),
        ]
        lines = [" ".join(words)]
        if record.exc_text:
            lines += self._safe(record.exc_text).split("\n")
        return "\n".join(_CONTROLS.sub(_escape_match, line) for line in lines)


def _escape_match(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()
