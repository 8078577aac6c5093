"""``nousctl chat`` with piped lines and at a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
    daemon.on["get_state"] = ok("state", STATE)
    waits(daemon)


def waits(
    daemon: FakeDaemon,
    pending: Sequence[dict[str, Any]] = (),
    questions: Sequence[dict[str, Any]] = (),
) -> None:
    """Make calls and questions wait for the user."""
    daemon.on["list_permissions"] = ok("permissions", {"pending": list(pending)})
    daemon.on["list_questions"] = ok("questions", {"questions": list(questions)})


def a_run(daemon: FakeDaemon, run_id: str, text: str) -> None:
    """Publishes a run that answers with ``text``."""
    keys = {"session_id": "s", "run_id": run_id, "turn_id": "1"}
    daemon.publish(event(6, "agent_start", **keys))
    daemon.publish(event(7, "message_update", **keys, message_id="m", delta=text))
    daemon.publish(event(8, "message_end", **keys, message_id="m", text=text, stop_reason="stop"))
    daemon.publish(event(9, "agent_end", **keys, status="completed"))


def answering(daemon: FakeDaemon) -> Callable[[dict[str, Any]], bytes | None]:
    """Return a reply to ``prompt`` whose run is over before its answer is sent."""

    def reply(request: dict[str, Any]) -> bytes | None:
        run_id = f"run-{len(daemon.heard)}"
        a_run(daemon, run_id, f"echo {request['payload']['text']}")
        return ok("accepted", {"command": "prompt", "run_id": run_id})(request)

    return reply


def sent(daemon: FakeDaemon) -> list[tuple[str, dict[str, Any]]]:
    """Return what was sent after the greeting."""
    return [
        (request["type"], request["payload"])
        for request in daemon.heard
        if request["type"] not in _GREETING
    ]


_GREETING = ("get_state", "list_permissions", "list_questions", "subscribe")


def test_a_line_is_a_prompt_and_its_answer_is_shown_before_the_end(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["prompt"] = answering(daemon)
    outcome = nousctl("chat", input="hello there\n")
    assert outcome.code == 0
    assert outcome.out.splitlines()[1:] == ["echo hello there"]
    assert sent(daemon) == [("prompt", {"text": "hello there", "wait": False, "session_id": "s"})]


def test_what_an_extension_deals_with_is_shown_and_starts_no_run(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    warnings = [{"code": "extension_timeout", "message": "guard: input: did not return"}]
    handled = {"command": "prompt", "handled_by": "house", "reply": "42 lines"}
    daemon.on["prompt"] = ok("accepted", {**handled, "warnings": warnings})
    outcome = nousctl("chat", input="count\ncount\n")
    assert outcome.code == 0
    assert outcome.out.count("42 lines\n") == 2
    assert "warning: extension_timeout: guard: input: did not return" in outcome.out + outcome.err
    assert [command for command, _ in sent(daemon)] == ["prompt", "prompt"]


def test_events_are_followed_from_where_the_state_was_read(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    nousctl("chat", input="")
    [subscribed] = [each["payload"] for each in daemon.heard if each["type"] == "subscribe"]
    # Nobody sits at a pipe who could answer.
    assert subscribed == {"after": "evt-5", "session_id": "s", "types": "all", "confirms": False}


def test_a_daemon_without_a_session_is_given_one(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["get_state"] = ok("state", {**STATE, "session_id": ""})
    daemon.on["new_session"] = ok("session", {"session_id": "new", "active": True})
    daemon.on["abort"] = refused("command_rejected", "no_active_run")
    nousctl("chat", input="/abort\n")
    assert sent(daemon) == [("new_session", {}), ("abort", {"session_id": "new"})]


def test_a_line_while_a_run_goes_on_is_a_follow_up_with_a_notice(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["get_state"] = ok("state", {**STATE, "run_state": "running", "run_id": "run-1"})

    def reply(request: dict[str, Any]) -> bytes | None:
        a_run(daemon, "run-1", "done")
        return ok("accepted", {"command": "follow_up"})(request)

    daemon.on["follow_up"] = reply
    outcome = nousctl("chat", input="and then\n")
    assert sent(daemon) == [("follow_up", {"text": "and then", "session_id": "s"})]
    assert "this comes after it" in outcome.out


def test_the_text_of_a_message_being_streamed_is_shown_on_arrival(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    open_message = {"message_id": "m", "role": "assistant", "text": "so far "}
    state = {**STATE, "run_state": "running", "run_id": "run-1", "open_message": open_message}
    daemon.on["get_state"] = ok("state", state)
    a_run(daemon, "run-1", "so good")
    assert "so far so good\n" in nousctl("chat", input="").out


@pytest.mark.parametrize(
    ("first", "word", "second"),
    [("prompt", "run_in_progress", "follow_up"), ("follow_up", "no_active_run", "prompt")],
)
def test_a_run_that_began_or_ended_meanwhile_changes_what_a_line_is(
    daemon: FakeDaemon, nousctl: Nousctl, first: str, word: str, second: str
) -> None:
    running = first == "follow_up"
    if running:
        state = {**STATE, "run_state": "running", "run_id": "run-1"}
        daemon.on["get_state"] = ok("state", state)
    daemon.on[first] = refused("command_rejected", word)
    daemon.on[second] = answering(daemon)
    nousctl("chat", input="text\n")
    assert [command for command, _ in sent(daemon)] == [first, second]


@pytest.mark.parametrize(
    ("line", "command", "payload"),
    [
        ("/steer go left", "steer", {"text": "go left", "session_id": "s"}),
        ("/follow and then", "follow_up", {"text": "and then", "session_id": "s"}),
        ("/abort", "abort", {"session_id": "s"}),
        ("/new", "new_session", {}),
        ("/new a name", "new_session", {"name": "a name"}),
        ("/branch", "branch_session", {"session_id": "s"}),
        ("/tree", "get_tree", {"session_id": "s"}),
    ],
)
def test_a_line_with_a_slash_is_a_command(
    daemon: FakeDaemon, nousctl: Nousctl, line: str, command: str, payload: dict[str, Any]
) -> None:
    daemon.otherwise = ok("session", {"session_id": "s2", "active": True})
    assert nousctl("chat", input=f"{line}\n").code == 0
    assert sent(daemon) == [(command, payload)]


def test_after_new_and_branch_the_new_session_is_the_one(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["new_session"] = ok("session", {"session_id": "s2", "active": True})
    nousctl("chat", input="/new\n/state\n")
    # The subscription is changed on another socket, and may be heard later.
    asked = [request["payload"] for request in daemon.heard if request["type"] == "get_state"]
    assert asked[-1] == {"session_id": "s2"}


def test_refusals_and_unknown_commands_are_said_and_the_talk_goes_on(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["steer"] = refused("command_rejected", "no_active_run")
    outcome = nousctl("chat", input="/steer x\n/what\n\n/help\n/quit\nnot sent\n")
    assert outcome.code == 0
    assert "command_rejected: no_active_run\nno command /what; /help lists them\n" in outcome.out
    assert "/branch" in outcome.out
    assert [command for command, _ in sent(daemon)] == ["steer"]


def test_events_of_other_sessions_are_not_shown(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    keys = {"session_id": "other", "run_id": "run-0", "turn_id": "1"}
    daemon.publish(event(6, "message_update", **keys, message_id="m", delta="not ours"))
    daemon.on["prompt"] = answering(daemon)
    assert "not ours" not in nousctl("chat", input="hi\n").out


def test_a_daemon_that_goes_away_ends_the_talk_with_exit_code_1(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    def leave(_request: dict[str, Any]) -> bytes | None:
        daemon.publish(None)
        return ok("accepted", {"command": "prompt", "run_id": "run-1"})(_request)

    daemon.on["prompt"] = leave
    outcome = nousctl("chat", input="hi\n")
    assert outcome.code == 1
    assert outcome.out.endswith("the daemon closed the connection\n")


# --- what waits for the user ---------------------------------------------------------------------

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
    ("line", "said"),
    [
        ("y", {"decision": "once"}),
        ("Yes", {"decision": "once"}),
        ("s", {"decision": "session"}),
        ("a", {"decision": "always"}),
        ("n", {"decision": "deny"}),
        ("n not today", {"decision": "deny", "reason": "not today"}),
        ("no not today", {"decision": "deny", "reason": "not today"}),
        ("/reject", {"decision": "deny"}),
        ("/reject not today", {"decision": "deny", "reason": "not today"}),
    ],
)
def test_a_call_that_waits_is_shown_and_one_letter_answers_it(
    daemon: FakeDaemon, nousctl: Nousctl, line: str, said: dict[str, str]
) -> None:
    waits(daemon, pending=[REQUEST])
    daemon.on["confirm_tool"] = ok("accepted", {"command": "confirm_tool"})
    outcome = nousctl("chat", input=f"{line}\n")
    assert outcome.out.splitlines()[1:5] == [
        '? bash {"command": "git push"}',
        "  because it runs a program without a sandbox",
        "  session and always allow: bash(=git push)",
        "  y yes, s for the session, a always, n [REASON] no",
    ]
    assert sent(daemon) == [("confirm_tool", {**NAMED, **said})]


def test_what_leads_out_is_allowed_once_or_not_at_all(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    waits(daemon, pending=[{**REQUEST, "outside": ["/etc/hosts"]}])
    daemon.on["confirm_tool"] = ok("accepted", {"command": "confirm_tool"})
    outcome = nousctl("chat", input="y\n")
    assert "  opens /etc/hosts" in outcome.out.splitlines()
    assert "  y yes, n [REASON] no" in outcome.out.splitlines()
    assert sent(daemon) == [("confirm_tool", {**NAMED, "decision": "once"})]


def test_another_line_is_what_it_always_is_and_says_that_a_call_waits(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    waits(daemon, pending=[REQUEST])
    daemon.on["prompt"] = answering(daemon)
    outcome = nousctl("chat", input="yes please\n")
    assert "(a call waits for you: y, s, a or n)" in outcome.out
    assert sent(daemon) == [("prompt", {"text": "yes please", "wait": False, "session_id": "s"})]


def _next(replies: Iterator[Reply], request: dict[str, Any]) -> bytes | None:
    return next(replies)(request)


def test_an_answer_that_is_refused_can_be_given_otherwise(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    waits(daemon, pending=[REQUEST])
    answers = iter(
        [refused("command_rejected", "too_many_rules"), ok("accepted", {"command": "c"})]
    )
    daemon.on["confirm_tool"] = partial(_next, answers)
    outcome = nousctl("chat", input="a\ny\n")
    assert "command_rejected: too_many_rules" in outcome.out
    assert [payload["decision"] for _, payload in sent(daemon)] == ["always", "once"]


def test_an_answer_that_comes_too_late_leaves_nothing_waiting(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    waits(daemon, pending=[REQUEST])
    daemon.on["confirm_tool"] = refused("command_rejected", "already_decided")
    outcome = nousctl("chat", input="y\n/reject\n")
    assert "already_decided" in outcome.out
    assert "nothing waits for you" in outcome.out


def test_several_questions_are_shown_one_after_the_other(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    waits(daemon, questions=[QUESTION])
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
    assert sent(daemon) == [("answer_question", {"question_id": "ques-1", "answers": answers})]


def test_a_question_can_be_left(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    waits(daemon, questions=[QUESTION])
    daemon.on["reject_question"] = ok("accepted", {"command": "reject_question"})
    nousctl("chat", input="1\n/reject ask Bob\n")
    rejected = {"question_id": "ques-1", "reason": "ask Bob"}
    assert sent(daemon) == [("reject_question", rejected)]


LATER = {**REQUEST, "tool_call_id": "call-9", "args": {"command": "ls"}}


@pytest.mark.parametrize(
    "answer", [ok("accepted", {"command": "c"}), refused("command_rejected", "already_decided")]
)
def test_the_oldest_is_answered_first_and_the_next_is_shown_whole_after_that(
    daemon: FakeDaemon, nousctl: Nousctl, answer: Reply
) -> None:
    waits(daemon, pending=[REQUEST, LATER], questions=[QUESTION])
    daemon.on["confirm_tool"] = answer
    outcome = nousctl("chat", input="y\nn\n")
    assert [payload["tool_call_id"] for _, payload in sent(daemon)] == ["call-1", "call-9"]
    shown = [line for line in outcome.out.splitlines() if line.startswith(("?", "("))]
    assert shown == [
        '? bash {"command": "git push"}',
        '(after that: bash {"command": "ls"})',
        "(after that: [Colour] Which?)",
        '? bash {"command": "ls"}',
        "? [Colour] Which?",
    ]


def test_another_session_is_subscribed_to_and_what_waited_is_left(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    waits(daemon, pending=[REQUEST])
    daemon.on["new_session"] = ok("session", {"session_id": "s2", "active": True})
    assert "nothing waits for you" in nousctl("chat", input="/new\n/reject\n").out


# --- at a terminal -----------------------------------------------------------------------------


class Terminal:
    """``nousctl chat`` on a terminal of its own; every wait ends after 20 seconds."""

    def __init__(self, daemon: FakeDaemon) -> None:
        # Theirs stays open here as well: without a holder ours would end before it began.
        self._ours, self._theirs = pty.openpty()
        self.process = subprocess.Popen(
            # The new session's leader opens the terminal, which so becomes its own.
            [sys.executable, "-c", _LEADER, os.ttyname(self._theirs)],
            env={**os.environ, "NOUSD_SOCKET": str(daemon.socket_path), "TERM": "dumb"},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        self._seen = ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until the text has been shown."""
        assert self._shows(text, 20), self._seen

    def interrupt_until_shown(self, text: str) -> None:
        """Presses Ctrl-C until the text has been shown.

        More than once, because Python does not notice a signal that comes in the instant before a
        read begins; it counts with the next one, and as one. Long pauses, because a press that was
        noticed is answered late on a busy machine, and a second one then leaves.
        """
        assert any(self._interrupt() and self._shows(text, 10) for _ in range(6)), self._seen

    def interrupt_until_exit(self) -> int:
        """Presses Ctrl-C until the program has left, and returns its exit code."""
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
            self._seen += os.read(self._ours, 4096).decode()
        self._seen = self._seen.partition(text)[2]
        return True


_LEADER = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for descriptor in (0, 1, 2):
    os.dup2(terminal, descriptor)
os.execv(sys.executable, [sys.executable, "-m", "nousd.cli.nousctl.main", "chat"])
"""


@pytest.fixture
def terminal(daemon: FakeDaemon) -> Iterator[Terminal]:
    terminal = Terminal(daemon)
    yield terminal
    terminal.close()


def test_at_a_terminal_ctrl_c_aborts_and_a_second_one_leaves(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    daemon.on["prompt"] = ok("accepted", {"command": "prompt", "run_id": "run-1"})
    daemon.on["abort"] = ok("accepted", {"command": "abort", "run_id": "run-1"})
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for("hello")
    terminal.wait_for("> ")
    terminal.interrupt_until_shown("abort accepted")
    assert terminal.interrupt_until_exit() == 0
    assert [command for command, _ in sent(daemon)] == ["prompt", "abort"]


def test_at_a_terminal_the_prompt_comes_again_behind_an_answer(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    daemon.on["prompt"] = ok("accepted", {"command": "prompt", "run_id": "run-1"})
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for("> ")
    a_run(daemon, "run-1", "the answer")
    terminal.wait_for("the answer\r\n> ")


def test_at_a_terminal_what_waits_behind_one_that_another_client_answers_is_shown_then(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    terminal.wait_for("> ")
    daemon.publish(event(6, "permission_requested", **REQUEST))
    terminal.wait_for("n [REASON] no\r\n> ")
    daemon.publish(event(7, "permission_requested", **LATER))
    terminal.wait_for('(after that: bash {"command": "ls"})\r\n> ')
    daemon.publish(event(8, "tool_call_denied", **REQUEST | {"by": "user", "reason": "no"}))
    terminal.wait_for('(over: no)\r\n? bash {"command": "ls"}')
    terminal.wait_for("n [REASON] no\r\n> ")
    daemon.publish(event(9, "tool_call_denied", **LATER | {"by": "stop", "reason": "aborted"}))
    daemon.publish(event(10, "permission_requested", **LATER | {"attempt": 3}))
    terminal.wait_for('(over: aborted)\r\n> ? bash {"command": "ls"}')
    assert terminal.interrupt_until_exit() == 0


def test_at_a_terminal_an_answer_that_crosses_another_clients_is_not_taken_for_the_next_request(
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
    terminal.wait_for('(not sent: what you answer is over)\r\n? bash {"command": "ls"}')
    terminal.wait_for("> ")
    assert sent(daemon) == []
    terminal.type("n\n")
    terminal.wait_for("> ")
    assert terminal.interrupt_until_exit() == 0
    later = {key: LATER[key] for key in NAMED}
    assert sent(daemon) == [("confirm_tool", {**later, "decision": "deny"})]


def test_at_a_terminal_an_answer_to_what_is_over_is_no_prompt(
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
    assert sent(daemon) == []
    terminal.type("yes, go on\n")
    terminal.wait_for("> ")
    assert terminal.interrupt_until_exit() == 0
    assert sent(daemon)[0][0] == "prompt"


def test_at_a_terminal_what_is_asked_is_shown_and_answered(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    daemon.on["confirm_tool"] = ok("accepted", {"command": "confirm_tool"})

    def answered(request: dict[str, Any]) -> bytes | None:
        daemon.publish(event(9, "question_answered", **request["payload"], session_id="s"))
        return ok("accepted", {"command": "answer_question"})(request)

    daemon.on["answer_question"] = answered
    terminal.wait_for("> ")
    daemon.publish(event(6, "permission_requested", **REQUEST))
    terminal.wait_for('? bash {"command": "git push"}')
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
    said = {"question_id": "ques-1", "answers": [{"text": "just so"}]}
    assert sent(daemon) == [
        ("confirm_tool", {**NAMED, "decision": "session"}),
        ("answer_question", said),
    ]
    [subscribed] = [each["payload"] for each in daemon.heard if each["type"] == "subscribe"]
    assert subscribed["confirms"] is True


def test_at_a_terminal_a_daemon_that_goes_away_ends_the_wait_for_a_line(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    terminal.wait_for("> ")
    daemon.publish(None)
    terminal.wait_for("the daemon closed the connection")
    assert terminal.process.wait(20) == 1
