"""Requests: the tolerance that v1 clients were promised, and a worded error for all the rest."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.errors import InvalidCommand, InvalidPayload
from nousd.wire.codec import Request, decode_payload, decode_request
from nousd.wire.commands import COMMANDS, Command, GetMessages, Ping, Prompt
from nousd.wire.limits import NAME_CHARS_MAX, NESTING_MAX, TEXT_CHARS_MAX, TOOLS_MAX


def decode(line: bytes | str) -> Command:
    return decode_payload(decode_request(line.encode() if isinstance(line, str) else line))


def request(type_: str, payload: Any) -> Request:
    return decode_request(
        json.dumps({"v": "1", "id": "a", "type": type_, "payload": payload}).encode()
    )


# --- lines that are refused ------------------------------------------------------------------

MALFORMED: list[tuple[bytes, str, str]] = [
    # line, readable id, message
    (b"not json", "", "invalid_json: syntax error at column 1"),
    (b"", "", "invalid_json: the line is empty"),
    (b"   ", "", "invalid_json: the line is empty"),
    (b"{}", "", "missing_id"),
    (b"null", "", "missing_id"),
    (b'{"v":"1","type":"ping","payload":{}}', "", "missing_id"),
    (b'{"v":"1","id":"","type":"ping"}', "", "missing_id"),
    (b'{"v":"1","id":null,"type":"ping"}', "", "missing_id"),
    (b'{"v":"1","id":"m4","payload":{}}', "m4", "missing_type"),
    (b'{"v":"1","id":"m4","type":""}', "m4", "missing_type"),
    (b'{"v":"1","id":"m4","type":null}', "m4", "missing_type"),
    (b'{"v":"2","id":"m1","type":"ping"}', "m1", "invalid_version: expected 1, got 2"),
    (b'{"v":1,"id":"m2","type":"ping"}', "m2", "invalid_json: v must be a string, got number"),
    (b'{"v":"1","id":7,"type":"ping"}', "", "invalid_json: id must be a string, got number"),
    (b'{"v":"1","id":true,"type":"ping"}', "", "invalid_json: id must be a string, got boolean"),
    (b'{"v":"1","id":"m5","type":3}', "m5", "invalid_json: type must be a string, got number"),
    (b'{"v":"1","id":"m5","type":{}}', "m5", "invalid_json: type must be a string, got object"),
    (b'{"v":"1","id":"m3","type":"frobnicate"}', "m3", "invalid_command: frobnicate"),
    (b'{"v":"1","id":"m3","type":"Ping"}', "m3", "invalid_command: Ping"),
    (
        b'{"v":"1","id":"m6","type":"ping","payload":"str"}',
        "m6",
        "invalid_json: payload must be an object, got string",
    ),
    (
        b'{"v":"1","id":"m7","type":"ping","payload":[1]}',
        "m7",
        "invalid_json: payload must be an object, got array",
    ),
    (b"[]", "", "invalid_json: expected an object, got array"),
    (b'"str"', "", "invalid_json: expected an object, got string"),
    (b"123", "", "invalid_json: expected an object, got number"),
    (b"true", "", "invalid_json: expected an object, got boolean"),
    (b'{"v":"1","id":"m8","type":"ping"} trailing', "", "invalid_json: syntax error at column 35"),
    (b'{"id":"m9","type":"ping"}{"id":"m10"}', "", "invalid_json: syntax error at column 26"),
    (b'{"v":"1","id":"cut', "", "invalid_json: syntax error at column 15"),
    (
        b'\xef\xbb\xbf{"v":"1","id":"bom","type":"ping"}',
        "",
        "invalid_json: syntax error at column 1",
    ),
    (
        b'{"v":"1","id":"nul\x00","type":"ping"}',
        "",
        "invalid_json: syntax error at column 19",
    ),
    (b'{"v":"1","id":"a","type":"ping","x":NaN}', "", "invalid_json: a number is out of range"),
    (
        b'{"id":"a","type":"ping","payload":{"n":1e999}}',
        "",
        "invalid_json: a number is out of range",
    ),
]


@pytest.mark.behaviour("errors_echo_readable_ids")
@pytest.mark.behaviour("malformed_lines_are_invalid_command")
@pytest.mark.parametrize(("line", "request_id", "message"), MALFORMED)
def test_a_malformed_line_is_refused_with_these_words(
    line: bytes, request_id: str, message: str
) -> None:
    with pytest.raises(InvalidCommand) as caught:
        decode(line)
    assert (caught.value.request_id, caught.value.message) == (request_id, message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"v":"2","id":"","type":""}', "invalid_version"),
        ('{"v":"2","id":7,"type":"nope"}', "invalid_json: id"),
        ('{"v":7,"id":7,"type":7,"payload":7}', "invalid_json: v"),
        ('{"v":"2","id":"a","type":"nope","payload":[]}', "invalid_json: payload"),
        ('{"id":"","type":""}', "missing_id"),
        ('{"id":"a","type":"","payload":{"text":7}}', "missing_type"),
        ('{"id":"a","type":"nope","payload":{"text":7}}', "invalid_command: nope"),
    ],
)
def test_faults_are_looked_for_in_a_fixed_order(line: str, message: str) -> None:
    with pytest.raises(InvalidCommand, match=message):
        decode(line)


@pytest.mark.behaviour("nesting_is_limited")
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"\\"[":', "}]")])
def test_nesting_past_the_limit_is_refused_and_up_to_it_is_not(opening: str, closing: str) -> None:
    per_level = opening.count("{") + (opening[0] == "[")
    levels = (NESTING_MAX - 2) // per_level

    def line(count: int) -> str:
        nested = opening * count + "0" + closing * count
        return f'{{"v":"1","id":"a","type":"ping","payload":{{"a":{nested}}}}}'

    assert isinstance(decode(line(levels)), Ping)
    with pytest.raises(
        InvalidCommand, match=f"invalid_json: nested deeper than {NESTING_MAX} levels"
    ):
        decode(line(levels + 1))


def test_brackets_inside_strings_are_no_nesting() -> None:
    text = '[{"' * 1000 + "\\"
    decoded = decode(json.dumps({"id": "a", "type": "prompt", "payload": {"text": text}}))
    assert isinstance(decoded, Prompt)
    assert decoded.text == text


def test_measuring_the_nesting_takes_no_memory_for_long_strings() -> None:
    line = b'{"v":"1","id":"a","type":"ping","payload":{"a":"%b","b":[%b]}}' % (
        b"x" * 2_000_000,
        b",".join([b"{}"] * 1000),
    )
    tracemalloc.start()
    try:
        decode(line)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(line)


# --- lines that are accepted -----------------------------------------------------------------

TOLERATED: list[tuple[bytes, str]] = [
    (b'{"v":"1","id":"a","type":"ping","payload":{}}', "a"),
    (b'{"v":"1","id":"a","type":"ping"}', "a"),
    (b'{"v":"1","id":"a","type":"ping","payload":null}', "a"),
    (b'{"id":"a","type":"ping"}', "a"),
    (b'{"v":null,"id":"a","type":"ping"}', "a"),
    (b'{"v":"","id":"a","type":"ping"}', "a"),
    (b'{"V":"1","Id":"caps","TYPE":"ping"}', "caps"),
    (b' \t{ "id" : "a" , "type" : "ping" } ', "a"),
    (
        b'{"v":"1","id":"a","type":"ping","payload":{"x":1},"ts":"t","meta":{"a":1},"extra":"y"}',
        "a",
    ),
    (b'{"v":"1","id":"dup1","id":"dup2","type":"ping"}', "dup2"),
    (b'{"v":"1","id":"exact","ID":"other","type":"ping"}', "exact"),
    (b'{"v":"1","ID":"other","id":"exact","TYPE":"nope","type":"ping","payload":null}', "exact"),
    (b'{"v":"1","id":"utf\xff\xfe","type":"ping"}', "utf\ufffd\ufffd"),
    (b'{"v":"1","id":"sur\\ud800","type":"ping"}', "sur\ufffd"),
    (b'{"v":"1","id":"pair\\ud83d\\ude00","type":"ping"}', "pair\U0001f600"),
    ('{"v":"1","id":"<&>\u2028","type":"ping"}'.encode(), "<&>\u2028"),
    (b'{"v":"1","id":"big","type":"ping","payload":{"n":123456789012345678901234567890}}', "big"),
    (b'{"v":"1","id":"big","type":"ping","payload":{"n":%b}}' % (b"9" * 5000), "big"),
]


@pytest.mark.behaviour("the_envelope_is_tolerant")
@pytest.mark.parametrize(("line", "request_id"), TOLERATED)
def test_a_tolerable_line_is_a_ping(line: bytes, request_id: str) -> None:
    decoded = decode_request(line)
    assert (decoded.id, decoded.type) == (request_id, "ping")
    assert decode_payload(decoded) == Ping()


@pytest.mark.parametrize("payload_key", ["payload", "Payload", "PAYLOAD"])
def test_the_payload_is_found_in_any_case(payload_key: str) -> None:
    decoded = decode(f'{{"v":"1","id":"a","type":"prompt","{payload_key}":{{"text":"hi"}}}}')
    assert decoded == Prompt(text="hi")


def test_a_version_is_checked_in_any_case() -> None:
    with pytest.raises(InvalidCommand, match="invalid_version"):
        decode('{"V":"2","id":"a","type":"ping","payload":{}}')


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"a\\ud800b", "a\ufffdb"),
        (b"\\udc00\\ud800", "\ufffd\ufffd"),
        (b"\\ud83d\\ude00", "\U0001f600"),
        (b"\\u0000\\n", "\x00\n"),
    ],
)
def test_a_text_that_is_not_unicode_is_repaired(raw: bytes, text: str) -> None:
    line = b'{"v":"1","id":"a","type":"prompt","payload":{"text":"x%b"}}' % raw
    assert decode(line) == Prompt(text="x" + text)


def test_unknown_payload_keys_are_skipped_and_the_last_duplicate_counts() -> None:
    line = '{"id":"a","type":"prompt","payload":{"text":"one","more":[1],"text":"two"}}'
    assert decode(line) == Prompt(text="two")


# --- payload faults --------------------------------------------------------------------------

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
SAID_OF_SESSION_FAULTS: Faults = [
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
FOLDER_FAULTS: Faults = [
    *[
        ({"workspace": value}, "workspace must be a string like /home/me/project")
        for value in (4, True)
    ],
    ({"workspace": "/" + "w" * 4096}, "workspace is too long: at most 4096"),
]
NEW_SESSION_FAULTS: Faults = [
    ({"name": 4}, "name must be a string"),
    *FOLDER_FAULTS,
    *[({"activate": value}, "activate must be a boolean") for value in NO_BOOLEANS],
    *[({"source": value}, "source must be a string like chat") for value in NO_SOURCES],
    ({"source": "a\n"}, "source must be a string like chat"),
    ({"model": 4}, "model must be a string"),
    ({"provider": 4}, "provider must be a string"),
    ({"parent_id": 4}, "parent_id must be a string"),
    *SAID_OF_SESSION_FAULTS,
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
    "delete_session": "session_id",
    "get_run": "run_id",
    "get_session": "session_id",
    "promote": "input_id",
    "set_model": "model",
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

CONFIRMED: dict[str, Any] = {
    "tool_call_id": "c",
    "attempt": 1,
    "input_hash": "h",
    "decision": "once",
}
CONFIRM_FAULTS: Faults = [
    ({}, "tool_call_id is required"),
    *[(CONFIRMED | {"tool_call_id": value}, "tool_call_id is required") for value in NO_NAMES],
    *[(CONFIRMED | {"input_hash": value}, "input_hash is required") for value in NO_NAMES],
    *[(CONFIRMED | {"attempt": value}, "attempt must be an integer") for value in NO_INTEGERS],
    (CONFIRMED | {"attempt": 0}, "attempt must be at least 1"),
    (CONFIRMED | {"attempt": 2**53 + 1}, "attempt must be at most 9007199254740992"),
    *[(CONFIRMED | {"decision": value}, "decision is required") for value in NO_MODES],
    *[
        (
            CONFIRMED | {"decision": value},
            "decision must be once, session, always, deny or deny_session",
        )
        for value in ("ONCE", "yes")
    ],
    (CONFIRMED | {"reason": 4}, "reason must be a string"),
    (CONFIRMED | {"rule": 4}, "rule must be a string"),
    (CONFIRMED | {"rule": "r" * 4097}, "rule is too long: at most 4096"),
    (CONFIRMED | {"reason": "r" * 4097}, "reason is too long: at most 4096"),
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
    "add_mcp": [
        *MCP_NAME_FAULTS,
        *with_required(
            "name",
            "files",
            [
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
    "remove_mcp": MCP_NAME_FAULTS,
    "restart_mcp": MCP_NAME_FAULTS,
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
        *with_required("hash", "h", [*PROJECT_PATH_FAULTS, *FOLDER_FAULTS]),
    ],
    "untrust": [*PROJECT_PATH_FAULTS, *FOLDER_FAULTS],
    "list_trust": FOLDER_FAULTS,
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
    "update_session": [
        *required_name_faults("session_id"),
        *with_required(
            "session_id",
            "s",
            [
                *[({"name": value}, "name must be a string") for value in NO_NAMES],
                *[({"archived": value}, "archived must be a boolean") for value in NO_BOOLEANS],
                *SAID_OF_SESSION_FAULTS,
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
def test_a_payload_fault_is_answered_with_these_words(type_: str) -> None:
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
def test_get_messages_takes_ids_that_are_no_strings_as_absent() -> None:
    assert (
        decode_payload(request("get_messages", {"session_id": 4, "leaf_id": []})) == GetMessages()
    )


@pytest.mark.parametrize("payload", ["str", 7, None, [1], {"text": "hi"}])
def test_an_extension_command_takes_any_payload(payload: Any) -> None:
    decoded = decode_payload(request("extension_command", {"name": "echo", "payload": payload}))
    assert decoded == COMMANDS["extension_command"](name="echo", payload=payload)


# --- anything at all -------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_wire_errors(line: bytes) -> None:
    try:
        decode(line)
    except (InvalidCommand, InvalidPayload):
        return


@given(json_values)
def test_any_json_raises_nothing_but_wire_errors(value: Any) -> None:
    try:
        decode(json.dumps(value).encode())
    except (InvalidCommand, InvalidPayload):
        return


field_names = sorted({name for struct in COMMANDS.values() for name in struct.__struct_fields__})


@given(
    st.sampled_from(sorted(COMMANDS)), st.dictionaries(st.sampled_from(field_names), json_values)
)
def test_any_payload_gives_the_struct_or_invalid_payload(
    type_: str, payload: dict[str, Any]
) -> None:
    text = json.dumps(payload).replace("NaN", "1").replace("Infinity", "1e9")
    line = f'{{"v":"1","id":"a","type":"{type_}","payload":{text}}}'
    try:
        assert type(decode(line)) is COMMANDS[type_]
    except InvalidPayload as error:
        named = error.message.split(" ")[0]
    else:
        return
    assert named in (*COMMANDS[type_].__struct_fields__, "an")


@given(st.text(min_size=1, max_size=50), st.text(max_size=50))
def test_any_id_and_text_arrive_as_they_were_sent(request_id: str, text: str) -> None:
    line = json.dumps(
        {"v": "1", "id": request_id, "type": "prompt", "payload": {"text": "." + text}}
    )
    decoded = decode_request(line.encode("utf-8"))
    assert (decoded.id, decode_payload(decoded)) == (request_id, Prompt(text="." + text))


@given(st.binary(max_size=40))
def test_any_bytes_inside_a_text_never_make_another_command(raw: bytes) -> None:
    line = b'{"v":"1","id":"a","type":"prompt","payload":{"text":"' + raw + b'"}}'
    try:
        decoded = decode_request(line)
    except InvalidCommand:
        return
    assert isinstance(decoded.id, str)
