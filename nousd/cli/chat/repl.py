"""``nousctl chat``: talk to the daemon line by line while events scroll by.

The main thread reads lines and sends commands, each on a connection of its own, so that Ctrl-C in the
middle of one leaves nothing half sent. A second thread prints events. Both share the active run, under
one lock.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from nousd.cli.chat.open_requests import OpenRequests
from nousd.cli.client_options import Options
from nousd.cli.output import DONE, FAILED, shown
from nousd.cli.render.answers import as_text
from nousd.cli.render.run_printer import RunPrinter
from nousd.client.answers import Answer, ReceivedEvent
from nousd.client.blocking import Connection, Subscription
from nousd.errors import ClientError, Refused

_PROMPT: Final = "> "

_RACES: Final = frozenset({"run_in_progress", "no_active_run"})
"""Refusals that mean: the run began, or ended, while the line was being typed."""

_FROM_THE_USER: Final = frozenset(
    {
        *("prompt", "steer", "follow_up", "abort"),
        *("confirm_tool", "answer_question", "reject_question"),
    }
)
"""Commands that carry the client's name, so that other clients can tell who sent them."""

_ENDED_RUNS_MAX: Final = 64
"""Runs whose end may be seen before the answer to their prompt."""

_SIGNAL_AGAIN_SECONDS: Final = 1.0


def chat(options: Options, session_id: str | None = None) -> int:
    """Talk until the user leaves. Return the exit code.

    Args:
        session_id: None for the daemon's active session.
    """
    talk = _Talk(options, session_id)
    with Subscription(options.socket_path, talk.wanted(talk.cursor)) as events:
        talk.events = events
        follower = threading.Thread(target=talk.follow, args=(events,), daemon=True)
        follower.start()
        code = talk.converse()
        events.hang_up()
        follower.join()
    return code


class _Talk:
    """One conversation: a session, its active run, and the pending requests."""

    def __init__(self, options: Options, session_id: str | None) -> None:
        self._options = options
        self._client_id = f"nousctl-chat-{os.getpid()}"
        self._terminal = sys.stdin.isatty()
        if self._terminal:
            with suppress(ImportError):
                import readline  # noqa: F401  (importing it is what gives input() its line editing)
        self._printer = RunPrinter()
        self._changed = threading.Condition()
        self._running: str | None = None
        self._ended: deque[str] = deque(maxlen=_ENDED_RUNS_MAX)
        self._lost: ClientError | None = None
        self._leaving = False
        self._reading = False
        self._left = threading.Event()
        self._asked = OpenRequests()
        self.events: Subscription | None = None
        self.cursor = ""
        self._session_id = ""
        self._attach({} if session_id is None else {"session_id": session_id})

    def _attach(self, named: Mapping[str, str]) -> None:
        state = self._ask("get_state", named).payload
        self.cursor = state["cursor"]
        self._session_id = state["session_id"]
        if not self._session_id:
            self._session_id = self._ask("new_session", {}).payload["session_id"]
        if state["run_state"] != "idle":
            self._running = state["run_id"]
        self._say(f"session {self._session_id}; /help lists what else there is")
        if "open_message" in state:
            print(shown(state["open_message"]["text"]), end="", flush=True)
        pending = self._ask_here("list_permissions", {}).payload["pending"]
        questions = self._ask_here("list_questions", {}).payload["questions"]
        for line in self._asked.add_listed(pending, questions):
            self._say(line)

    def wanted(self, cursor: str) -> dict[str, Any]:
        """Return the subscription to the session; at a terminal it declares that it answers."""
        return {
            "after": cursor,
            "session_id": self._session_id,
            "types": "all",
            "confirms": self._terminal,
        }

    # --- the main thread -----------------------------------------------------------------------

    def converse(self) -> int:
        """Read lines until the user leaves, the input ends or the daemon disconnects."""
        interrupts = 0
        while not self._leaving and self._lost is None:
            try:
                if interrupts == 1:
                    self._interrupt()
                self._take(self._read())
                interrupts = 0
            except EOFError:
                self._finish()
                self._leaving = True
            except KeyboardInterrupt:
                interrupts += 1
                self._leaving = interrupts > 1
        # A user who keeps pressing Ctrl-C already gets what it asks for.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._leaving = True
        self._left.set()
        return FAILED if self._lost else DONE

    def _read(self) -> str:
        """Return the next line; if the daemon disconnects meanwhile, end as Ctrl-C does."""
        with self._changed:
            if self._lost is not None:
                raise KeyboardInterrupt
            self._reading = True
        self._asked.begin_line()
        try:
            return input(_PROMPT if self._terminal else "")
        finally:
            with self._changed:
                self._reading = False

    def _take(self, line: str) -> None:
        name, _, rest = line.strip().partition(" ")
        try:
            if name in _COMMANDS:
                _COMMANDS[name].run(self, rest.strip())
            elif name.startswith("/"):
                self._say(f"no command {name}; /help lists them")
            elif name and not self._asked.take(line.strip(), self._ask, self._say):
                self._send(line.strip())
        except Refused as refused:
            self._say(f"{refused}")
        except ClientError as error:
            self._lose(error)

    def _send(self, text: str) -> None:
        """Start a run with the text, or send it to the active one."""
        order = (self._follow, self._prompt) if self._running else (self._prompt, self._follow)
        try:
            order[0](text)
        except Refused as refused:
            if refused.message not in _RACES:
                raise
            order[1](text)

    def _prompt(self, text: str) -> None:
        accepted = self._hand_in("prompt", {"text": text, "wait": False})
        with self._changed:
            if accepted and accepted["run_id"] not in self._ended:
                self._running = accepted["run_id"]

    def _follow(self, text: str) -> None:
        if self._hand_in("follow_up", {"text": text}):
            self._say("(a run is going on: this comes after it; /steer TEXT goes first)")

    def _hand_in(self, command: str, payload: dict[str, Any]) -> Mapping[str, Any] | None:
        """Return the response to a text; None if an extension handled it: then its reply is shown."""
        answer = self._ask_here(command, payload).payload
        for warning in answer.get("warnings", ()):
            self._say(f"warning: {warning['code']}: {warning['message']}")
        if "handled_by" not in answer:
            return answer
        print(shown(answer["reply"]), flush=True)
        return None

    def _interrupt(self) -> None:
        if self._lost is not None:
            return
        if self._running is None:
            self._say("\n(Ctrl-C again leaves)")
            return
        try:
            self.abort("")
        except ClientError as error:
            self._say(str(error))

    def _finish(self) -> None:
        """At the end of the input: on a terminal leave at once, in a script wait for the run."""
        if self._terminal:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._running is None or self._lost)

    # --- commands ------------------------------------------------------------------------------

    def steer(self, text: str) -> None:
        self._hand_in("steer", {"text": text})

    def follow_up(self, text: str) -> None:
        self._hand_in("follow_up", {"text": text})

    def abort(self, _rest: str) -> None:
        self._show(self._ask_here("abort", {}))

    def reject(self, reason: str) -> None:
        self._asked.reject(reason, self._ask, self._say)

    def new(self, name: str) -> None:
        state = self._ask_here("get_state", {}).payload
        here = {"workspace": state["workspace"]} if "workspace" in state else {}
        self._select(self._ask("new_session", {**_beside(name), **here}))

    def branch(self, name: str) -> None:
        self._select(self._ask_here("branch_session", _beside(name)))

    def _select(self, answer: Answer) -> None:
        session_id = answer.payload["session_id"]
        cursor = self._ask("get_state", {"session_id": session_id}).payload["cursor"]
        with self._changed:
            self._session_id = session_id
            self._running = None
        self._asked.clear()
        if self.events is not None:
            self.events.change(self.wanted(cursor))
        self._show(answer)

    def state(self, _rest: str) -> None:
        self._show(self._ask_here("get_state", {}))

    def tree(self, _rest: str) -> None:
        self._show(self._ask_here("get_tree", {}))

    def quit(self, _rest: str) -> None:
        self._leaving = True

    def help(self, _rest: str) -> None:
        for name, command in _COMMANDS.items():
            self._say(f"{name:8} {command.help}")
        self._say("While a tool's question is pending, any other text answers it; while a call is")
        self._say(
            "pending, y, s, a and n do. Otherwise a text starts a run, or is queued behind the"
        )
        self._say("active one. Ctrl-C stops the run; pressed twice, it leaves.")

    # --- the other thread ------------------------------------------------------------------------

    def follow(self, events: Subscription) -> None:
        """Print the session's events until the connection ends."""
        try:
            for event in events:
                if event.payload.get("session_id") == self._session_id:
                    self._show_event(event)
        except ClientError as error:
            self._lose(error)

    def _show_event(self, event: ReceivedEvent) -> None:
        if event.type == "message_start" and "turn_kind" in event.payload:
            self._show_message(event.payload)
        self._printer.show(event)
        asked = self._asked.note(event)
        if asked:
            self._say("\n".join(asked))
        with self._changed:
            if event.type == "agent_start":
                self._running = event.payload["run_id"]
            elif event.type == "agent_end":
                self._ended.append(event.payload["run_id"])
                self._running = None
            if (asked or event.type == "agent_end") and self._terminal and self._reading:
                # The request that the next line answers was scrolled away.
                print(_PROMPT, end="", flush=True)
            self._changed.notify_all()

    def _show_message(self, payload: Mapping[str, Any]) -> None:
        """Print a message of the user, unless it is a prompt that was typed here."""
        sender = payload.get("client_id", self._client_id)
        if sender != self._client_id:
            self._say(f"> [{sender}] {payload['text']}")
        elif payload["turn_kind"] in {"steer", "follow_up"}:
            self._say(f"> {payload['text']}")

    def _lose(self, error: ClientError) -> None:
        with self._changed:
            if self._lost is not None or self._leaving:
                return
            self._lost = error
            self._say(f"{error}")
            self._changed.notify_all()
        if threading.current_thread() is not threading.main_thread():
            self._end_the_read()

    def _end_the_read(self) -> None:
        """Make the main thread stop waiting for a line, which only a signal can.

        A signal in the instant before the read begins does not interrupt it, so it is repeated until
        the main thread has left.
        """
        main = threading.main_thread().ident
        assert main is not None
        while True:
            with self._changed:
                if self._reading:
                    signal.pthread_kill(main, signal.SIGINT)
            if self._left.wait(_SIGNAL_AGAIN_SECONDS):
                return

    # --- asking and showing ----------------------------------------------------------------------

    def _ask_here(self, command: str, payload: Mapping[str, Any]) -> Answer:
        return self._ask(command, {**payload, "session_id": self._session_id})

    def _ask(self, command: str, payload: Mapping[str, Any]) -> Answer:
        seconds = self._options.answer_seconds
        if command in _FROM_THE_USER:
            payload = {**payload, "client_id": self._client_id}
        with Connection(self._options.socket_path, timeout_seconds=seconds) as daemon:
            return daemon.request(command, payload)

    def _show(self, answer: Answer) -> None:
        print(*map(shown, as_text(answer)), sep="\n", flush=True)

    def _say(self, text: str) -> None:
        # In one piece, because the other thread prints as well.
        print(f"{shown(text)}\n", end="", flush=True)


def _beside(name: str) -> dict[str, Any]:
    """Return the settings of another session: the daemon's active one belongs to other clients."""
    return {"activate": False, **({"name": name} if name else {})}


class _Command(NamedTuple):
    help: str
    run: Callable[[_Talk, str], None]


_COMMANDS: Final[dict[str, _Command]] = {
    "/steer": _Command("TEXT: goes before whatever the run would do next", _Talk.steer),
    "/follow": _Command("TEXT: comes when the run is done", _Talk.follow_up),
    "/abort": _Command("stops the run and takes back what waits", _Talk.abort),
    "/reject": _Command("[REASON]: says no to what waits for you", _Talk.reject),
    "/new": _Command("[NAME]: a new session", _Talk.new),
    "/branch": _Command("[NAME]: a copy of this session", _Talk.branch),
    "/state": _Command("what the daemon is doing", _Talk.state),
    "/tree": _Command("the entries of this session", _Talk.tree),
    "/quit": _Command("leave; a run continues", _Talk.quit),
    "/help": _Command("this list", _Talk.help),
}
"""first word of a line -> its handler."""
