"""Terminals on which nothing that was shown is drawn again, for screen readers, or because it cannot be.

A line being typed is written key by key, and only its end is taken back. What happens meanwhile waits
until the line is sent or dropped, so that no output comes into its middle.
"""

from __future__ import annotations

from nousd.cli.chat.editor import TypedLine, cells
from nousd.cli.chat.terminal import PROMPT, EditedTerminal, Keys
from nousd.cli.output import harmless


class LinearTerminal(EditedTerminal):
    """A terminal with the keys of ``EditedTerminal``. Use it inside of ``take_terminal``."""

    _shown: str | None = None
    """The line being typed as it stands on the terminal; None if there is not even a prompt."""
    _right = ""
    """The part of it that is right of the cursor."""

    _is_restored = False
    """Whether the line was put back and not touched since: no output comes into its middle."""

    @property
    def is_holding(self) -> bool:
        """Whether output waits for the end of the line being typed."""
        return self.is_typing and not self._is_restored

    def read(self) -> Keys:
        """Return the lines that were typed. It waits for input."""
        self._is_restored = False
        return super().read()

    def restore(self, text: str) -> None:
        """Put a line back that could not be sent."""
        self._is_restored = not self.is_typing
        super().restore(text)

    def write(self, text: str) -> None:
        """Show a piece of text, as it comes."""
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
        """Give the terminal back, with the cursor below what was shown."""
        if self._shown is not None:
            self._tail = "."
        super().leave()
        self._shown = None

    def _echo(self, text: str) -> None:
        """End the line that was typed. Of a paste, and of what came with others, the rest is shown."""
        self._show(_one_row(text))
        self._put("\n")
        self._shown = None

    def _draw(self) -> None:
        if self._has_line and (self.is_typing or self._shown is not None or not self._tail):
            self._show(_one_row(self._editor.text))
            behind = _one_row(self._editor.text[self._editor.cursor :])
            self._put("\b" * cells(behind))
            self._right = behind

    def _show(self, line: str) -> None:
        """Write what makes the line on the terminal this one."""
        shown, forward = self._shown, self._right
        self._right = ""
        if shown is None:
            self._put(("\n" if self._tail else "") + PROMPT + line)
            self._tail = ""
        else:
            same = _common(shown, line)
            back = "\b \b" * cells(shown[len(same) :])
            if (
                back and cells(PROMPT + shown) >= self._columns()
            ):  # it cannot go back to the row above
                same, back = "", f"\n{PROMPT}"
            self._put(forward + back + line[len(same) :])
        self._shown = line


class DumbTerminal(LinearTerminal):
    """A terminal without escape sequences, such as one with ``TERM=dumb``: it gets none. So pastes are
    not marked; several lines that come at once are one.
    """

    _pastes_marked = _pastes_plain = ""

    def read(self) -> Keys:
        """Return the lines that were typed. It waits for input."""
        keys = super().read()
        lines = [each.text for each in keys if isinstance(each, TypedLine)]
        if len(lines) < 2:
            return keys
        paste = TypedLine("\n".join(lines), pasted=True)
        return [paste, *(each for each in keys if not isinstance(each, TypedLine))]


def _common(first: str, second: str) -> str:
    """Return the beginning that two lines share."""
    pairs = enumerate(zip(first, second, strict=False))
    return first[: next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))]


def _one_row(text: str) -> str:
    return harmless(text, one_line=True).replace("<U+000A>", "<LF>")
