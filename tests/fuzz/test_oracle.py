"""The oracle of the fuzzer finds missing, unordered and invalid responses."""

from __future__ import annotations

import pytest

from tests.fuzz.cases import Cases
from tests.fuzz.oracle import answer_faults, lines_of, told_faults

LIMIT = 100

PING = b'{"id":"a","type":"ping"}'
OTHER = b'{"id":"b","type":"ping"}'
PONG = b'{"v":"1","id":"a","type":"pong","payload":{"message":"pong"},"ok":true}\n'
OTHER_PONG = PONG.replace(b'"a"', b'"b"')
REFUSED = (
    b'{"v":"1","id":"","type":"error","payload":{},"ok":false,'
    b'"error":{"code":"invalid_command","message":"invalid_json"}}\n'
)
FAULT = REFUSED.replace(b"invalid_command", b"internal_error")
EVENT = (
    b'{"v":"1","id":"evt-1","type":"turn_start","payload":'
    b'{"session_id":"s","run_id":"r","turn_id":"1"},"ts":"2026-01-01T00:00:00.000000Z"}\n'
)


@pytest.mark.parametrize(
    ("sent", "is_all", "lines"),
    [
        (b"", True, []),
        (b"a\nb\n", False, [b"a", b"b"]),
        (b"a\nb", False, [b"a"]),
        (b"a\nb", True, [b"a", b"b"]),
        (b"\n\n", True, [b"", b""]),
        (b"x" * (LIMIT + 1), False, []),
        (b"x" * (LIMIT + 2), False, [b"x" * (LIMIT + 2)]),
    ],
)
def test_each_line_must_be_answered(sent: bytes, is_all: bool, lines: list[bytes]) -> None:
    assert lines_of(sent, is_all=is_all, line_bytes_max=LIMIT) == lines


@pytest.mark.parametrize(
    ("lines", "answers"),
    [
        ([], []),
        ([PING, OTHER], [PONG, OTHER_PONG]),
        ([b"}", PING], [REFUSED, PONG]),
        ([b'{"ID":"a","type":"ping"}'], [PONG]),
        ([b'{"id":"b"' + b"x" * LIMIT], [REFUSED]),
        ([PING.replace(b'"a"', b'"\xff"')], [PONG.replace(b'"a"', b'"\xef\xbf\xbd"')]),
        ([PING.replace(b'"a"', b'"\\ud800"')], [PONG.replace(b'"a"', b'"\xef\xbf\xbd"')]),
    ],
)
def test_valid_answers_have_no_faults(lines: list[bytes], answers: list[bytes]) -> None:
    assert answer_faults(lines, answers, line_bytes_max=LIMIT) == []


@pytest.mark.parametrize(
    ("lines", "answers", "found"),
    [
        ([PING, OTHER], [PONG], "1 answers to 2 lines"),
        ([PING], [PONG, PONG], "2 answers to 1 lines"),
        ([PING, OTHER], [OTHER_PONG, PONG], "is answered with id 'b'"),
        ([PING], [REFUSED.replace(b'"id":""', b'"id":"b"')], "is answered with id 'b'"),
        ([PING], [PONG.replace(b'"a"', b'""')], 'id: "" is shorter than 1 character'),
        ([PING], [PONG.replace(b"pong", b"gone")], "responses have no type"),
        ([PING], [FAULT], "internal_error"),
        ([PING], [b"{\n"], "not JSON"),
    ],
)
def test_an_invalid_answer_is_found(lines: list[bytes], answers: list[bytes], found: str) -> None:
    faults = answer_faults(lines, answers, line_bytes_max=LIMIT)
    assert found in faults[0]


def test_lines_of_the_event_socket_are_events_or_answers() -> None:
    assert told_faults(EVENT) == told_faults(REFUSED) == []
    assert told_faults(EVENT.replace(b"turn_start", b"turn_begun")) != []
    assert told_faults(FAULT) != []


@pytest.mark.slow
def test_equal_seeds_give_equal_cases() -> None:
    one, other = Cases(7), Cases(7)
    cases = [one.next() for _ in range(50)]
    assert cases == [other.next() for _ in range(50)]
    assert cases != [Cases(8).next() for _ in range(50)]
    assert {case.ending for case in cases} == {"half_close", "wait", "leave"}
