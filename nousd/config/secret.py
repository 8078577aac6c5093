"""A text that is not to be shown: a key of a model server."""

from __future__ import annotations


class Secret:
    """A text that shows itself only to those who ask for it by name."""

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
