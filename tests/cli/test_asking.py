"""The verbs with which a person answers approvals and questions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nousd.cli.render.request_lines import (
    NoAnswer,
    answer_to,
    answers_to,
    request_lines,
    waiting_lines,
)
from tests.cli.conftest import Nousctl, without_own_name
from tests.harness.fake_daemon import FakeDaemon, event, ok, refused

REQUEST: dict[str, Any] = {
    "session_id": "s",
    "tool_call_id": "call-1",
    "attempt": 2,
    "tool_name": "bash",
    "input_hash": "sha256:1",
    "args": {"command": "git push"},
    "reason": "it runs a program without a sandbox",
    "expires_at": "2026-01-01T00:00:00Z",
    "rule": "bash(=git push)",
}
COLOUR: dict[str, Any] = {
    "question": "Which?",
    "header": "Colour",
    "options": [{"label": "Red", "description": "warm"}, {"label": "Blue"}, {"label": "2"}],
}
SIZES: dict[str, Any] = {
    "question": "Sizes?",
    "options": [{"label": "S"}, {"label": "M, L"}],
    "multiple": True,
}
WHY: dict[str, Any] = {"question": "Why?"}
QUESTION: dict[str, Any] = {
    "session_id": "s",
    "question_id": "ques-1",
    "expires_at": "2026-01-01T00:00:00Z",
    "questions": [COLOUR, WHY],
}
PERMISSIONS: dict[str, Any] = {
    "session_id": "s",
    "mode": "auto",
    "can_answer": True,
    "pending": [REQUEST],
    "expired": [],
    "granted": [],
    "granted_everywhere": [],
    "rules": [],
    "cursor": "evt-9",
}


@pytest.fixture(autouse=True)
def pending_requests(daemon: FakeDaemon) -> None:
    daemon.on["list_permissions"] = ok("permissions", PERMISSIONS)
    daemon.on["list_questions"] = ok("questions", {"questions": [QUESTION], "cursor": "evt-9"})
    for command in ("confirm_tool", "answer_question", "set_permission_mode"):
        daemon.on[command] = ok("accepted", {"command": command})


# --- permissions -----------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["once", "session", "always", "deny"])
def test_confirm_shows_the_call_and_sends_its_attempt_and_hash(
    daemon: FakeDaemon, nousctl: Nousctl, decision: str
) -> None:
    outcome = nousctl("confirm", "call-1", decision, "--reason", "so", "--rule", "bash")
    assert (outcome.code, outcome.out) == (0, "confirm_tool accepted\n")
    assert outcome.err.splitlines() == [
        "bash command: git push",
        "because it runs a program without a sandbox",
        "session and always allow: bash(=git push)",
    ]
    assert without_own_name(daemon.heard[-1]["payload"]) == {
        "tool_call_id": "call-1",
        "attempt": 2,
        "input_hash": "sha256:1",
        "decision": decision,
        "reason": "so",
        "rule": "bash",
    }


@pytest.mark.parametrize(
    ("typed", "more"),
    [
        ("approve call-1", {"decision": "once"}),
        ("approve call-1 always --rule bash", {"decision": "always", "rule": "bash"}),
        ("deny call-1 --reason no", {"decision": "deny", "reason": "no"}),
    ],
)
def test_approve_and_deny_are_decisions(
    daemon: FakeDaemon, nousctl: Nousctl, typed: str, more: dict[str, str]
) -> None:
    assert nousctl("permission", *typed.split()).code == 0
    named = {"tool_call_id": "call-1", "attempt": 2, "input_hash": "sha256:1"}
    assert without_own_name(daemon.heard[-1]["payload"]) == {**named, **more}


def test_confirm_refuses_a_call_that_is_not_pending(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    outcome = nousctl("confirm", "call-2", "once")
    assert outcome.code == 1
    assert "no call call-2 waits" in outcome.err
    assert [request["type"] for request in daemon.heard] == ["list_permissions"]


def test_a_late_decision_is_exit_code_1(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["confirm_tool"] = refused("command_rejected", "already_decided")
    outcome = nousctl("confirm", "call-1", "once")
    assert outcome.code == 1
    assert "that call was already decided" in outcome.err


def test_permissions_shows_pending_calls_rules_and_grants(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    expired = {"request": {**REQUEST, "tool_call_id": "call-0"}, "by": "timeout"}
    daemon.on["list_permissions"] = ok(
        "permissions",
        {
            **PERMISSIONS,
            "expired": [expired],
            "granted": ["write(a.txt)"],
            "granted_everywhere": ["bash(ls)"],
            "rules": [{"decision": "deny", "rule": "bash(rm *)", "origin": "file x"}],
            "truncated": True,
        },
    )
    assert nousctl("permissions").out.splitlines() == [
        "mode      auto",
        "rule      deny bash(rm *)  (file x)",
        "granted   write(a.txt)  (session)",
        "granted   bash(ls)  (always)",
        "waiting   call-1",
        "          bash command: git push",
        "          because it runs a program without a sandbox",
        "          session and always allow: bash(=git push)",
        "          until 2026-01-01 00:00:00, in s",
        "expired   call-0 bash command: git push (timeout)",
        "(there is more: name a session)",
    ]


@pytest.mark.parametrize("argv", [["not", "today"], ["--reason", "not today"]])
def test_a_denial_has_its_reason_behind_the_call(
    daemon: FakeDaemon, nousctl: Nousctl, argv: list[str]
) -> None:
    nousctl("permission", "deny", "call-1", *argv)
    payload = daemon.heard[-1]["payload"]
    assert (payload["decision"], payload["reason"]) == ("deny", "not today")
    nousctl("permission", "deny", "call-1")
    assert "reason" not in daemon.heard[-1]["payload"]


def test_a_rule_about_a_described_tool_is_shown_with_its_meaning(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    rule = "mcp__files__read_text(#0f3a)"
    pending = [{**REQUEST, "rule": rule}]
    daemon.on["list_permissions"] = ok(
        "permissions", {**PERMISSIONS, "pending": pending, "granted": [rule]}
    )
    shown = nousctl("permissions").out
    meaning = f"{rule}: read_text of the MCP server files while it is described as now"
    assert f"granted   {meaning}  (session)\n" in shown
    assert f"session and always allow: {meaning}\n" in shown


def test_truncated_arguments_are_marked(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    request = {**REQUEST, "args_ref": "sha256:2", "args_bytes": 9000}
    daemon.on["list_permissions"] = ok("permissions", {**PERMISSIONS, "pending": [request]})
    assert "(the beginning of 9000 bytes)" in nousctl("permissions").out


def test_misleading_characters_in_a_command_are_shown() -> None:
    command = "ls \u202e# fr- mr\u200b \u2028\x9b \U000e0041é"
    request = {"tool_name": "bash", "args": {"command": command}, "reason": "a\nb", "rule": command}
    shown, *why = request_lines(request)
    visible = "ls <U+202E># fr- mr<U+200B> <U+2028><U+009B> <U+E0041>é"
    assert shown == f"bash command: {visible}"
    assert why == ["because a<U+000A>b", f"session and always allow: {visible}"]


def test_paths_outside_the_workspace_are_shown_and_only_allowed_once() -> None:
    outside = ["/etc/hosts", "/a\u202eb"]
    request = {**REQUEST, "outside": outside}
    assert [line for line in request_lines(request) if line.startswith("opens")] == [
        "opens /etc/hosts",
        "opens /a<U+202E>b",
    ]
    status = f"permission_requested: {json.dumps(request)}"
    assert waiting_lines(status)[-1].endswith(" once|deny")


def test_mode_shows_or_sets_the_mode(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["get_state"] = ok("state", {"permission_mode": "ask"})
    assert nousctl("mode", "--session", "s").out == "ask\n"
    assert daemon.heard[-1]["payload"] == {"session_id": "s"}
    assert nousctl("mode", "yolo", "--session", "s").out == "set_permission_mode accepted\n"
    assert daemon.heard[-1]["payload"] == {"mode": "yolo", "session_id": "s"}
    assert nousctl("mode", "never").code == 2


# --- questions -------------------------------------------------------------------------------


def test_answer_takes_one_answer_for_each_question(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    outcome = nousctl("answer", "ques-1", "1", "because I like it")
    assert (outcome.code, outcome.out) == (0, "answer_question accepted\n")
    assert outcome.err.splitlines() == ["[Colour] Which?", "  Red", "Why?", "  because I like it"]
    answers = [{"chosen": ["Red"]}, {"text": "because I like it"}]
    assert without_own_name(daemon.heard[-1]["payload"]) == {
        "question_id": "ques-1",
        "answers": answers,
    }


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ques-1", "1"], "there are 2 questions and 1 answers\n"),
        (["ques-1", "1", " "], "an answer is a number, or own words\n"),
        (["ques-2", "1"], "no question ques-2 waits; list those that do: nousctl question list\n"),
    ],
)
def test_an_invalid_answer_is_not_sent(
    daemon: FakeDaemon, nousctl: Nousctl, argv: list[str], message: str
) -> None:
    outcome = nousctl("answer", *argv)
    assert (outcome.code, outcome.err) == (1, message)
    assert [request["type"] for request in daemon.heard] == ["list_questions"]


def test_questions_shows_options_with_numbers(nousctl: Nousctl) -> None:
    assert nousctl("questions").out.splitlines() == [
        "ques-1  until 2026-01-01 00:00:00, in s",
        "  [Colour] Which?",
        "    1 Red: warm",
        "    2 Blue",
        "    3 2",
        "  Why?",
    ]


@pytest.mark.parametrize(
    ("question", "typed", "answer"),
    [
        (COLOUR, "1", {"chosen": ["Red"]}),
        (COLOUR, " Blue ", {"chosen": ["Blue"]}),
        # A label has precedence over a number.
        (COLOUR, "2", {"chosen": ["2"]}),
        (COLOUR, "4", {"text": "4"}),
        (COLOUR, "1, 3", {"text": "1, 3"}),
        (COLOUR, "Green", {"text": "Green"}),
        (SIZES, "1,2", {"chosen": ["S", "M, L"]}),
        (SIZES, "1, 1", {"chosen": ["S"]}),
        (SIZES, "M, L", {"chosen": ["M, L"]}),
        (SIZES, "1, none", {"text": "1, none"}),
        (WHY, "1", {"text": "1"}),
    ],
)
def test_typed_text_that_names_an_option_is_a_choice(
    question: dict[str, Any], typed: str, answer: dict[str, Any]
) -> None:
    assert answer_to(question, typed) == answer


def test_an_empty_answer_is_refused() -> None:
    with pytest.raises(NoAnswer):
        answers_to([WHY], ["  "])


# --- pending requests of a run that is followed ------------------------------------------------


def test_prompt_stream_shows_pending_requests_and_how_to_answer_them(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    keys = {"session_id": "s", "run_id": "run-1"}

    def reply(request: dict[str, Any]) -> bytes | None:
        for number, (type_, payload) in enumerate(
            [
                ("status", {"message": "provider_stop_reason: tool_use"}),
                ("status", {"message": f"permission_requested: {json.dumps(REQUEST)}"}),
                ("status", {"message": f"question_asked: {json.dumps(QUESTION)}"}),
                ("agent_end", {"status": "completed"}),
            ]
        ):
            daemon.publish(event(number + 1, type_, **keys, **payload))
        return ok("accepted", {"command": "prompt", "run_id": "run-1"})(request)

    daemon.on["prompt"] = reply
    outcome = nousctl("prompt_stream", "hi")
    assert outcome.code == 0
    assert outcome.err.splitlines() == [
        "waits for you: bash command: git push",
        "  nousctl permission confirm call-1 once|session|always|deny",
        "asks you:",
        "[Colour] Which?",
        "  1 Red: warm",
        "  2 Blue",
        "  3 2",
        "Why?",
        "  nousctl question answer ques-1 ANSWER...",
    ]


def test_a_rule_that_was_not_granted_is_refused_with_the_nearest(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["revoke_permission"] = refused("command_rejected", "rule_not_granted")
    listed = {"granted": [], "granted_everywhere": ["bash(git status)", "write"]}
    daemon.on["list_permissions"] = ok("permissions", listed)
    outcome = nousctl("permission", "revoke", "bash(git satus)")
    assert outcome.code == 1
    assert outcome.err.endswith("permission list; the nearest is bash(git status)\n")
