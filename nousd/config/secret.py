"""A text that must not be shown, such as the API key of a model server."""

from __future__ import annotations


class Secret:
    """A text that only ``reveal`` returns, so that logs and errors do not show it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __len__(self) -> int:
        return len(self._text)

    def __repr__(self) -> str:
        return "Secret(...)"
