"""From entries to model input: models accept the result for any path."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelChoice,
    ModelMessage,
    ModelToolCall,
    ToolResultMessage,
    UserMessage,
)
from nousd.machine.context.tokens import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    entry_tokens,
    estimate_tokens,
    message_tokens,
)
from nousd.machine.context.transcript import (
    CONTINUE,
    INTERRUPTED,
    SUMMARY_INTRODUCTION,
    ModelTranscript,
    build_transcript,
    in_context,
    with_entry,
)
from nousd.wire.events.models import Omitted
from nousd.wire.objects.entries import (
    Attachment,
    CompactionEntry,
    Entry,
    MessageEntry,
    ReasoningBlock,
    ToolCall,
)
from tests.machine.builders import answer, compacted, message, result, user

CHOICE = ModelChoice("here", "model-1")


def transcript_of(context: Sequence[Entry]) -> ModelTranscript:
    return build_transcript(context, CHOICE, lambda _: True)


def messages_of(path: Sequence[Entry]) -> tuple[ModelMessage, ...]:
    return transcript_of(in_context(path)).messages


def call(call_id: str) -> ModelToolCall:
    return ModelToolCall(call_id, "read", {"n": 1})


def interrupted(call_id: str) -> ToolResultMessage:
    return ToolResultMessage(call_id, "read", INTERRUPTED, is_error=True)


def ids(entries: Sequence[Entry]) -> list[str]:
    return [entry.id for entry in entries]


# --- pairing ---------------------------------------------------------------------------------


def test_a_conversation_becomes_the_same_sequence_of_messages() -> None:
    path = [
        user("u1", "read it"),
        answer("a1", "let me see", calls=1),
        result("a1.0", "content"),
        answer("a2", "done"),
        user("u2", "thanks"),
    ]
    assert messages_of(path) == (
        UserMessage("read it"),
        AssistantMessage("let me see", (call("a1.0"),)),
        ToolResultMessage("a1.0", "read", "content", is_error=False),
        AssistantMessage("done"),
        UserMessage("thanks"),
    )


def test_the_result_of_a_failed_call_is_an_error() -> None:
    path = [answer("a", calls=1), result("a.0", "no such file", is_error=True)]
    assert messages_of(path)[-1] == ToolResultMessage("a.0", "read", "no such file", is_error=True)


def test_calls_without_results_get_interrupted_results() -> None:
    path = [user("u"), answer("a", calls=2), user("v")]
    assert messages_of(path)[2:] == (
        interrupted("a.0"),
        interrupted("a.1"),
        UserMessage("question"),
    )


def test_a_call_at_the_end_of_the_path_gets_an_interrupted_result() -> None:
    assert messages_of([user("u"), answer("a", calls=1)])[2:] == (interrupted("a.0"),)


def test_missing_results_keep_the_order_of_the_calls() -> None:
    path = [answer("a", calls=3), result("a.1")]
    assert messages_of(path)[1:] == (
        interrupted("a.0"),
        ToolResultMessage("a.1", "read", "result", is_error=False),
        interrupted("a.2"),
    )


@pytest.mark.parametrize(
    "path",
    [
        [user("u"), result("nobody.0")],
        [user("u"), message("t", "tool", "result without a call's id")],
        [answer("a", calls=1), result("a.0"), result("a.0", "again"), user("u")],
        [answer("a", calls=1), user("u"), result("a.0", "too late"), user("v")],
    ],
    ids=["of no call", "without id", "twice", "after the user's next message"],
)
def test_a_result_that_no_call_waits_for_is_omitted(path: list[Entry]) -> None:
    check_valid(messages_of(path))
    assert sum(isinstance(m, ToolResultMessage) for m in messages_of(path)) == sum(
        len(m.tool_calls) for m in messages_of(path) if isinstance(m, AssistantMessage)
    )
    [omitted] = transcript_of(path).omitted
    assert (omitted.entry_id, omitted.reason) in {(entry.id, "no_call") for entry in path}


# --- omissions, and the last message ---------------------------------------------------------


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_answer_without_content_is_omitted(text: str) -> None:
    assert messages_of([user("u"), answer("a", text), user("v", "well?")]) == (
        UserMessage("question"),
        UserMessage("well?"),
    )
    assert transcript_of([user("u"), answer("a", text)]).omitted == (Omitted("a", "empty"),)


def test_an_answer_without_text_but_with_calls_is_kept() -> None:
    assert messages_of([user("u"), answer("a", "", calls=1), result("a.0")])[1] == AssistantMessage(
        "", (call("a.0"),)
    )


def test_white_space_around_text_is_kept() -> None:
    assert messages_of([answer("a", " indented\n"), user("u")])[0] == AssistantMessage(
        " indented\n"
    )


def test_a_path_that_ends_with_an_answer_asks_the_model_to_continue() -> None:
    assert messages_of([user("u"), answer("a", "half a")])[1:] == (
        AssistantMessage("half a"),
        UserMessage(CONTINUE),
    )


def test_two_consecutive_user_messages_are_not_merged() -> None:
    assert messages_of([user("u", "one"), user("v", "two")]) == (
        UserMessage("one"),
        UserMessage("two"),
    )


def test_reasoning_blocks_go_only_to_the_model_that_produced_them() -> None:
    blocks = (ReasoningBlock(dialect="d", data={"signature": "x"}),)
    own = message("a", "assistant", "so", provider="here", model="model-1", reasoning_blocks=blocks)
    asked = user("u")
    (said_it, _) = messages_of([own, asked])
    assert said_it == AssistantMessage("so", (), blocks)
    for other in (ModelChoice("there", "model-1"), ModelChoice("here", "model-2")):
        (without, _) = build_transcript([own, asked], other, lambda _: True).messages
        assert without == AssistantMessage("so")


IMAGE = Attachment(artifact_id="sha256:a", media_type="image/png", size_bytes=9, name="cat.png")
NOTES = Attachment(artifact_id="sha256:b", media_type="text/plain", size_bytes=400)


def test_files_stay_with_the_text_of_their_message() -> None:
    asked = message("u", "user", "look", attachments=(IMAGE, NOTES))
    assert messages_of([asked]) == (UserMessage("look", (IMAGE, NOTES)),)
    assert entry_tokens(asked) == MESSAGE_TOKENS + 1 + IMAGE_TOKENS + 100


def test_a_file_that_the_model_cannot_take_is_replaced_by_a_remark() -> None:
    asked = message("u", "user", "look", attachments=(IMAGE, NOTES))
    messages, omitted, *_ = build_transcript(
        [asked], CHOICE, lambda media_type: media_type == "text/plain"
    )
    remark = "[The file cat.png (image/png) was left out: the model cannot take it.]"
    assert messages == (UserMessage(f"look\n{remark}", (NOTES,)),)
    assert omitted == (Omitted("u", "attachment"),)


def test_an_integer_that_json_cannot_carry_exactly_becomes_a_string() -> None:
    asked = ToolCall(
        tool_call_id="a.0", runtime_tool_call_id="x", name="read", args={"id": 2**64 + 1, "n": 1}
    )
    (called, *_) = messages_of([message("a", "assistant", tool_calls=(asked,))])
    assert isinstance(called, AssistantMessage)
    assert called.tool_calls[0].args == {"id": str(2**64 + 1), "n": 1}


def test_a_path_without_entries_has_no_messages() -> None:
    assert messages_of([]) == ()


# --- compactions -----------------------------------------------------------------------------


def test_a_context_built_entry_by_entry_equals_one_built_at_once() -> None:
    path: list[Entry] = []
    context: list[Entry] = []
    entries: list[Entry] = [
        user("u1"),
        answer("a1"),
        compacted("c1", "u1"),
        user("u2"),
        answer("a2"),
    ]
    for entry in [*entries, compacted("c2", "a2"), user("u3"), answer("a3")]:
        path.append(entry)
        context = with_entry(context, entry)
        assert context == in_context(path)
    assert ids(context) == ["c2", "a2", "u3", "a3"]


def test_a_summary_replaces_everything_before_the_first_kept_entry() -> None:
    path: list[Entry] = [user("u1"), answer("a1"), user("u2", "kept"), answer("a2")]
    path.append(compacted("c", "u2"))
    assert ids(in_context(path)) == ["c", "u2", "a2"]
    assert messages_of([*path, user("u3", "new")]) == (
        UserMessage(SUMMARY_INTRODUCTION + "summary"),
        UserMessage("kept"),
        AssistantMessage("answer"),
        UserMessage("new"),
    )


def test_only_the_last_compaction_counts() -> None:
    path: list[Entry] = [
        user("u1"),
        answer("a1"),
        user("u2"),
        compacted("c1", "u2", "old"),
        answer("a2"),
        user("u3"),
        compacted("c2", "a2", "new"),
        answer("a3"),
    ]
    assert ids(in_context(path)) == ["c2", "a2", "u3", "a3"]


def test_an_entry_before_an_earlier_compaction_can_be_kept_again() -> None:
    path: list[Entry] = [user("u1"), user("u2"), compacted("c1", "u2"), user("u3")]
    assert ids(in_context([*path, compacted("c2", "u2")])) == ["c2", "u2", "u3"]


def test_a_compaction_whose_kept_entry_is_not_on_the_path_keeps_only_later_entries() -> None:
    path: list[Entry] = [user("u1"), compacted("c", "elsewhere"), user("u2")]
    assert ids(in_context(path)) == ["c", "u2"]


def test_the_context_of_a_context_is_the_same() -> None:
    path: list[Entry] = [user("u1"), user("u2"), compacted("c", "u2"), user("u3")]
    context = in_context(path)
    assert in_context(context) == context
    longer = [*context, user("u4")]
    assert in_context(longer) == longer


# --- any path --------------------------------------------------------------------------------


def check_valid(messages: Sequence[ModelMessage]) -> None:
    """Assert what every model API demands: each call has one result, in order, directly after it."""
    owed: list[str] = []
    for item in messages:
        if isinstance(item, ToolResultMessage):
            assert owed, f"a result without a call: {item}"
            assert item.tool_call_id == owed.pop(0)
            continue
        assert not owed, f"calls without results: {owed}"
        if isinstance(item, AssistantMessage):
            owed = [asked.id for asked in item.tool_calls]
            assert item.text.strip() or owed
    assert not owed
    assert not messages or not isinstance(messages[-1], AssistantMessage)


TEXTS = st.sampled_from(["", " ", "some words"])


def every_entry(path: list[Entry]) -> list[Entry]:
    return path


@st.composite
def paths(draw: st.DrawFn, kept: Callable[[list[Entry]], list[Entry]] = every_entry) -> list[Entry]:
    """Return any path of a tree, also one that no run would produce.

    ``kept`` returns the entries of the path so far that a compaction may keep first.
    """
    path: list[Entry] = []
    calls: list[str] = []
    for number in range(draw(st.integers(0, 25))):
        entry: Entry
        match draw(st.sampled_from(["user", "assistant", "result", "result", "compaction"])):
            case "user":
                entry = user(f"u{number}", draw(TEXTS))
            case "assistant":
                asked = draw(st.integers(0, 3))
                entry = answer(f"a{number}", draw(TEXTS), calls=asked)
                calls += [f"a{number}.{index}" for index in range(asked)]
            case "result":
                entry = result(draw(st.sampled_from(calls or ["none.0"])), draw(TEXTS))
            case _:
                first = draw(st.sampled_from([item.id for item in kept(path)] or ["gone"]))
                entry = compacted(f"c{number}", first)
        path.append(entry)
    return path


@given(paths())
def test_any_path_becomes_valid_model_input(path: list[Entry]) -> None:
    check_valid(messages_of(path))


@given(paths())
def test_every_entry_becomes_a_message_or_is_reported_as_omitted(path: list[Entry]) -> None:
    context = in_context(path)
    messages, omitted, closing, *_ = transcript_of(context)
    added = [
        message
        for message in messages
        if message == UserMessage(CONTINUE)
        or (isinstance(message, ToolResultMessage) and message.text == INTERRUPTED)
    ]
    assert len(messages) - len(added) == len(context) - len(omitted)
    assert {entry.entry_id for entry in omitted} <= set(ids(context))
    assert closing == sum(message == UserMessage(CONTINUE) for message in messages)


@given(paths())
def test_equal_paths_give_equal_messages(path: list[Entry]) -> None:
    assert messages_of(path) == messages_of(list(path))


@given(paths())
def test_a_context_keeps_the_order_of_the_path_and_begins_with_its_only_compaction(
    path: list[Entry],
) -> None:
    context = in_context(path)
    messages_only = context
    if any(isinstance(entry, CompactionEntry) for entry in path):
        assert isinstance(context[0], CompactionEntry)
        messages_only = context[1:]
    assert all(isinstance(entry, MessageEntry) for entry in messages_only)
    # A result may occur twice on a path, so objects are compared and not ids.
    entries = iter(path)
    assert all(any(entry is other for other in entries) for entry in messages_only)


def kept_messages(path: Sequence[Entry]) -> list[Entry]:
    """Return the entries that a real compaction may keep first: messages in context, except results."""
    messages = [entry for entry in in_context(path) if isinstance(entry, MessageEntry)]
    return [entry for entry in messages if entry.role != "tool"]


@given(paths(kept=kept_messages))
def test_a_context_extended_by_each_entry_equals_one_read_from_the_path(path: list[Entry]) -> None:
    context: list[Entry] = []
    for number, entry in enumerate(path, 1):
        context = in_context([*context, entry])
        assert context == in_context(path[:number])


# --- estimates -------------------------------------------------------------------------------


def test_token_estimates_count_texts_summaries_calls_and_reasoning() -> None:
    assert entry_tokens(user("u", "x" * 400)) == MESSAGE_TOKENS + 100
    assert entry_tokens(compacted("c", "u", "x" * 400)) == MESSAGE_TOKENS + 100
    assert entry_tokens(answer("a", "x" * 400, calls=1)) > MESSAGE_TOKENS + 100
    blocks = (ReasoningBlock(dialect="d", data={"signature": "x" * 400}),)
    assert message_tokens(AssistantMessage("", (), blocks)) > MESSAGE_TOKENS + 100
    entries = [user("u", "x" * length) for length in (0, 3, 50)]
    assert estimate_tokens(entries) == sum(map(entry_tokens, entries))
