"""The line editor of a terminal: converts keys to lines, and provides the row that shows the line.

It does no I/O. The line scrolls sideways, so that it always fits one row, which can be erased and drawn
again below any output. A bracketed paste is inserted unchanged, with its line feeds: only Enter ends a
line.
"""

from __future__ import annotations

import enum
import re
import unicodedata
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from nousd.cli.output import harmless

TEXT_CHARS_MAX: Final = 4_194_304
"""The longest text that a command accepts; further characters are dropped."""

_HISTORY_LINES: Final = 200
_HISTORY_CHARS_MAX: Final = 64 * 1024
"""Longer lines are not added to the history."""

_PASTE_ENDS: Final = "\x1b[201~"

_KEY: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~]|[^\[O\x1b])|[^\x00-\x1f\x7f]+|[^\x1b]", re.DOTALL
)
"""One key: an escape sequence, Alt with a key, or a control character; or a run of characters."""

_KEY_CHARS_MAX: Final = 32
"""Maximum length of a key's escape sequence."""

_WORD_BEFORE: Final = re.compile(r"\S*\s*\Z")
_WORD_AFTER: Final = re.compile(r"\s*\S*")


class TypedLine(NamedTuple):
    """A line ended by Enter.

    Args:
        pasted: whether part of it was pasted, or it arrived together with other lines.
    """

    text: str
    pasted: bool


class Control(enum.Enum):
    """A key for the program instead of the line."""

    END = enum.auto()
    SUSPEND = enum.auto()


class LineEditor:
    """The line being typed.

    Args:
        on_typing: receives whether the line has text, whenever that changes other than by Enter.
    """

    def __init__(self, on_typing: Callable[[bool], None]) -> None:
        self.text = ""
        self._cursor = 0
        self._on_typing = on_typing
        self._keys = ""
        """The beginning of an incomplete escape sequence or paste."""
        self._in_paste = False
        self._pasted = False
        self._history: deque[str] = deque(maxlen=_HISTORY_LINES)
        self._history_offset = 0
        """The position of the text in the history, counted from its end; 0 for a new line."""
        self._draft = ""

    def feed(self, chars: str) -> list[TypedLine | Control]:
        """Process typed characters; return the completed lines, and keys for the program."""
        had_text = bool(self.text)
        done: list[TypedLine | Control] = []
        keys = self._keys + chars
        at, end = 0, len(keys)
        while at < end:
            next_index = self._paste(keys, at) if self._in_paste else self._one_key(keys, at, done)
            if next_index is None:
                break
            at = next_index
        self._keys = keys[at:]
        lines = sum(isinstance(each, TypedLine) for each in done)
        if lines > 1 or (lines and self.text):
            done = [
                each._replace(pasted=True) if isinstance(each, TypedLine) else each for each in done
            ]
            self._pasted = bool(self.text)
        if (had_text and not lines) != bool(self.text):
            self._on_typing(bool(self.text))
        return done

    @property
    def cursor(self) -> int:
        """The index in the text at which the next key is inserted."""
        return self._cursor

    def clear(self) -> None:
        """Drop the line and an unfinished paste."""
        self._keys, self._in_paste = "", False
        if self.text:
            self._set("")
            self._on_typing(False)

    def restore(self, text: str) -> None:
        """Put back a line that could not be sent, unless another one was begun."""
        if text and not self.text:
            self._set(text)
            self._on_typing(True)

    def view(self, prompt: str, columns: int) -> tuple[str, int]:
        """Return the row that shows the line, and the number of cells left of its cursor."""
        lines = self.text.count("\n") + 1
        head = prompt if lines == 1 else f"[{lines} lines] {prompt}"
        width = max(2, columns - 1 - len(head))
        left = self._fitting(range(self._cursor - 1, -1, -1), width - 1)[::-1]
        used = sum(map(cells, left))
        right = self._fitting(range(self._cursor, len(self.text)), width - used)
        return head + "".join(left + right), len(head) + used

    def _fitting(self, indices: range, width: int) -> list[str]:
        """Return the displayed form of the characters at these indexes, up to ``width`` cells."""
        shown: list[str] = []
        for index in indices:
            char = self.text[index]
            sign = "<LF>" if char == "\n" else harmless(char, one_line=True)
            width -= cells(sign)
            if width < 0:
                break
            shown.append(sign)
        return shown

    # --- keys ----------------------------------------------------------------------------------

    def _paste(self, keys: str, at: int) -> int | None:
        """Insert pasted text; return the offset after it, or None if more input is needed."""
        end = keys.find(_PASTE_ENDS, at)
        is_whole = end >= 0
        if not is_whole:
            # The last characters may be the beginning of the end mark, or half of a CRLF.
            starts = (n for n in range(1, len(_PASTE_ENDS)) if keys.endswith(_PASTE_ENDS[:n], at))
            end = len(keys) - max(starts, default=1 if keys.endswith("\r", at) else 0)
            if end == at:
                return None
        self._insert(keys[at:end].replace("\r\n", "\n").replace("\r", "\n"))
        self._pasted = True
        self._in_paste = not is_whole
        return end + len(_PASTE_ENDS) if is_whole else end

    def _one_key(self, keys: str, at: int, done: list[TypedLine | Control]) -> int | None:
        """Process one key; return the offset after it, or None if more input is needed."""
        found = _KEY.match(keys, at)
        if found is None:
            is_waiting = len(keys) - at <= _KEY_CHARS_MAX and "\x1b" not in keys[at + 1 :]
            return None if is_waiting else at + 1
        key, next_index = found[0], found.end()
        if key == "\x1b[200~":
            self._in_paste = True
        elif key in ("\r", "\n"):
            done.append(self._take_text())
            return next_index + (key == "\r" and keys.startswith("\n", next_index))
        elif key == "\x04" and not self.text:
            done.append(Control.END)
        elif key == "\x1a":
            done.append(Control.SUSPEND)
        elif key in _EDITS:
            _EDITS[key](self)
        elif key >= " " and not key.startswith("\x1b"):
            self._insert(key)
        return next_index

    def _take_text(self) -> TypedLine:
        typed = TypedLine(self.text, self._pasted)
        is_new = not self._history or self._history[-1] != typed.text
        if typed.text.strip() and is_new and len(typed.text) <= _HISTORY_CHARS_MAX:
            self._history.append(typed.text)
        self._set("")
        return typed

    def _set(self, text: str, history_offset: int = 0) -> None:
        self.text = text
        self._cursor = len(text)
        self._history_offset = history_offset
        self._pasted = False

    def _insert(self, text: str) -> None:
        text = text[: TEXT_CHARS_MAX - len(self.text)]
        self.text = self.text[: self._cursor] + text + self.text[self._cursor :]
        self._cursor += len(text)

    def _delete(self, start: int, end: int) -> None:
        start, end = max(0, start), min(len(self.text), end)
        self.text = self.text[:start] + self.text[end:]
        self._cursor = start
        self._pasted = self._pasted and bool(self.text)

    def _go(self, index: int) -> None:
        self._cursor = min(max(0, index), len(self.text))

    def _recall(self, history_offset: int) -> None:
        if not 0 <= history_offset <= len(self._history):
            return
        if self._history_offset == 0:
            self._draft = self.text
        pasted = self._pasted
        self._set(self._history[-history_offset] if history_offset else self._draft, history_offset)
        self._pasted = pasted and bool(self.text)

    def _word_start(self) -> int:
        found = _WORD_BEFORE.search(self.text[: self._cursor])
        return found.start() if found else 0

    def _word_end(self) -> int:
        found = _WORD_AFTER.match(self.text, self._cursor)
        return found.end() if found else len(self.text)


def cells(text: str) -> int:
    """Return the width in terminal columns of a text without control characters."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.category(char) in {"Mn", "Me"}
        else 1 + (unicodedata.east_asian_width(char) in {"W", "F"})
        for char in text
    )


_Edit = Callable[[LineEditor], None]


def _keys(*names: str, edit: _Edit) -> dict[str, _Edit]:
    return dict.fromkeys(names, edit)


_EDITS: Final[dict[str, _Edit]] = {
    **_keys("\x7f", "\x08", edit=lambda self: self._delete(self._cursor - 1, self._cursor)),
    **_keys("\x1b[3~", "\x04", edit=lambda self: self._delete(self._cursor, self._cursor + 1)),
    **_keys("\x1b[D", "\x1bOD", "\x02", edit=lambda self: self._go(self._cursor - 1)),
    **_keys("\x1b[C", "\x1bOC", "\x06", edit=lambda self: self._go(self._cursor + 1)),
    **_keys("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~", "\x01", edit=lambda self: self._go(0)),
    **_keys(
        "\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~", "\x05", edit=lambda self: self._go(len(self.text))
    ),
    **_keys("\x1b[1;5D", "\x1bb", edit=lambda self: self._go(self._word_start())),
    **_keys("\x1b[1;5C", "\x1bf", edit=lambda self: self._go(self._word_end())),
    **_keys("\x15", edit=lambda self: self._delete(0, self._cursor)),
    **_keys("\x0b", edit=lambda self: self._delete(self._cursor, len(self.text))),
    **_keys("\x17", "\x1b\x7f", edit=lambda self: self._delete(self._word_start(), self._cursor)),
    **_keys("\x1b[A", "\x1bOA", "\x10", edit=lambda self: self._recall(self._history_offset + 1)),
    **_keys("\x1b[B", "\x1bOB", "\x0e", edit=lambda self: self._recall(self._history_offset - 1)),
    **_keys("\x1b\r", "\x1b\n", edit=lambda self: self._insert("\n")),
}
"""Key -> its change of the line."""
