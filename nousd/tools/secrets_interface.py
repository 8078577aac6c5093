"""The interface that removes the daemon's own secrets from the output of tools and models.

Tools and models do not need the daemon's keys. If a tool's output contains one (from a file, or from the
environment of a process), neither the model nor the log receives it; if a model repeats one, the log
does not receive it. All other text is unchanged. ``redaction.redactor`` implements the interface.
"""

from __future__ import annotations

from typing import Any, AnyStr, Final, Generic, Protocol


class SecretsInStream(Protocol[AnyStr]):
    """Removes secrets from a stream of bytes or texts, also secrets that span two pieces."""

    def feed(self, chunk: AnyStr) -> AnyStr:
        """Return the output that is safe so far; a possible beginning of a secret is held back."""
        ...

    def finish(self) -> AnyStr:
        """Return the held-back rest."""
        ...


class Secrets(Protocol):
    """Removes the daemon's secrets."""

    def redact_output(self, text: str) -> str:
        """Return the text without secrets."""
        ...

    def redact_output_bytes(self, data: bytes) -> bytes:
        """Return the bytes of a UTF-8 text without secrets."""
        ...

    def redact_output_json(self, value: Any) -> Any:
        """Return a decoded JSON value without secrets; equal to ``value`` if it has none."""
        ...

    def stream(self) -> SecretsInStream[bytes]:
        """Return a filter for one stream of bytes."""
        ...

    def text_stream(self) -> SecretsInStream[str]:
        """Return a filter for one text that arrives in pieces."""
        ...


class _Unchanged(Generic[AnyStr]):
    """A filter that removes nothing.

    Args:
        empty: the empty text of its type.
    """

    def __init__(self, empty: AnyStr) -> None:
        self._empty: AnyStr = empty

    def feed(self, chunk: AnyStr) -> AnyStr:
        return chunk

    def finish(self) -> AnyStr:
        return self._empty


class _NoSecrets:
    def redact_output(self, text: str) -> str:
        return text

    def redact_output_bytes(self, data: bytes) -> bytes:
        return data

    def redact_output_json(self, value: Any) -> Any:
        return value

    def stream(self) -> _Unchanged[bytes]:
        return _Unchanged(b"")

    def text_stream(self) -> _Unchanged[str]:
        return _Unchanged("")


NO_SECRETS: Final[Secrets] = _NoSecrets()
"""For a daemon without secrets."""
