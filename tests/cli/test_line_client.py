"""``nousctl chat`` with lines piped in, and at a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.conftest import Nousctl
from tests.fake_daemon import FakeDaemon, event, ok, refused

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


def a_run(daemon: FakeDaemon, run_id: str, text: str) -> None:
    """Publishes a run that answers with ``text``."""
    keys = {"session_id": "s", "run_id": run_id, "turn_id": "1"}
    daemon.publish(event(6, "agent_start", **keys))
    daemon.publish(event(7, "message_update", **keys, message_id="m", delta=text))
    daemon.publish(event(8, "message_end", **keys, message_id="m", text=text, stop_reason="stop"))
    daemon.publish(event(9, "agent_end", **keys, status="completed"))


def answering(daemon: FakeDaemon) -> Callable[[dict[str, Any]], bytes | None]:
    """Returns a reply to ``prompt`` whose run is over before its answer is sent."""

    def reply(request: dict[str, Any]) -> bytes | None:
        run_id = f"run-{len(daemon.heard)}"
        a_run(daemon, run_id, f"echo {request['payload']['text']}")
        return ok("accepted", {"command": "prompt", "run_id": run_id})(request)

    return reply


def sent(daemon: FakeDaemon) -> list[tuple[str, dict[str, Any]]]:
    """Returns what was sent after the greeting."""
    return [
        (request["type"], request["payload"])
        for request in daemon.heard
        if request["type"] not in ("get_state", "subscribe")
    ]


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
    assert daemon.heard[1]["payload"] == {"after": "evt-5", "types": "v1"}


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
    assert daemon.heard[-1]["payload"] == {"session_id": "s2"}


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
        """Reads until the text has been shown."""
        assert self._shows(text, 20), self._seen

    def interrupt_until_shown(self, text: str) -> None:
        """Presses Ctrl-C until the text has been shown.

        More than once, because Python does not notice a signal that comes in the instant before a
        read begins; it counts with the next one, and as one.
        """
        assert any(self._interrupt() and self._shows(text, 1) for _ in range(20)), self._seen

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
os.execv(sys.executable, [sys.executable, "-m", "nousd.cli.client_main", "chat"])
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


def test_at_a_terminal_a_daemon_that_goes_away_ends_the_wait_for_a_line(
    daemon: FakeDaemon, terminal: Terminal
) -> None:
    terminal.wait_for("> ")
    daemon.publish(None)
    terminal.wait_for("the daemon closed the connection")
    assert terminal.process.wait(20) == 1
