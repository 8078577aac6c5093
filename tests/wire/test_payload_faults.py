"""Invalid payloads are refused with a message that names the field; valid ones are accepted."""

from __future__ import annotations

from typing import Any

import pytest

from nousd.errors import InvalidPayload
from nousd.wire.codec.envelope import decode_payload
from nousd.wire.commands import COMMANDS, GetMessages, Prompt
from nousd.wire.limits import NAME_CHARS_MAX, TEXT_CHARS_MAX, TOOLS_MAX
from tests.wire.request_lines import request

Faults = list[tuple[dict[str, Any], str]]

NO_TEXTS: list[Any] = [None, 1, ["a"], {}, "", " \n\t"]
NO_MODES: list[Any] = [None, 1, [], ""]
NO_NAMES: list[Any] = [None, 4, {}, ""]
NO_INTEGERS: list[Any] = ["9", 1.5, None, True, []]
NO_BOOLEANS: list[Any] = [None, 0, "true"]
NO_ARRAYS: list[Any] = ["read", None, 1, {}]
STRANGE_ARRAYS: list[Any] = [[1], [""], ["a", None]]
NO_LEVELS: list[Any] = [1, True, [], {}, ""]
NO_KINDS: list[Any] = ["prompt", 7, []]
LONG_NAME = "n" * (NAME_CHARS_MAX + 1)
LONG_TEXT = "t" * (TEXT_CHARS_MAX + 1)
TEXT_FAULTS: Faults = [
    ({}, "text is required"),
    *[({"text": value}, "text is required") for value in NO_TEXTS],
]
MODE_FAULTS: Faults = [
    ({}, "mode is required"),
    *[({"mode": value}, "mode is required") for value in NO_MODES],
    *[({"mode": value}, "mode must be one-at-a-time or all") for value in ("x", "ALL", " all")],
]
SESSION_FAULTS: Faults = [
    ({"session_id": 4}, "session_id must be a string"),
    ({"session_id": LONG_NAME}, "session_id is too long: at most 256"),
]
NO_OBJECTS: list[Any] = [4, []]
NO_NUMBERS: list[Any] = [None, "1", []]
NO_RULE_LISTS: list[Any] = [None, "bash", {}]
NO_SOURCES: list[Any] = [4, [], "a b", "-a"]
SESSION_METADATA_FAULTS: Faults = [
    *[({"source_metadata": value}, "source_metadata must be an object") for value in NO_OBJECTS],
    *[({"sampling": value}, "sampling must be an object") for value in NO_OBJECTS],
    *[
        ({"sampling": {"temperature": value}}, "sampling.temperature must be a number")
        for value in NO_NUMBERS
    ],
    ({"sampling": {"temperature": -0.1}}, "sampling.temperature must be at least 0"),
    ({"sampling": {"top_p": 1.5}}, "sampling.top_p must be at most 1"),
    ({"sampling": {"max_tokens": 1.5}}, "sampling.max_tokens must be an integer"),
    ({"sampling": {"max_tokens": 0}}, "sampling.max_tokens must be at least 1"),
    *[({"rules": value}, "rules must be an object") for value in NO_OBJECTS],
    ({"rules": {"denied": ["bash"]}}, "rules has an unknown key: denied"),
    *[({"rules": {"deny": value}}, "rules.deny must be an array") for value in NO_RULE_LISTS],
    ({"rules": {"deny": [4]}}, "an item of rules.deny must be a string"),
    ({"rules": {"deny": [None]}}, "an item of rules.deny must be a string"),
    ({"rules": {"ask": ["x"] * 65}}, "rules.ask is too long: at most 64"),
    ({"rules": {"allow": ["x" * 4097]}}, "an item of rules.allow is too long: at most 4096"),
]
WORKSPACE_FAULTS: Faults = [
    *[
        ({"workspace": value}, "workspace must be a string like /home/me/project")
        for value in (4, True)
    ],
    ({"workspace": "/" + "w" * 4096}, "workspace is too long: at most 4096"),
]
NEW_SESSION_FAULTS: Faults = [
    ({"name": 4}, "name must be a string"),
    *WORKSPACE_FAULTS,
    *[({"activate": value}, "activate must be a boolean") for value in NO_BOOLEANS],
    *[({"source": value}, "source must be a string like chat") for value in NO_SOURCES],
    ({"source": "a\n"}, "source must be a string like chat"),
    ({"model": 4}, "model must be a string"),
    ({"provider": 4}, "provider must be a string"),
    ({"parent_id": 4}, "parent_id must be a string"),
    *SESSION_METADATA_FAULTS,
]
ATTACH_FAULTS: Faults = [
    ({}, "workspace is required"),
    *[({"workspace": value}, "workspace is required") for value in (None, 4, "")],
    ({"workspace": "/" + "w" * 4096}, "workspace is too long: at most 4096"),
    *[({"workspace": "/a", "reason": value}, "reason must be a string") for value in (4, True)],
    ({"workspace": "/a", "reason": "r" * 4097}, "reason is too long: at most 4096"),
]
OVERRIDE_FAULTS: Faults = [
    ({}, "ttl_seconds is required"),
    *[({"ttl_seconds": value}, "ttl_seconds must be an integer") for value in NO_INTEGERS],
    ({"ttl_seconds": -1}, "ttl_seconds must be at least 0"),
    ({"ttl_seconds": 86401}, "ttl_seconds must be at most 86400"),
]
RUN_FAULTS: Faults = [({"expected_run_id": 4}, "expected_run_id must be a string")]
RUN_REQUEST_FAULTS: Faults = [
    *[({"reuse_appended": value}, "reuse_appended must be a boolean") for value in NO_BOOLEANS],
    *[({"require_appended": value}, "require_appended must be a boolean") for value in NO_BOOLEANS],
    *[({"strict_resend": value}, "strict_resend must be a boolean") for value in NO_BOOLEANS],
    *[
        fault
        for name in (
            "client_id",
            "agent_id",
            "agent_profile",
            "correlation_id",
            "model",
            "provider",
        )
        for fault in (
            ({name: 4}, f"{name} must be a string"),
            ({name: LONG_NAME}, f"{name} is too long: at most 256"),
        )
    ],
    ({"tools": 4}, "tools must be an array"),
    ({"tools": "read"}, "tools must be an array"),
    ({"tools": [4]}, "an item of tools must be a string that is not empty"),
    ({"tools": [""]}, "an item of tools must be a string that is not empty"),
    ({"tools": ["a"] * 1025}, "tools is too long: at most 1024"),
    *[
        ({"tool_choice": value}, "tool_choice must be auto or none or required")
        for value in (4, "any")
    ],
    ({"sampling": 4}, "sampling must be an object"),
]
REQUIRED_NAMES = {
    "set_leaf": "leaf_id",
    "switch_session": "session_id",
    "extension_command": "name",
    "rename_session": "name",
    "restore_session": "session_id",
    "get_run": "run_id",
    "get_session": "session_id",
    "promote": "input_id",
    "move_queued": "input_id",
    "remove_queued": "input_id",
}
PROJECT_PATH_FAULTS: Faults = [
    ({"path": 4}, "path must be a string"),
    ({"path": "p" * 4097}, "path is too long: at most 4096"),
]
PAGE_FAULTS: Faults = [
    ({"limit": 0}, "limit must be at least 1"),
    ({"limit": -1}, "limit must be at least 1"),
    ({"limit": 1001}, "limit must be at most 1000"),
    *[({"limit": value}, "limit must be an integer") for value in NO_INTEGERS],
]


def required_name_faults(key: str) -> Faults:
    return [
        ({}, f"{key} is required"),
        *[({key: value}, f"{key} is required") for value in NO_NAMES],
        ({key: LONG_NAME}, f"{key} is too long: at most 256"),
    ]


def with_required(key: str, value: Any, faults: Faults) -> Faults:
    return [({key: value} | payload, message) for payload, message in faults]


ATTACHMENT_FAULTS: Faults = [
    ({"attachments": 4}, "attachments must be an array"),
    ({"attachments": None}, "attachments must be an array"),
    ({"attachments": ["a.png"]}, "an item of attachments must be an object"),
    ({"attachments": [{}] * 17}, "attachments is too long: at most 16"),
    ({"attachments": [{"data": 4}]}, "attachments[0].data must be base64"),
    ({"attachments": [{"data": "a"}]}, "attachments[0].data must be base64"),
    ({"attachments": [{}, {"path": 4}]}, "attachments[1].path must be a string"),
    ({"attachments": [{"path": "x" * 4097}]}, "attachments[0].path is too long: at most 4096"),
    ({"attachments": [{"media_type": []}]}, "attachments[0].media_type must be a string"),
    ({"attachments": [{"name": "x" * 257}]}, "attachments[0].name is too long: at most 256"),
    ({"attachments": [{"artifact_id": ""}]}, "attachments[0].artifact_id must be a string"),
]

CONFIRMATION: dict[str, Any] = {
    "tool_call_id": "c",
    "attempt": 1,
    "input_hash": "h",
    "decision": "once",
}
CONFIRM_FAULTS: Faults = [
    ({}, "tool_call_id is required"),
    *[(CONFIRMATION | {"tool_call_id": value}, "tool_call_id is required") for value in NO_NAMES],
    *[(CONFIRMATION | {"input_hash": value}, "input_hash is required") for value in NO_NAMES],
    *[(CONFIRMATION | {"attempt": value}, "attempt must be an integer") for value in NO_INTEGERS],
    (CONFIRMATION | {"attempt": 0}, "attempt must be at least 1"),
    (CONFIRMATION | {"attempt": 2**53 + 1}, "attempt must be at most 9007199254740992"),
    *[(CONFIRMATION | {"decision": value}, "decision is required") for value in NO_MODES],
    *[
        (
            CONFIRMATION | {"decision": value},
            "decision must be once, session, always, deny or deny_session",
        )
        for value in ("ONCE", "yes")
    ],
    (CONFIRMATION | {"reason": 4}, "reason must be a string"),
    (CONFIRMATION | {"rule": 4}, "rule must be a string"),
    (CONFIRMATION | {"rule": "r" * 4097}, "rule is too long: at most 4096"),
    (CONFIRMATION | {"reason": "r" * 4097}, "reason is too long: at most 4096"),
]
ANSWER_FAULTS: Faults = [
    ({}, "question_id is required"),
    ({"question_id": "q"}, "answers is required"),
    *[
        ({"question_id": "q", "answers": answers}, message)
        for answers, message in [
            (4, "answers must be an array"),
            (["x"], "an item of answers must be an object"),
            ([{}] * 5, "answers is too long: at most 4"),
            ([{"chosen": 4}], "answers[0].chosen must be an array"),
            ([{"chosen": ["a"] * 17}], "answers[0].chosen is too long: at most 16"),
            ([{}, {"text": 4}], "answers[1].text must be a string"),
            ([{"text": "x" * 4097}], "answers[0].text is too long: at most 4096"),
        ]
    ],
]

CALL_FAULTS: Faults = [
    *required_name_faults("tool_call_id"),
    *with_required(
        "tool_call_id",
        "c",
        [
            ({"attempt": 0}, "attempt must be at least 1"),
            ({"attempt": 2**53 + 1}, "attempt must be at most 9007199254740992"),
            ({"attempt": "1"}, "attempt must be an integer"),
        ],
    ),
]
MCP_NAME = "name must be 1 to 32 lower-case letters, digits and dashes, like files"
CLASSES = "exec or network or read or write"
MCP_NAME_FAULTS: Faults = [
    ({}, "name is required"),
    *[({"name": value}, "name is required") for value in (None, 4, ["a"])],
    *[({"name": value}, MCP_NAME) for value in ("X Y", "-a", "a" * 33, "a\n")],
]

FAULTS: dict[str, Faults] = {
    "call_tool": [
        *required_name_faults("tool"),
        *with_required(
            "tool",
            "read",
            [
                *[({"args": value}, "args must be an object") for value in (4, ["a"], "a")],
                ({"client_call_id": 4}, "client_call_id must be a string"),
                ({"client_call_id": LONG_NAME}, "client_call_id is too long: at most 256"),
                *SESSION_FAULTS,
            ],
        ),
    ],
    "cancel_tool_call": required_name_faults("tool_call_id"),
    "get_tool_call": CALL_FAULTS,
    "list_tool_calls": [
        *PAGE_FAULTS,
        *SESSION_FAULTS,
        ({"run_id": 4}, "run_id must be a string"),
        *[({"before": value}, "before must be a string like evt-120") for value in ("c", 4)],
    ],
    "get_todos": SESSION_FAULTS,
    "list_agents": SESSION_FAULTS,
    "get_runtimes": [],
    "get_auth_status": [
        ({}, "runtime is required"),
        ({"runtime": 4}, "runtime is required"),
        ({"runtime": LONG_NAME}, "runtime is too long: at most 256"),
        ({"runtime": "a", "namespace": 4}, "namespace must be a string like user:anna"),
        ({"runtime": "a", "namespace": "anna"}, "namespace must be a string like user:anna"),
    ],
    "set_runtime": [
        ({}, "runtime is required"),
        ({"runtime": 4}, "runtime is required"),
        ({"runtime": LONG_NAME}, "runtime is too long: at most 256"),
        *with_required("runtime", None, SESSION_FAULTS),
    ],
    "add_mcp": [
        *MCP_NAME_FAULTS,
        *with_required(
            "name",
            "files",
            [
                *SESSION_FAULTS,
                ({"if_approved": "yes"}, "if_approved must be a boolean"),
                ({"ttl_seconds": "1"}, "ttl_seconds must be an integer"),
                ({"ttl_seconds": 0}, "ttl_seconds must be at least 1"),
                ({"ttl_seconds": 86_401}, "ttl_seconds must be at most 86400"),
                ({"command": 4}, "command must be an array"),
                ({"command": ["a"] * 65}, "command is too long: at most 64"),
                ({"url": 4}, "url must be a string"),
                ({"url": "u" * 4097}, "url is too long: at most 4096"),
                ({"command": [""]}, "an item of command must be a string that is not empty"),
                ({"env": ["A=b"]}, "env must be an object"),
                ({"env": {"A": 1}}, "an item of env must be a string that is not empty"),
                ({"classes": "read"}, "classes must be an array"),
                ({"classes": ["reed"]}, f"an item of classes must be {CLASSES}"),
                ({"classes": ["read"] * 5}, "classes is too long: at most 4"),
                ({"tool_classes": {"t": "read"}}, "an item of tool_classes must be an array"),
                ({"tool_classes": {"t": ["reed"]}}, f"an item of tool_classes must be {CLASSES}"),
                ({"headers": 4}, "headers must be an object"),
                ({"timeout_ms": 0}, "timeout_ms must be at least 1"),
                ({"timeout_ms": 3_600_001}, "timeout_ms must be at most 3600000"),
            ],
        ),
    ],
    "remove_mcp": [*MCP_NAME_FAULTS, *with_required("name", "files", SESSION_FAULTS)],
    "restart_mcp": [*MCP_NAME_FAULTS, *with_required("name", "files", SESSION_FAULTS)],
    "list_mcp": SESSION_FAULTS,
    "set_permission_mode": [
        ({}, "mode is required"),
        *[({"mode": value}, "mode is required") for value in NO_MODES],
        *[({"mode": value}, "mode must be ask, auto or yolo") for value in ("x", "ASK")],
        *with_required("mode", "ask", SESSION_FAULTS),
    ],
    "confirm_tool": CONFIRM_FAULTS,
    "list_permissions": SESSION_FAULTS,
    "revoke_permission": [
        ({}, "rule is required"),
        *[({"rule": value}, "rule is required") for value in NO_NAMES],
        ({"rule": "r" * 4097}, "rule is too long: at most 4096"),
        *with_required("rule", "r", SESSION_FAULTS),
    ],
    "trust": [
        ({}, "hash is required"),
        *[({"hash": value}, "hash is required") for value in NO_NAMES],
        ({"hash": "h" * 257}, "hash is too long: at most 256"),
        *with_required("hash", "h", [*PROJECT_PATH_FAULTS, *WORKSPACE_FAULTS]),
    ],
    "untrust": [*PROJECT_PATH_FAULTS, *WORKSPACE_FAULTS],
    "list_trust": WORKSPACE_FAULTS,
    "list_questions": SESSION_FAULTS,
    "answer_question": ANSWER_FAULTS,
    "reject_question": [
        ({}, "question_id is required"),
        *with_required("question_id", "q", [({"reason": 4}, "reason must be a string")]),
        ({"question_id": "q", "reason": "r" * 4097}, "reason is too long: at most 4096"),
    ],
    "prompt": [
        *TEXT_FAULTS,
        *with_required("text", "a", ATTACHMENT_FAULTS),
        ({"text": LONG_TEXT}, f"text is too long: at most {TEXT_CHARS_MAX}"),
        *[({"text": "a", "wait": value}, "wait must be a boolean") for value in NO_BOOLEANS],
        ({"text": "a", "leaf_id": 5}, "leaf_id must be a string"),
        ({"text": "a", "client_message_id": []}, "client_message_id must be a string"),
        ({"text": 1, "wait": 1}, "text is required"),
        *with_required("text", "a", SESSION_FAULTS + RUN_REQUEST_FAULTS),
    ],
    "append_message": [
        *TEXT_FAULTS,
        *with_required("text", "a", SESSION_FAULTS + ATTACHMENT_FAULTS),
        ({"text": LONG_TEXT}, f"text is too long: at most {TEXT_CHARS_MAX}"),
    ],
    "steer": [
        *TEXT_FAULTS,
        *with_required("text", "a", SESSION_FAULTS + RUN_FAULTS + ATTACHMENT_FAULTS),
    ],
    "follow_up": [
        *TEXT_FAULTS,
        *with_required("text", "a", SESSION_FAULTS + RUN_FAULTS + ATTACHMENT_FAULTS),
    ],
    "abort": [
        *SESSION_FAULTS,
        *RUN_FAULTS,
        *[({"keep_queue": value}, "keep_queue must be a boolean") for value in NO_BOOLEANS],
    ],
    "set_active_tools": [
        *[({"tools": value}, "tools must be an array") for value in NO_ARRAYS],
        ({}, "tools must be an array"),
        *[({"tools": value}, "tools must be string array") for value in STRANGE_ARRAYS],
        ({"tools": ["a"] * (TOOLS_MAX + 1)}, "tools is too long: at most 1024"),
        ({"tools": [LONG_NAME]}, "an item of tools is too long: at most 256"),
    ],
    "set_model": [
        *required_name_faults("model"),
        *with_required(
            "model",
            "m",
            [
                ({"must_be_listed": value}, "must_be_listed must be a boolean")
                for value in NO_BOOLEANS
            ],
        ),
    ],
    "set_steering_mode": MODE_FAULTS,
    "set_thinking": [
        ({}, "level is required"),
        *[({"level": value}, "level is required") for value in NO_LEVELS],
        *[
            ({"level": value}, "level must be off, low, medium, high or null")
            for value in ("x", "HIGH", "default")
        ],
        *with_required("level", None, SESSION_FAULTS),
    ],
    "get_capabilities": [
        ({"restricted": value}, "restricted must be a boolean") for value in NO_BOOLEANS
    ],
    "list_models": [
        ({"provider": 1}, "provider must be a string"),
        ({"provider": LONG_NAME}, "provider is too long: at most 256"),
        *[({"refresh": value}, "refresh must be a boolean") for value in NO_BOOLEANS],
    ],
    "set_follow_up_mode": MODE_FAULTS,
    "get_state": SESSION_FAULTS,
    "get_messages": [
        *PAGE_FAULTS,
        ({"session_id": LONG_NAME}, "session_id is too long: at most 256"),
        ({"compacted": "yes"}, "compacted must be a boolean"),
        ({"before": 4}, "before must be a string"),
    ],
    "compact_session": [({"instruction": 4}, "instruction must be a string"), *SESSION_FAULTS],
    "get_tree": [*PAGE_FAULTS, *SESSION_FAULTS, ({"after": 4}, "after must be a string")],
    "new_session": NEW_SESSION_FAULTS,
    "branch_session": [
        *SESSION_FAULTS,
        ({"parent_id": 4}, "parent_id must be a string"),
        *[({"activate": value}, "activate must be a boolean") for value in NO_BOOLEANS],
    ],
    "list_sessions": [
        *PAGE_FAULTS,
        *[({"archived": value}, "archived must be a boolean") for value in (0, "true")],
        *[({"offset": value}, "offset must be an integer") for value in NO_INTEGERS],
        ({"offset": -1}, "offset must be at least 0"),
        ({"source": "a b"}, "source must be a string like chat"),
        ({"workspace": 4}, "workspace must be a string"),
        ({"q": LONG_NAME}, "q is too long: at most 256"),
        ({"parent_id": 4}, "parent_id must be a string"),
    ],
    "delete_session": [
        *required_name_faults("session_id"),
        *with_required(
            "session_id",
            "s",
            [
                *[
                    ({"undo_seconds": value}, "undo_seconds must be an integer")
                    for value in NO_INTEGERS
                ],
                ({"undo_seconds": -1}, "undo_seconds must be at least 0"),
                ({"undo_seconds": 86_401}, "undo_seconds must be at most 86400"),
                *[({"abort": value}, "abort must be a boolean") for value in NO_BOOLEANS],
            ],
        ),
    ],
    "mark_seen": [*SESSION_FAULTS, ({"entry_id": 4}, "entry_id must be a string")],
    "search_sessions": [
        *required_name_faults("query"),
        *with_required(
            "query",
            "word",
            [
                *[({"archived": value}, "archived must be a boolean") for value in (0, "true")],
                *[({"limit": value}, "limit must be an integer") for value in NO_INTEGERS],
                ({"limit": 0}, "limit must be at least 1"),
                ({"limit": 101}, "limit must be at most 100"),
                ({"workspace": 4}, "workspace must be a string"),
                ({"before": "x" * 277}, "before is too long: at most 276"),
            ],
        ),
    ],
    "update_session": [
        *required_name_faults("session_id"),
        *with_required(
            "session_id",
            "s",
            [
                *[({"name": value}, "name must be a string") for value in NO_NAMES],
                *[({"archived": value}, "archived must be a boolean") for value in NO_BOOLEANS],
                *SESSION_METADATA_FAULTS,
            ],
        ),
    ],
    "attach_session": [*ATTACH_FAULTS, *with_required("workspace", "/a", SESSION_FAULTS)],
    "override_workspace": [*OVERRIDE_FAULTS, *with_required("ttl_seconds", 60, SESSION_FAULTS)],
    "list_runs": [*PAGE_FAULTS, *SESSION_FAULTS],
    "get_events": [
        *PAGE_FAULTS,
        *SESSION_FAULTS,
        ({"run_id": 4}, "run_id must be a string"),
        *[({"types": value}, "types must be all or v1 or an array") for value in ("some", 4)],
        *[({"after": value}, "after must be a string like evt-120") for value in ("msg-1", 4)],
    ],
    "get_queue": SESSION_FAULTS,
    "clear_queue": [
        *SESSION_FAULTS,
        *[({"kind": value}, "kind must be follow_up or steer") for value in NO_KINDS],
    ],
    "edit_queued": [
        ({"text": "a"}, "input_id is required"),
        *with_required("input_id", "in-1", TEXT_FAULTS),
        (
            {"input_id": "i", "text": "a", "queue_revision": "1"},
            "queue_revision must be an integer",
        ),
        ({"input_id": "i", "text": "a", "queue_revision": -1}, "queue_revision must be at least 0"),
    ],
    "resume": SESSION_FAULTS,
    "list_tools": SESSION_FAULTS,
    "put_artifact": [
        *[({"data": value}, "data is required") for value in (None, 4, ["a"])],
        *[({"data": value}, "data must be base64") for value in ("a", "YQ", "*", "YQ==\n")],
        *[({"data": "", "media_type": value}, "media_type is required") for value in (None, 4, "")],
        *[
            ({"data": "", "media_type": value}, "media_type must be a media type like image/png")
            for value in ("text", "/png", "image/", "a b/c", "text/plain\n", "text/pl\x00in")
        ],
        (
            {"data": "", "media_type": "text/" + LONG_NAME},
            "media_type is too long: at most 256",
        ),
        *with_required(
            "media_type",
            "text/plain",
            with_required(
                "data",
                "",
                [
                    ({"upload_id": 4}, "upload_id must be a string"),
                    ({"offset": -1}, "offset must be at least 0"),
                    ({"offset": "5"}, "offset must be an integer"),
                    *[({"final": value}, "final must be a boolean") for value in NO_BOOLEANS],
                ],
            ),
        ),
    ],
    "get_artifact": [
        *required_name_faults("artifact_id"),
        *with_required(
            "artifact_id",
            "sha256:0",
            [
                ({"offset": -1}, "offset must be at least 0"),
                ({"offset": None}, "offset must be an integer"),
                ({"length": 0}, "length must be at least 1"),
                ({"length": 4194305}, "length must be at most 4194304"),
            ],
        ),
    ],
    **{type_: required_name_faults(key) for type_, key in REQUIRED_NAMES.items()},
}


@pytest.mark.behaviour("payload_faults_name_the_field")
@pytest.mark.parametrize("type_", FAULTS)
def test_an_invalid_payload_is_refused_with_a_message_that_names_the_field(type_: str) -> None:
    for payload, message in FAULTS[type_]:
        with pytest.raises(InvalidPayload) as caught:
            decode_payload(request(type_, payload))
        assert caught.value.message == message, str(payload)[:200]


def test_every_command_with_fields_has_its_faults_in_the_table() -> None:
    without_fields = {name for name, struct in COMMANDS.items() if not struct.__struct_fields__}
    assert set(FAULTS) | without_fields == set(COMMANDS)


@pytest.mark.behaviour("empty_optional_ids_count_as_absent")
@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        ("prompt", {"text": "a", "leaf_id": "", "session_id": ""}),
        ("get_state", {"session_id": ""}),
        ("get_messages", {"session_id": "", "leaf_id": ""}),
        ("branch_session", {"session_id": "", "parent_id": ""}),
        ("clear_queue", {"kind": ""}),
    ],
)
def test_an_empty_optional_id_counts_as_absent(type_: str, payload: dict[str, Any]) -> None:
    bare = {key: value for key, value in payload.items() if value}
    assert decode_payload(request(type_, payload)) == decode_payload(request(type_, bare))


def test_a_null_optional_id_counts_as_absent() -> None:
    assert decode_payload(request("prompt", {"text": "a", "leaf_id": None})) == Prompt(text="a")


@pytest.mark.behaviour("get_messages_ignores_ids_of_a_wrong_type")
def test_get_messages_treats_ids_that_are_not_strings_as_absent() -> None:
    assert (
        decode_payload(request("get_messages", {"session_id": 4, "leaf_id": []})) == GetMessages()
    )


@pytest.mark.parametrize("payload", ["str", 7, None, [1], {"text": "hi"}])
def test_an_extension_command_takes_any_payload(payload: Any) -> None:
    decoded = decode_payload(request("extension_command", {"name": "echo", "payload": payload}))
    assert decoded == COMMANDS["extension_command"](name="echo", payload=payload)
