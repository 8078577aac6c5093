"""Input and output of the interactive client: a terminal with an edited line, or plain streams.

On a terminal with escape sequences the line being typed is the lowest row. Output erases it, continues
above, and draws it again. Other terminals are linear (``linear``). Plain streams are pipes, and
terminals such as Emacs's that edit their lines themselves.
"""

from __future__ import annotations

import codecs
import os
import select
import signal
import sys
import termios
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from nousd.cli.chat.editor import Control, LineEditor, TypedLine, cells
from nousd.cli.output import harmless, say

PROMPT: Final = "> "

_PLAIN_TERMINALS: Final = frozenset({"", "dumb", "unknown"})

_READ_BYTES: Final = 64 * 1024
_BURST_BYTES_MAX: Final = 16 * 1024 * 1024
_BURST_SECONDS: Final = 0.03
"""Input that follows Enter within this time was not typed by hand."""

_LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longer lines of a pipe are split."""

_ECHO_LINES_MAX: Final = 12

_ERASE: Final = "\r\x1b[K"
_UP: Final = "\x1b[A"

Keys = list[TypedLine | Control]


def knows_escapes() -> bool:
    """Return whether input and output are a terminal that supports escape sequences."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM", "") not in _PLAIN_TERMINALS


def echoes() -> bool:
    """Return whether input and output are a terminal that echoes input, as all but Emacs's do."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return bool(termios.tcgetattr(sys.stdin.fileno())[3] & termios.ECHO)


class PlainTerminal:
    """Standard input and output, line by line.

    Args:
        is_terminal: whether a person types, so that there are prompts.
    """

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._shows_all = is_terminal and sys.stdout.isatty()
        self._fd = sys.stdin.fileno()
        self._bytes = bytearray()
        self._lines: deque[str] = deque()
        self._ended = False
        self._in_line = False
        self._prompted = False

    def fileno(self) -> int:
        return self._fd

    @property
    def is_typing(self) -> bool:
        """Always False: the system holds the line until Enter."""
        return False

    @property
    def is_holding(self) -> bool:
        """Always False: output never waits."""
        return False

    def has_more(self) -> bool:
        """Return whether ``read`` has something without any input."""
        return bool(self._lines) or self._ended

    def read(self) -> Keys:
        """Wait for input; return the typed lines of a terminal, or the next line of a pipe."""
        if not self.has_more():
            self._fill()
        if self._is_terminal:
            lines, self._lines = [*self._lines], deque()
            # The system echoes the end of a line, but nothing for the end of the input.
            self._prompted = self._prompted and not lines
            text = "\n".join(lines)  # several lines at once are a paste
            typed: Keys = [TypedLine(text, pasted=len(lines) > 1)] if lines else []
            return [*typed, Control.END] if self._ended else typed
        if self._lines:
            return [TypedLine(self._lines.popleft(), pasted=False)]
        return [Control.END] if self._ended else []

    def drop_typed(self) -> None:
        """Discard unread input that was typed before a question."""
        if self._is_terminal:
            with suppress(termios.error):
                termios.tcflush(self._fd, termios.TCIFLUSH)

    def write(self, text: str) -> None:
        """Show a piece of streamed text."""
        if self._prompted:
            print()
            self._prompted = False
        print(harmless(text), end="", flush=True)
        self._in_line = not text.endswith("\n") if text else self._in_line

    def say(self, text: str) -> None:
        """Show whole lines."""
        self.write(f"\n{text}\n" if self._in_line else f"{text}\n")

    def remark(self, text: str) -> None:
        """Show whole lines that are not part of an answer."""
        if self._shows_all:
            self.say(text)
            return
        if self._in_line:
            self.write("\n")
        say(text)

    def prompt(self) -> None:
        """Show that a line can be typed now."""
        if self._shows_all and not (self._prompted or self._in_line):
            print(PROMPT, end="", flush=True)
            self._prompted = True

    def clear(self) -> bool:
        """Return False: the system holds the line being typed, so it cannot be dropped."""
        return False

    def restore(self, text: str) -> None:
        """Do nothing: a line cannot be put back."""

    def suspend(self) -> None:
        """Do nothing: the system suspends the program."""

    def enter(self) -> None:
        """Do nothing: a plain stream needs no preparation."""

    def leave(self) -> None:
        """End the displayed line."""
        if self._prompted or (self._in_line and self._shows_all):
            with suppress(OSError):  # the terminal was closed
                print(flush=True)

    def _fill(self) -> None:
        data = os.read(self._fd, _READ_BYTES)
        while self._is_terminal and data and len(data) < _BURST_BYTES_MAX and _is_ready(self._fd):
            more = os.read(self._fd, _READ_BYTES)
            self._ended = not more
            data += more
            if not more:
                break
        self._ended = self._ended or not data
        self._bytes += data
        *lines, rest = self._bytes.split(b"\n")
        if len(rest) > _LINE_BYTES_MAX or (self._ended and rest):
            lines, rest = [*lines, rest], bytearray()
        self._bytes = rest
        self._lines.extend(line.decode(errors="replace") for line in lines)


class EditedTerminal:
    """A terminal whose lowest row is the line being typed. Use it inside ``take_terminal``."""

    _pastes_marked, _pastes_plain = "\x1b[?2004h", "\x1b[?2004l"

    def __init__(self, editor: LineEditor) -> None:
        self._editor = editor
        self._fd = sys.stdin.fileno()
        self._decoder = codecs.getincrementaldecoder(sys.stdin.encoding)("replace")
        self._tail = ""
        """The last row of the output, if it is incomplete."""
        self._is_drawn = False
        self._has_line = False
        """Whether a line can be typed."""
        self._saved_attributes = termios.tcgetattr(self._fd)

    def fileno(self) -> int:
        return self._fd

    @property
    def is_typing(self) -> bool:
        """Whether the line being typed has text."""
        return bool(self._editor.text)

    @property
    def is_holding(self) -> bool:
        """Whether output waits for the end of the line being typed."""
        return False

    def has_more(self) -> bool:
        """Return whether ``read`` has something without any input."""
        return False

    def read(self) -> Keys:
        """Wait for input; return the typed lines."""
        data = os.read(self._fd, _READ_BYTES)
        if not data:
            return [Control.END]
        while _has_enter(data) and len(data) < _BURST_BYTES_MAX and _is_ready(self._fd):
            more = os.read(self._fd, _READ_BYTES)
            if not more:
                break
            data += more
        typed = self._editor.feed(self._decoder.decode(data))
        for line in typed:
            if isinstance(line, TypedLine):
                self._echo(line.text)
        self._draw()
        return typed

    def drop_typed(self) -> None:
        """Discard complete lines that were typed before a question. An incomplete line stays, known to
        be older than the question; so does a paste, whose end may still arrive.
        """
        while _is_ready(self._fd, 0) and (data := os.read(self._fd, _READ_BYTES)):
            self._editor.feed(self._decoder.decode(data))

    def write(self, text: str) -> None:
        """Show a piece of streamed text."""
        text = harmless(text)
        erased = self._erase_line()
        unfinished = self._tail + text
        self._tail = _last_row(unfinished.rpartition("\n")[2], self._columns())
        self._put(erased + text + self._row())

    def say(self, text: str) -> None:
        """Show whole lines."""
        self.write(f"\n{text}\n" if self._tail else f"{text}\n")

    def remark(self, text: str) -> None:
        """Show whole lines that are not part of an answer."""
        self.say(text)

    def prompt(self) -> None:
        """Show the line being typed, unless it is shown already."""
        self._has_line = True
        if not self._is_drawn:
            self._draw()

    def clear(self) -> bool:
        """Drop the line being typed; return whether there was one."""
        had_text = bool(self._editor.text)
        self._editor.clear()
        self._draw()
        return had_text

    def restore(self, text: str) -> None:
        """Put back a line that could not be sent."""
        self._editor.restore(text)
        self._draw()

    def suspend(self) -> None:
        """Return the terminal to the shell until the program is continued."""
        self.leave()
        os.kill(0, signal.SIGTSTP)
        self.enter()
        self._draw()

    def enter(self) -> None:
        """Configure the terminal: keys arrive one by one, and pastes are marked."""
        self._saved_attributes = termios.tcgetattr(self._fd)
        mode = termios.tcgetattr(self._fd)
        mode[0] &= ~termios.ICRNL
        # Ctrl-Z arrives as a key, so that the terminal is released first; Ctrl-C stays a signal.
        mode[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        mode[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(self._fd, termios.TCSADRAIN, mode)
        self._put(self._pastes_marked)

    def leave(self) -> None:
        """Release the terminal, with the cursor below the output."""
        below = _ERASE if self._is_drawn else "\n" if self._tail else ""
        self._is_drawn, self._tail = False, ""
        with suppress(OSError, termios.error):  # the terminal was closed
            self._put(below + self._pastes_plain)
        with suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved_attributes)

    def _echo(self, text: str) -> None:
        lines = text.rstrip("\n").split("\n")
        more = len(lines) - _ECHO_LINES_MAX
        if more > 0:
            lines = [*lines[:_ECHO_LINES_MAX], f"({more} more lines)"]
        self.say(PROMPT + "\n".join(lines))

    def _draw(self) -> None:
        self._put(self._erase_line() + self._row())

    def _erase_line(self) -> str:
        """Return the text that erases the line being typed and continues the output."""
        if not self._is_drawn:
            return ""
        self._is_drawn = False
        return _ERASE + (f"{_UP}{_ERASE}{self._tail}" if self._tail else "")

    def _row(self) -> str:
        """Return the text that draws the line being typed below the output."""
        if not self._has_line:
            return ""
        self._is_drawn = True
        row, left = self._editor.view(PROMPT, self._columns())
        below = "\n" if self._tail else ""
        return f"{below}{_ERASE}{row}\r" + (f"\x1b[{left}C" if left else "")

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._fd).columns or 80
        except OSError:
            return 80

    def _put(self, text: str) -> None:
        print(text, end="", flush=True)


Terminal = PlainTerminal | EditedTerminal


def _last_row(line: str, columns: int) -> str:
    """Return the part of a line that the terminal shows in its last row."""
    start = used = 0
    for index, char in enumerate(line):
        width = min(8 - used % 8, columns - 1 - used) if char == "\t" else cells(char)
        if used + width > columns:
            start, used = index, 0
        used += width
    return line[start:]


def _has_enter(data: bytes) -> bool:
    return b"\r" in data or b"\n" in data


def _is_ready(fd: int, seconds: float = _BURST_SECONDS) -> bool:
    return bool(select.select([fd], [], [], seconds)[0])


@contextmanager
def take_terminal(terminal: Terminal) -> Iterator[None]:
    """Configure the terminal for the block, and restore it even if a signal ends the program."""
    with ExitStack() as undo:
        for number in (signal.SIGTERM, signal.SIGHUP):
            undo.callback(signal.signal, number, signal.signal(number, _exit_by))
        undo.callback(terminal.leave)
        terminal.enter()
        yield


def _exit_by(number: int, _frame: object) -> None:
    sys.exit(128 + number)
