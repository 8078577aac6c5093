"""``nousctl chat`` with piped lines and at a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Nousctl
from tests.harness.fake_daemon import FakeDaemon, Reply, event, ok, refused

STATE: dict[str, Any] = {
    "session_id": "s",
    "run_state": "idle",
    "run_id": "",
    "cursor": "evt-5",
    "provider": "mock",
    "model": "m",
    "steering_mode": "all",
    "follow_up_mode": "all",
    "pending_counts": {"steer": 0, "follow_up": 0},
    "runs": [],
}


@pytest.fixture(autouse=True)
def idle(daemon: FakeDaemon) -> None:
    make_idle(daemon)


def make_idle(daemon: FakeDaemon) -> None:
    """Give a session in which nothing runs or waits."""
    daemon.on["get_state"] = ok("state", STATE)
    set_pending(daemon)


def set_pending(
    daemon: FakeDaemon,
    pending: Sequence[dict[str, Any]] = (),
    questions: Sequence[dict[str, Any]] = (),
) -> None:
    """Make these calls and questions pending."""
    daemon.on["list_permissions"] = ok("permissions", {"pending": list(pending)})
    daemon.on["list_questions"] = ok("questions", {"questions": list(questions)})


def publish_run(daemon: FakeDaemon, run_id: str, text: str) -> None:
    """Publish a run that answers with ``text``."""
    keys = {"session_id": "s", "run_id": run_id, "turn_id": "1"}
    daemon.publish(event(6, "agent_start", **keys))
    daemon.publish(event(7, "message_update", **keys, message_id="m", delta=text))
    daemon.publish(event(8, "message_end", **keys, message_id="m", text=text, stop_reason="stop"))
    daemon.publish(event(9, "agent_end", **keys, status="completed"))


def answering(daemon: FakeDaemon) -> Callable[[dict[str, Any]], bytes | None]:
    """Return a reply to ``prompt`` whose run ends before the answer is sent."""

    def reply(request: dict[str, Any]) -> bytes | None:
        run_id = f"run-{len(daemon.heard)}"
        publish_run(daemon, run_id, f"echo {request['payload']['text']}")
        return ok("accepted", {"command": "prompt", "run_id": run_id})(request)

    return reply


def sent_commands(daemon: FakeDaemon) -> list[tuple[str, dict[str, Any]]]:
    """Return the commands that were sent after the greeting, without the name of the chat."""
    return [
        (request["type"], without_name(request["payload"]))
        for request in daemon.heard
        if request["type"] not in _BY_ITSELF
    ]


def without_name(payload: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in payload.items() if key != "client_id"}


_BY_ITSELF = (
    *("get_state", "get_session", "list_permissions", "list_questions", "subscribe"),
    "mark_seen",
)
"""What the client sends without being told to."""


def test_a_line_is_sent_as_a_prompt_and_its_answer_is_shown_before_exit(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["prompt"] = answering(daemon)
    outcome = nousctl("chat", input="hello there\n")
    assert outcome.code == 0
    assert outcome.out.splitlines()[1:] == ["echo hello there"]
    assert sent_commands(daemon) == [
        ("prompt", {"text": "hello there", "wait": False, "session_id": "s"})
    ]


def test_controls_in_an_answer_are_made_visible_also_in_a_pipe(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    """What goes into the pipe is for a person: a pager, a screen reader, a log."""
    daemon.on["prompt"] = answering(daemon)
    outcome = nousctl("chat", input="a\u202eb\x1b[31mc\n")
    assert "echo a<U+202E>b<U+001B>[31mc" in outcome.out


def test_an_extension_reply_is_shown_and_starts_no_run(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    warnings = [{"code": "extension_timeout", "message": "guard: input: did not return"}]
    handled = {"command": "prompt", "handled_by": "house", "reply": "42 lines"}
    daemon.on["prompt"] = ok("accepted", {**handled, "warnings": warnings})
    outcome = nousctl("chat", input="count\ncount\n")
    assert outcome.code == 0
    assert outcome.out.count("42 lines\n") == 2
    assert "warning: extension guard: input: did not return" in outcome.out + outcome.err
    assert [command for command, _ in sent_commands(daemon)] == ["prompt", "prompt"]


def test_events_are_followed_from_the_cursor_of_the_state(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    nousctl("chat", input="")
    [subscribed] = [each["payload"] for each in daemon.heard if each["type"] == "subscribe"]
    # With piped input nobody can answer requests.
    assert subscribed == {"after": "evt-5", "session_id": "s", "types": "all", "confirms": False}


def test_chat_creates_a_session_where_there_is_none(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["get_state"] = ok("state", {**STATE, "session_id": ""})
    daemon.on["new_session"] = ok("session", {"session_id": "new", "active": True})
    daemon.on["abort"] = refused("command_rejected", "no_active_run")
    nousctl("chat", input="/abort\n")
    assert sent_commands(daemon) == [("new_session", {}), ("abort", {"session_id": "new"})]


def test_a_line_during_a_run_is_sent_as_a_follow_up_with_a_notice(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["get_state"] = ok("state", {**STATE, "run_state": "running", "run_id": "run-1"})

    def reply(request: dict[str, Any]) -> bytes | None:
        publish_run(daemon, "run-1", "done")
        return ok("accepted", {"command": "follow_up"})(request)

    daemon.on["follow_up"] = reply
    outcome = nousctl("chat", input="and then\n")
    assert sent_commands(daemon) == [("follow_up", {"text": "and then", "session_id": "s"})]
    assert "this comes after it" in outcome.out


def test_chat_shows_the_beginning_of_a_message_that_is_being_streamed(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    open_message = {"message_id": "m", "role": "assistant", "text": "so far "}
    state = {**STATE, "run_state": "running", "run_id": "run-1", "open_message": open_message}
    daemon.on["get_state"] = ok("state", state)
    publish_run(daemon, "run-1", "so good")
    assert "so far so good\n" in nousctl("chat", input="").out


@pytest.mark.parametrize(
    ("first", "word", "second"),
    [("prompt", "run_in_progress", "follow_up"), ("follow_up", "no_active_run", "prompt")],
)
def test_a_line_is_resent_as_the_other_command_if_a_run_began_or_ended(
    daemon: FakeDaemon, nousctl: Nousctl, first: str, word: str, second: str
) -> None:
    running = first == "follow_up"
    if running:
        state = {**STATE, "run_state": "running", "run_id": "run-1"}
        daemon.on["get_state"] = ok("state", state)
    daemon.on[first] = refused("command_rejected", word)
    daemon.on[second] = answering(daemon)
    nousctl("chat", input="text\n")
    assert [command for command, _ in sent_commands(daemon)] == [first, second]


@pytest.mark.parametrize(
    ("line", "command", "payload"),
    [
        ("/steer go left", "steer", {"text": "go left", "session_id": "s"}),
        ("/follow and then", "follow_up", {"text": "and then", "session_id": "s"}),
        ("/abort", "abort", {"session_id": "s"}),
        ("/new", "new_session", {"activate": False}),
        ("/new a name", "new_session", {"name": "a name", "activate": False}),
        ("/branch", "branch_session", {"session_id": "s", "activate": False}),
        ("/tree", "get_tree", {"session_id": "s"}),
    ],
)
def test_a_line_with_a_slash_is_a_command(
    daemon: FakeDaemon, nousctl: Nousctl, line: str, command: str, payload: dict[str, Any]
) -> None:
    daemon.otherwise = ok("session", {"session_id": "s2", "active": True})
    assert nousctl("chat", input=f"{line}\n").code == 0
    assert sent_commands(daemon) == [(command, payload)]


def test_a_new_session_works_in_the_folder_of_the_old_one(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["get_state"] = ok("state", {**STATE, "workspace": "/w"})
    daemon.on["new_session"] = ok("session", {"session_id": "s2", "active": False})
    nousctl("chat", "--session", "s", input="/new\n")
    assert ("new_session", {"activate": False, "workspace": "/w"}) in sent_commands(daemon)
    named = [each["payload"] for each in daemon.heard if each["type"] == "get_state"]
    assert named[0] == {"session_id": "s"}


def test_after_new_commands_go_to_the_new_session(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["new_session"] = ok("session", {"session_id": "s2", "active": True})
    nousctl("chat", input="/new\n/state\n")
    # The subscription is changed on another socket, and may be heard later.
    asked = [request["payload"] for request in daemon.heard if request["type"] == "get_state"]
    assert asked[-1] == {"session_id": "s2"}


def test_refusals_and_unknown_commands_do_not_end_the_chat(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["steer"] = refused("command_rejected", "no_active_run")
    outcome = nousctl("chat", input="/steer x\n/what\n\n/help\n/quit\nnot sent\n")
    assert outcome.code == 0
    assert "no run is active in this session\nno command /what; /help lists them\n" in outcome.out
    assert "/branch" in outcome.out
    assert [command for command, _ in sent_commands(daemon)] == ["steer"]


def test_events_of_other_sessions_are_not_shown(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    keys = {"session_id": "other", "run_id": "run-0", "turn_id": "1"}
    daemon.publish(event(6, "message_update", **keys, message_id="m", delta="not ours"))
    daemon.on["prompt"] = answering(daemon)
    assert "not ours" not in nousctl("chat", input="hi\n").out


def test_chat_ends_with_exit_code_1_when_the_daemon_disconnects(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    def leave(_request: dict[str, Any]) -> bytes | None:
        daemon.publish(None)
        return ok("accepted", {"command": "prompt", "run_id": "run-1"})(_request)

    daemon.on["prompt"] = leave
    outcome = nousctl("chat", input="hi\n")
    assert outcome.code == 1
    assert outcome.out.endswith("the daemon closed the connection\n")


# --- other clients -------------------------------------------------------------------------------


def test_what_others_sent_is_shown_with_their_name(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    sent: list[str] = []

    def reply(request: dict[str, Any]) -> bytes | None:
        sent.append(request["payload"]["client_id"])
        keys = {"session_id": "s", "run_id": "run-1", "turn_id": "1", "role": "user"}
        messages = [
            ("mine", "prompt", sent[0]),
            ("mine too", "steer", sent[0]),
            ("from a phone", "prompt", "phone"),
            ("from a shell", "follow_up", None),
        ]
        for number, (text, kind, name) in enumerate(messages):
            named = {} if name is None else {"client_id": name}
            message = {"message_id": f"m{number}", "text": text, "turn_kind": kind, **named}
            daemon.publish(event(6 + number, "message_start", **keys, **message))
        publish_run(daemon, "run-1", "done")
        return ok("accepted", {"command": "prompt", "run_id": "run-1"})(request)

    daemon.on["prompt"] = reply
    outcome = nousctl("chat", input="mine\n")
    assert [line for line in outcome.out.splitlines() if line.startswith("> ")] == [
        "> mine too",
        "> [phone] from a phone",
        "> from a shell",
    ]


# --- pending requests ----------------------------------------------------------------------------

REQUEST: dict[str, Any] = {
    "session_id": "s",
    "run_id": "run-1",
    "tool_call_id": "call-1",
    "attempt": 2,
    "tool_name": "bash",
    "input_hash": "sha256:1",
    "args": {"command": "git push"},
    "reason": "it runs a program without a sandbox",
    "expires_at": "2026-01-01T00:00:00Z",
    "rule": "bash(=git push)",
}
NAMED = {"tool_call_id": "call-1", "attempt": 2, "input_hash": "sha256:1"}
QUESTION: dict[str, Any] = {
    "session_id": "s",
    "run_id": "run-1",
    "tool_call_id": "call-2",
    "question_id": "ques-1",
    "questions": [
        {
            "question": "Which?",
            "header": "Colour",
            "options": [{"label": "Red"}, {"label": "Blue"}],
        },
        {"question": "Why?"},
    ],
}


@pytest.mark.parametrize(
    ("line", "payload"),
    [
        ("y", {"decision": "once"}),
        ("Yes", {"decision": "once"}),
        ("s", {"decision": "session"}),
        ("a\ny", {"decision": "always"}),
        ("n", {"decision": "deny"}),
        ("n not today", {"decision": "deny", "reason": "not today"}),
        ("no not today", {"decision": "deny", "reason": "not today"}),
        ("/reject", {"decision": "deny"}),
        ("/reject not today", {"decision": "deny", "reason": "not today"}),
    ],
)
def test_a_pending_call_is_shown_and_decided_by_a_short_line(
    daemon: FakeDaemon, nousctl: Nousctl, line: str, payload: dict[str, str]
) -> None:
    set_pending(daemon, pending=[REQUEST])
    daemon.on["confirm_tool"] = ok("accepted", {"command": "confirm_tool"})
    outcome = nousctl("chat", input=f"{line}\n")
    assert outcome.out.splitlines()[1:5] == [
        "? bash command: git push",
        "  because it runs a program without a sandbox",
        "  session and always allow: bash(=git push)",
        "  y yes, s for the session, a always, n [REASON] no",
    ]
    assert sent_commands(daemon) == [("confirm_tool", {**NAMED, **payload})]


def test_a_call_outside_the_workspace_can_only_be_allowed_once(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    set_pending(daemon, pending=[{**REQUEST, "outside": ["/etc/hosts"]}])
    daemon.on["confirm_tool"] = ok("accepted", {"command": "confirm_tool"})
    outcome = nousctl("chat", input="y\n")
    assert "  opens /etc/hosts" in outcome.out.splitlines()
    assert "  y yes, n [REASON] no" in outcome.out.splitlines()
    assert sent_commands(daemon) == [("confirm_tool", {**NAMED, "decision": "once"})]


def test_any_other_line_is_a_prompt_and_reminds_of_the_pending_call(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    set_pending(daemon, pending=[REQUEST])
    daemon.on["prompt"] = answering(daemon)
    outcome = nousctl("chat", input="yes please\n")
    assert "(a call waits for you: y, s, a or n)" in outcome.out
    assert sent_commands(daemon) == [
        ("prompt", {"text": "yes please", "wait": False, "session_id": "s"})
    ]


def _next(replies: Iterator[Reply], request: dict[str, Any]) -> bytes | None:
    return next(replies)(request)


def test_a_refused_decision_can_be_changed(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    set_pending(daemon, pending=[REQUEST])
    answers = iter(
        [refused("command_rejected", "too_many_rules"), ok("accepted", {"command": "c"})]
    )
    daemon.on["confirm_tool"] = partial(_next, answers)
    outcome = nousctl("chat", input="a\ny\ny\n")
    assert "too many rules" in outcome.out
    assert [payload["decision"] for _, payload in sent_commands(daemon)] == ["always", "once"]


def test_a_late_decision_clears_the_pending_call(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    set_pending(daemon, pending=[REQUEST])
    daemon.on["confirm_tool"] = refused("command_rejected", "already_decided")
    outcome = nousctl("chat", input="y\n/reject\n")
    assert "already decided" in outcome.out
    assert "nothing waits for you" in outcome.out


def test_several_questions_are_asked_one_after_the_other(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    set_pending(daemon, questions=[QUESTION])
    daemon.on["answer_question"] = ok("accepted", {"command": "answer_question"})
    outcome = nousctl("chat", input="2\nbecause I like it\n")
    assert outcome.out.splitlines()[1:] == [
        "? [Colour] Which?",
        "  1 Red",
        "  2 Blue",
        "  a number or your own words; /reject [REASON] leaves it",
        "? Why?",
        "  a number or your own words; /reject [REASON] leaves it",
    ]
    answers = [{"chosen": ["Blue"]}, {"text": "because I like it"}]
    assert sent_commands(daemon) == [
        ("answer_question", {"question_id": "ques-1", "answers": answers})
    ]


def test_a_question_can_be_rejected_with_a_reason(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    set_pending(daemon, questions=[QUESTION])
    daemon.on["reject_question"] = ok("accepted", {"command": "reject_question"})
    nousctl("chat", input="1\n/reject ask Bob\n")
    rejected = {"question_id": "ques-1", "reason": "ask Bob"}
    assert sent_commands(daemon) == [("reject_question", rejected)]


LATER = {**REQUEST, "tool_call_id": "call-9", "args": {"command": "ls"}}


@pytest.mark.parametrize(
    "answer", [ok("accepted", {"command": "c"}), refused("command_rejected", "already_decided")]
)
def test_the_oldest_request_is_answered_first_and_the_next_then_shown_in_full(
    daemon: FakeDaemon, nousctl: Nousctl, answer: Reply
) -> None:
    set_pending(daemon, pending=[REQUEST, LATER], questions=[QUESTION])
    daemon.on["confirm_tool"] = answer
    outcome = nousctl("chat", input="y\nn\n")
    assert [payload["tool_call_id"] for _, payload in sent_commands(daemon)] == ["call-1", "call-9"]
    shown = [line for line in outcome.out.splitlines() if line.startswith(("?", "("))]
    assert shown == [
        "? bash command: git push",
        "(after that: bash command: ls)",
        "(after that: [Colour] Which?)",
        "? bash command: ls",
        "? [Colour] Which?",
    ]


def test_a_change_of_session_drops_pending_requests(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    set_pending(daemon, pending=[REQUEST])

    def made(request: dict[str, Any]) -> bytes | None:
        set_pending(daemon)
        return ok("session", {"session_id": "s2", "active": True})(request)

    daemon.on["new_session"] = made
    assert "nothing waits for you" in nousctl("chat", input="/new\n/reject\n").out


# --- at a terminal -----------------------------------------------------------------------------


class Terminal:
    """``nousctl chat`` on a terminal of its own; every wait ends after 20 seconds."""

    def __init__(
        self,
        daemon: FakeDaemon,
        term: str = "dumb",
        *options: str,
        echoes: bool = True,
        **environ: str,
    ) -> None:
        # The other end stays open here too: without a holder ours would end before the program starts.
        self._ours, self._theirs = pty.openpty()
        if not echoes:
            modes = termios.tcgetattr(self._ours)
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(self._ours, termios.TCSANOW, modes)
        self.process = subprocess.Popen(
            # The new session's leader opens the terminal, which makes it the controlling one.
            [sys.executable, "-c", _LEADER, os.ttyname(self._theirs), *options],
            env={**os.environ, "NOUSD_SOCKET": str(daemon.socket_path), "TERM": term, **environ},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        self._seen = ""
        self.output = ""
        """Everything that was shown, as far as it was read."""

    @property
    def modes(self) -> list[Any]:
        """The terminal's modes."""
        return termios.tcgetattr(self._ours)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until the text has been shown."""
        assert self._shows(text, 20), self._seen

    def interrupt_until_shown(self, text: str) -> None:
        """Press Ctrl-C until the text has been shown.

        More than once, because Python does not notice a signal that comes in the instant before a
        read begins; it counts with the next one, and as one. Long pauses, because a press that was
        noticed is answered late on a busy machine, and a second one then leaves.
        """
        assert any(self._interrupt() and self._shows(text, 10) for _ in range(6)), self._seen

    def interrupt_until_exit(self) -> int:
        """Press Ctrl-C until the program has exited, and return its exit code."""
        for _ in range(20):
            self._interrupt()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(1)
        raise AssertionError(self._seen)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def _interrupt(self) -> bool:
        self.type("\x03")
        return True

    def _shows(self, text: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while text not in self._seen:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._ours], [], [], left)[0]:
                return False
            piece = os.read(self._ours, 4096).decode()
            self._seen += piece
            self.output += piece
        self._seen = self._seen.partition(text)[2]
        return True


_LEADER = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for descriptor in (0, 1, 2):
    os.dup2(terminal, descriptor)
os.execv(sys.executable, [sys.executable, "-m", "nousd.cli.nousctl.main", "chat", *sys.argv[2:]])
"""


@pytest.fixture
def terminal(daemon: FakeDaemon) -> Iterator[Terminal]:
    terminal = Terminal(daemon)
    yield terminal
    terminal.close()


@pytest.fixture
def emacs(daemon: FakeDaemon) -> Iterator[Terminal]:
    """A terminal that shows nothing of what is typed, because the program behind it does."""
    terminal = Terminal(daemon, echoes=False)
    yield terminal
    terminal.close()


QUEUES = "follow-ups all (0 waiting)"
ROW = "\r\x1b[K> "
"""What draws the line being typed, up to what was typed."""


@pytest.fixture
def edited(daemon: FakeDaemon) -> Iterator[Terminal]:
    """A terminal that knows escape sequences."""
    terminal = Terminal(daemon, "xterm")
    terminal.wait_for(f"{QUEUES}\r\n{ROW}")
    yield terminal
    terminal.close()


def test_at_a_terminal_ctrl_c_aborts_the_run_and_a_second_one_exits(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    def begin(request: dict[str, Any]) -> bytes | None:
        keys = {"session_id": "s", "run_id": "run-1", "turn_id": "1", "message_id": "m"}
        daemon.publish(event(6, "message_update", **keys, delta="begun\n"))
        return ok("accepted", {"command": "prompt", "run_id": "run-1"})(request)

    daemon.on["prompt"] = begin
    daemon.on["abort"] = ok("accepted", {"command": "abort", "run_id": "run-1"})
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for("begun")
    terminal.interrupt_until_shown("abort accepted")
    assert terminal.interrupt_until_exit() == 0
    assert [command for command, _ in sent_commands(daemon)] == ["prompt", "abort"]


@pytest.mark.slow
def test_at_a_terminal_the_prompt_is_shown_again_after_an_answer(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    daemon.on["prompt"] = ok("accepted", {"command": "prompt", "run_id": "run-1"})
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for("> ")
    publish_run(daemon, "run-1", "the answer")
    terminal.wait_for("the answer\r\n> ")


@pytest.mark.slow
def test_at_a_terminal_the_next_request_is_shown_once_another_client_answers_the_first(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    terminal.wait_for("> ")
    daemon.publish(event(6, "permission_requested", **REQUEST))
    terminal.wait_for("n [REASON] no\r\n> ")
    daemon.publish(event(7, "permission_requested", **LATER))
    terminal.wait_for("(after that: bash command: ls)\r\n> ")
    daemon.publish(event(8, "tool_call_denied", **REQUEST | {"by": "user", "reason": "no"}))
    terminal.wait_for("(over: no)\r\n? bash command: ls")
    terminal.wait_for("n [REASON] no\r\n> ")
    daemon.publish(event(9, "tool_call_denied", **LATER | {"by": "stop", "reason": "aborted"}))
    daemon.publish(event(10, "permission_requested", **LATER | {"attempt": 3}))
    terminal.wait_for("(over: aborted)\r\n> \r\n? bash command: ls")
    assert terminal.interrupt_until_exit() == 0


@pytest.mark.slow
def test_at_a_terminal_an_answer_to_an_ended_request_is_not_sent_for_the_next_one(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    daemon.on["confirm_tool"] = ok("accepted", {"command": "confirm_tool"})
    terminal.wait_for("> ")
    daemon.publish(event(6, "permission_requested", **REQUEST))
    terminal.wait_for("n [REASON] no\r\n> ")
    daemon.publish(event(7, "permission_requested", **LATER))
    terminal.wait_for("(after that: ")
    daemon.publish(event(8, "tool_call_denied", **REQUEST | {"by": "user", "reason": "no"}))
    terminal.wait_for("n [REASON] no\r\n> ")
    terminal.type("y\n")
    terminal.wait_for("(not sent: what you answer is over)\r\n? bash command: ls")
    terminal.wait_for("> ")
    assert sent_commands(daemon) == []
    terminal.type("n\n")
    terminal.wait_for("> ")
    terminal.type("/quit\n")
    assert terminal.process.wait(20) == 0
    later = {key: LATER[key] for key in NAMED}
    assert sent_commands(daemon) == [("confirm_tool", {**later, "decision": "deny"})]


@pytest.mark.slow
def test_at_a_terminal_an_answer_to_an_ended_request_is_not_sent_as_a_prompt(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    daemon.on["prompt"] = answering(daemon)
    terminal.wait_for("> ")
    daemon.publish(event(6, "permission_requested", **REQUEST))
    terminal.wait_for("n [REASON] no\r\n> ")
    daemon.publish(event(7, "tool_call_denied", **REQUEST | {"by": "user", "reason": "no"}))
    terminal.wait_for("(over: no)\r\n> ")
    terminal.type("y\n")
    terminal.wait_for("(not sent: what you answer is over)\r\n> ")
    assert sent_commands(daemon) == []
    terminal.type("yes, go on\n")
    terminal.wait_for("> ")
    terminal.type("/quit\n")
    assert terminal.process.wait(20) == 0
    assert sent_commands(daemon)[0][0] == "prompt"


@pytest.mark.slow
def test_at_a_terminal_requests_and_questions_are_shown_and_answered(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    daemon.on["confirm_tool"] = ok("accepted", {"command": "confirm_tool"})

    def answered(request: dict[str, Any]) -> bytes | None:
        daemon.publish(event(9, "question_answered", **request["payload"], session_id="s"))
        return ok("accepted", {"command": "answer_question"})(request)

    daemon.on["answer_question"] = answered
    terminal.wait_for("> ")
    daemon.publish(event(6, "permission_requested", **REQUEST))
    terminal.wait_for("? bash command: git push")
    terminal.wait_for("n [REASON] no\r\n> ")
    terminal.type("s\n")
    terminal.wait_for("> ")
    daemon.publish(
        event(7, "tool_call_approved", **REQUEST | {"by": "user", "reason": "the user allowed it"})
    )
    terminal.wait_for("(over: the user allowed it)\r\n> ")
    daemon.publish(event(8, "question_asked", **QUESTION | {"questions": [{"question": "Why?"}]}))
    terminal.wait_for("? Why?")
    terminal.type("just so\n")
    terminal.wait_for("(over: answered)")
    terminal.wait_for("> ")
    assert terminal.interrupt_until_exit() == 0
    payload = {"question_id": "ques-1", "answers": [{"text": "just so"}]}
    assert sent_commands(daemon) == [
        ("confirm_tool", {**NAMED, "decision": "session"}),
        ("answer_question", payload),
    ]
    [subscribed] = [each["payload"] for each in daemon.heard if each["type"] == "subscribe"]
    assert subscribed["confirms"] is True


# --- at a terminal that knows escape sequences -------------------------------------------------


def test_a_paste_of_many_lines_is_one_prompt(daemon: FakeDaemon, edited: Terminal) -> None:
    daemon.on["prompt"] = answering(daemon)
    lines = [f"line {number}" for number in range(200)]
    edited.type("see: \x1b[200~" + "\r".join(lines) + "\x1b[201~")
    edited.wait_for("[200 lines] > ")
    edited.type("\r")
    edited.wait_for("(188 more lines)")
    edited.wait_for("echo see: line 0")
    text = "see: " + "\n".join(lines)
    assert sent_commands(daemon) == [("prompt", {"text": text, "wait": False, "session_id": "s"})]


@pytest.mark.parametrize("end", ["/quit\r", "\x04", "\x03", signal.SIGTERM, signal.SIGHUP])
@pytest.mark.slow(keep=1)
def test_the_terminal_is_given_back_however_chat_ends(
    daemon: FakeDaemon, end: str | signal.Signals
) -> None:
    terminal = Terminal(daemon, "xterm")
    before = terminal.modes
    terminal.wait_for(f"{QUEUES}\r\n{ROW}")
    assert "\x1b[?2004h" in terminal.output
    assert terminal.modes != before
    if isinstance(end, signal.Signals):
        terminal.process.send_signal(end)
    elif end == "\x03":
        terminal.interrupt_until_exit()
    else:
        terminal.type(end)
    terminal.wait_for("\x1b[?2004l")
    assert terminal.process.wait(20) == (128 + end if isinstance(end, signal.Signals) else 0)
    assert terminal.modes == before
    terminal.close()


@pytest.mark.slow
def test_on_a_terminal_without_escape_sequences_output_waits_for_the_line_being_typed(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    daemon.on["prompt"] = answering(daemon)
    terminal.wait_for("> ")
    terminal.type("helo")
    terminal.wait_for("helo")
    publish_run(daemon, "run-1", "an answer")
    terminal.type("\x7fl")
    terminal.wait_for("\b \bl")
    terminal.type("o\n")
    terminal.wait_for("o\r\n")
    terminal.wait_for("an answer")
    terminal.wait_for("echo hello")
    terminal.type("\x04")
    assert terminal.process.wait(20) == 0
    assert "\x1b" not in terminal.output


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("echoes", [True, False])
def test_a_terminal_without_escape_sequences_gets_none(daemon: FakeDaemon, echoes: bool) -> None:
    terminal = Terminal(daemon, echoes=echoes)
    daemon.on["prompt"] = answering(daemon)
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for("echo hello\r\n> ")
    terminal.type("\x04")
    terminal.wait_for("\r\n")
    assert terminal.process.wait(20) == 0
    assert "\x1b" not in terminal.output
    if echoes:  # else nothing here shows that Enter ended the line
        assert "> >" not in terminal.output
    terminal.close()


@pytest.mark.parametrize("echoes", [True, False])
def test_a_paste_without_escape_sequences_is_one_prompt(daemon: FakeDaemon, echoes: bool) -> None:
    terminal = Terminal(daemon, echoes=echoes)
    daemon.on["prompt"] = answering(daemon)
    terminal.wait_for("> ")
    terminal.type("one\ntwo\n\nthree\n")
    terminal.wait_for("echo one")
    terminal.close()
    [(_, payload)] = sent_commands(daemon)
    assert payload["text"] == "one\ntwo\n\nthree"


@pytest.fixture(params=["flag", "setting"])
def linear(daemon: FakeDaemon, folder: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    """A terminal that knows escape sequences, whose user wants none of what they draw."""
    settings = folder / "config.toml"
    settings.write_text("plain_chat = true\n" if request.param == "setting" else "")
    options = ["--plain"] if request.param == "flag" else []
    terminal = Terminal(daemon, "xterm", *options, NOUSD_CONFIG=str(settings))
    terminal.wait_for(f"{QUEUES}\r\n> ")
    yield terminal
    terminal.close()


@pytest.mark.slow(keep=1)
def test_a_plain_chat_draws_nothing_again_and_output_waits_for_the_line_being_typed(
    daemon: FakeDaemon, linear: Terminal
) -> None:
    daemon.on["prompt"] = answering(daemon)
    # Before any run: Ctrl-C stops one whose end is held back by the line.
    linear.type("bye")
    linear.wait_for("bye")
    linear.type("\x03")
    linear.wait_for("\b \b\b \b\b \b")
    linear.type("helo")
    linear.wait_for("helo")
    publish_run(daemon, "run-1", "an answer")
    linear.type("\x7f")
    linear.wait_for("\b \b")
    linear.type("lo\x1b[D\x1b[D")
    linear.wait_for("lo\b\b")
    linear.type("-")
    linear.wait_for("-lo\b\b")
    assert "an answer" not in linear.output
    linear.type("\r")
    linear.wait_for("lo\r\n")
    linear.wait_for("an answer")
    linear.wait_for("echo hel-lo")
    linear.type("\x04")
    assert linear.process.wait(20) == 0
    linear.wait_for("\x1b[?2004l")
    assert set(re.findall(r"\x1b\[[0-9?]*[a-zA-Z]", linear.output)) == {
        "\x1b[?2004h",
        "\x1b[?2004l",
    }


def test_a_plain_chat_takes_a_paste_as_one_text(daemon: FakeDaemon, linear: Terminal) -> None:
    daemon.on["prompt"] = answering(daemon)
    linear.type("\x1b[200~one\ntwo\x1b[201~\r")
    linear.wait_for("one<LF>two\r\n")
    linear.wait_for("echo one")
    [(_, payload)] = sent_commands(daemon)
    assert payload["text"] == "one\ntwo"


@pytest.mark.slow
def test_output_goes_above_the_line_being_typed(daemon: FakeDaemon, edited: Terminal) -> None:
    edited.type("half a li")
    edited.wait_for(f"{ROW}half a li\r\x1b[11C")
    keys = {"session_id": "s", "run_id": "run-1", "turn_id": "1", "message_id": "m"}
    daemon.publish(event(6, "message_update", **keys, delta="so "))
    edited.wait_for(f"\r\x1b[Kso \n{ROW}half a li".replace("\n", "\r\n"))
    daemon.publish(event(7, "message_update", **keys, delta="far"))
    # The row of the answer is written again, and continues.
    edited.wait_for(f"\r\x1b[K\x1b[A\r\x1b[Kso far\r\n{ROW}half a li")
    daemon.on["prompt"] = answering(daemon)
    edited.type("ne\r")
    edited.wait_for("echo half a line")
    assert [payload["text"] for _, payload in sent_commands(daemon)] == ["half a line"]


@pytest.mark.slow
def test_an_answer_that_was_begun_before_a_call_was_shown_grants_nothing(
    daemon: FakeDaemon, edited: Terminal
) -> None:
    daemon.on["confirm_tool"] = ok("accepted", {"command": "confirm_tool"})
    edited.type("y")
    edited.wait_for(f"{ROW}y")
    daemon.publish(event(6, "permission_requested", **REQUEST))
    edited.wait_for(f"n [REASON] no\r\n{ROW}y")
    edited.type("\r")
    edited.wait_for("(not sent: you began to type before this was shown)\r\n? bash")
    edited.wait_for(f"n [REASON] no\r\n{ROW}")
    assert sent_commands(daemon) == []
    # What is taken back whole and typed again was begun afterwards.
    edited.type("n\x7fy\r")
    edited.wait_for(f"> y\r\n{ROW}")
    edited.type("/quit\r")
    assert edited.process.wait(20) == 0
    assert sent_commands(daemon) == [("confirm_tool", {**NAMED, "decision": "once"})]


@pytest.mark.slow
def test_an_answer_that_was_typed_while_chat_was_busy_grants_nothing(
    daemon: FakeDaemon, edited: Terminal
) -> None:
    busy, is_typed = threading.Event(), threading.Event()

    def slow(request: dict[str, Any]) -> bytes | None:
        busy.set()
        assert is_typed.wait(20)
        daemon.publish(event(6, "permission_requested", **REQUEST))
        return ok("accepted", {"command": "prompt", "run_id": "run-1"})(request)

    daemon.on["prompt"] = slow
    daemon.on["follow_up"] = ok("accepted", {"command": "follow_up"})
    edited.type("go\r")
    assert busy.wait(20)
    edited.type("y\r")
    is_typed.set()
    edited.wait_for(f"n [REASON] no\r\n{ROW}")
    edited.type("/quit\r")
    assert edited.process.wait(20) == 0
    assert "confirm_tool" not in [command for command, _ in sent_commands(daemon)]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("keys", ["\x1b[200~y\x1b[201~\r", "y\ry\r", "\x1b[200~y\r\x1b[201~\r"])
def test_what_was_pasted_grants_nothing(daemon: FakeDaemon, edited: Terminal, keys: str) -> None:
    daemon.publish(event(6, "permission_requested", **REQUEST))
    edited.wait_for(f"n [REASON] no\r\n{ROW}")
    edited.type(keys)
    edited.wait_for("(not sent: a call is decided by hand, not by a paste)")
    edited.wait_for(f"n [REASON] no\r\n{ROW}")
    edited.type("/quit\r")
    assert edited.process.wait(20) == 0
    assert sent_commands(daemon) == []


def test_lines_typed_before_a_call_is_shown_are_dropped_where_the_terminal_keeps_them(
    daemon: FakeDaemon, emacs: Terminal
) -> None:
    emacs.wait_for("> ")
    emacs.type("y")
    daemon.publish(event(6, "permission_requested", **REQUEST))
    emacs.wait_for("n [REASON] no\r\n> ")
    emacs.type("\n/quit\n")
    assert emacs.process.wait(20) == 0
    assert sent_commands(daemon) == []


@pytest.mark.slow
def test_always_shows_the_rule_and_asks_once_more(daemon: FakeDaemon, edited: Terminal) -> None:
    daemon.on["confirm_tool"] = ok("accepted", {"command": "confirm_tool"})
    daemon.publish(event(6, "permission_requested", **{**REQUEST, "rule": "bash(=a\u202eb)"}))
    edited.wait_for(f"n [REASON] no\r\n{ROW}")
    edited.type("a\r")
    edited.wait_for("every call that this rule covers:\r\n  bash(=a<U+202E>b)\r\n  y allows that")
    edited.wait_for(ROW)
    assert sent_commands(daemon) == []
    edited.type("n\r")
    edited.wait_for(f"n [REASON] no\r\n{ROW}")
    edited.type("a\r")
    edited.wait_for(f"n goes back\r\n{ROW}")
    edited.type("y\r")
    edited.wait_for(f"> y\r\n{ROW}")
    edited.type("/quit\r")
    assert edited.process.wait(20) == 0
    assert sent_commands(daemon) == [("confirm_tool", {**NAMED, "decision": "always"})]


def test_a_change_of_a_file_is_shown_as_a_diff(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    args = {"path": "a", "oldText": "one", "newText": "two\u202e"}
    set_pending(daemon, pending=[{**REQUEST, "tool_name": "edit", "args": args}])
    shown = nousctl("chat", input="").out.splitlines()
    assert shown[1:5] == ["? edit path: a", "  @@ -1 +1 @@", "  -one", "  +two<U+202E>"]


def test_a_first_ctrl_c_drops_the_line_being_typed(daemon: FakeDaemon, edited: Terminal) -> None:
    daemon.on["prompt"] = answering(daemon)
    edited.type("not this")
    edited.wait_for(f"{ROW}not this")
    edited.type("\x03")
    edited.wait_for(f"\r\x1b[K{ROW}")
    edited.type("this\r")
    edited.wait_for("echo this")


# --- coming to a session, and the daemon going away ---------------------------------------------


def test_a_terminal_shows_where_it_is_and_the_last_turns(daemon: FakeDaemon) -> None:
    state = {**STATE, "workspace": "/w", "name": "n", "permission_mode": "auto"}
    said = {"message_id": "m2", "role": "assistant", "text": "a long answer"}
    daemon.on["get_state"] = ok("state", {**state, "open_message": said})
    message = {"type": "message", "run_id": "run-0"}
    many = "\n".join(str(number) for number in range(100))
    messages = [
        {**message, "id": "m0", "role": "user", "text": "hello\x1b[2J"},
        {**message, "id": "m1", "role": "assistant", "text": many},
        {**message, "id": "t1", "role": "tool", "tool_name": "ls", "text": "a\nb"},
        {**message, "id": "m2", "role": "assistant", "text": "a long answer, at last"},
    ]
    record = {
        "session": {"title": "A title"},
        "transcript": {"messages": messages, "has_more": True},
    }
    daemon.on["get_session"] = ok("session_record", record)
    # This one was in the transcript already.
    daemon.publish(event(6, "message_update", session_id="s", message_id="m2", delta=", at last"))
    terminal = Terminal(daemon)
    terminal.wait_for(
        'session s "A title"; /help lists what else there is\r\n'
        "folder  /w\r\nmodel   mock m\r\nmode    auto\r\n"
        "queues  steering all (0 waiting), follow-ups all (0 waiting)\r\n"
        "(there is more: nousctl session messages)\r\n"
        "> hello<U+001B>[2J\r\n0\r\n1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n7\r\n(92 more lines)\r\n"
        "[ls] done: a b\r\na long answer, at last\r\n> "
    )
    daemon.publish(event(7, "warning", session_id="s", run_id="r", code="c", message="seen"))
    terminal.wait_for("\r\nwarning: seen")
    assert terminal.output.count("at last") == 1
    terminal.close()


def test_what_other_clients_send_is_shown_with_their_names(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["get_state"] = ok("state", {**STATE, "run_state": "running", "run_id": "run-1"})
    keys = {"session_id": "s", "run_id": "run-1", "turn_id": "1", "role": "user"}
    kinds = [
        ("prompt", {"client_id": "web"}),
        ("follow_up", {"client_id": "bot\u202e"}),
        ("steer", {}),
    ]
    for number, (kind, more) in enumerate(kinds, 7):
        told = {"text": f"a {kind}", "turn_kind": kind, "input_ids": [f"in-{number}"], **more}
        daemon.publish(event(number, "message_start", **keys, **told, message_id=f"m{number}"))
    denied = REQUEST | {"by": "user", "reason": "no", "client_id": "phone"}
    daemon.publish(event(10, "permission_requested", **REQUEST))
    daemon.publish(event(11, "tool_call_denied", **denied))
    daemon.publish(event(12, "run_aborting", session_id="s", run_id="run-1", client_id="web"))
    publish_run(daemon, "run-1", "done")
    shown = nousctl("chat", input="").out
    assert "> [web] a prompt\n> [bot<U+202E>] a follow_up\n> a steer\n" in shown
    assert "(over: no, by phone)\n(web stops the run)\n" in shown


def test_a_prompt_that_was_typed_here_is_not_shown_again(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    def reply(request: dict[str, Any]) -> bytes | None:
        keys = {"session_id": "s", "run_id": "run-1", "turn_id": "1", "role": "user"}
        told = {"text": "hello", "turn_kind": "prompt", "input_ids": ["in-1"]}
        daemon.publish(event(6, "message_start", **keys, **told, message_id="m1"))
        publish_run(daemon, "run-1", "done")
        accepted = {"command": "prompt", "run_id": "run-1", "input_id": "in-1"}
        return ok("accepted", accepted)(request)

    daemon.on["prompt"] = reply
    assert nousctl("chat", input="hello\n").out.splitlines()[1:] == ["done"]


@pytest.mark.parametrize("term", ["dumb", "xterm"])
@pytest.mark.slow
def test_chat_waits_for_the_daemon_and_goes_on_after_the_last_event(
    folder: Path, term: str
) -> None:
    keys = {"session_id": "s", "run_id": "run-1", "turn_id": "1", "message_id": "m"}
    folder = folder / "d"
    folder.mkdir()
    with FakeDaemon(folder) as first:
        make_idle(first)
        terminal = Terminal(first, term)
        terminal.wait_for("> ")
        first.publish(event(8, "message_update", **keys, delta="before, "))
        terminal.wait_for("before, ")
        for socket in folder.iterdir():
            socket.unlink()
    terminal.wait_for("waiting for it to come back")
    terminal.type("hello\r")
    terminal.wait_for("(not sent: no daemon listens on")
    with FakeDaemon(folder) as second:
        make_idle(second)
        terminal.wait_for("(the daemon is back)")
        second.publish(event(9, "message_update", **keys, delta="and after"))
        terminal.wait_for("and after")
        [subscribed] = [each["payload"] for each in second.heard if each["type"] == "subscribe"]
        assert subscribed["after"] == "evt-8"
        assert subscribed["confirms"] is True
        assert terminal.output.count("waiting for it to come back") == 1
        assert terminal.interrupt_until_exit() == 0
    terminal.close()


# --- more commands -------------------------------------------------------------------------------


def test_switch_finds_a_session_by_its_name_and_shows_it(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    row = {"session_id": "sess-2", "name": "Other", "run_state": "idle", "workspace": "/w"}
    daemon.on["list_sessions"] = ok("sessions", {"sessions": [row], "has_more": False})
    daemon.on["abort"] = refused("command_rejected", "no_active_run")
    outcome = nousctl("chat", input="/switch nothing\n/switch other\n/abort\n")
    assert 'no session "nothing"' in outcome.out
    assert "session sess-2; /help" in outcome.out
    assert sent_commands(daemon)[-1] == ("abort", {"session_id": "sess-2"})
    followed = [each["payload"] for each in daemon.heard if each["type"] == "subscribe"]
    assert [each["session_id"] for each in followed] == ["s", "sess-2"]


@pytest.mark.parametrize(
    ("line", "sent", "shown"),
    [
        ("/model big", ("set_model", {"model": "big", "must_be_listed": True}), "c accepted"),
        ("/queue", ("get_queue", {}), "nothing waits"),
        ("/steering all", ("set_steering_mode", {"mode": "all"}), "queues  steering all"),
        ("/followups all", ("set_follow_up_mode", {"mode": "all"}), "follow-ups all"),
    ],
)
def test_commands_show_and_change_the_session(
    daemon: FakeDaemon, nousctl: Nousctl, line: str, sent: tuple[str, dict[str, str]], shown: str
) -> None:
    daemon.otherwise = ok("accepted", {"command": "c"})
    daemon.on["get_queue"] = ok("queue", {"inputs": [], "queue_revision": 0})
    outcome = nousctl("chat", input=f"{line}\n")
    command, payload = sent
    assert sent_commands(daemon)[-1] == (command, {**payload, "session_id": "s"})
    assert shown in outcome.out


def test_reasoning_is_shown_on_demand(daemon: FakeDaemon, edited: Terminal) -> None:
    keys = {"session_id": "s", "run_id": "run-1", "turn_id": "1"}

    def think(number: int, message: str, *deltas: str) -> None:
        for delta in deltas:
            told = {"message_id": message, "delta": delta}
            daemon.publish(event(number, "reasoning_update", **keys, **told))
        told = {"message_id": message, "delta": f"{message} says\n"}
        daemon.publish(event(number, "message_update", **keys, **told))

    edited.type("/reasoning\r")
    edited.wait_for("(the model has not reasoned aloud here)")
    think(6, "m1", "old")
    think(7, "m2", "deep ", "thought")
    edited.wait_for("m2 says")
    assert "thought" not in edited.output
    edited.type("/reasoning\r")
    edited.wait_for("\r\x1b[Kdeep thought\r\n")
    edited.type("/reasoning on\r")
    edited.wait_for("(reasoning is shown as it comes)")
    think(8, "m3", "aloud")
    edited.wait_for("(reasoning)")
    edited.wait_for("aloud\r\n")
    edited.wait_for("m3 says")


# --- the queue, and files -----------------------------------------------------------------------


def make_queue(daemon: FakeDaemon) -> None:
    """Let two texts wait, the first of another client."""
    first = {"input_id": "in-1", "kind": "steer", "text": "first", "client_id": "web"}
    second = {"input_id": "in-2", "kind": "follow_up", "text": "second"}
    daemon.on["get_queue"] = ok("queue", {"inputs": [first, second], "queue_revision": 7})
    daemon.otherwise = ok("accepted", {"command": "c"})


@pytest.mark.parametrize(
    ("line", "command", "payload"),
    [
        ("edit 2 new words", "edit_queued", {"text": "new words", "queue_revision": 7}),
        ("remove 2", "remove_queued", {}),
        ("move 2 1", "move_queued", {"before_input_id": "in-1"}),
        ("move 2", "move_queued", {}),
        ("promote 2", "promote", {}),
    ],
)
def test_what_waits_is_changed_by_its_number(
    daemon: FakeDaemon, nousctl: Nousctl, line: str, command: str, payload: dict[str, Any]
) -> None:
    make_queue(daemon)
    outcome = nousctl("chat", input=f"/queue\n/queue {line}\n")
    assert outcome.out.splitlines()[1:3] == ["1 steer of web: first", "2 follow_up: second"]
    sent = [each for each in sent_commands(daemon) if each[0] != "get_queue"]
    assert sent == [(command, {"input_id": "in-2", **payload, "session_id": "s"})]


@pytest.mark.parametrize("line", ["remove 3", "remove 0", "remove x", "remove", "burn 1"])
def test_a_change_of_nothing_that_waits_is_refused(
    daemon: FakeDaemon, nousctl: Nousctl, line: str
) -> None:
    make_queue(daemon)
    outcome = nousctl("chat", input=f"/queue {line}\n")
    assert ("has the number" in outcome.out) != ("it is /queue [edit" in outcome.out)
    assert {command for command, _ in sent_commands(daemon)} <= {"get_queue"}


def test_a_change_that_came_too_late_shows_the_queue_anew(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    make_queue(daemon)
    daemon.on["edit_queued"] = refused("command_rejected", "queue_changed")
    shown = nousctl("chat", input="/queue edit 1 new\n").out
    assert shown.endswith(
        "(not done: the queue is another by now)\n1 steer of web: first\n2 follow_up: second\n"
    )


def test_a_text_is_put_into_the_line_to_be_edited(daemon: FakeDaemon, edited: Terminal) -> None:
    make_queue(daemon)
    edited.type("/queue edit 2\r")
    edited.wait_for(f"{ROW}/queue edit 2 second")
    edited.type(" thought\r")
    edited.wait_for("1 steer of web: first")
    text = {"text": "second thought", "queue_revision": 7}
    assert ("edit_queued", {"input_id": "in-2", **text, "session_id": "s"}) in sent_commands(daemon)


def test_an_abort_puts_what_waited_into_the_line(daemon: FakeDaemon, edited: Terminal) -> None:
    waited = [{"input_id": "in-1", "kind": "follow_up", "text": "not lost"}]
    daemon.on["abort"] = ok("accepted", {"command": "abort", "cleared": waited})
    edited.type("/abort\r")
    edited.wait_for("taken back, follow_up: not lost")
    edited.wait_for(f"{ROW}not lost")


def test_files_go_with_the_next_text(
    daemon: FakeDaemon, nousctl: Nousctl, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for name in ("a.png", "two words.txt"):
        (folder / name).write_bytes(b"x")
    daemon.on["prompt"] = answering(daemon)
    lines = ["/attach a.png", "/attach two words.txt", "look", "again"]
    shown = nousctl("chat", input="".join(f"{line}\n" for line in lines)).out
    assert "(a.png, two words.txt goes with your next text;" in shown
    first, second = (payload for _, payload in sent_commands(daemon))
    assert [each["name"] for each in first["attachments"]] == ["a.png", "two words.txt"]
    assert first["attachments"][0]["media_type"] == "image/png"
    assert "attachments" not in second


def test_a_file_that_cannot_be_read_is_named_at_once(
    daemon: FakeDaemon, nousctl: Nousctl, folder: Path
) -> None:
    daemon.on["prompt"] = answering(daemon)
    outcome = nousctl("chat", input=f"/attach {folder}/missing\n/attach 'a\nhello\n")
    assert outcome.out.count("that can be read)") == 2
    [(_, payload)] = sent_commands(daemon)
    assert "attachments" not in payload


def test_no_text_of_an_argument_looks_like_another_one(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    args = {"a": "one\n  b: two", "c": ["d"], "e": " "}
    set_pending(daemon, pending=[{**REQUEST, "args": args}])
    shown = nousctl("chat", input="").out.splitlines()
    assert shown[1:7] == [
        "? bash",
        "    a:",
        "    | one",
        "    |   b: two",
        '    c: ["d"]',
        '    e: " "',
    ]
