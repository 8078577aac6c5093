"""Each verb of ``nousctl``: its request, its output and its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nousd.cli.nousctl.verbs import VERBS
from nousd.cli.nousctl.watches import WATCHES
from nousd.cli.output import harmless
from nousd.cli.render.answers import as_text
from nousd.client.answers import Answer
from nousd.wire.codec.envelope import decode_payload, decode_request
from nousd.wire.commands import COMMANDS
from nousd.wire.responses import RESPONSES
from tests.cli.conftest import Nousctl, without_own_name
from tests.harness.fake_daemon import FakeDaemon, ok, refused, says

SENT: list[tuple[str, str, dict[str, Any]]] = [
    ("ping", "ping", {}),
    ("seen --session s --entry m", "mark_seen", {"session_id": "s", "entry_id": "m"}),
    (
        "search word --limit 3 --before s/4 --not-archived --children --workspace /w",
        "search_sessions",
        {
            "query": "word",
            "limit": 3,
            "before": "s/4",
            "archived": False,
            "children": True,
            "workspace": "/w",
        },
    ),
    ("prompt hello world", "prompt", {"text": "hello world", "wait": True}),
    (
        "prompt hi --leaf m --session s --client-message-id c",
        "prompt",
        {
            "text": "hi",
            "wait": True,
            "leaf_id": "m",
            "session_id": "s",
            "client_message_id": "c",
        },
    ),
    (
        "prompt hi --client-id d --agent-id a --reuse-appended --require-appended --strict-resend",
        "prompt",
        {
            "text": "hi",
            "wait": True,
            "client_id": "d",
            "agent_id": "a",
            "reuse_appended": True,
            "require_appended": True,
            "strict_resend": True,
        },
    ),
    (
        "prompt hi --correlation-id c --agent-profile p",
        "prompt",
        {"text": "hi", "wait": True, "correlation_id": "c", "agent_profile": "p"},
    ),
    (
        'prompt hi --model m --provider p --tools read --tool-choice required --sampling {"top_p":0}',
        "prompt",
        {
            "text": "hi",
            "wait": True,
            "model": "m",
            "provider": "p",
            "tools": ["read"],
            "tool_choice": "required",
            "sampling": {"top_p": 0},
        },
    ),
    ("prompt_async hi --tools none", "prompt", {"text": "hi", "wait": False, "tools": []}),
    (
        "append hello there --session s --client-message-id c",
        "append_message",
        {"text": "hello there", "session_id": "s", "client_message_id": "c"},
    ),
    ("abort --keep-queue", "abort", {"keep_queue": True}),
    ("prompt -- --json", "prompt", {"text": "--json", "wait": True}),
    ("prompt ping", "prompt", {"text": "ping", "wait": True}),
    ("prompt_async hi", "prompt", {"text": "hi", "wait": False}),
    (
        "steer hi --expected-run r --session s",
        "steer",
        {"text": "hi", "expected_run_id": "r", "session_id": "s"},
    ),
    (
        "follow_up hi --client-message-id c",
        "follow_up",
        {"text": "hi", "client_message_id": "c"},
    ),
    ("abort", "abort", {}),
    ("abort --expected-run r", "abort", {"expected_run_id": "r"}),
    ("resume", "resume", {}),
    ("queue --session s", "get_queue", {"session_id": "s"}),
    ("todos", "get_todos", {}),
    ("clear_queue", "clear_queue", {}),
    ("clear_queue --kind steer", "clear_queue", {"kind": "steer"}),
    ("promote in-1", "promote", {"input_id": "in-1"}),
    ("promote in-1 --client-id d", "promote", {"input_id": "in-1", "client_id": "d"}),
    ("queue_edit in-1 new words", "edit_queued", {"input_id": "in-1", "text": "new words"}),
    (
        "queue_edit in-1 new --revision 7 --session s --client-id d",
        "edit_queued",
        {
            "input_id": "in-1",
            "text": "new",
            "queue_revision": 7,
            "session_id": "s",
            "client_id": "d",
        },
    ),
    ("queue_move in-1", "move_queued", {"input_id": "in-1"}),
    (
        "queue_move in-1 --before in-2 --revision 0",
        "move_queued",
        {"input_id": "in-1", "before_input_id": "in-2", "queue_revision": 0},
    ),
    ("queue_remove in-1", "remove_queued", {"input_id": "in-1"}),
    ("steer hi --client-id d", "steer", {"text": "hi", "client_id": "d"}),
    ("append hi --client-id d", "append_message", {"text": "hi", "client_id": "d"}),
    ("abort --client-id d", "abort", {"client_id": "d"}),
    ("resume --client-id d", "resume", {"client_id": "d"}),
    ("clear_queue --client-id d", "clear_queue", {"client_id": "d"}),
    ("new", "new_session", {"workspace": f"{Path.cwd()}", "activate": False}),
    (
        "new --name n --workspace /w",
        "new_session",
        {"name": "n", "workspace": "/w", "activate": False},
    ),
    (
        "new --activate --workspace /w/x --provider p",
        "new_session",
        {"workspace": "/w/x", "activate": True, "provider": "p"},
    ),
    ("new --workspace x", "new_session", {"workspace": f"{Path.cwd()}/x", "activate": False}),
    ("switch s", "switch_session", {"session_id": "s"}),
    ("branch s --name n", "branch_session", {"session_id": "s", "name": "n", "activate": False}),
    ("sessions --limit 5 --before s", "list_sessions", {"limit": 5, "before": "s"}),
    ("sessions --children", "list_sessions", {"children": True}),
    (
        "sessions --workspace /w --find x --archived --source chat --offset 3 --parent p",
        "list_sessions",
        {
            "workspace": "/w",
            "q": "x",
            "archived": True,
            "source": "chat",
            "offset": 3,
            "parent_id": "p",
        },
    ),
    ("sessions --not-archived", "list_sessions", {"archived": False}),
    ("session s", "get_session", {"session_id": "s"}),
    (
        'update s --name n --archived --rules {"deny":["bash"]} --sampling null --metadata {}',
        "update_session",
        {
            "session_id": "s",
            "name": "n",
            "archived": True,
            "rules": {"deny": ["bash"]},
            "sampling": None,
            "source_metadata": {},
        },
    ),
    ("archive s", "update_session", {"session_id": "s", "archived": True}),
    ("unarchive s", "update_session", {"session_id": "s", "archived": False}),
    ("update s --not-archived", "update_session", {"session_id": "s", "archived": False}),
    (
        'new --workspace /w --parent s --source chat --model m --sampling {"top_p":1} --rules {}',
        "new_session",
        {
            "activate": False,
            "workspace": "/w",
            "parent_id": "s",
            "source": "chat",
            "model": "m",
            "sampling": {"top_p": 1},
            "rules": {},
        },
    ),
    ("branch s --aside", "branch_session", {"session_id": "s", "activate": False}),
    ("attach /w/x", "attach_session", {"workspace": "/w/x"}),
    (
        "attach x --session s --reason why",
        "attach_session",
        {"workspace": f"{Path.cwd()}/x", "session_id": "s", "reason": "why"},
    ),
    ("override", "override_workspace", {"ttl_seconds": 900}),
    ("override 60 --session s", "override_workspace", {"ttl_seconds": 60, "session_id": "s"}),
    ("override 15m", "override_workspace", {"ttl_seconds": 900}),
    ("override 0", "override_workspace", {"ttl_seconds": 0}),
    ("rename n --session s", "rename_session", {"name": "n", "session_id": "s"}),
    ("delete s", "delete_session", {"session_id": "s", "undo_seconds": 600}),
    ("delete s --undo 0", "delete_session", {"session_id": "s", "undo_seconds": 0}),
    ("delete s --undo 15m", "delete_session", {"session_id": "s", "undo_seconds": 900}),
    ("restore s", "restore_session", {"session_id": "s"}),
    ("get_state", "get_state", {}),
    ("get_messages", "get_messages", {}),
    (
        "get_messages --session s --leaf m --before b --limit 2 --compacted",
        "get_messages",
        {"session_id": "s", "leaf_id": "m", "before": "b", "limit": 2, "compacted": True},
    ),
    ("get_tree --after m --limit 3", "get_tree", {"after": "m", "limit": 3}),
    ("set_leaf m", "set_leaf", {"leaf_id": "m"}),
    ("compact --instruction brief", "compact_session", {"instruction": "brief"}),
    ("runs --session s --limit 1", "list_runs", {"session_id": "s", "limit": 1}),
    ("run run-1", "get_run", {"run_id": "run-1"}),
    ("tool_calls", "list_tool_calls", {}),
    (
        "tool_calls --session s --run r --limit 1 --before evt-9",
        "list_tool_calls",
        {"session_id": "s", "run_id": "r", "limit": 1, "before": "evt-9"},
    ),
    ("tool_call c", "get_tool_call", {"tool_call_id": "c"}),
    ("tool_call c --attempt 2", "get_tool_call", {"tool_call_id": "c", "attempt": 2}),
    ("cancel_call c", "cancel_tool_call", {"tool_call_id": "c"}),
    ("tools", "list_tools", {}),
    ("tools --after read", "list_tools", {"after": "read"}),
    ("agents", "list_agents", {}),
    ("agents --session s", "list_agents", {"session_id": "s"}),
    ("set_active_tools", "set_active_tools", {"tools": []}),
    (
        "set_active_tools read ls --session s",
        "set_active_tools",
        {"tools": ["read", "ls"], "session_id": "s"},
    ),
    ("set_steering_mode all", "set_steering_mode", {"mode": "all"}),
    ("set_follow_up_mode one-at-a-time", "set_follow_up_mode", {"mode": "one-at-a-time"}),
    ("models", "list_models", {}),
    ("models --provider p --refresh", "list_models", {"provider": "p", "refresh": True}),
    (
        "model p/m --session s",
        "set_model",
        {"model": "p/m", "session_id": "s", "must_be_listed": True},
    ),
    ("model m --unlisted", "set_model", {"model": "m", "must_be_listed": False}),
    ("runtime native", "set_runtime", {"runtime": "native"}),
    ("runtime default --session s", "set_runtime", {"runtime": None, "session_id": "s"}),
    ("runtimes", "get_runtimes", {}),
    ("auth_status native", "get_auth_status", {"runtime": "native"}),
    (
        "auth_status native --namespace user:a",
        "get_auth_status",
        {"runtime": "native", "namespace": "user:a"},
    ),
    ("thinking high", "set_thinking", {"level": "high"}),
    ("thinking default --session s", "set_thinking", {"level": None, "session_id": "s"}),
    ("permissions", "list_permissions", {}),
    ("permissions --session s", "list_permissions", {"session_id": "s"}),
    ("revoke bash(ls)", "revoke_permission", {"rule": "bash(ls)"}),
    (
        "revoke write --session s",
        "revoke_permission",
        {"rule": "write", "session_id": "s"},
    ),
    ("questions --session s", "list_questions", {"session_id": "s"}),
    ("reject ques-1", "reject_question", {"question_id": "ques-1"}),
    (
        "reject ques-1 --reason no",
        "reject_question",
        {"question_id": "ques-1", "reason": "no"},
    ),
    ("capabilities", "get_capabilities", {}),
    ("metrics", "get_metrics", {}),
    ("ext echo", "extension_command", {"name": "echo"}),
    ('ext echo {"a":1}', "extension_command", {"name": "echo", "payload": {"a": 1}}),
]
"""(typed arguments, command on the wire, payload)"""


@pytest.mark.slow(keep=27)
@pytest.mark.parametrize(("typed", "command", "payload"), SENT, ids=[row[0] for row in SENT])
def test_a_verb_sends_its_command(
    daemon: FakeDaemon, nousctl: Nousctl, typed: str, command: str, payload: dict[str, Any]
) -> None:
    outcome = nousctl(*typed.split())
    assert outcome.code == 0, outcome.err
    *before, request = daemon.heard
    assert (request["type"], without_own_name(request["payload"])) == (command, payload)
    # A list that is filtered by a session asks whether there is one, because none is refused.
    assert {each["type"] for each in before} <= {"get_session"}
    # ... and the daemon would take it.
    decode_payload(decode_request(json.dumps(request).encode()))


def test_the_table_of_sent_commands_has_every_verb_with_arguments() -> None:
    tested = {typed.split()[0] for typed, _, _ in SENT}
    assert tested <= set(VERBS)
    assert {name for name, verb in VERBS.items() if verb.arguments} <= tested


def test_every_command_of_the_wire_has_a_verb() -> None:
    sent_by_watches = {
        *("get_events", "get_artifact", "put_artifact"),
        *("trust", "untrust", "list_trust"),
        *("add_mcp", "remove_mcp", "restart_mcp", "list_mcp"),
        "set_permission_mode",
        "confirm_tool",
        "answer_question",
        "call_tool",
    }
    assert {verb.command for verb in VERBS.values()} | sent_by_watches == set(COMMANDS)


def test_verbs_and_watches_share_no_name() -> None:
    assert not VERBS.keys() & WATCHES.keys()


# --- ids -----------------------------------------------------------------------------------------

QUEUE = [
    {"input_id": "in-0661465122aa", "kind": "follow_up", "text": "one"},
    {"input_id": "in-0661465122ab", "kind": "follow_up", "text": "two"},
    {"input_id": "in-0777", "kind": "steer", "text": "three"},
]


def test_queued_inputs_are_shown_as_far_as_they_differ(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["get_queue"] = ok("queue", {"inputs": QUEUE})
    assert nousctl("queue").out.splitlines() == [
        "in-0661465122aa follow_up: one",
        "in-0661465122ab follow_up: two",
        "in-0777 steer: three",
    ]
    daemon.on["get_queue"] = ok("queue", {"inputs": QUEUE[:1]})
    assert nousctl("queue").out == "in-06614651 follow_up: one\n"


@pytest.mark.parametrize("text", ["in-0777", "in-077", "077", "in-06", "0999"])
def test_what_begins_no_id_is_left_to_the_daemon(
    daemon: FakeDaemon, nousctl: Nousctl, text: str
) -> None:
    daemon.on["get_queue"] = ok("queue", {"inputs": QUEUE})
    daemon.on["remove_queued"] = refused("command_rejected", "input_not_found")
    outcome = nousctl("queue", "remove", text)
    assert outcome.code == 1
    named = [
        each["payload"]["input_id"] for each in daemon.heard if each["type"] == "remove_queued"
    ]
    # Three digits would mean any input, if there is only one.
    assert named == [text]


@pytest.mark.parametrize(("text", "whole"), [("in-07770", "in-07770001"), ("0777", "in-07770001")])
def test_a_unique_beginning_is_enough(
    daemon: FakeDaemon, nousctl: Nousctl, text: str, whole: str
) -> None:
    rows = [*QUEUE[:2], {**QUEUE[2], "input_id": whole}]
    daemon.on["get_queue"] = ok("queue", {"inputs": rows})
    daemon.on["promote"] = lambda request: (
        ok("accepted", {"command": "promote"})
        if request["payload"]["input_id"] == whole
        else refused("command_rejected", "input_not_found")
    )(request)
    assert nousctl("queue", "promote", text).code == 0


def test_a_beginning_of_several_is_refused_with_their_ids(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["get_queue"] = ok("queue", {"inputs": QUEUE})
    daemon.on["edit_queued"] = refused("command_rejected", "input_not_found")
    outcome = nousctl("queue", "edit", "06614651", "words")
    assert outcome.code == 1
    assert outcome.err.splitlines() == [
        '"06614651" can be one of:',
        "  in-0661465122aa",
        "  in-0661465122ab",
    ]


# --- options -----------------------------------------------------------------------------------


def test_a_dash_reads_the_text_from_standard_input(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    nousctl("steer", "-", input="from\nthe pipe\n")
    assert daemon.heard[0]["payload"] == {"text": "from\nthe pipe", "client_id": "nousctl"}


def test_what_would_have_helped_a_run_is_said_once(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    warned = {"type": "warning", "code": "tool_blocked", "hint": "ask in a chat"}
    daemon.on["prompt"] = ok("result", {"output": "done", "events": [warned, warned, {}]})
    outcome = nousctl("prompt", "do it")
    assert (outcome.out, outcome.err) == ("done\n", "ask in a chat\n")


def test_a_session_is_exported_to_a_file_or_as_lines_of_json(
    daemon: FakeDaemon, nousctl: Nousctl, folder: Path
) -> None:
    facts = {"session_id": "s", "created_at": "2026-01-01T00:00:00Z", "workspace": "/w"}
    rest = {"active": False, "run_state": "idle", "archived": False, "unread": False}
    row = {**facts, **rest, "updated_at": facts["created_at"], "provider": "mock", "model": "m"}
    entry = {
        "type": "message",
        "id": "m1",
        "role": "user",
        "text": "hällo",
        "run_id": "",
        "turn_kind": "prompt",
        "created_at": facts["created_at"],
    }
    page = {"session_id": "s", "messages": [entry], "has_more": False, "cursor": "evt-1"}
    daemon.on["get_messages"] = ok("messages", {**page, "leaf_id": "m1"})
    daemon.on["get_session"] = ok(
        "session_record", {"session": {**row, "permission_mode": "auto"}, "cursor": "evt-1"}
    )
    target = folder / "out.md"
    outcome = nousctl("session", "export", "-o", str(target))
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert "> hällo\n" in target.read_text(encoding="utf-8")
    lines = nousctl("session", "export", "--json").out.splitlines()
    assert [json.loads(line).get("text") for line in lines] == [None, "hällo"]
    assert nousctl("session", "export", "-o", str(folder / "no" / "x")).code == 2


def test_a_model_for_one_run_has_a_short_flag(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    nousctl("prompt", "hello", "-m", "mock/large")
    assert daemon.heard[0]["payload"]["model"] == "mock/large"


@pytest.mark.parametrize("words", [[], ["some-session"]])
def test_attach_without_a_folder_names_the_verbs_that_may_be_meant(
    daemon: FakeDaemon, nousctl: Nousctl, words: list[str]
) -> None:
    outcome = nousctl("attach", *words)
    assert outcome.code == 2
    assert "nousctl chat [SESSION]" in outcome.err
    assert "nousctl session move FOLDER" in outcome.err
    assert not daemon.heard


def test_a_branch_is_listed_with_its_parent() -> None:
    row = {
        "session_id": "sess-2",
        "parent_id": "sess-1",
        "title": "fix it",
        "active": False,
        "updated_at": "then",
        "run_state": "idle",
        "workspace": "/w",
        "archived": False,
    }
    listed = Answer("1", "sessions", {"sessions": [row], "has_more": False}, None)
    assert as_text(listed) == ['  sess-2  then  idle "fix it", a branch of sess-1  /w']


@pytest.mark.parametrize("argv", [["--json", "ping"], ["ping", "--json"]])
def test_json_before_or_after_the_verb_prints_the_payload(
    nousctl: Nousctl, argv: list[str]
) -> None:
    assert nousctl(*argv).out == '{"message": "pong"}\n'


def test_a_socket_option_after_the_verb_overrides_one_before_it(
    daemon: FakeDaemon, nousctl: Nousctl, folder: Path
) -> None:
    nowhere, here = str(folder / "nowhere"), str(daemon.socket_path)
    assert nousctl("--socket", nowhere, "ping").code == 3
    assert nousctl("--socket", nowhere, "ping", "--socket", here).code == 0


def test_the_default_socket_is_in_the_runtime_folder(
    nousctl: Nousctl, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    outcome = nousctl("ping", at="")
    assert outcome.code == 3
    assert str(folder / "nousd" / "nousd.sock") in outcome.err


# --- exit codes --------------------------------------------------------------------------------


def test_a_refusal_is_printed_to_standard_error_with_exit_code_1(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    daemon.on["steer"] = refused("command_rejected", "no_active_run", cause="idle")
    outcome = nousctl("steer", "x")
    assert outcome == (
        1,
        "",
        "no run is active in this session; start one with: nousctl prompt TEXT (idle)\n",
    )
    outcome = nousctl("steer", "x", "--verbose")
    assert outcome.err == "command_rejected: no_active_run (idle)\n"
    outcome = nousctl("steer", "x", "--json")
    assert json.loads(outcome.err) == {
        "error": {"code": "command_rejected", "message": "no_active_run", "cause": "idle"}
    }


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("cancelled", 1)])
def test_a_prompt_whose_run_did_not_complete_is_exit_code_1(
    daemon: FakeDaemon, nousctl: Nousctl, status: str, code: int
) -> None:
    daemon.on["prompt"] = ok("result", {"output": "said", "status": status})
    outcome = nousctl("prompt", "x")
    assert (outcome.code, outcome.out) == (code, "said\n")


@pytest.mark.parametrize("line", [b"garbage\n", None])
def test_an_invalid_answer_or_a_closed_connection_is_exit_code_1(
    daemon: FakeDaemon, nousctl: Nousctl, line: bytes | None
) -> None:
    daemon.otherwise = says(line)
    outcome = nousctl("ping")
    assert outcome.code == 1
    assert outcome.err.startswith("the daemon ")


@pytest.mark.parametrize("duration", ["0.01", "10ms"])
def test_request_timeout_limits_the_wait_for_an_answer(
    daemon: FakeDaemon, nousctl: Nousctl, duration: str
) -> None:
    daemon.otherwise = says(b"")
    outcome = nousctl("ping", "--request-timeout", duration)
    assert (outcome.code, outcome.err) == (1, "the daemon did not answer in time\n")


def test_no_daemon_is_exit_code_3(nousctl: Nousctl, folder: Path) -> None:
    outcome = nousctl("ping", "--socket", str(folder / "none"))
    assert outcome.code == 3
    assert outcome.err.splitlines() == [
        f"no daemon listens on {folder}/none: No such file or directory",
        "start it with: nousctl restart, or in the foreground: nousd serve",
    ]


@pytest.mark.parametrize(
    "argv",
    [
        ["pnig"],
        ["prompt"],
        ["ping", "--nonsense"],
        ["set_steering_mode", "some"],
        ["clear_queue", "--kind", "prompt"],
        ["sessions", "--limit", "many"],
        ["new", "--rules", "["],
        ["update", "s", "--sampling", "[]"],
        ["ext", "name", "{not json"],
        ["ping", "--request-timeout", "-1"],
        ["ping", "--request-timeout", "nan"],
        ["override", "500ms"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_and_sends_nothing(
    daemon: FakeDaemon, nousctl: Nousctl, argv: list[str]
) -> None:
    assert nousctl(*argv).code == 2
    assert daemon.heard == []


LONGER = "30s, 5m, 1h or 7d (a plain number is in"


@pytest.mark.parametrize(
    ("argv", "flag", "text", "form"),
    [
        ("ping --request-timeout soon", "--request-timeout", "soon", f"500ms, {LONGER} seconds)"),
        ("ping --request-timeout 20d", "--request-timeout", "20d", f"500ms, {LONGER} seconds)"),
        ("override 5x", "DURATION", "5x", f"such as {LONGER} seconds)"),
        ("mcp add a --timeout-ms 1.5 -- b", "--timeout-ms", "1.5", f"{LONGER} milliseconds)"),
    ],
)
def test_an_invalid_duration_is_refused_with_the_flag_the_value_and_the_form(
    nousctl: Nousctl, argv: str, flag: str, text: str, form: str
) -> None:
    error = " ".join(nousctl(*argv.split()).err.split())
    assert flag in error
    assert f"'{text}' is not" in error
    assert form in error


# --- output ------------------------------------------------------------------------------------


def _example(struct: type) -> Any:
    """Return the smallest payload of a struct: its required fields, one item in each list."""
    return {
        field.name: _value(msgspec.json.schema(field.type))
        for field in msgspec.structs.fields(struct)
        if field.required
    }


def _value(schema: dict[str, Any]) -> Any:
    if "$ref" in schema:
        return _value({**schema["$defs"][schema["$ref"].split("/")[-1]], "$defs": schema["$defs"]})
    if "anyOf" in schema:
        return _value({**schema["anyOf"][0], "$defs": schema.get("$defs", {})})
    if "enum" in schema:
        return schema["enum"][0]
    kinds = {"string": "text", "integer": 1, "boolean": True, "number": 1.5}
    if schema["type"] == "array":
        return [_value({**schema["items"], "$defs": schema.get("$defs", {})})]
    if schema["type"] == "object":
        return {
            name: _value({**schema["properties"][name], "$defs": schema.get("$defs", {})})
            for name in schema.get("required", ())
        }
    return kinds[schema["type"]]


def test_attach_and_override_show_the_workspace_and_the_override(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    moved = {"session_id": "s", "workspace": "/b", "attached_from": "/a", "revoked": ["bash(ls)"]}
    daemon.on["attach_session"] = ok("attached", moved)
    assert nousctl("attach", "/b").out.splitlines() == [
        "s works in /b",
        "before    /a",
        "revoked   bash(ls)",
    ]
    holds = {"session_id": "s", "override": {"ttl_seconds": 60, "expires_at": "then"}}
    daemon.on["override_workspace"] = ok("workspace_override", holds)
    assert nousctl("override", "60").out == "what lies outside is asked about until then\n"
    daemon.on["override_workspace"] = ok("workspace_override", {"session_id": "s"})
    assert nousctl("override", "0").out == "what lies outside is refused\n"


@pytest.mark.parametrize("type_", sorted(RESPONSES.keys() - {"subscribed", "keepalive", "events"}))
def test_every_answer_type_is_shown_as_text(type_: str) -> None:
    payload = _example(RESPONSES[type_])
    msgspec.convert(payload, RESPONSES[type_])  # the example is one
    payload.update({"before": "b"} if type_ == "messages" else {})
    shown = "\n".join(as_text(Answer("1", type_, payload, None)))
    assert shown
    assert "{" not in shown.replace("{}", "")


def test_a_task_session_is_shown_with_its_parent() -> None:
    row = {"session_id": "s2", "updated_at": "then", "run_state": "idle", "active": False}
    row |= {"archived": False}
    origin = {"session_id": "s1", "run_id": "r", "tool_call_id": "c", "depth": 1}
    sessions = [{**row, "name": "worker: look", "origin": origin}]
    answer = {"sessions": sessions, "has_more": False, "count": 1}
    shown = as_text(Answer("1", "sessions", answer, None))
    assert shown == ['  s2  then  idle "worker: look", a task of s1']


def test_a_session_record_is_shown_with_all_of_its_fields() -> None:
    session = {
        "session_id": "s1",
        "created_at": "first",
        "updated_at": "then",
        "active": False,
        "run_state": "idle",
        "workspace": "/w",
        "archived": True,
        "provider": "p",
        "model": "m",
        "permission_mode": "auto",
        "name": "n",
        "source": "chat",
        "source_metadata": {"thread": 7},
        "sampling": {"temperature": 0.5, "max_tokens": 100},
        "rules": {"deny": ["bash", "write(x)"]},
        "attached_from": "/before",
        "attached_at": "later",
        "override": {"ttl_seconds": 60, "expires_at": "soon"},
    }
    assert as_text(Answer("1", "session_record", {"session": session}, None)) == [
        's1  idle "n" from chat, archived',
        "created   first, updated then",
        "workspace /w",
        "model     p m, mode auto",
        "before    /before, until later",
        "override  until soon",
        "sampling  temperature 0.5, max_tokens 100",
        "rule      deny bash",
        "rule      deny write(x)",
        "kept      thread",
    ]


def test_line_breaks_in_todos_and_descriptions_are_shown_as_spaces() -> None:
    todos = [{"id": "1", "content": "one\ntwo", "status": "pending"}]
    assert as_text(Answer("1", "todos", {"todos": todos}, None)) == ["pending      one two"]
    agent = {"name": "a", "source": "user", "trusted": True, "usable": True, "path": "/a.md"}
    agents = [{**agent, "description": "one\ntwo"}]
    shown = as_text(Answer("1", "agents", {"agents": agents}, None))
    assert shown == ["a (user)  one two", "    /a.md"]
    assert as_text(Answer("1", "agents", {"agents": []}, None)) == ["there are no agents"]


def test_an_answer_type_without_a_formatter_is_shown_key_by_key() -> None:
    payload = {"seconds": 1.5, "is_late": False}
    assert as_text(Answer("1", "type_without_a_formatter", payload, None)) == [
        "seconds  1.5",
        "is_late  False",
    ]


def test_an_answer_with_unexpected_nested_values_is_shown_as_json() -> None:
    payload = {"anything": ["goes"]}
    for type_ in ("extension_result", "state"):
        assert json.loads("\n".join(as_text(Answer("1", type_, payload, None)))) == payload


def test_control_characters_are_shown_in_terminal_text() -> None:
    assert harmless("a\x1b[2Jb\rc\td\ne\x9b") == "a<U+001B>[2Jb<U+000D>c\td\ne<U+009B>"


@pytest.mark.parametrize(
    "code",
    [
        *(0x00AD, 0x034F, 0x061C, 0x200B, 0x200D, 0x200E, 0x200F, 0x2028, 0x2800),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *(0xD800, 0xFE01, 0xFEFF, 0xE0041, 0xE0100),
    ],
)
def test_characters_that_hide_or_reorder_text_are_shown(code: int) -> None:
    assert harmless(f"a{chr(code)}b") == f"a<U+{code:04X}>b"


def test_visible_text_of_any_script_is_unchanged() -> None:
    text = "né 日本 שלום ⚠️ e\u0301\u00a0|\t|\n"
    assert harmless(text) == text
    assert harmless("a\tb\nc", one_line=True) == "a<U+0009>b<U+000A>c"


def test_a_branching_tree_is_indented_where_it_branches() -> None:
    nodes = [
        {"id": id, "parent_id": parent, "role": "user", "snippet": "hi"}
        for id, parent in [("a", ""), ("b", "a"), ("c", "b"), ("d", "b"), ("e", "d")]
    ]
    payload = {"session_id": "s", "nodes": nodes, "has_more": False, "leaf_id": "e"}
    assert as_text(Answer("1", "tree", payload, None)) == [
        "  a user: hi",
        "  b user: hi",
        "    c user: hi",
        "    d user: hi",
        "*   e user: hi",
    ]
