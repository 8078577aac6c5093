"""The frames of each event, and the ids by which a client resumes a stream."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.bridge.stream.rendered_event import RenderedEvent, encode_frame
from nousd.client.answers import ReceivedEvent, decode_subscription_line
from nousd.views.event_view import RenderedFrame
from nousd.views.stream_position import FRAMES_MAX, StreamPosition, frame_id, position_after_id
from nousd.views.tandem import events as tandem
from nousd.views.tandem.events import TANDEM
from nousd.views.tandem.runs import to_run_frame
from nousd.wire import events
from nousd.wire.codec.envelope import encode_event_tail
from nousd.wire.events import EVENTS, AgentEnd, Event
from nousd.wire.events.base import EndStatus
from tests.bridge.harness import frame_of
from tests.wire.strategies import structs

TS = "2026-11-21T19:22:01.123456Z"
WHERE: dict[str, Any] = {"session_id": "sess-1", "run_id": "run-1"}
TURN: dict[str, Any] = {**WHERE, "turn_id": "turn-1"}

seqs = st.integers(0, 2**50)


def line_of(event: Event, seq: int = 7) -> bytes:
    return b'{"v":"1","id":"evt-%d%b' % (seq, encode_event_tail(event, TS)[:-1])


def rendered_of(line: bytes) -> RenderedEvent:
    received = decode_subscription_line(line)
    assert isinstance(received, ReceivedEvent)
    return RenderedEvent(received)


def frames_of(event: RenderedEvent, *, of_run: bool = False) -> list[bytes]:
    return event.frames(TANDEM, of_run=of_run)


def properties_of(event: Event, seq: int = 7) -> list[dict[str, Any]]:
    """Return the type and properties of each frame of an event in an unfiltered stream."""
    lines = frames_of(rendered_of(line_of(event, seq)))
    found = [frame_of(text.removesuffix(b"\n\n")) for text in lines]
    return [{"type": frame.type, **frame.properties} for frame in found if frame]


# --- numbers ---------------------------------------------------------------------------------


@given(seq=seqs, index=st.integers(0, FRAMES_MAX - 1))
def test_a_frame_id_gives_the_event_and_the_frame_within_it(seq: int, index: int) -> None:
    assert position_after_id(str(frame_id(seq, index))) == StreamPosition(seq, index + 1)


@given(seq=st.integers(1, 2**50), index=st.integers(0, FRAMES_MAX - 1))
def test_a_position_within_an_event_is_read_from_before_that_event(seq: int, index: int) -> None:
    after = StreamPosition(seq, index + 1).after
    assert after == (seq if index == FRAMES_MAX - 1 else seq - 1)


@given(first=st.tuples(seqs, st.integers(0, 7)), second=st.tuples(seqs, st.integers(0, 7)))
def test_frame_ids_are_ordered_like_their_frames(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    assert (frame_id(*first) < frame_id(*second)) == (first < second)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "evt-3", "\u0663", "1" * 19, " 1", "1e3", "0x1"])
def test_an_invalid_frame_id_has_no_position(text: str) -> None:
    assert position_after_id(text) is None


@given(st.text())
def test_any_text_is_a_frame_id_or_has_no_position(text: str) -> None:
    place = position_after_id(text)
    assert place is None or frame_id(place.seq, place.frames - 1) == int(text)


# --- frames ----------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    event=st.sampled_from(sorted(EVENTS)).flatmap(lambda name: structs(EVENTS[name])),
    seq=st.integers(1, 2**50),
)
def test_any_event_becomes_whole_frames_of_valid_json_or_none(event: Event, seq: int) -> None:
    try:
        made = rendered_of(line_of(event, seq))
        if not frames_of(made):
            return
    except (ValueError, UnicodeEncodeError):
        return  # an invalid time, or a text that cannot be in the log
    for of_run in (False, True):
        lines = frames_of(made, of_run=of_run)
        assert 1 <= len(lines) <= FRAMES_MAX
        for index, text in enumerate(lines):
            assert text.endswith(b"\n\n")
            assert text.count(b"\n") == 3
            assert b"\r" not in text
            frame = frame_of(text[:-2])
            assert frame is not None
            assert frame.id == str(frame_id(seq, index))
            assert frame.envelope["seq"] == frame_id(seq, index)
            assert frame.envelope["event_id"] == f"evt-{seq}.{index}"
            assert frame.envelope.get("session_id", "") == event.session_id


def test_line_breaks_in_a_text_stay_within_the_one_data_line() -> None:
    words = "a\nb\r\nc\u2028d\x85e\0"
    (part,) = properties_of(events.MessageUpdate(**TURN, message_id="msg-1", delta=words))
    assert part["delta"] == words


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({"title": "one"}, {"title": "one"}),
        ({"title": "one", "name": "two"}, {"title": "two"}),
        ({"archived": True}, {"archived": True}),
        ({"archived": False}, {"archived": False}),
        ({"model": "m"}, {}),
    ],
)
def test_a_changed_session_shows_its_title_and_whether_it_is_archived(
    changed: dict[str, Any], shown: dict[str, Any]
) -> None:
    (frame,) = properties_of(events.SessionUpdated(session_id="sess-1", **changed))
    assert frame == {"type": "session.updated", "sessionID": "sess-1", **shown}


def test_a_huge_delta_is_one_frame_and_not_cut() -> None:
    words = "\u00e9x" * 500_000
    (part,) = properties_of(events.MessageUpdate(**TURN, message_id="msg-1", delta=words))
    assert part["delta"] == part["part"]["text"] == words


WITHOUT_FRAMES = {
    "agent_session",
    "entry_appended",
    "input_handled",
    "mcp_server_status",
    "model_input",
    "queue_update",
    "reasoning_update",
    "run_aborting",
    "session_activated",
    "session_seen",
    "status",
    "subagent_text",
    "tool_call_completed",
    "tool_call_output",
    "tool_call_policy_evaluated",
    "tool_call_requested",
    "tool_call_started",
    "tool_execution_update",
    "trust_updated",
    "turn_end",
    "turn_start",
    "warning",
    "v1_scope_entered",
}
"""Types that have no counterpart in the contract."""


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_each_event_type_has_frames_or_is_listed_without_a_counterpart(name: str) -> None:
    assert (name in TANDEM.types) == (name not in WITHOUT_FRAMES)


FRAMES_OF_EVENTS: list[tuple[Event, list[str]]] = [
    (
        events.SessionCreated(session_id="sess-1", created_at=TS, contract_version="1"),
        ["session.created"],
    ),
    (events.SessionUpdated(session_id="sess-1", name="n"), ["session.updated"]),
    (events.SessionUpdated(session_id="sess-1", title="t"), ["session.updated"]),
    (events.SessionUpdated(session_id=""), []),
    (events.SessionDeleted(session_id="sess-1"), ["session.deleted"]),
    (events.SessionDeleteDeferred(**WHERE), ["session.delete.deferred"]),
    (events.MessageStart(**TURN, message_id="m", role="assistant"), []),
    (
        events.MessageStart(**TURN, message_id="m", role="user", text="hello"),
        ["message.part.updated"],
    ),
    (events.MessageUpdate(**TURN, message_id="m", delta="d"), ["message.part.updated"]),
    (
        events.MessageEnd(**TURN, message_id="m", text="d", stop_reason="stop"),
        ["message.part.updated"],
    ),
    (events.MessageEnd(**TURN, message_id="m", text="", stop_reason="stop"), []),
    (events.MessageEnd(**TURN, message_id="m", text="the user's own"), []),
    (
        events.MessageEnd(
            **TURN, message_id="m", text="the beginning", stop_reason="stop", text_ref="sha256:a"
        ),
        [],
    ),
    (events.ReasoningUpdate(**TURN, message_id="m", delta="hm"), []),
    (events.Error(**WHERE, code="provider_error", message="m", cause="c"), ["session.error"]),
    (events.UsageReported(session_id="sess-1", model="m"), []),
]


@pytest.mark.parametrize(("event", "types"), FRAMES_OF_EVENTS)
def test_an_event_becomes_these_frames(event: Event, types: list[str]) -> None:
    assert [frame["type"] for frame in properties_of(event)] == types


CALL: dict[str, Any] = {
    **TURN,
    "tool_call_id": "msg-1.0",
    "attempt": 1,
    "tool_name": "write",
    "input_hash": "sha256:0",
    "reason": "r",
}


@pytest.mark.parametrize(
    ("event", "reply", "rule"),
    [
        (events.ToolCallApproved(**CALL, by="user"), "once", None),
        (events.ToolCallDenied(**CALL, by="user"), "deny", None),
        (events.ToolCallApproved(**CALL, by="user", decision="once"), "once", None),
        (
            events.ToolCallApproved(**CALL, by="user", decision="session", rule="write(a)"),
            "always",
            "allow:write(a)",
        ),
        (
            events.ToolCallApproved(**CALL, by="user", decision="always", rule="write(a)"),
            "always",
            "allow:write(a)",
        ),
        (events.ToolCallDenied(**CALL, by="user", decision="deny"), "deny", None),
        (
            events.ToolCallDenied(**CALL, by="user", decision="deny_session", rule="write(a)"),
            "reject",
            "deny:write(a)",
        ),
    ],
)
def test_the_frame_of_a_reply_has_the_rule_it_created(
    event: Event, reply: str, rule: str | None
) -> None:
    (frame,) = properties_of(event)
    assert (frame["type"], frame["reply"]) == ("permission.replied", reply)
    assert (frame["standingRuleID"], frame["standingRulePersisted"]) == (rule, rule is not None)


def test_a_request_frame_has_its_time_also_if_the_event_has_none() -> None:
    asks: dict[str, Any] = {**CALL, "args": {}, "expires_at": TS}
    (frame, _) = properties_of(events.PermissionRequested(**asks))
    assert frame["requestedAtMs"] == 1795288921123
    (frame, _) = properties_of(
        events.PermissionRequested(**asks, requested_at="2026-11-21T19:22:00Z")
    )
    assert frame["requestedAtMs"] == 1795288920000


@pytest.mark.parametrize("status", get_args(EndStatus))
def test_every_end_of_a_run_is_one_last_frame(status: EndStatus) -> None:
    *others, last = properties_of(AgentEnd(**WHERE, status=status))
    assert last["type"] == "session.run.finished"
    assert last["status"] in {"completed", "cancelled", "error", "timeout"}
    assert last["status"] == (status if status != "interrupted" else "error")
    assert last["finishedAtMs"] == 1795288921123
    assert all(frame["type"] != "session.run.finished" for frame in others)


def test_only_the_end_of_a_run_becomes_a_finished_frame() -> None:
    ends = [
        event
        for event, _ in FRAMES_OF_EVENTS
        if any("finished" in f["type"] for f in properties_of(event))
    ]
    assert ends == []


# --- frames of a run stream ------------------------------------------------------------------


def test_a_run_frame_names_its_session_and_run_and_channel() -> None:
    event = tandem.decode_line(line_of(events.MessageUpdate(**TURN, message_id="m", delta="d")))
    assert event is not None
    (frame,) = map(to_run_frame, tandem.frames_of(event))
    assert frame.properties["sessionID"] == "sess-1"
    assert frame.properties["runID"] == "run-1"
    assert frame.properties["channel"] == "assistant"
    assert frame.properties["agentID"] is None
    assert frame.properties["tenantContext"]["org_id"] == "local"


def test_joined_deltas_are_a_delta_for_a_new_reader_and_the_whole_text_for_a_resumed_one() -> None:
    event = events.MessageUpdate(**TURN, message_id="m", delta="abc", joined_from="evt-5")
    made = rendered_of(line_of(event, 7))
    piece = made.data_after(StreamPosition(4, FRAMES_MAX), TANDEM, of_run=False)
    again = made.data_after(StreamPosition(5, FRAMES_MAX), TANDEM, of_run=True)
    assert b'"delta":"abc"' in piece
    whole = json.loads(again.partition(b"data: ")[2])["properties"]
    assert "delta" not in whole
    assert whole["part"]["text"] == "abc"
    assert whole["channel"] == "assistant"


def test_a_frame_without_an_id_has_no_id_line() -> None:
    assert encode_frame(RenderedFrame(b'{"type":"server.connected","properties":{}}')) == (
        b'data: {"type":"server.connected","properties":{}}\n\n'
    )
    hello = [frame.data for frame in TANDEM.hello(0)]
    assert hello[0] == b'{"type":"server.connected","properties":{}}'
