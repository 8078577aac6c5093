"""v1 is frozen: the structs have what protocol/frozen-v1.json lists, and require nothing more.

A failure here means that clients written for v1 would break. Change the structs, not the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from nousd.errors import WIRE_ERROR_CODES, CommandRejected
from nousd.wire.codec.envelope import encode_error, encode_event_tail, encode_response, number_event
from nousd.wire.commands import COMMANDS
from nousd.wire.events import EVENTS, FROZEN_EVENTS, MessageStart, TurnStart
from nousd.wire.objects.entries import MessageEntry, TurnKind
from nousd.wire.objects.field_types import QueueMode
from nousd.wire.objects.inputs import PendingCounts
from nousd.wire.responses import RESPONSES, Pong
from nousd.wire.responses.base import RunState
from nousd.wire.responses.runs import FlatEvent
from nousd.wire.responses.transcripts import TreeNode
from tests.harness.conversation import load

PROTOCOL = Path(__file__).resolve().parents[2] / "protocol"
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "conversations"
FROZEN = json.loads((PROTOCOL / "frozen-v1.json").read_text(encoding="utf-8"))

SHAPES: dict[str, type[Any]] = {
    "state.pending_counts": PendingCounts,
    "messages.messages[]": MessageEntry,
    "tree.nodes[]": TreeNode,
    "result.events[]": FlatEvent,
}


def keys(struct: type[Any]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)} | tag_key(struct)


def required_keys(struct: type[Any]) -> set[str]:
    required = {field.encode_name for field in msgspec.structs.fields(struct) if field.required}
    return required | tag_key(struct)


def tag_key(struct: type[Any]) -> set[str]:
    tag: str | None = struct.__struct_config__.tag_field
    return {tag} if tag else set()


def frozen_keys(contract: dict[str, list[str]]) -> set[str]:
    return {*contract["required"], *contract["optional"]}


def test_the_file_lists_the_seventeen_commands_and_thirteen_events() -> None:
    assert len(FROZEN["commands"]) == 17
    assert len(FROZEN["events"]) == 13


def test_every_frozen_command_exists() -> None:
    assert set(FROZEN["commands"]) <= set(COMMANDS)


@pytest.mark.parametrize("name", FROZEN["commands"])
def test_a_frozen_request_requires_exactly_the_frozen_keys(name: str) -> None:
    request = FROZEN["commands"][name]["request"]
    assert required_keys(COMMANDS[name]) == set(request["required"])


@pytest.mark.parametrize("name", FROZEN["commands"])
def test_a_frozen_request_key_is_accepted(name: str) -> None:
    assert frozen_keys(FROZEN["commands"][name]["request"]) <= keys(COMMANDS[name])


RESPONSES_OF_COMMANDS = [
    (command, response)
    for command, contract in FROZEN["commands"].items()
    for response in contract["responses"]
    if response != "extension_result"
]


@pytest.mark.parametrize(("command", "response"), RESPONSES_OF_COMMANDS)
def test_a_frozen_response_key_exists(command: str, response: str) -> None:
    contract = FROZEN["commands"][command]["responses"][response]
    assert frozen_keys(contract) <= keys(RESPONSES[response])


@pytest.mark.parametrize("response", sorted({response for _, response in RESPONSES_OF_COMMANDS}))
def test_a_response_key_that_every_command_requires_is_required(response: str) -> None:
    contracts = [
        set(contract["responses"][response]["required"])
        for contract in FROZEN["commands"].values()
        if response in contract["responses"]
    ]
    assert set.intersection(*contracts) <= required_keys(RESPONSES[response])


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.ndjson")), ids=lambda path: path.stem)
def test_recorded_responses_have_the_keys_frozen_for_their_command(path: Path) -> None:
    """``accepted`` and ``session`` answer several commands, which froze different keys."""
    conversation = load(path)
    for step in conversation.steps:
        if step.kind == "<" and step.content["ok"] is True:
            command = conversation.requests.get(step.content["id"], "")
            contract = FROZEN["commands"].get(command, {}).get("responses", {})
            wanted = contract.get(step.content["type"], {"required": []})["required"]
            assert set(wanted) <= set(step.content["payload"]), step.number


@pytest.mark.parametrize("shape", FROZEN["shapes"])
def test_a_frozen_shape_keeps_its_keys(shape: str) -> None:
    contract = FROZEN["shapes"][shape]
    assert set(contract["required"]) <= required_keys(SHAPES[shape])
    assert set(contract["optional"]) <= keys(SHAPES[shape])


def test_the_list_of_frozen_events_matches_the_file() -> None:
    assert set(FROZEN["events"]) == set(FROZEN_EVENTS)
    assert set(FROZEN_EVENTS) <= set(EVENTS)


@pytest.mark.parametrize("name", FROZEN["events"])
def test_a_frozen_event_keeps_its_keys(name: str) -> None:
    contract = FROZEN["events"][name]
    assert set(contract["required"]) <= required_keys(EVENTS[name])
    assert set(contract["optional"]) <= keys(EVENTS[name])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("queue_mode", get_args(QueueMode)),
        ("run_state", get_args(RunState)),
    ],
)
def test_a_closed_enum_keeps_exactly_its_values(name: str, values: tuple[str, ...]) -> None:
    assert set(FROZEN["enums"][name]) == set(values)


def test_turn_kinds_lose_no_value_and_roles_keep_exactly_theirs() -> None:
    roles = get_type_hints(MessageStart)["role"]
    assert set(FROZEN["enums"]["turn_kind"]) <= set(get_args(TurnKind))
    assert set(FROZEN["enums"]["message_role"]) == set(get_args(roles))


def test_no_error_code_was_removed() -> None:
    assert set(FROZEN["error_codes"]) <= set(WIRE_ERROR_CODES)


def test_the_envelopes_have_the_frozen_keys() -> None:
    envelope = FROZEN["envelope"]
    ok = json.loads(encode_response("a", Pong(message="pong")))
    failed = json.loads(encode_error("a", CommandRejected("word", cause="why")))
    event = TurnStart(session_id="s", run_id="r", turn_id="1")
    numbered = json.loads(number_event(1, encode_event_tail(event, "2026-11-21T05:13:01Z")))
    assert set(ok) == set(envelope["ok"])
    assert set(failed) == set(envelope["error"])
    assert set(failed["error"]) == frozen_keys(envelope["error_body"])
    assert set(numbered) == set(envelope["event"])
    assert (ok["v"], failed["v"], numbered["v"]) == ("1", "1", "1")
    assert (ok["ok"], failed["ok"], failed["type"]) == (True, False, "error")
