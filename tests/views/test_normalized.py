"""The normalized view as a pure function, over recorded runs and over made-up ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.machine.session.closing_events import closing_events
from nousd.machine.session.lifecycle import LOGGED, LifecycleTracker
from nousd.views.normalized.fold import REMEMBERED_TYPES
from nousd.views.normalized.payloads import PAYLOADS
from nousd.views.normalized.thread import OUTPUT_CHARS_MAX, Thread
from nousd.views.normalized.transcript import transcript_of
from nousd.views.stream_position import FRAMES_MAX, frame_id
from nousd.wire import events
from nousd.wire.codec.canonical_json import canonical, hash_of
from nousd.wire.codec.envelope import decode_event, encode_event_tail, number_event
from nousd.wire.events import Event
from nousd.wire.events.base import EndStatus
from nousd.wire.objects.field_types import OutputKind
from tests.harness.normalized import Frame, NormalizedJudge, frames_in, frames_of
from tests.machine.builders import TS
from tests.machine.test_brackets import (
    TURN,
    Batches,
    Run,
    begun,
    completed,
    interleavings,
    keys,
    started,
    update,
)

PAGE: Final = Path(__file__).resolve().parents[2] / "protocol" / "normalized.md"
RUNS: Final = Path(__file__).resolve().parents[2] / "fixtures" / "runs"

NAMES: Final = {
    "session.created",
    "task.started",
    "model.input",
    "runtime.request.started",
    "runtime.request.completed",
    "model.output.delta",
    "model.output.completed",
    "tool.call.requested",
    "tool.call.policy_evaluated",
    "tool.call.approved",
    "tool.call.denied",
    "tool.call.started",
    "tool.output.delta",
    "tool.output.completed",
    "tool.call.completed",
    "usage.reported",
    "task.completed",
    "task.failed",
    "task.stopped",
}


def lines_of(happened: Iterable[Event]) -> list[bytes]:
    """Return the lines of a log with these events."""
    return [
        number_event(seq, encode_event_tail(event, TS))
        for seq, event in enumerate(happened, start=1)
    ]


def recorded(name: str) -> list[bytes]:
    return (RUNS / name / "events.ndjson").read_bytes().splitlines(keepends=True)


def judged(lines: Iterable[bytes], *, is_whole: bool = True) -> list[Frame]:
    """Return the frames of a log, after the judge has seen them."""
    frames, judge = frames_in(lines), NormalizedJudge()
    for frame in frames:
        judge.take(frame)
    if is_whole:
        judge.finish()
    return frames


def of_type(frames: Iterable[Frame], type: str) -> list[Any]:
    return [frame["payload"] for frame in frames if frame["type"] == type]


def check_every_beginning(lines: list[bytes]) -> None:
    """Assert that a reader that begins anywhere gets the frames of one that read everything."""
    whole = frames_in(lines)
    for at in range(len(lines)):
        threads: dict[str, Thread] = {}
        for line in lines[:at]:
            if decode_event(line).type in REMEMBERED_TYPES:
                frames_of(line, threads)
        rest = [frame for line in lines[at:] for frame in frames_of(line, threads)]
        assert rest == whole[len(whole) - len(rest) :]


# --- recorded runs ---------------------------------------------------------------------------


def test_the_nineteen_types_are_there_and_have_a_page_and_no_other() -> None:
    assert PAYLOADS.keys() == NAMES
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []


@pytest.mark.slow(keep=13)
@pytest.mark.parametrize("name", sorted(path.name for path in RUNS.iterdir()))
def test_a_recorded_run_is_told_in_order_from_any_position(name: str) -> None:
    lines = recorded(name)
    frames = judged(lines)
    assert {frame["runtime"]["name"] for frame in frames} == {"native"}
    [said, *_] = [line for line in map(decode_event, lines) if line.type == "message_start"]
    text = msgspec.json.decode(said.payload)["text"]
    [started_with] = of_type(frames, "task.started")
    [message] = started_with["messages"]
    assert message["content"] == [{"type": "text", "text": text}]
    check_every_beginning(lines)


def test_a_follow_up_is_a_request_of_its_own_with_its_message() -> None:
    first, second = of_type(judged(recorded("openai-follow_up")), "runtime.request.started")
    assert first["messages"] == []
    assert [message["kind"] for message in second["messages"]] == ["follow_up"]


def test_a_stopped_task_has_its_reason_and_a_failed_one_what_to_do() -> None:
    assert of_type(judged(recorded("openai-abort")), "task.stopped") == [{"reason": "aborted"}]
    [failed] = of_type(judged(recorded("anthropic-refused")), "task.failed")
    assert failed.keys() >= {"code", "retryable", "message", "hint"}


# --- transcripts and hashes ------------------------------------------------------------------


@pytest.mark.behaviour("normalized_transcripts_have_each_text_once")
def test_a_transcript_has_each_text_once_and_denials_as_errors() -> None:
    messages = transcript_of(reversed(judged(recorded("anthropic-tools"))))
    assert [(message["role"], message["content"][0]["type"]) for message in messages] == [
        ("user", "text"),
        ("assistant", "text"),
        *[("assistant", "tool_use"), ("tool", "tool_result")] * 4,
        ("assistant", "text"),
    ]
    read, listed, missing, unknown = (
        message["content"][0] for message in messages if message["role"] == "tool"
    )
    assert read == {"type": "tool_result", "tool_call_id": "msg-2.0", "result": "alpha"}
    assert "is_error" not in listed
    assert missing["is_error"]
    assert (unknown["is_error"], unknown["result"]) == (True, "tool_not_found: teleport")


def test_a_long_result_is_an_artifact_with_a_preview_in_a_transcript() -> None:
    done, end, entry = completed("msg-1.0")
    cut = msgspec.structs.replace(end, result="begin", text_ref="sha256:1", text_bytes=9000)
    frames = judged(
        lines_of([*RUN, *begun("msg-1.0"), *started("msg-1.0"), done, cut, entry, *END])
    )
    block = transcript_of(frames)[-1]["content"][0]
    assert block["result"]["preview"] == "begin"
    assert block["result"]["artifact_ref"]["artifact_id"] == "sha256:1"


def test_hashes_are_those_of_other_implementations() -> None:
    digest = "sha256:015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    assert hash_of({"a": 1}) == digest
    value = {"b": 1, "a": [1, {"c": None}], "z": 1e21, "f": 1.0, "é": 2}
    assert canonical(value).decode() == '{"a":[1,{"c":null}],"b":1,"f":1,"z":1e+21,"é":2}'


# --- made-up runs ----------------------------------------------------------------------------

RUN: Final = (
    events.AgentStart(
        session_id="s",
        run_id="run-1",
        runtime="agent",
        model="m",
        client_id="c",
        correlation_id="r",
    ),
    events.TurnStart(**TURN),
)
END: Final = (
    events.TurnEnd(**TURN),
    events.AgentEnd(session_id="s", run_id="run-1", status="completed"),
)


@pytest.mark.slow
@given(interleavings())
def test_overlapping_calls_are_told_in_order_from_any_position(batches: Batches) -> None:
    run = Run()
    for batch in batches:
        run.decide(*batch)
    run.complete()
    lines = lines_of(run.events)
    judged(lines)
    check_every_beginning(lines)


STATUSES: Final = st.sampled_from(["cancelled", "error", "timeout", "interrupted"])


@given(interleavings(), st.data(), STATUSES)
def test_a_stop_at_any_moment_ends_the_task_and_every_call(
    batches: Batches, data: st.DataObject, status: EndStatus
) -> None:
    run = Run()
    for batch in batches[: data.draw(st.integers(0, len(batches)))]:
        run.decide(*batch)
    run.stop(status)
    frames = judged(lines_of(run.events))
    end = "task.stopped" if status == "cancelled" else "task.failed"
    assert frames[-1]["type"] == end


@pytest.mark.slow
@given(interleavings())
def test_a_kill_at_any_moment_ends_the_task_and_every_call(batches: Batches) -> None:
    run = Run()
    for batch in batches:
        run.decide(*batch)
    for cut in range(1, len(run.log) + 1):
        happened = [event for batch in run.log[:cut] for event in batch]
        killed = LifecycleTracker("s", "run-1", LOGGED)
        for event in happened:
            killed.note(event)
        ends = closing_events(killed, "interrupted", leaf_id="root", now=TS)
        [failed] = of_type(judged(lines_of([*happened, *ends])), "task.failed")
        assert failed["retryable"]


@pytest.mark.behaviour("normalized_calls_have_one_decision")
def test_a_call_that_was_approved_and_never_started_is_denied() -> None:
    run = Run()
    run.decide(*begun("msg-1.0"))
    run.decide(events.ToolCallApproved(**keys("msg-1.0"), by="user", reason="yes"))
    run.stop()
    frames = judged(lines_of(run.events))
    [denied] = of_type(frames, "tool.call.denied")
    assert denied["reason"] == "tool_error: aborted"
    assert not of_type(frames, "tool.call.approved")


def test_a_result_that_is_given_again_says_that_nothing_ran() -> None:
    _, end, entry = completed("msg-1.0")
    approved = events.ToolCallApproved(**keys("msg-1.0"), by="policy", reason="again")
    happened = [*RUN, *begun("msg-1.0"), approved, end, entry, *END]
    frames = judged(lines_of(happened))
    for type_ in ("tool.call.started", "tool.call.completed"):
        [payload] = of_type(frames, type_)
        assert payload["replayed"] is True


def test_a_call_that_a_program_ran_unasked_is_told_as_such() -> None:
    done, end, entry = completed("msg-1.0")
    own: dict[str, Any] = {"executed_by": "runtime", "gated": False}
    said = [
        events.ToolCallApproved(**keys("msg-1.0"), by="runtime", reason="not asked"),
        events.ToolCallStarted(**keys("msg-1.0"), **own),
        msgspec.structs.replace(done, **own),
    ]
    frames = judged(lines_of([*RUN, *begun("msg-1.0"), *said, end, entry, *END]))
    [approved] = of_type(frames, "tool.call.approved")
    [over] = of_type(frames, "tool.call.completed")
    assert approved["source"] == "runtime"
    assert (over["gated"], over["execution_env"]) == (False, "runtime_internal")


def test_both_streams_of_a_call_are_told_apart_and_bounded() -> None:
    streams: tuple[tuple[str, OutputKind], ...] = (
        ("out", "stdout"),
        ("err", "stderr"),
        ("1/2", "progress"),
    )
    said = [
        events.ToolExecutionUpdate(**keys("msg-1.0"), delta=delta, stream=stream)
        for delta, stream in streams
    ]
    flood = [update("msg-1.0", "x" * OUTPUT_CHARS_MAX)]
    happened = [*RUN, *begun("msg-1.0"), *started("msg-1.0"), *said, *flood, *completed("msg-1.0")]
    frames = judged(lines_of([*happened, *END]))
    told = [payload["stream"] for payload in of_type(frames, "tool.output.delta")]
    assert told == ["stdout", "stderr", "progress", "stdout"]
    [whole] = of_type(frames, "tool.output.completed")
    assert (len(whole["stdout"]), whole["stderr"]) == (OUTPUT_CHARS_MAX, "err")
    assert whole["is_truncated"] is True


def test_the_output_of_a_call_that_waited_for_its_bracket_comes_once() -> None:
    run = Run()
    for batch in (begun("msg-1.0"), started("msg-1.0"), begun("msg-2.0"), started("msg-2.0")):
        run.decide(*batch)
    run.decide(update("msg-2.0", "early "))
    run.decide(*completed("msg-1.0"))
    run.decide(update("msg-2.0", "late"))
    run.decide(*completed("msg-2.0"))
    run.complete()
    frames = judged(lines_of(run.events))
    assert [payload["delta"] for payload in of_type(frames, "tool.output.delta")] == [
        "early ",
        "late",
    ]


def test_what_an_agent_is_given_waits_for_the_message_that_it_took() -> None:
    asked = events.ModelInput(
        **TURN, model="big", entries=0, messages=1, tokens_estimated=1, tools=(), omitted_count=0
    )
    message = events.MessageStart(**TURN, message_id="msg-1", role="user", text="go")
    frames = judged(lines_of([*RUN, asked, message, *END]))
    begin = ["task.started", "runtime.request.started", "model.input"]
    assert [frame["type"] for frame in frames][:3] == begin
    assert frames[0]["payload"]["messages"][0]["content"][0]["text"] == "go"
    resumed = judged(lines_of([*RUN, asked, *END]))
    assert [frame["type"] for frame in resumed][:3] == begin
    assert resumed[0]["payload"]["messages"] == []


def test_every_frame_names_task_request_client_runtime_and_its_number() -> None:
    session = events.AgentSession(
        session_id="s", run_id="run-1", runtime="agent", agent_session_id="theirs"
    )
    said = events.MessageUpdate(**TURN, message_id="msg-1", delta="hi")
    frames = judged(lines_of([*RUN, session, said, *END]))
    [delta] = [frame for frame in frames if frame["type"] == "model.output.delta"]
    assert delta["trace"] == {
        "session_id": "s",
        "task_id": "run-1",
        "request_id": "r",
        "client_id": "c",
    }
    assert delta["runtime"] == {"name": "agent", "model": "m", "runtime_session_id": "theirs"}
    assert delta["seq"] == frame_id(4, 2)
    assert delta["seq"] // FRAMES_MAX == 4


def test_joined_deltas_name_the_number_that_they_replace_from() -> None:
    said = events.MessageUpdate(**TURN, message_id="msg-1", delta="hi", joined_from="evt-2")
    [delta] = of_type(judged(lines_of([*RUN, said, *END])), "model.output.delta")
    assert delta["joined_from"] == frame_id(2, 0)
