"""The conversation player: what it sends, accepts and rejects."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.harness.conversation import Bindings, Mismatch, Pace, parse, play

PING = '> {"id":"a","type":"ping"}\n< {"id":"a","type":"pong"}\n'


class Fake:
    """An exchange with prepared answers and events, which records what is written to it."""

    def __init__(self, answers: list[Any] = [], events: list[Any] = []) -> None:  # noqa: B006
        self.writes: list[bytes] = []
        self.event_writes: list[bytes] = []
        self._answers = [json.dumps(answer).encode() + b"\n" for answer in answers]
        self._events = [json.dumps(event).encode() + b"\n" for event in events]

    async def send(self, data: bytes) -> None:
        self.writes.append(data)

    async def send_event(self, data: bytes) -> None:
        self.event_writes.append(data)

    async def receive_answer(self) -> bytes:
        return await self._next(self._answers)

    async def receive_event(self) -> bytes:
        return await self._next(self._events)

    async def _next(self, lines: list[bytes]) -> bytes:
        if not lines:
            await trio.sleep_forever()
        return lines.pop(0)


async def play_text(text: str, exchange: Fake, pace: Pace = "lines") -> dict[str, str]:
    return await play(parse(text), exchange, pace=pace)


async def test_a_matching_answer_passes() -> None:
    fake = Fake([{"id": "a", "type": "pong"}])
    await play_text(PING, fake)
    assert fake.writes == [b'{"id":"a","type":"ping"}\n']


async def test_a_wrong_answer_fails_with_the_line_number() -> None:
    with pytest.raises(
        Mismatch, match=r"conversation:2: line.type: expected \"pong\", got \"pang\""
    ):
        await play_text(PING, Fake([{"id": "a", "type": "pang"}]))


async def test_a_missing_answer_fails(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(Mismatch, match="nothing came"):
        await play_text(PING, Fake())


async def test_a_wrong_event_fails() -> None:
    with pytest.raises(Mismatch, match=r"conversation:1: line\.type"):
        await play_text('* {"type":"agent_start"}\n', Fake(events=[{"type": "agent_end"}]))


async def test_events_are_compared_in_order() -> None:
    with pytest.raises(Mismatch):
        await play_text('* {"n":1}\n* {"n":2}\n', Fake(events=[{"n": 2}, {"n": 1}]))


async def test_a_tilde_skips_events_up_to_the_match() -> None:
    fake = Fake(events=[{"n": 1}, {"n": 2, "x": "v"}, {"n": 3}])
    assert await play_text('*~ {"n":2,"x":"$X"}\n* {"n":3}\n', fake) == {"X": "v"}


async def test_answers_and_events_may_interleave_in_any_way() -> None:
    fake = Fake([{"a": 1}, {"a": 2}], [{"e": 1}])
    await play_text('> {}\n> {}\n< {"a":1}\n* {"e":1}\n< {"a":2}\n', fake)


async def test_every_received_line_is_passed_to_the_checks() -> None:
    seen: list[bytes] = []
    conversation = parse('< {"a":1}\n*~ {"e":2}\n')
    exchange = Fake([{"a": 1}], [{"e": 1}, {"e": 2}])
    await play(conversation, exchange, check_answer=seen.append, check_event=seen.append)
    assert [json.loads(line) for line in seen] == [{"a": 1}, {"e": 1}, {"e": 2}]


async def test_a_failing_check_fails_the_conversation() -> None:
    def refuse(_line: bytes) -> None:
        raise AssertionError("not to the schema")

    with pytest.raises(AssertionError, match="not to the schema"):
        await play(parse(PING), Fake([{"id": "a", "type": "pong"}]), check_answer=refuse)


async def test_bound_names_are_sent_again() -> None:
    fake = Fake([{"session_id": 'q"uote'}])
    await play_text('> {}\n< {"session_id":"$S"}\n> {"s":"$S"}\n', fake)
    assert json.loads(fake.writes[1]) == {"s": 'q"uote'}


async def test_an_unbound_name_cannot_be_sent() -> None:
    with pytest.raises(Mismatch, match=r"\$S stands for nothing"):
        await play_text('> {"s":"$S"}\n', Fake())


async def test_initially_known_names_are_sent() -> None:
    fake = Fake()
    await play(parse('> {"w":"$W"}\n'), fake, known={"W": "x"})
    assert fake.writes == [b'{"w":"x"}\n']


async def test_raw_bytes_are_sent_unchanged() -> None:
    fake = Fake()
    await play_text(r'>b "\xff\r\n{"' + "\n", fake)
    assert fake.writes == [b"\xff\r\n{"]


async def test_subscriptions_are_sent_to_the_event_socket() -> None:
    fake = Fake(events=[{"type": "subscribed"}])
    await play_text('*> {"type":"subscribe"}\n* {"type":"subscribed"}\n', fake)
    assert fake.event_writes == [b'{"type":"subscribe"}\n']
    assert fake.writes == []


TWO_PINGS = '> {"n":1}\n< {"a":1}\n> {"n":2}\n< {"a":2}\n'


@pytest.mark.parametrize(
    ("pace", "writes"),
    [
        ("lines", [b'{"n":1}\n', b'{"n":2}\n']),
        ("pipelined", [b'{"n":1}\n{"n":2}\n']),
    ],
)
async def test_the_pace_decides_how_requests_are_written(pace: Pace, writes: list[bytes]) -> None:
    fake = Fake([{"a": 1}, {"a": 2}])
    await play_text(TWO_PINGS, fake, pace)
    assert fake.writes == writes


async def test_the_bytes_pace_sends_single_bytes() -> None:
    fake = Fake([{"a": 1}, {"a": 2}])
    await play_text(TWO_PINGS, fake, "bytes")
    assert b"".join(fake.writes) == b'{"n":1}\n{"n":2}\n'
    assert {len(piece) for piece in fake.writes} == {1}


@pytest.mark.parametrize(
    "text",
    [
        '> {"n":1}\n< {"s":"$S"}\n> {"s":"$S"}\n',
        '> {"n":1}\n* {"e":1}\n> {"n":2}\n',
        '# pipelined: no\n> {"n":1}\n< {"s":"$*"}\n> {"n":2}\n',
    ],
)
async def test_requests_that_need_an_earlier_line_are_not_pipelined(text: str) -> None:
    fake = Fake([{"s": "x"}], [{"e": 1}])
    await play_text(text, fake, "pipelined")
    assert len(fake.writes) == 2


# --- reading ---------------------------------------------------------------------------------


def test_headers_are_parsed() -> None:
    conversation = parse(
        "# Free text: it has an upper-case letter, so it is no header.\n"
        "# behaviour: one\n# behaviour: two\n# daemon: allow_exec=true\n"
        "> {}\n# later: no header\n"
    )
    assert conversation.behaviours == ["one", "two"]
    assert conversation.settings == {"allow_exec": "true"}
    assert conversation.may_be_pipelined
    assert not conversation.looks_at_events


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# behavior: x\n", "conversation:1: unknown header 'behavior'"),
        ("\n? {}\n", "conversation:2: neither sent nor expected"),
        ("< {\n", "conversation:1: "),
        (">b 7\n", "conversation:1: "),
    ],
)
def test_a_mistake_in_a_file_is_an_error_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse(text)


# --- matching --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({"a": 1}, {"a": 1}),
        ({"a": "$*"}, {"a": [1, {}]}),
        ({"a": "$X", "b": "$X"}, {"a": "v", "b": "v"}),
        ({"a": "evt-$*"}, {"a": "evt-12"}),
        ({"a": "$R:$N"}, {"a": "run-1:2"}),
        ({"a": 1, "...": ""}, {"a": 1, "b": 2}),
        ([1, "..."], [1, 2, 3]),
        (["..."], []),
        ("line\n$*", "line\n\n\n"),
    ],
)
def test_a_line_matches_its_pattern(expected: Any, actual: Any) -> None:
    Bindings().match(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"a": 1, "...": ""}, {"b": 2}),
        ({"a": 1}, {"a": True}),
        ({"a": 0}, {"a": False}),
        ({"a": "x"}, {"a": "y"}),
        ({"a": "$X"}, {"a": 7}),
        ({"a": "$X", "b": "$X"}, {"a": "v", "b": "w"}),
        ({"a": "evt-$*"}, {"a": "ev-12"}),
        ([1], [1, 2]),
        ([1, 2, "..."], [1]),
        ([], {}),
        (None, 0),
    ],
)
def test_a_line_that_differs_does_not_match(expected: Any, actual: Any) -> None:
    with pytest.raises(Mismatch):
        Bindings().match(expected, actual)


def test_a_mismatch_binds_nothing() -> None:
    bindings = Bindings()
    with pytest.raises(Mismatch):
        bindings.match({"a": "$X", "b": 1}, {"a": "v", "b": 2})
    assert bindings.values == {}
