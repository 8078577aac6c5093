"""``nousctl chat``: talk to the daemon line by line while events scroll by.

One thread does everything: it waits for keys, for events and for signals, and takes what was typed
before it shows what came. So it always knows what a user had seen when a line was begun.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from nousd.cli.chat.commands import COMMANDS, abort
from nousd.cli.chat.conversation import Conversation
from nousd.cli.chat.editor import Control, LineEditor, TypedLine
from nousd.cli.chat.linear import DumbTerminal, LinearTerminal
from nousd.cli.chat.open_requests import OpenRequests
from nousd.cli.chat.terminal import (
    EditedTerminal,
    PlainTerminal,
    echoes,
    knows_escapes,
    take_terminal,
)
from nousd.cli.client_options import Options
from nousd.cli.output import DONE, FAILED
from nousd.cli.render.refusals import refusal_text
from nousd.errors import (
    AnswerInvalid,
    AnswerTimedOut,
    ClientError,
    ConnectionLost,
    DaemonUnreachable,
    Refused,
)

_ASKS: Final = frozenset({"permission_requested", "question_asked"})


def chat(options: Options, session_id: str | None = None, *, is_plain: bool = False) -> int:
    """Talk until the user leaves. Return the exit code.

    Args:
        session_id: None for the daemon's active session.
        is_plain: draw nothing again that was shown.
    """
    at_terminal = sys.stdin.isatty()
    asked = OpenRequests()
    terminal: EditedTerminal | PlainTerminal
    if knows_escapes():
        kind = LinearTerminal if is_plain else EditedTerminal
        terminal = kind(LineEditor(asked.note_typing))
    elif echoes():
        terminal = DumbTerminal(LineEditor(asked.note_typing))
    else:
        terminal = PlainTerminal(is_terminal=at_terminal)
    talk = Conversation(options, terminal, asked, at_terminal=at_terminal)
    loop = _Loop(talk, at_terminal=at_terminal)
    with take_terminal(terminal):
        try:
            talk.attach({} if session_id is None else {"session_id": session_id})
            return loop.run()
        finally:
            talk.events.close()


class _Loop:
    """Takes what is typed and shows what happens, until the user leaves."""

    def __init__(self, talk: Conversation, *, at_terminal: bool) -> None:
        self._talk = talk
        self._terminal = talk.terminal
        self._at_terminal = at_terminal
        self._input_ended = False
        self._has_events = False
        """There may be events that were not looked at yet."""
        self._presses = 0
        """How often Ctrl-C was pressed since the last line."""
        self._is_lost = False

    def run(self) -> int:
        """Return the exit code."""
        with _wake_on_signals() as wake:
            self._talk.interrupts.listen()
            self._terminal.prompt()
            while not self._is_over():
                self._turn(wake)
            # A user who keeps pressing Ctrl-C already gets what it asks for.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return FAILED if self._is_lost else DONE

    def _is_over(self) -> bool:
        talk = self._talk
        # A script ends when its last run has ended; at a terminal the end of the input leaves at once.
        is_done = self._input_ended and (self._at_terminal or talk.running is None)
        return talk.is_leaving or self._is_lost or is_done

    def _turn(self, wake: int) -> None:
        """Wait for something, and handle it."""
        try:
            is_typed = self._wait(wake)
            for _ in range(self._talk.interrupts.take()):
                self._interrupt()
            if is_typed:
                self._read()
            self._show_events()
        except KeyboardInterrupt:
            return  # a command was interrupted; the next turn counts it
        except Refused as refused:
            self._talk.say(refusal_text(refused, in_chat=True))
            self._attach_again()
        except ClientError as error:
            self._talk.say(f"{error}")
            self._is_lost = True

    def _wait(self, wake: int) -> bool:
        """Wait until something can be done; return whether something was typed."""
        is_holding = self._terminal.is_holding
        sockets, seconds = ([], None) if is_holding else self._talk.events.to_wait_for()
        typing = [] if self._input_ended else [self._terminal]
        has_typed = bool(typing) and self._terminal.has_more()
        if has_typed or (self._has_events and not is_holding):
            seconds = 0.0
        ready, _, _ = select.select([wake, *typing, *sockets], [], [], seconds)
        if wake in ready:
            os.read(wake, 4096)
        return has_typed or self._terminal in ready

    def _attach_again(self) -> None:
        """Show the session anew, because its events cannot be continued."""
        if not self._talk.events.is_away:
            return
        try:
            self._talk.attach({"session_id": self._talk.session_id})
        except ClientError as error:
            self._talk.say(f"{error}")
            self._is_lost = True

    # --- what is typed -------------------------------------------------------------------------

    def _read(self) -> None:
        for typed in self._terminal.read():
            if typed is Control.END:
                self._input_ended = True
            elif typed is Control.SUSPEND:
                self._terminal.suspend()
            elif not self._talk.is_leaving:
                self._presses = 0
                try:
                    self._take(typed)
                finally:
                    self._talk.asked.begin_line(is_typing=self._terminal.is_typing)
        if not self._is_over():
            self._terminal.prompt()

    def _take(self, typed: TypedLine) -> None:
        talk, line = self._talk, typed.text.strip()
        name, _, rest = line.partition(" ")
        try:
            if name in COMMANDS:
                COMMANDS[name].run(talk, rest.strip())
            elif name.startswith("/") and "\n" not in name and not typed.pasted:
                talk.say(f"no command {name}; /help lists them")
            elif line and not talk.asked.take(line, talk.ask, talk.say, pasted=typed.pasted):
                talk.send(line)
        except Refused as refused:
            talk.say(refusal_text(refused, in_chat=True))
        except (DaemonUnreachable, ConnectionLost, AnswerTimedOut, AnswerInvalid) as error:
            if not self._at_terminal:
                raise
            if isinstance(error, DaemonUnreachable):
                talk.say(f"(not sent: {error})")
                self._terminal.restore(typed.text)
            else:
                talk.say(f"(perhaps not sent: {error})")
        except ClientError as error:
            talk.say(f"{error}")

    def _interrupt(self) -> None:
        """Stop the run; without one, drop the line being typed; else leave at the second time."""
        self._presses += 1
        if self._presses > 1:
            self._talk.is_leaving = True
        elif self._talk.running is not None:
            self._stop()
        elif self._terminal.clear():
            self._presses = 0
        else:
            self._talk.say("(Ctrl-C again leaves)")
        self._terminal.prompt()

    def _stop(self) -> None:
        try:
            abort(self._talk)
        except ClientError as error:
            self._talk.say(str(error))

    # --- what happens --------------------------------------------------------------------------

    def _show_events(self) -> None:
        self._has_events = self._terminal.is_holding
        if self._has_events:
            return
        while (event := self._talk.events.next_event()) is not None:
            if event.type in _ASKS:
                self._terminal.drop_typed()
            if self._talk.show_event(event):
                self._terminal.prompt()
            if self._has_input():
                self._has_events = True
                return

    def _has_input(self) -> bool:
        """Return whether a person has done something, which is taken before anything else is shown."""
        if self._talk.interrupts.is_pending:
            return True
        is_typing = self._at_terminal and not self._input_ended
        return is_typing and bool(select.select([self._terminal], [], [], 0)[0])


@contextmanager
def _wake_on_signals() -> Iterator[int]:
    """Yield a descriptor that becomes readable with each signal, also with one just before a wait."""
    with ExitStack() as undo:
        read, write = os.pipe()
        undo.callback(os.close, read)
        undo.callback(os.close, write)
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write, warn_on_full_buffer=False))
        yield read
