"""The subscription line: its options, and the errors for invalid ones."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from nousd.errors import InvalidPayload
from nousd.wire.codec.envelope import convert_payload
from nousd.wire.commands.subscribe import Subscribe
from tests.harness.validation import check_subscription

STRANGE_CURSORS = [
    "120",
    "abc",
    "evt-",
    "evt--1",
    "evt-+1",
    "evt-1x",
    "evt-1\n",
    "evt- 1",
    "EVT-1",
    "evt-\u0967",
    "evt-" + "1" * 19,
    "evt-" + "9" * 30,
]
NO_TYPES: list[Any] = [5, "V1", [5], [""], None, {}]


def decode(payload: dict[str, Any]) -> Subscribe:
    return convert_payload(msgspec.Raw(json.dumps(payload).encode()), Subscribe)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({}, Subscribe()),
        ({"after": "evt-0"}, Subscribe(after="evt-0")),
        ({"after": None, "session_id": ""}, Subscribe()),
        ({"keepalive_seconds": None}, Subscribe()),
        ({"keepalive_seconds": 1}, Subscribe(keepalive_seconds=1)),
        ({"keepalive_seconds": 2.5}, Subscribe(keepalive_seconds=2.5)),
        ({"keepalive_seconds": 3600}, Subscribe(keepalive_seconds=3600)),
        ({"types": "all"}, Subscribe(types="all")),
        ({"types": ["status", "unheard_of"]}, Subscribe(types=("status", "unheard_of"))),
        ({"session_id": "s", "run_id": "r", "more": 1}, Subscribe(session_id="s", run_id="r")),
    ],
)
def test_a_subscription_is_decoded_with_its_options(
    payload: dict[str, Any], expected: Subscribe
) -> None:
    assert decode(payload) == expected


@pytest.mark.parametrize(
    "payload", [{}, {"after": "evt-1"}, {"types": ["status"]}, {"types": "v1"}]
)
def test_the_schema_accepts_a_valid_subscription(payload: dict[str, Any]) -> None:
    line = json.dumps({"v": "1", "id": "s", "type": "subscribe", "payload": payload}).encode()
    assert check_subscription(line + b"\n")["payload"] == payload


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        *[
            ({"after": value}, "after must be a string like evt-120")
            for value in (5, "", *STRANGE_CURSORS)
        ],
        *[
            ({"keepalive_seconds": value}, f"keepalive_seconds must be {wanted}")
            for value, wanted in (
                (0.999, "at least 1"),
                (0, "at least 1"),
                (-1, "at least 1"),
                (3600.001, "at most 3600"),
                (10**30, "at most 3600"),
                ("5", "a number"),
                (True, "a number"),
                ([5], "a number"),
            )
        ],
        ({"types": ["error"] * 65}, "types is too long: at most 64"),
        *[({"types": value}, "types must be all or v1 or an array") for value in NO_TYPES],
        ({"session_id": 5}, "session_id must be a string"),
        ({"run_id": "r" * 257}, "run_id is too long: at most 256"),
    ],
)
def test_an_invalid_subscription_is_refused_with_a_message_that_names_the_option(
    payload: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidPayload) as caught:
        decode(payload)
    assert caught.value.message == message
