"""Texts too long for an event are cut on their way into the log, and restored from it."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from nousd.machine.context import text_offload as long_texts
from nousd.wire import events
from nousd.wire.codec.envelope import encode_json
from nousd.wire.events.base import TurnKey
from nousd.wire.limits import DELTA_BYTES_MAX, EVENT_TEXT_BYTES_MAX, TOOL_PREVIEW_CHARS_MAX
from nousd.wire.objects.entries import MessageEntry, ToolCall
from nousd.wire.objects.inputs import PendingCounts, QueuedInput
from tests.machine.builders import compacted, message, queued

BOUND = EVENT_TEXT_BYTES_MAX
LONG = "x" * (BOUND + 1)
TURN: TurnKey = {"session_id": "s", "run_id": "run-1", "turn_id": "1"}


def ref_of(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def cut_one(event: events.Event) -> tuple[Any, dict[str, bytes]]:
    cut = long_texts.cut_long_texts([event])
    return cut.events[0], {id: data for id, (_, data) in cut.artifacts.items()}


def queue_update(*inputs: QueuedInput) -> events.QueueUpdate:
    return events.QueueUpdate(
        session_id="s",
        change="accepted",
        inputs=inputs,
        pending_counts=PendingCounts(steer=1, follow_up=0),
    )


def input_with(text: str, **more: Any) -> QueuedInput:
    return msgspec.structs.replace(queued("in"), text=text, **more)


def entry_appended(entry: Any) -> events.EntryAppended:
    return events.EntryAppended(session_id="s", entry=entry)


def answer_with_call(args: dict[str, Any]) -> MessageEntry:
    call = ToolCall(tool_call_id="m.0", runtime_tool_call_id="own", name="write", args=args)
    return message("m", "assistant", tool_calls=(call,))


@pytest.mark.parametrize("size", [BOUND - 1, BOUND])
def test_a_text_up_to_the_limit_is_unchanged(size: int) -> None:
    event = queue_update(input_with("x" * size))
    assert cut_one(event) == (event, {})


def test_a_longer_text_becomes_a_prefix_and_an_artifact() -> None:
    short, wholes = cut_one(queue_update(input_with(LONG)))
    (found,) = short.inputs
    assert (found.text, found.text_bytes) == ("x" * BOUND, len(LONG))
    assert wholes == {found.text_ref: LONG.encode()}
    assert found.text_ref == ref_of(LONG)


def test_the_limit_counts_bytes_and_splits_no_character() -> None:
    text = "ä" * (BOUND // 2) + "x"
    short, _ = cut_one(queue_update(input_with("a" + text)))
    assert short.inputs[0].text == "a" + "ä" * (BOUND // 2 - 1)
    assert short.inputs[0].text_bytes == len(("a" + text).encode())
    event = queue_update(input_with("ä" * (BOUND // 2)))
    assert cut_one(event) == (event, {})


@pytest.mark.parametrize(
    "event",
    [
        events.MessageStart(**TURN, message_id="m", role="user", text=LONG),
        events.MessageEnd(**TURN, message_id="m", text=LONG),
    ],
)
def test_a_long_user_text_is_cut_in_its_message_events(event: events.Event) -> None:
    short, wholes = cut_one(event)
    assert (len(short.text), short.text_bytes) == (BOUND, len(LONG))
    assert list(wholes) == [short.text_ref]


def test_a_long_answer_is_whole_in_its_message_and_cut_in_its_entry() -> None:
    ended = events.MessageEnd(**TURN, message_id="m", text=LONG, stop_reason="stop")
    cut = long_texts.cut_long_texts([ended, entry_appended(message("m", "assistant", LONG))])
    assert cut.events[0] == ended
    entry: Any = cut.events[1]
    assert len(entry.entry.text) == BOUND
    assert list(cut.artifacts) == [entry.entry.text_ref]


def test_a_text_repeated_by_several_events_is_stored_once() -> None:
    start = events.MessageStart(**TURN, message_id="m", role="user", text=LONG)
    cut = long_texts.cut_long_texts(
        [start, entry_appended(message("m", "user", LONG)), queue_update(input_with(LONG))]
    )
    assert list(cut.artifacts) == [ref_of(LONG)]
    assert cut.artifacts[ref_of(LONG)] == (long_texts.TEXT_MEDIA_TYPE, LONG.encode())


def test_a_restored_text_is_cut_again_and_not_stored_again() -> None:
    whole = input_with(LONG, text_ref=ref_of(LONG), text_bytes=len(LONG))
    short, wholes = cut_one(queue_update(whole))
    assert short.inputs[0] == msgspec.structs.replace(whole, text="x" * BOUND)
    assert wholes == {}


def test_a_text_that_is_already_cut_is_unchanged() -> None:
    event = queue_update(input_with("beginning", text_ref="sha256:x", text_bytes=10_000))
    assert cut_one(event) == (event, {})


def test_a_long_result_becomes_a_preview_and_an_artifact() -> None:
    text = "y" * (TOOL_PREVIEW_CHARS_MAX + 1)
    end = events.ToolExecutionEnd(
        **TURN, tool_call_id="c", tool_name="t", result=text, is_error=False, executed=True
    )
    short, wholes = cut_one(end)
    assert (short.result, short.text_ref) == (text[:-1], ref_of(text))
    assert wholes == {ref_of(text): text.encode()}
    as_it_is = msgspec.structs.replace(end, result=text[:-1])
    assert cut_one(as_it_is) == (as_it_is, {})


@pytest.mark.parametrize("kind", [events.ToolExecutionStart, events.ToolCallRequested])
def test_long_arguments_keep_short_values_and_prefixes_of_long_texts(kind: Any) -> None:
    args = {"path": "a.txt", "content": LONG, "mode": 3, "lines": [LONG], "last": True}
    more = {} if kind is events.ToolExecutionStart else {"attempt": 1}
    short, wholes = cut_one(kind(**TURN, tool_call_id="c", tool_name="t", args=args, **more))
    assert short.args == {"path": "a.txt", "content": "x" * 1024, "mode": 3, "last": True}
    assert msgspec.json.decode(wholes[short.args_ref]) == args
    assert short.args_bytes == len(wholes[short.args_ref])


def test_many_arguments_are_bounded_together() -> None:
    args = {f"key{n}": "v" * 1000 for n in range(1000)}
    short, _ = cut_one(entry_appended(answer_with_call(args)))
    shown = short.entry.tool_calls[0].args
    assert 0 < len(msgspec.json.encode(shown)) <= BOUND
    assert shown.items() <= args.items()


def test_arguments_up_to_the_limit_are_unchanged() -> None:
    frame = len(msgspec.json.encode({"a": ""}))
    event = entry_appended(answer_with_call({"a": "x" * (BOUND - frame)}))
    assert cut_one(event) == (event, {})
    short, _ = cut_one(entry_appended(answer_with_call({"a": "x" * (BOUND - frame + 1)})))
    assert short.entry.tool_calls[0].args_bytes == BOUND + 1


def test_the_arguments_of_many_calls_are_bounded_together() -> None:
    calls = tuple(
        ToolCall(
            tool_call_id=f"m.{number}",
            runtime_tool_call_id="own",
            name="write",
            args={"path": f"{number}.txt", "content": f"{number}" * (BOUND // 8)},
        )
        for number in range(100)
    )
    entry = message("m", "assistant", tool_calls=calls)
    short, wholes = cut_one(entry_appended(entry))
    # Each call has up to 250 bytes besides its arguments.
    assert len(msgspec.json.encode(short)) < 5 * BOUND + 100 * 250
    assert short.entry.tool_calls[:20] == calls[:20]
    assert short.entry.tool_calls[-1].args == {}
    whole = long_texts.whole_entry(short.entry, wholes)
    assert isinstance(whole, MessageEntry)
    assert whole.tool_calls is not UNSET
    assert [call.args for call in whole.tool_calls] == [call.args for call in calls]
    assert long_texts.cut_long_texts([entry_appended(whole)]) == long_texts.CutEvents((short,), {})


def test_a_compaction_is_unchanged() -> None:
    event = entry_appended(compacted("c", "first"))
    assert cut_one(event) == (event, {})


def test_a_lone_surrogate_is_stored_as_a_replacement_character() -> None:
    _, wholes = cut_one(queue_update(input_with("\ud800" + LONG)))
    assert list(wholes.values()) == [("\ufffd" + LONG).encode()]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20_000),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.lists(st.text(max_size=20).map(lambda text: text * 900), max_size=4).map("".join))
def test_the_deltas_of_a_text_are_small_and_few(text: str) -> None:
    pieces = list(long_texts.deltas(text))
    assert "".join(pieces) == text
    sizes = [len(encode_json(piece)) - len('""') for piece in pieces]
    assert all(0 < size <= DELTA_BYTES_MAX for size in sizes)
    assert len(pieces) <= 2 * (len(encode_json(text)) // DELTA_BYTES_MAX) + 10


@given(
    text=st.text(st.characters(exclude_categories=["Cs"])).map(lambda text: text * 900),
    args=st.dictionaries(st.text(), json_values),
)
@pytest.mark.slow
def test_a_cut_entry_is_restored_from_its_artifacts(text: str, args: dict[str, Any]) -> None:
    entry = msgspec.structs.replace(answer_with_call(args), text=text)
    cut = long_texts.cut_long_texts([entry_appended(entry)])
    (logged,) = cut.events
    assert isinstance(logged, events.EntryAppended)
    assert len(logged.entry.text.encode()) <= BOUND  # type: ignore[union-attr]
    wholes = {id: data for id, (_, data) in cut.artifacts.items()}
    assert long_texts.refs_in([logged.entry]) == {id: len(data) for id, data in wholes.items()}
    whole = long_texts.whole_entry(logged.entry, wholes)
    assert isinstance(whole, MessageEntry)
    assert (whole.text, whole.tool_calls[0].args) == (text, args)  # type: ignore[index]
    assert long_texts.as_logged(logged.entry, entry) == whole
    # Logged again, it is the same line with nothing new to store.
    assert long_texts.cut_long_texts([entry_appended(whole)]) == long_texts.CutEvents((logged,), {})


def test_an_entry_whose_artifact_is_missing_stays_cut() -> None:
    short, _ = cut_one(entry_appended(message("m", "tool", LONG)))
    ref = short.entry.text_ref
    assert long_texts.whole_entry(short.entry, {ref: None}) == short.entry


def test_a_cut_input_is_restored_from_its_artifact() -> None:
    short, wholes = cut_one(queue_update(input_with(LONG), input_with("short")))
    first, second = long_texts.whole_inputs(short.inputs, wholes)
    assert (first.text, first.text_ref) == (LONG, ref_of(LONG))
    assert (second.text, second.text_ref) == ("short", UNSET)
