"""The interface by which tools remove the daemon's own secrets from their output.

A tool has no use for the daemon's keys. If it comes across one (in a file, in the environment of a
process), neither the model nor the log receives it. Other text of tools and users stays as it is.
``redaction.redactor`` implements it.
"""

from __future__ import annotations

from typing import Final, Protocol


class SecretsInStream(Protocol):
    """Removes secrets from a stream of bytes, also secrets that span two pieces."""

    def feed(self, chunk: bytes) -> bytes:
        """Return the text that is safe now; a possible beginning of a secret is held back."""
        ...

    def finish(self) -> bytes:
        """Return the held-back rest."""
        ...


class Secrets(Protocol):
    """Knows the daemon's secrets."""

    def redact_output(self, text: str) -> str:
        """Return the text without them."""
        ...

    def redact_output_bytes(self, data: bytes) -> bytes:
        """Return bytes without secrets; for texts in UTF-8."""
        ...

    def stream(self) -> SecretsInStream:
        """Return a filter for one stream."""
        ...


class _NoSecrets:
    def redact_output(self, text: str) -> str:
        return text

    def redact_output_bytes(self, data: bytes) -> bytes:
        return data

    def stream(self) -> _NoSecrets:
        return self

    def feed(self, chunk: bytes) -> bytes:
        return chunk

    def finish(self) -> bytes:
        return b""


NO_SECRETS: Final[Secrets] = _NoSecrets()
"""For a daemon without secrets."""
