"""One conversation: shows a session, its active run and its requests, and sends the user's commands.

Nothing here waits for events or keys. Each command uses its own connection, so that Ctrl-C leaves no
partial command behind.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from nousd.cli.chat.events import SessionEvents
from nousd.cli.chat.open_requests import OpenRequests
from nousd.cli.chat.terminal import Terminal
from nousd.cli.client_options import Options
from nousd.cli.render import chat_lines
from nousd.cli.render.answers import as_text
from nousd.cli.render.run_printer import RunPrinter, trouble_text
from nousd.client.answers import Answer, ReceivedEvent
from nousd.errors import ClientError, Refused

_RACE_CODES: Final = frozenset({"run_in_progress", "no_active_run"})
"""Refusals which mean that the run began or ended while the line was typed."""

_FROM_THE_USER: Final = frozenset(
    {
        *("prompt", "steer", "follow_up", "abort"),
        *("confirm_tool", "answer_question", "reject_question"),
        *("edit_queued", "move_queued", "remove_queued", "promote"),
    }
)
"""Commands that contain the client's name, so that other clients can show the sender."""

_OWN_INPUTS_MAX: Final = 256
_REASONING_CHARS_MAX: Final = 256 * 1024


class Interrupts:
    """Counts presses of Ctrl-C, so that output is never interrupted. Only commands are interrupted."""

    def __init__(self) -> None:
        self._count = 0
        self._is_asking = False

    @property
    def is_pending(self) -> bool:
        """Whether Ctrl-C was pressed since the last ``take``."""
        return self._count > 0

    def take(self) -> int:
        """Return the number of presses of Ctrl-C since the last call."""
        count, self._count = self._count, 0
        return count

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """Handle the signal."""
        self._count += 1
        if self._is_asking:
            raise KeyboardInterrupt

    def during(self, ask: Callable[[], Answer]) -> Answer:
        """Return the answer to a command. Raise KeyboardInterrupt on Ctrl-C meanwhile."""
        self._is_asking = True
        try:
            return ask()
        finally:
            self._is_asking = False

    def listen(self) -> None:
        """Handle Ctrl-C from now on."""
        signal.signal(signal.SIGINT, self.handle)


class Conversation:
    """The displayed session, and the actions of its user."""

    def __init__(
        self,
        options: Options,
        terminal: Terminal,
        open_requests: OpenRequests,
        *,
        at_terminal: bool,
    ) -> None:
        self._options = options
        self._client_id = f"nousctl-chat-{os.getpid()}"
        self._at_terminal = at_terminal
        self.terminal = terminal
        self.open_requests = open_requests
        self.interrupts = Interrupts()
        self.events = SessionEvents(options.socket_path, self.say, waits=at_terminal)
        self.session_id = ""
        self.running: str | None = None
        self.is_quitting = False
        self.shows_reasoning = False
        self.attached: list[Path] = []
        """The files to attach to the next text."""
        self.queued: Sequence[Mapping[str, Any]] = ()
        """The queue as it was last shown; ``queue_revision`` is its revision."""
        self.queue_revision = 0
        self._printer = RunPrinter(terminal, verbose=options.verbose)
        self._own_inputs: deque[str] = deque(maxlen=_OWN_INPUTS_MAX)
        """Ids of inputs that were typed here."""
        self._in_transcript: set[str] = set()
        """Ids of messages that were shown with the transcript."""
        self._reasoning: deque[str] = deque()
        self._reasoning_chars = 0
        self._reasoning_of = ""
        self._in_reasoning = False

    # --- attaching to a session ----------------------------------------------------------------

    def attach(self, target: Mapping[str, str]) -> None:
        """Show a session and follow its events; without a name, the daemon's active or a new session.

        Raises:
            ClientError: as ``ask``; the previous session stays attached.
        """
        state = self.ask("get_state", target).payload
        session_id = target.get("session_id") or state["session_id"]
        if not session_id:
            session_id = self.ask("new_session", {}).payload["session_id"]
        state = {**state, "session_id": session_id}
        session = {"session_id": session_id}
        record: Mapping[str, Any] = {}
        if self._at_terminal:
            page = {**session, "messages": chat_lines.ENTRIES_SHOWN}
            record = self.ask("get_session", page).payload
        pending = self.ask("list_permissions", session).payload["pending"]
        questions = self.ask("list_questions", session).payload["questions"]
        self.events.follow(self._build_subscription(state["cursor"], session))
        self.session_id = session_id
        self.running = None if state["run_state"] == "idle" else state["run_id"]
        self._show_session(state, record)
        self._mark_seen()
        self.open_requests.clear()
        self.open_requests.folder = state.get("workspace", "")
        if pending or questions:
            self.terminal.drop_typed()
        self.open_requests.begin_line(is_typing=self.terminal.is_typing)
        for line in self.open_requests.add_listed(pending, questions):
            self.say(line)

    def _build_subscription(self, cursor: str, session: Mapping[str, str]) -> dict[str, Any]:
        """Return the subscription to a session; at a terminal this client answers approvals."""
        return {**session, "after": cursor, "types": "all", "confirms": self._at_terminal}

    def _show_session(self, state: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        self.say(chat_lines.session_line(state, record.get("session", {})))
        transcript = record.get("transcript", {})
        if self._at_terminal:
            for line in (*chat_lines.facts(state), *chat_lines.last_entries(transcript)):
                self.say(line)
        self._in_transcript = {entry["id"] for entry in transcript.get("messages", ())}
        open_message = state.get("open_message")
        if open_message and open_message["message_id"] not in self._in_transcript:
            self.terminal.write(open_message["text"])

    def select(self, answer: Answer) -> None:
        """Attach to the session that a command created."""
        self.attach({"session_id": answer.payload["session_id"]})

    # --- input ---------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        """Start a run with the text, or queue it behind the active one.

        Raises:
            ClientError: as ``ask``.
        """
        order = (self._follow, self._prompt) if self.running else (self._prompt, self._follow)
        try:
            order[0](text)
        except Refused as refused:
            if refused.message not in _RACE_CODES:
                raise
            order[1](text)

    def _prompt(self, text: str) -> None:
        accepted = self.hand_in("prompt", {"text": text, "wait": False})
        if accepted:
            self.running = accepted["run_id"]

    def _follow(self, text: str) -> None:
        if self.hand_in("follow_up", {"text": text}):
            self.say("(a run is going on: this comes after it; /steer TEXT goes first)")

    def hand_in(self, command: str, payload: dict[str, Any]) -> Mapping[str, Any] | None:
        """Send a text and return the response. Show an extension's reply and return None if it handled
        the text.
        """
        answer = self.ask_here(command, {**payload, **self._attachments()}).payload
        self.attached = []
        for warning in answer.get("warnings", ()):
            self.say(trouble_text("warning", warning, verbose=self._options.verbose))
        if "handled_by" in answer:
            self.say(answer["reply"])
            return None
        if "input_id" in answer:
            self._own_inputs.append(answer["input_id"])
        return answer

    def _attachments(self) -> dict[str, Any]:
        """Return the payload's key with the attached files, if there are any.

        Raises:
            ClientError: a file is too large or no longer readable.
        """
        if not self.attached:
            return {}
        from nousd.client.files import attachments_of

        try:
            with self._options.connect() as daemon:
                return {"attachments": attachments_of(daemon, self.attached)}
        except OSError as error:
            raise ClientError(f"({error.filename} cannot be read: {error.strerror})") from error

    # --- events --------------------------------------------------------------------------------

    def show_event(self, event: ReceivedEvent) -> bool:
        """Show an event; return whether the user may want to type something now."""
        payload = event.payload
        if payload.get("session_id") != self.session_id:
            return False
        if event.type == "reasoning_update":
            self._show_reasoning(payload)
            return False
        if self._in_reasoning:
            self.terminal.write("\n")
            self._in_reasoning = False
        if event.type == "agent_start":
            self.running = payload["run_id"]
        elif event.type == "agent_end":
            self.running = None
        elif event.type == "run_aborting" and self.other_client(payload):
            self.say(f"({self.other_client(payload)} stops the run)")
        self._show_input(event)
        if payload.get("message_id") not in self._in_transcript:
            self._printer.show(event)
        lines = self.open_requests.note(event, self.other_client(payload))
        if lines:
            self.say("\n".join(lines))
        if event.type == "agent_end":
            self._mark_seen()
        return bool(lines) or event.type == "agent_end"

    def _mark_seen(self) -> None:
        """Mark the session as seen, for all clients of the user, if this one is at a terminal."""
        if self._at_terminal:
            with suppress(Refused):  # the session may be deleted
                self.ask("mark_seen", {"session_id": self.session_id})

    def _show_input(self, event: ReceivedEvent) -> None:
        """Show a user message, unless it was just typed here."""
        payload = event.payload
        is_input = event.type == "message_start" and payload.get("role") == "user"
        if not is_input or payload.get("message_id") in self._in_transcript:
            return
        sender = self.other_client(payload)
        is_own = not sender and (
            "client_id" in payload
            or set(payload.get("input_ids", ("",))).issubset(self._own_inputs)
        )
        if is_own and payload.get("turn_kind") not in {"steer", "follow_up"}:
            return
        name = f"[{sender}] " if sender else ""
        self.say(f"> {name}{chat_lines.beginning(payload.get('text', ''))}")

    def other_client(self, payload: Mapping[str, Any]) -> str:
        """Return the name of the other client that caused an event; "" if there is none or unknown."""
        name = str(payload.get("client_id", ""))
        return "" if name == self._client_id else name

    def _show_reasoning(self, payload: Mapping[str, Any]) -> None:
        if payload["message_id"] != self._reasoning_of:
            self._reasoning_of = payload["message_id"]
            self._reasoning.clear()
            self._reasoning_chars = 0
        self._reasoning.append(payload["delta"])
        self._reasoning_chars += len(payload["delta"])
        while self._reasoning_chars > _REASONING_CHARS_MAX:
            self._reasoning_chars -= len(self._reasoning.popleft())
        if self.shows_reasoning:
            if not self._in_reasoning:
                self.say("(reasoning)")
            self.terminal.write(payload["delta"])
            self._in_reasoning = True

    @property
    def reasoning(self) -> str:
        """The model's last reasoning; "" if there was none."""
        return "".join(self._reasoning)

    # --- commands and output -------------------------------------------------------------------

    def ask_here(self, command: str, payload: Mapping[str, Any]) -> Answer:
        """Send a command about the session; as ``ask``."""
        return self.ask(command, {**payload, "session_id": self.session_id})

    def ask(self, command: str, payload: Mapping[str, Any]) -> Answer:
        """Send a command and return its answer.

        Raises:
            Refused, DaemonUnreachable, AnswerTimedOut, ConnectionLost, AnswerInvalid
            KeyboardInterrupt: the user pressed Ctrl-C.
        """
        if command in _FROM_THE_USER:
            payload = {**payload, "client_id": self._client_id}

        def exchange() -> Answer:
            with self._options.connect() as daemon:
                return daemon.request(command, payload)

        return self.interrupts.during(exchange)

    def find_session(self, text: str) -> str:
        """Return the id of the session that a text names, by its id, an id prefix, or its name.

        Raises:
            ClientError: no session matches, or several.
        """
        from nousd.cli.session_choice import find_session

        with self._options.connect() as daemon:
            return find_session(daemon, text)

    def show(self, answer: Answer) -> None:
        """Show an answer."""
        self.say("\n".join(as_text(answer)))

    def say(self, text: str) -> None:
        """Show whole lines."""
        self.terminal.say(text)
