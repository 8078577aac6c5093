"""Keeps the raw lines of an agent program from which events are made.

The current line is in a context variable, so the tasks that its handling starts know it as well.
Lines with a piece of a text are not kept: the text is in the log, and a secret that is split across
lines would not be found in them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.net.jsonrpc import require_readable
from nousd.tools.secrets_interface import Secrets
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import encode_json

LINES_MAX: Final = 500
"""Maximum number of lines that are kept of one turn."""

BYTES_MAX: Final = 1024 * 1024
"""Maximum size of all lines that are kept of one turn."""

CURRENT_LINE: Final[ContextVar[bytes]] = ContextVar("nousd_current_line", default=b"")
"""The program's line that is being handled; empty if there is none, or if it must not be kept."""

_MEDIA_TYPE: Final = "application/json"


def redact_line(line: bytes, secrets: Secrets) -> bytes:
    """Return a line without secrets, including those whose characters JSON escapes."""
    try:
        value = decode_json(require_readable(line))
    except msgspec.DecodeError:
        return secrets.redact_output(line.decode("utf-8", "replace")).encode(errors="replace")
    redacted = secrets.redact_output_json(value)
    return secrets.redact_output_bytes(line if redacted == value else encode_json(redacted))


class RawLines:
    """Keeps the lines of one turn.

    Args:
        keep: stores bytes of a media type with the next commit; returns their id.
    """

    def __init__(self, keep: Callable[[bytes, str], Awaitable[str]], secrets: Secrets) -> None:
        self._keep = keep
        self._secrets = secrets
        self._lines = 0
        self._bytes = 0
        self._last = b"", ""

    async def ref(self) -> str | UnsetType:
        """Keep the line that is being handled; return its id, or UNSET if it is not kept."""
        line = CURRENT_LINE.get()
        last_line, ref = self._last
        if line and line == last_line:
            return ref
        if not line or self._lines == LINES_MAX or self._bytes + len(line) > BYTES_MAX:
            return UNSET
        self._lines += 1
        self._bytes += len(line)
        ref = await self._keep(redact_line(line, self._secrets), _MEDIA_TYPE)
        self._last = line, ref
        return ref
