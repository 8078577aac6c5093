"""The verbs of ``nousctl`` for tool calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Nousctl
from tests.harness.fake_daemon import FakeDaemon, event, ok

CALL: dict[str, Any] = {
    "session_id": "s",
    "tool_call_id": "call-1",
    "attempt": 1,
    "tool_name": "bash",
}


def answers_with(daemon: FakeDaemon, *told: tuple[str, dict[str, Any]]) -> None:
    """Make the daemon accept a call and publish its events."""

    def reply(request: dict[str, Any]) -> bytes | None:
        for seq, (type_, payload) in enumerate(told, 1):
            daemon.publish(event(seq, type_, **CALL, **payload))
        accepted = {"command": "call_tool", "tool_call_id": "call-1", "session_id": "s"}
        return ok("accepted", accepted)(request)

    daemon.on["call_tool"] = reply


COMPLETED: dict[str, Any] = {"is_error": False, "duration_ms": 3, "result": "well"}


def test_call_prints_the_result(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    answers_with(daemon, ("tool_call_started", {}), ("tool_call_completed", COMPLETED))
    outcome = nousctl("call", "bash", '{"command":"ls"}', "--session", "s", "--id", "mine")
    assert (outcome.code, outcome.out, outcome.err) == (0, "well\n", "")
    [sent] = [request for request in daemon.heard if request["type"] == "call_tool"]
    assert sent["payload"] == {
        "tool": "bash",
        "args": {"command": "ls"},
        "session_id": "s",
        "client_call_id": "mine",
    }


@pytest.mark.parametrize(
    ("end", "remark"),
    [
        ("one\ntwo\n\n[the command made files that programs obey: .envrc]", "[the command made"),
        ("(cut)\ntwo\n\n[the command made files that programs obey: .envrc]", "[the command made"),
        ("one\ntwo\n", ""),
        ("one\ntwo", ""),
        ("something else", ""),
    ],
)
def test_what_the_result_says_behind_the_streamed_output_is_a_remark(
    daemon: FakeDaemon, nousctl: Nousctl, end: str, remark: str
) -> None:
    answers_with(
        daemon,
        ("tool_call_output", {"delta": "one\ntw"}),
        ("tool_call_output", {"delta": "o\n"}),
        ("tool_call_completed", {**COMPLETED, "result": end}),
    )
    outcome = nousctl("call", "bash", "--session", "s")
    assert (outcome.code, outcome.out) == (0, "one\ntwo\n")
    assert outcome.err.startswith(remark)
    assert bool(outcome.err) == bool(remark)


def test_call_prints_streamed_output_and_the_failure(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    failed = {
        "is_error": True,
        "duration_ms": 3,
        "result": "one\ntwo\n\nCommand exited with code 3",
    }
    answers_with(
        daemon,
        ("tool_call_output", {"delta": "one\n"}),
        ("tool_call_output", {"delta": "two\n"}),
        ("tool_call_completed", failed),
    )
    outcome = nousctl("call", "bash")
    assert (outcome.code, outcome.out) == (1, "one\ntwo\n")
    assert outcome.err == "Command exited with code 3\n"


def test_call_says_who_denied_it(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    asked = {"input_hash": "h", "args": {}, "reason": "it asks", "expires_at": "then"}
    answers_with(
        daemon,
        ("permission_requested", asked),
        ("tool_call_denied", {"by": "user", "reason": "no"}),
    )
    outcome = nousctl("call", "bash")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.splitlines() == [
        "waits for permission, since it asks; nousctl permission list shows it",
        "denied by user: no",
    ]


def test_call_of_a_tool_that_is_not_there_says_which_ones_are(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    reason = "tool_not_found: bash"
    answers_with(daemon, ("tool_call_denied", {"by": "policy", "reason": reason}))
    denied, hint = nousctl("call", "bash").err.splitlines()
    assert denied == "denied by policy: tool_not_found: bash"
    assert "nousctl tool list" in hint
    assert "--allow-exec" in hint


def test_call_says_where_a_policy_is_shown(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    answers_with(daemon, ("tool_call_denied", {"by": "policy", "reason": "a rule"}))
    assert nousctl("call", "bash").err.splitlines() == [
        "denied by policy: a rule",
        "nousctl permission list shows what is allowed, and who is asked",
    ]


def test_call_prints_event_lines_with_json(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    answers_with(daemon, ("tool_call_started", {}), ("tool_call_completed", COMPLETED))
    outcome = nousctl("call", "bash", "--json")
    types = [json.loads(line)["type"] for line in outcome.out.splitlines()]
    assert types == ["tool_call_started", "tool_call_completed"]


@pytest.mark.parametrize("args", ["nothing", "[1]", '"text"'])
def test_arguments_that_are_not_an_object_are_exit_code_2(
    daemon: FakeDaemon, nousctl: Nousctl, args: str
) -> None:
    assert nousctl("call", "bash", args).code == 2
    assert daemon.heard == []


def test_tool_call_shows_decision_environment_and_result(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    call = {
        **{key: CALL[key] for key in ("session_id", "tool_call_id", "attempt", "tool_name")},
        "state": "completed",
        "executed": True,
        "event": "evt-1",
        "args": {"command": "ls"},
        "sources": [{"source": "rules", "decision": "allow", "reason": "so", "rule": "bash(ls)"}],
        "decision": {"approved": True, "by": "user", "reason": "fine", "decided_at": "then"},
        "requested_at": "first",
        "duration_ms": 7,
        "execution_env": "sandbox",
        "is_error": False,
        "result": "a.txt",
        "text_ref": "sha256:00",
        "text_bytes": 99,
    }
    daemon.on["get_tool_call"] = ok("tool_call", {"call": call})
    outcome = nousctl("tool_call", "call-1", "--attempt", "1")
    assert outcome.out.splitlines() == [
        "call-1  attempt 1  completed",
        'bash {"command": "ls"}',
        "in s, no run, requested at first",
        "ran 7 ms in the sandbox",
        "  rules      allow    so [bash(ls)]",
        "approved by user at then: fine",
        "a.txt",
        "(the beginning of 99 bytes: nousctl artifact get sha256:00)",
    ]


def test_tool_calls_are_listed(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    summary = {
        **{key: CALL[key] for key in ("session_id", "tool_call_id", "attempt", "tool_name")},
        "state": "denied",
        "executed": False,
        "event": "evt-9",
        "requested_at": "then",
        "is_error": True,
    }
    of_run = {**summary, "run_id": "run-1", "state": "completed", "is_error": False}
    daemon.on["list_tool_calls"] = ok("tool_calls", {"calls": [summary, of_run], "has_more": True})
    outcome = nousctl("tool_calls", "--run", "run-1")
    assert outcome.out.splitlines() == [
        "call-1  1  denied (failed)  bash  client",
        "call-1  1  completed  bash  run-1",
        "(more: --before evt-9)",
    ]
