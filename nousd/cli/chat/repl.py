"""``nousctl chat``: the interactive client, which reads lines while it shows events.

One thread waits for keys, events and signals, and processes typed keys before it shows new events. So
it always knows what the user had seen when the typing of a line began.
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

_REQUEST_EVENTS: Final = frozenset({"permission_requested", "question_asked"})


def chat(options: Options, session_id: str | None = None, *, is_plain: bool = False) -> int:
    """Run the client until the user leaves. Return the exit code.

    Args:
        session_id: None for the daemon's active session.
        is_plain: whether to draw nothing twice; see ``linear``.
    """
    at_terminal = sys.stdin.isatty()
    open_requests = OpenRequests()
    terminal: EditedTerminal | PlainTerminal
    if knows_escapes():
        kind = LinearTerminal if is_plain else EditedTerminal
        terminal = kind(LineEditor(open_requests.note_typing))
    elif echoes():
        terminal = DumbTerminal(LineEditor(open_requests.note_typing))
    else:
        terminal = PlainTerminal(is_terminal=at_terminal)
    conversation = Conversation(options, terminal, open_requests, at_terminal=at_terminal)
    loop = _Loop(conversation, at_terminal=at_terminal)
    with take_terminal(terminal):
        try:
            conversation.attach({} if session_id is None else {"session_id": session_id})
            return loop.run()
        finally:
            conversation.events.close()


class _Loop:
    """Processes input and shows events until the user leaves."""

    def __init__(self, conversation: Conversation, *, at_terminal: bool) -> None:
        self._conversation = conversation
        self._terminal = conversation.terminal
        self._at_terminal = at_terminal
        self._input_ended = False
        self._has_events = False
        """Whether there may be events that were not read yet."""
        self._presses = 0
        """Number of presses of Ctrl-C since the last line."""
        self._is_lost = False

    def run(self) -> int:
        """Run the loop and return the exit code."""
        with _wake_on_signals() as wake:
            self._conversation.interrupts.listen()
            self._terminal.prompt()
            while not self._is_over():
                self._turn(wake)
            # The program is ending already, so further presses of Ctrl-C are ignored.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return FAILED if self._is_lost else DONE

    def _is_over(self) -> bool:
        conversation = self._conversation
        # A script leaves when its last run has ended; at a terminal the end of the input leaves at once.
        is_done = self._input_ended and (self._at_terminal or conversation.running is None)
        return conversation.is_quitting or self._is_lost or is_done

    def _turn(self, wake: int) -> None:
        """Wait for input, an event or a signal, and handle it."""
        try:
            is_typed = self._wait(wake)
            for _ in range(self._conversation.interrupts.take()):
                self._interrupt()
            if is_typed:
                self._read()
            self._show_events()
        except KeyboardInterrupt:
            return  # a command was interrupted; the next turn handles the press
        except Refused as refused:
            self._conversation.say(refusal_text(refused, in_chat=True))
            self._attach_again()
        except ClientError as error:
            self._conversation.say(f"{error}")
            self._is_lost = True

    def _wait(self, wake: int) -> bool:
        """Wait for input, an event or a signal; return whether there is input."""
        is_holding = self._terminal.is_holding
        sockets, seconds = ([], None) if is_holding else self._conversation.events.to_wait_for()
        typing = [] if self._input_ended else [self._terminal]
        has_typed = bool(typing) and self._terminal.has_more()
        if has_typed or (self._has_events and not is_holding):
            seconds = 0.0
        ready, _, _ = select.select([wake, *typing, *sockets], [], [], seconds)
        if wake in ready:
            os.read(wake, 4096)
        return has_typed or self._terminal in ready

    def _attach_again(self) -> None:
        """Attach to the session again, if its events cannot be continued."""
        if not self._conversation.events.is_away:
            return
        try:
            self._conversation.attach({"session_id": self._conversation.session_id})
        except ClientError as error:
            self._conversation.say(f"{error}")
            self._is_lost = True

    # --- input ---------------------------------------------------------------------------------

    def _read(self) -> None:
        for typed in self._terminal.read():
            if typed is Control.END:
                self._input_ended = True
            elif typed is Control.SUSPEND:
                self._terminal.suspend()
            elif not self._conversation.is_quitting:
                self._presses = 0
                try:
                    self._take(typed)
                finally:
                    self._conversation.open_requests.begin_line(is_typing=self._terminal.is_typing)
        if not self._is_over():
            self._terminal.prompt()

    def _take(self, typed: TypedLine) -> None:
        conversation, line = self._conversation, typed.text.strip()
        name, _, rest = line.partition(" ")
        try:
            if name in COMMANDS:
                COMMANDS[name].run(conversation, rest.strip())
            elif name.startswith("/") and "\n" not in name and not typed.pasted:
                conversation.say(f"no command {name}; /help lists them")
            elif line and not conversation.open_requests.take(
                line, conversation.ask, conversation.say, pasted=typed.pasted
            ):
                conversation.send(line)
        except Refused as refused:
            conversation.say(refusal_text(refused, in_chat=True))
        except (DaemonUnreachable, ConnectionLost, AnswerTimedOut, AnswerInvalid) as error:
            if not self._at_terminal:
                raise
            if isinstance(error, DaemonUnreachable):
                conversation.say(f"(not sent: {error})")
                self._terminal.restore(typed.text)
            else:
                conversation.say(f"(perhaps not sent: {error})")
        except ClientError as error:
            conversation.say(f"{error}")

    def _interrupt(self) -> None:
        """Abort the run; without a run, drop the line being typed; leave at the second press."""
        self._presses += 1
        if self._presses > 1:
            self._conversation.is_quitting = True
        elif self._conversation.running is not None:
            self._stop()
        elif self._terminal.clear():
            self._presses = 0
        else:
            self._conversation.say("(Ctrl-C again leaves)")
        self._terminal.prompt()

    def _stop(self) -> None:
        try:
            abort(self._conversation)
        except ClientError as error:
            self._conversation.say(str(error))

    # --- events --------------------------------------------------------------------------------

    def _show_events(self) -> None:
        self._has_events = self._terminal.is_holding
        if self._has_events:
            return
        while (event := self._conversation.events.next_event()) is not None:
            if event.type in _REQUEST_EVENTS:
                self._terminal.drop_typed()
            if self._conversation.show_event(event):
                self._terminal.prompt()
            if self._has_input():
                self._has_events = True
                return

    def _has_input(self) -> bool:
        """Return whether a person typed or pressed Ctrl-C, which is processed before further events."""
        if self._conversation.interrupts.is_pending:
            return True
        is_typing = self._at_terminal and not self._input_ended
        return is_typing and bool(select.select([self._terminal], [], [], 0)[0])


@contextmanager
def _wake_on_signals() -> Iterator[int]:
    """Provide a descriptor that each signal makes readable, even one that arrives just before a wait."""
    with ExitStack() as undo:
        read, write = os.pipe()
        undo.callback(os.close, read)
        undo.callback(os.close, write)
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write, warn_on_full_buffer=False))
        yield read
