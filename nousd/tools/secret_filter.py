"""Removes the daemon's own secrets from tool output.

A tool has no business with a key of the daemon's; should it come across one (in a file, in the
environment of a process), neither the model nor the log is told. What a tool or a user wrote is else
left as it is. Which secrets there are, and how they are found, is not known here.
"""

from __future__ import annotations

from typing import Final, Protocol


class SecretsInStream(Protocol):
    """Takes secrets out of bytes as they come, also those that lie across two pieces."""

    def feed(self, chunk: bytes) -> bytes:
        """Return the text that is safe by now: a possible beginning of a secret waits."""
        ...

    def finish(self) -> bytes:
        """Return the rest."""
        ...


class Secrets(Protocol):
    """Knows the daemon's secrets."""

    def redact_text(self, text: str) -> str:
        """Return the text without them."""
        ...

    def redact_bytes(self, data: bytes) -> bytes:
        """Return bytes without them; for texts in UTF-8."""
        ...

    def stream(self) -> SecretsInStream:
        """Return a filter for one stream."""
        ...


class _NoSecrets:
    def redact_text(self, text: str) -> str:
        return text

    def redact_bytes(self, data: bytes) -> bytes:
        return data

    def stream(self) -> _NoSecrets:
        return self

    def feed(self, chunk: bytes) -> bytes:
        return chunk

    def finish(self) -> bytes:
        return b""


NO_SECRETS: Final[Secrets] = _NoSecrets()
"""Of a daemon that holds none."""
