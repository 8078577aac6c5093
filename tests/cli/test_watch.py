"""The verbs of ``nousctl`` that follow events, and ``raw``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nousd.cli.render.run_printer import RunPrinter, trouble_text
from nousd.client.answers import ReceivedEvent
from nousd.errors import FAILURE_CATEGORIES
from tests.cli.conftest import Nousctl, without_own_name
from tests.harness.fake_daemon import FakeDaemon, Reply, event, ok, refused


def a_run(run_id: str, *, start: int, status: str = "completed") -> list[bytes]:
    """Return the events of a short run with a tool call, a warning and an error."""
    keys: dict[str, Any] = {"session_id": "s", "run_id": run_id, "turn_id": "1"}
    events: list[tuple[str, dict[str, Any]]] = [
        ("agent_start", {}),
        ("message_start", {"message_id": "m1", "role": "user", "text": "hi"}),
        ("message_end", {"message_id": "m1", "text": "hi"}),
        ("message_start", {"message_id": "m2", "role": "assistant"}),
        ("message_update", {"message_id": "m2", "delta": "Hello "}),
        ("message_update", {"message_id": "m2", "delta": "there."}),
        ("message_end", {"message_id": "m2", "text": "Hello there.", "stop_reason": "tool_use"}),
        ("tool_execution_start", {"tool_call_id": "t", "tool_name": "ls", "args": {"path": "."}}),
        (
            "tool_execution_end",
            {"tool_call_id": "t", "tool_name": "ls", "result": "a\nb", "is_error": False},
        ),
        ("warning", {"code": "provider_retry", "message": "again"}),
        ("error", {"code": "provider_error", "message": "failed", "cause": "broken"}),
        ("agent_end", {"status": status}),
    ]
    return [
        event(start + index, type_, **keys, **payload)
        for index, (type_, payload) in enumerate(events)
    ]


def start_a_run(daemon: FakeDaemon, *, status: str = "completed") -> None:
    """Make the daemon answer a prompt with run-1, whose events come at once, amid another run's."""

    def reply(request: dict[str, Any]) -> bytes | None:
        for line in [*a_run("run-0", start=1), *a_run("run-1", start=100, status=status)]:
            daemon.publish(line)
        accepted = {"command": "prompt", "run_id": "run-1", "session_id": "s"}
        return ok("accepted", accepted)(request)

    daemon.on["prompt"] = reply


def test_prompt_stream_shows_text_tools_and_warnings_of_its_run(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    start_a_run(daemon)
    outcome = nousctl("prompt_stream", "hi", "--session", "s")
    assert outcome.code == 0
    assert outcome.out == "Hello there.\n"
    assert outcome.err.splitlines() == [
        '[ls] {"path": "."}',
        "[ls] done: a b",
        "warning: again",
        "error: failed (broken)",
    ]


HANDLED = {"command": "prompt", "handled_by": "house", "reply": "42 lines"}


def test_prompt_stream_shows_what_an_extension_replies(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    warnings = [{"code": "extension_hook_error", "message": "guard: input: ValueError"}]
    daemon.on["prompt"] = ok("accepted", {**HANDLED, "warnings": warnings})
    outcome = nousctl("prompt_stream", "/count")
    assert (outcome.code, outcome.out) == (0, "42 lines\n")
    assert outcome.err == "warning: extension guard: input: ValueError\n"
    daemon.on["prompt"] = ok("accepted", HANDLED)
    assert json.loads(nousctl("--json", "prompt_stream", "/count").out) == HANDLED


def test_prompt_stream_subscribes_before_it_prompts(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    start_a_run(daemon)
    nousctl("prompt_stream", "hi")
    assert [request["type"] for request in daemon.heard] == ["subscribe", "prompt"]
    assert without_own_name(daemon.heard[1]["payload"]) == {"text": "hi", "wait": False}


def test_prompt_stream_of_a_failed_run_is_exit_code_1(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    start_a_run(daemon, status="error")
    outcome = nousctl("prompt_stream", "hi")
    assert outcome.code == 1
    assert outcome.err.endswith("the run ended: error\n")


def test_prompt_stream_prints_event_lines_with_json(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    start_a_run(daemon)
    outcome = nousctl("--json", "prompt_stream", "hi")
    assert outcome.out.encode() == b"".join(a_run("run-1", start=100))


def test_prompt_stream_fails_when_the_daemon_disconnects(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    start_a_run(daemon)
    daemon.publish(None)
    outcome = nousctl("prompt_stream", "hi")
    assert (outcome.code, outcome.err) == (1, "the daemon closed the connection\n")


RUN_IN_PROGRESS = (
    "a run is active in this session; wait, add to it with: nousctl follow-up TEXT, or stop it with:"
    " nousctl abort\n"
)


def test_a_refused_prompt_ends_prompt_stream(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["prompt"] = refused("command_rejected", "run_in_progress")
    assert nousctl("prompt_stream", "hi") == (1, "", RUN_IN_PROGRESS)


def test_trace_prints_a_run_from_its_start_to_its_end(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    lines = a_run("run-1", start=1)
    for line in [*lines, event(50, "status", session_id="s", message="after it")]:
        daemon.publish(line)
    outcome = nousctl("trace", "run-1")
    assert (outcome.code, outcome.out.encode()) == (0, b"".join(lines))
    assert [request["payload"] for request in daemon.heard] == [
        {"run_id": "run-1"},
        {"after": "evt-0", "run_id": "run-1", "types": "all"},
    ]


def test_trace_of_an_unknown_run_is_exit_code_1(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["get_run"] = refused("command_rejected", "run_not_found")
    assert nousctl("trace", "run-9") == (
        1,
        "",
        "there is no such run; list runs with: nousctl run list\n",
    )


# --- events ------------------------------------------------------------------------------------

LOG = [
    event(1, "session_created", session_id="a"),
    event(2, "agent_start", session_id="a", run_id="run-1"),
    event(4, "agent_end", session_id="a", run_id="run-1"),
    event(5, "agent_start", session_id="b", run_id="run-2"),
    event(7, "queue_update", session_id="b"),
]


def fill_log(daemon: FakeDaemon, *, cursor: str = "evt-0") -> None:
    daemon.on["subscribe"] = ok("subscribed", {"cursor": cursor, "head": "evt-7"})
    for line in LOG:
        daemon.publish(line)


def page(lines: list[bytes], head: int) -> Reply:
    """Return a reply with these events."""
    found = [json.loads(line) for line in lines]
    after = found[-1]["id"] if found else f"evt-{head}"
    return ok("events", {"events": found, "next": after, "head": f"evt-{head}"})


def pages(*replies: Reply) -> Reply:
    """Return a reply that answers each request with the next of ``replies``."""
    left = iter(replies)
    return lambda request: next(left)(request)  # noqa: PLW0108 - a reply for each


def test_events_prints_every_page_and_ends(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["get_events"] = pages(page(LOG[:2], 7), page(LOG[2:], 7), page([], 7))
    outcome = nousctl("events", "--types", "agent_start,agent_end", "--session", "a")
    assert outcome.code == 0
    assert [json.loads(line) for line in outcome.out.splitlines()] == list(map(json.loads, LOG))
    wanted = {"types": ["agent_start", "agent_end"], "session_id": "a"}
    assert [request["payload"] for request in daemon.heard] == [
        {"session_id": "a"},
        wanted,
        {**wanted, "after": "evt-2"},
        {**wanted, "after": "evt-7"},
    ]


def test_events_after_the_head_are_none(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["get_events"] = page([], 7)
    assert nousctl("events", "--after", "evt-7") == (0, "", "")


def test_events_ends_at_the_head_of_the_first_page(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["get_events"] = pages(page(LOG[:3], 4), page(LOG[3:], 7))
    shown = nousctl("events", "--types", "all").out
    assert json.loads(shown.splitlines()[-1])["id"] == "evt-4"


def test_events_of_a_view_are_printed_as_they_come_up_to_the_head(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    frame = {"seq": 16, "type": "task.started", "payload": {}, "time": "now"}
    last = ok("events", {"events": [{**frame, "seq": 56}], "next": "evt-7", "head": "evt-7"})
    first = ok("events", {"events": [frame], "next": "evt-2", "head": "evt-7"})
    daemon.on["get_events"] = pages(first, last)
    outcome = nousctl("events", "--view", "normalized", "--after", "8")
    assert [json.loads(line)["seq"] for line in outcome.out.splitlines()] == [16, 56]
    assert [request["payload"] for request in daemon.heard] == [
        {"view": "normalized", "after_seq": 8},
        {"view": "normalized", "after": "evt-2"},
    ]


def test_events_of_a_view_are_followed(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    fill_log(daemon)
    frame = b'{"seq":64,"type":"task.started","payload":{},"time":"now"}\n'
    daemon.publish(frame)
    daemon.publish(None)
    outcome = nousctl("events", "--follow", "--view", "normalized", "--after", "evt-0")
    assert outcome.out.encode().splitlines()[-1] == frame.rstrip()
    assert daemon.heard[-1]["payload"] == {"view": "normalized", "after": "evt-0"}


def test_events_with_follow_ends_when_the_daemon_disconnects(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    fill_log(daemon)
    daemon.publish(None)
    outcome = nousctl("events", "--follow", "--after", "evt-0", "--session", "a", "--types", "all")
    assert outcome.code == 1
    assert outcome.out.encode() == b"".join(LOG)  # filtering is the daemon's task
    assert daemon.heard[1]["payload"] == {"types": "all", "after": "evt-0", "session_id": "a"}


# --- raw ---------------------------------------------------------------------------------------


def test_raw_sends_its_argument_as_it_is(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    outcome = nousctl("raw", '{"id":"7", "type":"ping"}')
    assert outcome.code == 0
    assert json.loads(outcome.out)["id"] == "7"
    assert daemon.heard == [{"id": "7", "type": "ping"}]


def test_raw_sends_each_line_of_its_input(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["bad"] = refused("invalid_command", "invalid_json")
    outcome = nousctl("raw", input='{"id":"1","type":"ping"}\nbad\n{"id":"2","type":"ping"}')
    assert [json.loads(line)["id"] for line in outcome.out.splitlines()] == ["1", "", "2"]
    assert outcome.code == 1


def test_a_stopped_prompt_says_so_also_when_its_answer_comes_at_the_end(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["prompt"] = ok("result", {"output": "half an", "status": "cancelled"})
    outcome = nousctl("prompt", "hi", "--no-stream")
    assert (outcome.code, outcome.out, outcome.err) == (
        1,
        "half an\n",
        "the run ended: cancelled\n",
    )


def test_a_failure_that_settings_can_end_names_the_next_step(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["prompt"] = refused("provider_error", "failed", cause="authentication: wrong key")
    assert nousctl("prompt", "hi", "--no-stream").err == (
        "failed (authentication: wrong key); check provider and key with: nousd doctor\n"
    )
    daemon.on["prompt"] = refused("provider_error", "failed", cause="overloaded: later")
    assert nousctl("prompt", "hi", "--no-stream").err == (
        "failed (overloaded: later); it may pass: go on with nousctl run resume, or take another model"
        " with nousctl model set MODEL\n"
    )


@pytest.mark.parametrize("category", FAILURE_CATEGORIES)
def test_each_failure_of_a_model_call_names_the_next_step(
    capsys: pytest.CaptureFixture[str], category: str
) -> None:
    failed = {"code": "provider_error", "message": "failed", "cause": f"{category}: so"}
    RunPrinter().show(ReceivedEvent("evt-1", "error", failed, "", b""))
    [said, hint] = capsys.readouterr().err.splitlines()
    # That it is the agent's failure is said by the message.
    cause = "so" if category == "agent_failed" else f"{category}: so"
    assert said == f"error: failed ({cause})"
    assert "nousctl " in hint or "nousd " in hint
    RunPrinter().show(ReceivedEvent("evt-1", "error", {**failed, "hint": "do this"}, "", b""))
    assert capsys.readouterr().err.splitlines()[1:] == ["do this"], "the daemon's own is better"


def test_what_the_end_of_a_call_or_run_says_is_no_warning_besides(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = RunPrinter()
    said = "the mode ask asks for every call, and no connected client can be asked: it is denied"
    ended = {"tool_name": "ls", "result": said, "is_error": True}
    for type_, payload in (
        ("warning", {"code": "tool_blocked", "message": said}),
        ("tool_execution_end", ended),
        ("warning", {"code": "provider_aborted", "message": "request_aborted"}),
        ("agent_end", {"status": "cancelled"}),
    ):
        printer.show(ReceivedEvent("evt-1", type_, payload, "", b""))
    told = capsys.readouterr().err.splitlines()
    assert told == [f"[ls] failed: {said}", "the run ended: cancelled"]


@pytest.mark.parametrize(
    ("code", "message", "said"),
    [
        ("tool_blocked", "tool_blocked: a rule", "a rule"),
        ("provider_aborted", "request_aborted", "request aborted"),
        ("tool_not_found", "tool_not_found: my_tool", "tool not found: my_tool"),
        (
            "extension_timeout",
            "guard: input: did not return",
            "extension guard: input: did not return",
        ),
    ],
)
def test_codes_of_the_wire_are_for_those_who_ask(code: str, message: str, said: str) -> None:
    payload = {"code": code, "message": message}
    assert trouble_text("warning", payload) == f"warning: {said}"
    assert trouble_text("warning", payload, verbose=True) == f"warning: {code}: {message}"


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ("tool_error: tool_blocked: the user said no", "the user said no"),
        ("tool_error: tool_not_found: my_tool", "tool_not_found: my_tool"),
        ("file_name: it is gone", "file_name: it is gone"),
        ("Command exited with code 3", "Command exited with code 3"),
    ],
)
def test_a_failed_call_is_shown_without_the_codes_before_its_words(
    capsys: pytest.CaptureFixture[str], result: str, shown: str
) -> None:
    ended = {"tool_name": "ls", "result": result, "is_error": True}
    RunPrinter().show(ReceivedEvent("evt-1", "tool_execution_end", ended, "", b""))
    assert capsys.readouterr().err == f"[ls] failed: {shown}\n"
