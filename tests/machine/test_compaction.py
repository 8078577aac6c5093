"""Compaction: cut points, summary requests, and summaries that never grow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.machine.context import compaction
from nousd.machine.context.compaction import CutPoint, plan_cut
from nousd.machine.context.compiler import CompiledInput
from nousd.machine.context.model_input import ModelChoice, ModelInput, UserMessage
from nousd.machine.context.tokens import (
    CHARS_PER_TOKEN,
    MESSAGE_TOKENS,
    entry_tokens,
    estimate_tokens,
)
from nousd.machine.context.transcript import in_context
from nousd.wire.limits import SUMMARY_CHARS_MAX
from nousd.wire.objects.entries import CompactionEntry, Entry, MessageEntry
from tests.machine.builders import TS, answer, compacted, message, result, user

LONG = "x" * 4000


def turn(number: int, *, calls: int = 0, text: str = "answer") -> list[Entry]:
    """Return a whole turn: a question, perhaps tool calls with results, and an answer."""
    entries: list[Entry] = [user(f"u{number}")]
    if calls:
        entries.append(answer(f"c{number}", calls=calls))
        entries += [result(f"c{number}.{index}") for index in range(calls)]
    return [*entries, answer(f"a{number}", text)]


def planned(context: Sequence[Entry], keep_tokens: int = 1_000_000) -> CutPoint:
    cut = plan_cut(context, keep_tokens)
    assert cut is not None
    return cut


def kept_of(cut: CutPoint, context: Sequence[Entry]) -> list[Entry]:
    return list(context[len(cut.dropped) :])


def text_of(request: ModelInput) -> str:
    (asked,) = request.messages
    assert isinstance(asked, UserMessage)
    return asked.text


# --- where to cut ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "context",
    [
        [],
        [user("u")],
        turn(1),
        turn(1, calls=3),
        [compacted("c", "u1")],
        [compacted("c", "u1"), user("u1")],
        [compacted("c", "u1"), *turn(1)],
        [compacted("c", "u1"), *turn(1, calls=2)],
        [answer("a")],
    ],
    ids=[
        "nothing",
        "one question",
        "one turn",
        "one turn with calls",
        "a summary",
        "a summary and a question",
        "a summary and a turn",
        "a summary and a turn with calls",
        "an answer",
    ],
)
def test_a_context_with_nothing_older_than_the_newest_turn_cannot_be_cut(
    context: list[Entry],
) -> None:
    assert plan_cut(context, 1_000_000) is None


def test_a_single_long_message_cannot_be_cut() -> None:
    assert plan_cut([user("u", LONG)], 10) is None
    assert plan_cut([compacted("c", "u"), user("u", LONG)], 10) is None


def test_a_short_transcript_is_cut_before_its_newest_turn() -> None:
    context = [*turn(1), *turn(2), *turn(3, calls=1)]
    cut = planned(context)
    assert cut.first_kept.id == "u3"
    assert cut.dropped == tuple(context[:4])
    assert cut.tokens_before == estimate_tokens(context)


def test_a_long_transcript_keeps_as_many_whole_turns_as_fit() -> None:
    context = [entry for number in range(10) for entry in turn(number)]
    keep = estimate_tokens(context[-6:])
    assert planned(context, keep).first_kept.id == "u7"
    assert planned(context, keep - 1).first_kept.id == "u8"


def test_a_turn_that_is_too_long_is_cut_between_its_model_calls() -> None:
    context: list[Entry] = [user("u")]
    for number in range(5):
        context += [answer(f"c{number}", calls=1), result(f"c{number}.0", LONG)]
    cut = planned(context, 2 * entry_tokens(context[-1]))
    assert cut.first_kept.id == "c4"


def test_a_last_message_that_does_not_fit_is_kept_alone() -> None:
    context = [*turn(1), user("u2"), answer("a2", LONG)]
    assert planned(context, 10).first_kept.id == "a2"


def test_a_later_cut_drops_the_earlier_summary_and_the_older_turns() -> None:
    context = [compacted("c", "u1"), *turn(1), *turn(2)]
    cut = planned(context)
    assert cut.first_kept.id == "u2"
    assert cut.dropped == tuple(context[:3])


@st.composite
def conversations(draw: st.DrawFn) -> list[Entry]:
    context: list[Entry] = []
    if draw(st.booleans()):
        context.append(compacted("c", "u0", draw(st.sampled_from(["short", LONG]))))
    for number in range(draw(st.integers(0, 8))):
        text = draw(st.sampled_from(["", "some words", LONG]))
        context += turn(number, calls=draw(st.integers(0, 3)), text=text)
        if draw(st.booleans()):
            context.pop()
    return context


KEEP = st.integers(1, 5000)


@given(conversations(), KEEP)
def test_a_cut_never_separates_a_call_from_its_result(context: list[Entry], keep: int) -> None:
    cut = plan_cut(context, keep)
    if cut is None:
        return
    kept = kept_of(cut, context)
    assert cut.first_kept is kept[0]
    assert cut.dropped
    results = {e.tool_call_id for e in kept if isinstance(e, MessageEntry) and e.role == "tool"}
    asked = {
        call.tool_call_id
        for entry in kept
        if isinstance(entry, MessageEntry)
        for call in entry.tool_calls or ()
    }
    assert results <= asked


@given(conversations(), KEEP)
def test_the_newest_turn_stays_whole_if_it_fits(context: list[Entry], keep: int) -> None:
    cut = plan_cut(context, keep)
    users = [n for n, e in enumerate(context) if isinstance(e, MessageEntry) and e.role == "user"]
    if cut is None or isinstance(context[users[-1] - 1], CompactionEntry):
        return
    if estimate_tokens(context[users[-1] :]) <= keep:
        assert len(cut.dropped) <= users[-1]


def test_a_turn_that_does_not_fit_with_the_summary_before_it_is_cut() -> None:
    context = [compacted("c", "u1"), *turn(1, calls=1)]
    assert planned(context, estimate_tokens(context) - 1).first_kept.id == "c1"
    assert plan_cut(context, estimate_tokens(context)) is None


@given(conversations(), KEEP)
def test_the_kept_entries_fit_unless_only_one_message_and_its_results_are_left(
    context: list[Entry], keep: int
) -> None:
    cut = plan_cut(context, keep)
    if cut is not None:
        kept = kept_of(cut, context)
        only_last = all(isinstance(e, MessageEntry) and e.role == "tool" for e in kept[1:])
        assert estimate_tokens(kept) <= keep or only_last


@given(conversations(), KEEP)
def test_a_cut_leaves_fewer_messages(context: list[Entry], keep: int) -> None:
    cut = plan_cut(context, keep)
    if cut is not None:
        assert len(kept_of(cut, context)) < sum(isinstance(e, MessageEntry) for e in context)


def test_planning_a_cut_estimates_each_entry_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed = 0

    def counted(entry: Entry) -> int:
        nonlocal weighed
        weighed += 1
        return entry_tokens(entry)

    monkeypatch.setattr(compaction, "entry_tokens", counted)
    context = [entry for number in range(500) for entry in turn(number)]
    planned(context, 1000)
    assert weighed == len(context)


# --- summary requests ------------------------------------------------------------------------


def request_for(cut: CutPoint, *, window: int = 100_000, wish: str | None = None) -> ModelInput:
    return compiled_for(cut, window=window, wish=wish).request


def compiled_for(cut: CutPoint, *, window: int = 100_000, wish: str | None = None) -> CompiledInput:
    return compaction.summary_input(
        cut, choice=ModelChoice("p", "m"), instruction=wish, window=window
    )


def test_a_summary_request_contains_every_dropped_entry() -> None:
    context = [compacted("c", "u1", "what was before"), *turn(1, calls=1), *turn(2)]
    request = request_for(planned(context))
    assert (request.model, request.purpose, request.tools) == ("m", "summary", ())
    for piece in ("summary: what was before", "user: question", "[calls read", "tool read: result"):
        assert piece in text_of(request)


def test_a_summary_request_contains_the_users_instruction() -> None:
    cut = planned([*turn(1), *turn(2)])
    assert "keep the file names" in text_of(request_for(cut, wish="keep the file names"))
    assert "The user adds" not in text_of(request_for(cut))


def test_a_summary_request_fits_half_the_window_and_keeps_the_newest_messages() -> None:
    context = [entry for number in range(200) for entry in turn(number, text=f"{number} {LONG}")]
    window = 20_000
    text = text_of(request_for(planned(context), window=window))
    assert len(text) <= window * CHARS_PER_TOKEN // 2 + 1000
    assert "earlier messages left out" in text
    assert "assistant: 198 xxx" in text
    assert "assistant: 0 xxx" not in text


def test_entries_left_out_of_a_summary_request_are_reported() -> None:
    whole = compiled_for(planned([*turn(1), *turn(2)]))
    assert (whole.omitted, whole.strategy) == ((), ("full",))
    context = [entry for number in range(200) for entry in turn(number, text=f"{number} {LONG}")]
    cut = planned(context)
    compiled = compiled_for(cut, window=20_000)
    text = text_of(compiled.request)
    reasons = {omitted.entry_id: omitted.reason for omitted in compiled.omitted}
    for entry in cut.dropped:
        assert isinstance(entry, MessageEntry)
        number, is_answer = int(entry.id[1:]), entry.role == "assistant"
        if is_answer and f"assistant: {number} xxx" in text:
            assert reasons.pop(entry.id) == "preview"
        elif is_answer:
            assert reasons.pop(entry.id) == "oldest"
        else:
            assert reasons.pop(entry.id, "oldest") == "oldest"
    assert reasons == {}
    assert compiled.strategy == ("oldest_dropped", "previews")
    assert f"[{sum(o.reason == 'oldest' for o in compiled.omitted)} earlier messages left" in text


def test_the_text_of_an_answer_with_very_many_calls_stays_in_its_summary() -> None:
    many = answer("many", "so much to do", calls=500)
    cut = CutPoint((*turn(1), many), user("u2"), 1)
    assert "so much to do" in text_of(request_for(cut, window=1))
    assert "so much to do" in compaction.mechanical_summary(cut)
    assert ("many", "preview") in [
        (omitted.entry_id, omitted.reason) for omitted in compiled_for(cut).omitted
    ]


# --- summaries -------------------------------------------------------------------------------


def test_a_models_summary_is_trimmed_and_cut_to_the_limit() -> None:
    assert compaction.truncate_summary("  words \n") == "words"
    assert compaction.truncate_summary(" \n") == ""
    cut_off = compaction.truncate_summary("y" * (SUMMARY_CHARS_MAX + 1))
    assert len(cut_off) == SUMMARY_CHARS_MAX
    assert cut_off.endswith(" ...")


def test_a_mechanical_summary_contains_the_earlier_one_and_a_line_for_each_message() -> None:
    cut = planned([compacted("c", "u1", "earlier"), *turn(1, calls=1), *turn(2)])
    assert compaction.mechanical_summary(cut).splitlines() == [
        "earlier",
        "",
        "user: question",
        "assistant: answer [calls read {'n': 1}]",
        "tool read: result",
        "assistant: answer",
    ]


def test_a_multiline_message_becomes_one_line_of_a_mechanical_summary() -> None:
    cut = CutPoint((message("m", "user", "one\n\ntwo\u2028three"),), user("u"), 1)
    assert compaction.mechanical_summary(cut) == "user: one two three"


@pytest.mark.parametrize("previous", ["", LONG * 10])
@pytest.mark.parametrize("count", [1, 10, 1000])
def test_a_mechanical_summary_is_bounded_and_keeps_the_newest_message(
    previous: str, count: int
) -> None:
    entries = [user(f"u{number}", f"number {number} {LONG}") for number in range(count)]
    cut = CutPoint((compacted("c", "u", previous), *entries), user("last"), 1)
    summary = compaction.mechanical_summary(cut)
    assert len(summary) <= SUMMARY_CHARS_MAX
    assert f"user: number {count - 1} xxx" in summary
    assert ("earlier messages left out" in summary) == (count == 1000)


def echo(cut: CutPoint) -> str:
    """Summarise like a model that repeats its whole request."""
    return compaction.truncate_summary(text_of(request_for(cut)))


@pytest.mark.parametrize("summarise", [compaction.mechanical_summary, echo])
def test_the_context_stays_bounded_over_two_hundred_compactions(summarise: object) -> None:
    assert callable(summarise)
    keep = 2_000
    context: list[Entry] = []
    sizes: list[int] = []
    for number in range(200):
        for step in range(12):
            context += turn(100 * number + step, calls=1, text="word " * 200)
        cut = planned(context, keep)
        entry = compaction.compaction_entry(
            cut,
            summarise(cut),
            entry_id=f"cmp{number}",
            parent_id=context[-1].id,
            trigger="auto",
            created_at=TS,
            run_id="run-1",
            instruction=None,
        )
        assert entry.first_kept_entry_id == cut.first_kept.id
        assert entry.tokens_before == cut.tokens_before
        assert len(entry.summary) <= SUMMARY_CHARS_MAX
        context = in_context([*context, entry])
        assert context[0] is entry
        sizes.append(estimate_tokens(context))
    assert max(sizes) <= keep + SUMMARY_CHARS_MAX // CHARS_PER_TOKEN + MESSAGE_TOKENS
    # Nothing grows after the limit is reached.
    assert max(sizes[100:]) <= max(sizes[:100])
