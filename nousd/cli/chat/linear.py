"""Terminals on which nothing is drawn twice, for screen readers or for lack of escape sequences.

The line being typed is written key by key, and only its end is erased. Output waits until the line is
sent or dropped, so that it never interrupts the line.
"""

from __future__ import annotations

from nousd.cli.chat.editor import TypedLine, cells
from nousd.cli.chat.terminal import PROMPT, EditedTerminal, Keys
from nousd.cli.output import harmless


class LinearTerminal(EditedTerminal):
    """A terminal with the keys of ``EditedTerminal``. Use it inside ``take_terminal``."""

    _shown: str | None = None
    """The line being typed as the terminal shows it; None if there is no prompt either."""
    _right = ""
    """The part of the line right of the cursor."""

    _is_restored = False
    """Whether the line was restored and not touched since, so that output may interrupt it."""

    @property
    def is_holding(self) -> bool:
        """Whether output waits for the end of the line being typed."""
        return self.is_typing and not self._is_restored

    def read(self) -> Keys:
        """Wait for input; return the typed lines."""
        self._is_restored = False
        return super().read()

    def restore(self, text: str) -> None:
        """Put back a line that could not be sent."""
        self._is_restored = not self.is_typing
        super().restore(text)

    def write(self, text: str) -> None:
        """Show a piece of streamed text."""
        text = harmless(text)
        self._put(("" if self._shown is None else "\n") + text)
        self._shown = None
        self._tail = (self._tail + text).rpartition("\n")[2][-1:]

    def prompt(self) -> None:
        """Show that a line can be typed now."""
        self._has_line = True
        if not self._tail:
            self._draw()

    def leave(self) -> None:
        """Release the terminal, with the cursor below the output."""
        if self._shown is not None:
            self._tail = "."
        super().leave()
        self._shown = None

    def _echo(self, text: str) -> None:
        """End the typed line. Show the rest of it first, if it was pasted or came with other lines."""
        self._show(_one_row(text))
        self._put("\n")
        self._shown = None

    def _draw(self) -> None:
        if self._has_line and (self.is_typing or self._shown is not None or not self._tail):
            self._show(_one_row(self._editor.text))
            after = _one_row(self._editor.text[self._editor.cursor :])
            self._put("\b" * cells(after))
            self._right = after

    def _show(self, line: str) -> None:
        """Write the difference that turns the displayed line into ``line``."""
        shown, forward = self._shown, self._right
        self._right = ""
        if shown is None:
            self._put(("\n" if self._tail else "") + PROMPT + line)
            self._tail = ""
        else:
            same = _common(shown, line)
            erasure = "\b \b" * cells(shown[len(same) :])
            if (
                erasure and cells(PROMPT + shown) >= self._columns()
            ):  # the cursor cannot go back to the row above
                same, erasure = "", f"\n{PROMPT}"
            self._put(forward + erasure + line[len(same) :])
        self._shown = line


class DumbTerminal(LinearTerminal):
    """A terminal without escape sequences, such as one with ``TERM=dumb``. It cannot mark pastes, so
    several lines that arrive at once are one paste.
    """

    _pastes_marked = _pastes_plain = ""

    def read(self) -> Keys:
        """Wait for input; return the typed lines."""
        keys = super().read()
        lines = [each.text for each in keys if isinstance(each, TypedLine)]
        if len(lines) < 2:
            return keys
        paste = TypedLine("\n".join(lines), pasted=True)
        return [paste, *(each for each in keys if not isinstance(each, TypedLine))]


def _common(first: str, second: str) -> str:
    """Return the common prefix of two lines."""
    pairs = enumerate(zip(first, second, strict=False))
    return first[: next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))]


def _one_row(text: str) -> str:
    return harmless(text, one_line=True).replace("<U+000A>", "<LF>")
