"""The interface by which the daemon's own secrets are removed from what tools and models say.

Neither has a use for the daemon's keys. If a tool comes across one (in a file, in the environment of a
process), neither the model nor the log receives it; if a model repeats one, the log does not receive it.
Other text of tools, models and users stays as it is. ``redaction.redactor`` implements it.
"""

from __future__ import annotations

from typing import Any, AnyStr, Final, Generic, Protocol


class SecretsInStream(Protocol[AnyStr]):
    """Removes secrets from a stream of bytes or texts, also secrets that span two pieces."""

    def feed(self, chunk: AnyStr) -> AnyStr:
        """Return what is safe now; a possible beginning of a secret is held back."""
        ...

    def finish(self) -> AnyStr:
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

    def redact_output_json(self, value: Any) -> Any:
        """Return a decoded JSON value without secrets; equal to ``value`` if it has none."""
        ...

    def stream(self) -> SecretsInStream[bytes]:
        """Return a filter for one stream of bytes."""
        ...

    def text_stream(self) -> SecretsInStream[str]:
        """Return a filter for one text that comes in pieces."""
        ...


class _Unchanged(Generic[AnyStr]):
    """A filter that removes nothing.

    Args:
        nothing: the empty text of its type.
    """

    def __init__(self, nothing: AnyStr) -> None:
        self._nothing: AnyStr = nothing

    def feed(self, chunk: AnyStr) -> AnyStr:
        return chunk

    def finish(self) -> AnyStr:
        return self._nothing


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
