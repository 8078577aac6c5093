"""Fitting a context into a budget: what is kept, what is reported as omitted, and stability."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from nousd.machine.context.compaction import plan_cut
from nousd.machine.context.compiler import (
    LARGE_CHARS,
    LEFT_OUT,
    PREVIEW_CHARS,
    Budget,
    CompiledInput,
    Frame,
    budget_of,
    compile_input,
    preview,
    what_is_largest,
)
from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ModelMessage,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.machine.context.tokens import message_tokens, system_tokens, tool_tokens
from nousd.machine.context.transcript import SUMMARY_INTRODUCTION, in_context
from nousd.wire.codec.canonical_json import canonical
from nousd.wire.limits import ATTACHMENT_BYTES_MAX
from nousd.wire.objects.entries import Attachment, CompactionEntry, Entry, MessageEntry
from tests.machine.builders import answer, compacted, message, result, user
from tests.machine.contexts import CHOICE, budgets, contexts, frames
from tests.machine.test_transcript import check_valid

FRAME = Frame(CHOICE, "", (), lambda _: True)


def budget(
    window: int, *, compact_at: float = 0.8, keep_recent: int = 0, frame: Frame = FRAME
) -> Budget:
    return budget_of(window, frame, compact_at=compact_at, keep_recent=keep_recent)


def tokens_of(request: ModelInput) -> int:
    frame = system_tokens(request.system) + tool_tokens(request.tools)
    return frame + sum(map(message_tokens, request.messages))


def reasons(compiled: CompiledInput) -> dict[str, str]:
    return {omitted.entry_id: omitted.reason for omitted in compiled.omitted}


def texts(compiled: CompiledInput) -> list[str]:
    return [told.text for told in compiled.request.messages]


def output(call_id: str, chars: int = 40_000, **more: str) -> MessageEntry:
    return msgspec.structs.replace(result(call_id, "o" * chars), **more)


def rounds(count: int, chars: int = 40_000) -> list[Entry]:
    """Return a turn in which the model has called a tool that many times."""
    entries: list[Entry] = [user("u", "do it")]
    for number in range(count):
        entries += [answer(f"a{number}", calls=1), output(f"a{number}.0", chars)]
    return entries


# --- contexts that fit -----------------------------------------------------------------------


def test_a_context_that_fits_is_sent_whole() -> None:
    compiled = compile_input(rounds(2), FRAME, budget(200_000))
    assert compiled.strategy == ("full",)
    assert (compiled.omitted, compiled.crowded) == ((), False)
    assert compiled.tokens == tokens_of(compiled.request)
    assert texts(compiled)[2] == "o" * 40_000


def test_the_system_prompt_and_the_tools_count_as_tokens() -> None:
    tools = (ToolSpec("read", "d" * 4000, {}),)
    frame = Frame(CHOICE, "p" * 4000, tools, lambda _: True)
    bare = compile_input([user("u")], FRAME, budget(100_000))
    framed = compile_input([user("u")], frame, budget(100_000))
    assert framed.tokens > bare.tokens + 2000
    assert (framed.request.system, framed.request.tools) == (frame.system, tools)


def test_a_document_of_the_maximum_size_fits_the_budget() -> None:
    scanned = Attachment(
        artifact_id="sha256:0", media_type="application/pdf", size_bytes=ATTACHMENT_BYTES_MAX
    )
    asked = message("u", "user", "What does it say?", attachments=(scanned,))
    within = budget(128_000)
    compiled = compile_input([asked], FRAME, within)
    assert compiled.tokens <= within.soft
    assert compiled.strategy == ("full",)


# --- previews --------------------------------------------------------------------------------


def test_old_large_outputs_become_previews_that_name_the_whole_output() -> None:
    context = rounds(4)
    context[2] = output("a0.0", artifact_id="sha256:whole", text_ref="sha256:told")
    context[4] = output("a1.0", text_ref="sha256:told")
    compiled = compile_input(context, FRAME, budget(40_000, keep_recent=12_000))
    assert compiled.strategy == ("previews",)
    assert not compiled.crowded
    assert reasons(compiled) == {"a0.0.result": "preview"}
    assert texts(compiled)[2] == "o" * PREVIEW_CHARS + (
        "\n[... the whole output: artifact sha256:whole]"
    )
    assert len(texts(compiled)[-1]) == 40_000
    for entry, place in [(context[4], "artifact sha256:told"), (context[6], "entry a2.0.result")]:
        assert isinstance(entry, MessageEntry)
        assert preview(entry).endswith(f"[... the whole output: {place}]")


def test_only_large_old_tool_outputs_become_previews() -> None:
    context: list[Entry] = [
        user("u", "x" * 40_000),
        answer("a", "y" * 40_000, calls=2),
        output("a.0", LARGE_CHARS),
        output("a.1", LARGE_CHARS + 1),
        *[user(f"v{number}", "z" * 4_000) for number in range(12)],
        answer("b", calls=1),
        output("b.0"),
    ]
    compiled = compile_input(context, FRAME, budget(60_000, compact_at=0.5, keep_recent=11_000))
    assert reasons(compiled) == {"a.1.result": "preview"}
    assert compiled.crowded


def test_in_a_small_window_an_output_partly_in_the_recent_part_becomes_a_preview() -> None:
    context = [*rounds(1, 52_000), *rounds(2, 10_000)[1:]]
    within = budget(20_000, keep_recent=20_000)
    compiled = compile_input(context, FRAME, within)
    assert (compiled.strategy, compiled.crowded) == (("previews",), False)
    assert reasons(compiled) == {"a0.0.result": "preview"}


def test_an_output_that_the_model_has_not_seen_stays_whole_if_it_fits() -> None:
    context = [*rounds(1, 8_000), answer("b", calls=1), output("b.0", 52_000)]
    within = budget(20_000)
    compiled = compile_input(context, FRAME, within)
    assert within.soft >= compiled.tokens > 13_000
    assert "b.0.result" not in reasons(compiled)


def test_a_growing_context_rarely_changes_its_earlier_messages() -> None:
    """Prompt caches and the chain of inputs depend on this."""
    context = rounds(0)
    within = budget(60_000, keep_recent=10_000)
    changes = compactions = 0
    before: tuple[ModelMessage, ...] = ()
    calls = 200
    for number in range(calls):
        context += [answer(f"a{number}", calls=1), output(f"a{number}.0", 8_000)]
        compiled = compile_input(context, FRAME, within)
        if compiled.crowded:
            cut = plan_cut(context, within.recent)
            assert cut is not None
            context = in_context([*context, compacted(f"c{number}", cut.first_kept.id)])
            compactions += 1
            compiled = compile_input(context, FRAME, within)
        assert compiled.tokens <= within.soft
        messages = compiled.request.messages
        changes += messages[: len(before)] != before
        before = messages
    assert compactions >= 1
    assert changes <= calls // 7


# --- omissions -------------------------------------------------------------------------------


def turns(count: int, chars: int = 4_000) -> list[Entry]:
    entries: list[Entry] = []
    for number in range(count):
        entries += [user(f"u{number}", "q" * chars), answer(f"a{number}", "w" * chars)]
    return entries


def test_a_crowded_context_that_fits_the_window_is_sent_whole() -> None:
    compiled = compile_input(turns(10), FRAME, budget(22_000))
    assert compiled.crowded
    assert (compiled.strategy, compiled.omitted) == (("full",), ())


def test_a_context_larger_than_the_window_has_a_notice_in_place_of_its_oldest_turns() -> None:
    context = [*turns(10), user("now", "and now?")]
    compiled = compile_input(context, FRAME, budget(12_000))
    assert compiled.strategy == ("oldest_dropped",)
    gone = list(reasons(compiled))
    assert set(reasons(compiled).values()) == {"oldest"}
    assert gone == [entry.id for entry in context[: len(gone)]]
    assert len(gone) % 2 == 0, "whole turns"
    assert texts(compiled)[0] == LEFT_OUT
    assert texts(compiled)[-1] == "and now?"
    assert compiled.tokens <= 12_000 * 15 // 16


def test_the_summary_is_dropped_last_and_the_question_stays() -> None:
    context = [
        compacted("c", "u0", "s" * 2_000),
        *turns(3),
        user("now", "and now?"),
        *rounds(3, 3_000)[1:],
    ]
    kept = compile_input(context, FRAME, budget(2_400))
    assert kept.strategy == ("compacted", "oldest_dropped")
    assert [text[:40] for text in texts(kept)[:3]] == [
        (SUMMARY_INTRODUCTION + "s" * 40)[:40],
        LEFT_OUT[:40],
        "and now?",
    ]
    tighter = compile_input(context, FRAME, budget(1_000))
    assert tighter.strategy == ("oldest_dropped",)
    assert reasons(tighter)["c"] == "oldest"
    assert texts(tighter)[:2] == [LEFT_OUT, "and now?"]
    assert len(texts(tighter)) == 4


def test_a_summary_that_covers_the_users_last_message_stays() -> None:
    context = [compacted("c", "a0", "s" * 2_000), *rounds(3, 3_000)[1:]]
    compiled = compile_input(context, FRAME, budget(1_500))
    assert compiled.strategy == ("compacted", "oldest_dropped")
    assert texts(compiled)[0].startswith(SUMMARY_INTRODUCTION)


def test_the_newest_output_is_shortened_if_nothing_else_makes_the_context_fit() -> None:
    context = [user("u", "do it"), answer("a", calls=1), output("a.0")]
    compiled = compile_input(context, FRAME, budget(2_000, keep_recent=1_000))
    assert reasons(compiled) == {"a.0.result": "preview"}
    assert compiled.tokens <= 2_000


@pytest.mark.parametrize(
    ("context", "tools", "said"),
    [
        ([user("u", "x" * 8_000)], 10, "entry u (user) takes about 2,008 of 1,000 tokens"),
        (
            [user("u"), answer("a", calls=1), output("a.0", 4_096)],
            10,
            "entry a.0.result (tool read) takes about 1,032 of 1,000 tokens",
        ),
        ([user("u")], 8_000, "the tools take about 2,"),
        ([compacted("c", "x", "s" * 8_000)], 10, "the summary c takes about 2,"),
    ],
    ids=["a question", "an output", "the tools", "a summary"],
)
def test_the_largest_part_of_a_context_that_does_not_fit_is_named(
    context: list[Entry], tools: int, said: str
) -> None:
    frame = msgspec.structs.replace(FRAME, tools=(ToolSpec("read", "d" * tools, {}),))
    window = 1_000
    compiled = compile_input(context, frame, budget(window, frame=frame))
    assert compiled.tokens > budget(window, frame=frame).hard
    assert said in what_is_largest(compiled)


def test_instructions_that_fill_the_window_are_named() -> None:
    frame = msgspec.structs.replace(FRAME, system="p" * 8_000)
    compiled = compile_input([user("u")], frame, budget(1_000, frame=frame))
    assert what_is_largest(compiled).startswith("the system prompt and the instructions")


# --- budgets ---------------------------------------------------------------------------------


def test_a_large_frame_moves_the_compaction_limit_to_half_of_the_rest() -> None:
    frame = msgspec.structs.replace(FRAME, system="p" * 100_000)
    within = budget(32_000, frame=frame, keep_recent=20_000)
    assert within.hard == 30_000
    assert within.soft == frame.tokens + (30_000 - frame.tokens) // 2
    assert within.recent == (within.soft - frame.tokens) // 2
    assert budget(32_000, keep_recent=5_000) == Budget(25_600, 30_000, 5_000, 32_000)


def test_a_context_far_larger_than_the_window_is_crowded_even_if_previews_fit() -> None:
    within = budget(60_000, keep_recent=10_000)
    for count, crowded in [(17, False), (19, True)]:
        compiled = compile_input(rounds(count), FRAME, within)
        assert compiled.tokens <= within.soft
        assert compiled.crowded is crowded


# --- any transcript, any budget ----------------------------------------------------------------

CASES = frames().flatmap(
    lambda frame: st.tuples(contexts(), st.just(frame), budgets(frame)),
)


def assert_omissions_are_reported(compiled: CompiledInput, context: Sequence[Entry]) -> None:
    """Assert that every entry whose content is not whole in the request is reported."""
    request = compiled.request
    said = [told.text for told in request.messages]
    calls = [
        call.id
        for told in request.messages
        if isinstance(told, AssistantMessage)
        for call in told.tool_calls
    ]
    found = reasons(compiled)
    assert list(found) == [entry.id for entry in context if entry.id in found]
    for entry in context:
        if isinstance(entry, CompactionEntry):
            is_whole = SUMMARY_INTRODUCTION + entry.summary in said
        elif entry.role == "tool":
            is_whole = any(
                told.tool_call_id == entry.tool_call_id and told.text == entry.text
                for told in request.messages
                if isinstance(told, ToolResultMessage)
            )
        elif entry.tool_calls is not UNSET:
            is_whole = all(call.tool_call_id in calls for call in entry.tool_calls)
        else:
            is_whole = entry.text in said and bool(entry.text.strip() or entry.role == "user")
        files = () if entry.id[0] != "u" else getattr(entry, "attachments", ())
        if found.get(entry.id) == "attachment":
            assert files
        elif entry.id not in found:
            assert is_whole, f"{entry.id} is neither sent nor reported"


@given(CASES)
def test_any_compiled_input_is_valid_and_bounded_and_reports_its_omissions(
    case: tuple[list[Entry], Frame, Budget],
) -> None:
    context, frame, within = case
    compiled = compile_input(context, frame, within)
    check_valid(compiled.request.messages)
    assert compiled.tokens == tokens_of(compiled.request)
    assert_omissions_are_reported(compiled, context)
    if compiled.tokens > within.hard:
        assert_nothing_more_can_go(compiled)


def assert_nothing_more_can_go(compiled: CompiledInput) -> None:
    """Assert that only the question and the newest message are left, with previews of its outputs."""
    heads = [entry for entry in compiled.entries if getattr(entry, "role", "") != "tool"]
    told = [
        entry
        for entry in heads
        if not isinstance(entry, MessageEntry)
        or entry.role == "user"
        or entry.text.strip()
        or entry.tool_calls is not UNSET
    ]
    assert len(told) <= 2 or isinstance(told[0], CompactionEntry)
    for entry in compiled.entries:
        if isinstance(entry, MessageEntry) and entry.role == "tool":
            assert len(entry.text) <= LARGE_CHARS


@given(CASES)
def test_equal_arguments_give_equal_bytes(case: tuple[list[Entry], Frame, Budget]) -> None:
    context, frame, within = case
    one, other = compile_input(context, frame, within), compile_input([*context], frame, within)
    assert canonical(msgspec.to_builtins(one.request)) == canonical(
        msgspec.to_builtins(other.request)
    )
    assert one == other


@given(contexts())
def test_user_messages_are_never_merged(context: list[Entry]) -> None:
    compiled = compile_input(context, FRAME, budget(10_000_000))
    users = [m for m in compiled.request.messages if isinstance(m, UserMessage)]
    asked = [entry for entry in context if entry.id[0] in "uc"]
    assert len(users) == len(asked) + compiled.closing
