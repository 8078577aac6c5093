from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio
import trio.testing

from nousd.errors import ContextOverflow, ProviderError
from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelMessage,
    ModelToolCall,
    ToolResultMessage,
    UserMessage,
)
from nousd.providers.interface import Finished, Piece, TextDelta
from nousd.providers.mock.provider import FAILURES_KEPT_MAX, NO_MODEL, MockProvider
from nousd.providers.setup.registry import ProviderSettings, make_provider
from nousd.wire.objects.entries import Usage
from tests.harness.daemon import WAIT_SECONDS
from tests.providers.helpers import (
    Collector,
    ask,
    calls_of,
    collect,
    finish_of,
    reasoning_of,
    text_of,
)

CALL = AssistantMessage("", (ModelToolCall("c", "read", {"path": "a"}),))
RESULT = ToolResultMessage("c", "read", "contents", is_error=False)
GUIDE = Path(__file__).resolve().parents[2] / "protocol" / "mock.md"


async def generate_text(*messages: ModelMessage | str) -> str:
    return text_of(await collect(MockProvider(), ask(*messages)))


async def test_the_default_answer_repeats_the_input() -> None:
    assert await collect(MockProvider(), ask("hello")) == [
        TextDelta("mock "),
        TextDelta("response: "),
        TextDelta("user: "),
        TextDelta("hello"),
        Finished("stop", Usage(input=1, output=4, total=5)),
    ]


async def test_as_a_stand_in_it_says_in_each_default_answer_what_to_do() -> None:
    provider = make_provider("mock", ProviderSettings(is_fallback=True))
    answer = text_of(await collect(provider, ask("hello")))
    assert answer == "mock response: user: hello" + NO_MODEL
    assert "nousd init" in answer
    assert text_of(await collect(provider, ask("[[text exactly]]"))) == "exactly"


async def test_the_default_answer_renders_every_kind_of_message_in_a_line() -> None:
    answer = await generate_text(
        "first\nsecond", AssistantMessage("ok"), "x" * 100, CALL, RESULT, AssistantMessage(""), ""
    )
    assert answer.removeprefix("mock response: ").split("\n") == [
        "user: first second",
        "assistant: ok",
        "user: " + "x" * 73 + "…",
        "assistant: [read]",
        "tool: contents",
        "assistant: ",
        "user: ",
    ]


async def test_the_default_answer_shows_only_the_last_20_messages() -> None:
    messages: list[ModelMessage] = []
    for number in range(40):
        messages.append(UserMessage(f"question {number}"))
        messages.append(AssistantMessage(await generate_text(*messages)))
    lines = await generate_text(*messages, "last")
    assert len(lines.split("\n")) == 20
    assert len(lines) < 20 * 82
    assert lines.endswith("user: last")


async def test_equal_inputs_give_equal_pieces() -> None:
    request = ask("[[think 2]] [[say 3]] [[tool read {}]]")
    provider = MockProvider()
    assert await collect(provider, request) == await collect(provider, request)


async def test_a_text_is_streamed_word_by_word_with_its_white_space() -> None:
    pieces = await collect(MockProvider(), ask("[[text  a  b\n\nc ]]"))
    assert [p.text for p in pieces if isinstance(p, TextDelta)] == [" a  ", "b\n\n", "c "]


async def test_white_space_alone_is_a_text() -> None:
    assert await generate_text("[[text  \n]]") == " \n"


async def test_the_newest_user_text_is_the_script() -> None:
    assert await generate_text("[[say 1]]", AssistantMessage("word1"), "and now?") != "word1"
    assert await generate_text("hello", AssistantMessage("x"), "[[say 1]]") == "word1"


async def test_a_steer_replaces_the_script() -> None:
    assert (
        await generate_text("[[tool read]] [[then]] [[say 9]]", CALL, RESULT, "[[say 1]]")
        == "word1"
    )


async def test_parts_of_a_script_are_consecutive_calls_of_a_turn() -> None:
    script = "[[tool read]] [[then]] [[tool bash]] [[then]] [[text done]]"
    provider = MockProvider()
    assert calls_of(await collect(provider, ask(script))) == [("read", "{}")]
    assert calls_of(await collect(provider, ask(script, CALL, RESULT))) == [("bash", "{}")]
    assert await generate_text(script, CALL, RESULT, CALL, RESULT) == "done"
    assert (await generate_text(script, *(CALL, RESULT) * 3)).startswith("mock response: ")


async def test_a_script_of_tools_is_followed_by_the_default_answer() -> None:
    pieces = await collect(MockProvider(), ask("[[tool read]]"))
    assert text_of(pieces) == ""
    assert finish_of(pieces).reason == "tool_use"
    answer = await generate_text("[[tool read]]", CALL, RESULT)
    assert answer.endswith("assistant: [read]\ntool: contents")


async def test_directives_without_text_keep_the_default_answer() -> None:
    assert (await generate_text("[[think 1]] [[usage 5]]")).startswith(
        "mock response: user: [[think"
    )


async def test_usage_counts_words() -> None:
    request = ask("[[think 2]] [[say 3]]", system="be brief")
    usage = finish_of(await collect(MockProvider(), request)).usage
    assert usage == Usage(input=6, output=5, total=11, reasoning=2)


async def test_slow_waits_before_each_piece(autojump_clock: trio.testing.MockClock) -> None:
    times = []

    async def receive(piece: Piece) -> None:
        times.append(round(trio.current_time() - start, 3))

    start = trio.current_time()
    await MockProvider().generate(ask("[[say 1]] [[slow 50]] [[say 2]]"), receive)
    assert times == [0.0, 0.05, 0.1, 0.1]


async def test_hang_ends_only_when_cancelled() -> None:
    received = Collector()
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(MockProvider().generate, ask("[[say 1]] [[hang]]"), received)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert received.pieces == [TextDelta("word1")]


async def test_an_error_without_a_count_is_always_raised() -> None:
    provider = MockProvider()
    for _ in range(5):
        with pytest.raises(ProviderError, match="mock error 503") as caught:
            await collect(provider, ask("[[error 503]] [[say 1]]"))
        assert (caught.value.status, caught.value.retryable) == (503, True)


async def test_an_error_with_a_count_is_raised_that_often_before_each_answer() -> None:
    provider, request = MockProvider(), ask("[[error 400 x2]] [[say 1]]")

    async def outcome() -> str:
        try:
            return text_of(await collect(provider, request))
        except ProviderError as error:
            return str(error)

    outcomes = [await outcome() for _ in range(6)]
    assert outcomes == ["mock error 400", "mock error 400", "word1"] * 2


async def test_several_errors_are_raised_in_order() -> None:
    provider, request = MockProvider(), ask("[[error 503 x2]] [[error 429 x1]] [[say 1]]")
    for _ in range(2):
        for status in (503, 503, 429):
            with pytest.raises(ProviderError) as caught:
                await collect(provider, request)
            assert caught.value.status == status
        assert text_of(await collect(provider, request)) == "word1"


async def test_errors_are_counted_by_text() -> None:
    provider = MockProvider()
    for text in ("[[error 500 x1]]", "[[error 500 x1]] again"):
        with pytest.raises(ProviderError):
            await collect(provider, ask(text))
        await collect(provider, ask(text))


async def test_error_counts_are_kept_for_a_limited_number_of_texts() -> None:
    provider = MockProvider()
    for number in range(FAILURES_KEPT_MAX + 1):
        with pytest.raises(ProviderError):
            await collect(provider, ask(f"[[error 500 x1]] {number}"))
    with pytest.raises(ProviderError):
        await collect(provider, ask("[[error 500 x1]] 0"))
    await collect(provider, ask(f"[[error 500 x1]] {FAILURES_KEPT_MAX}"))


async def test_error_413_is_a_context_overflow() -> None:
    with pytest.raises(ContextOverflow):
        await collect(MockProvider(), ask("[[error 413]]"))


async def test_a_counted_overflow_ends_after_a_summary() -> None:
    provider, text = MockProvider(), "[[error 413 x1]] [[say 1]]"
    with pytest.raises(ContextOverflow):
        await collect(provider, ask(text))
    await collect(provider, ask(text, purpose="summary"))
    assert text_of(await collect(provider, ask("summary", text))) == "word1"


async def test_a_summary_is_short_and_ignores_directives() -> None:
    messages = ("[[error 500]] " + "x" * 1000, AssistantMessage("y"), "z" * 1000)
    pieces = await collect(MockProvider(), ask(*messages, purpose="summary"))
    first, *lines = text_of(pieces).split("\n")
    assert first == "mock summary (messages: 3)"
    assert [line[:8] for line in lines] == ["user: [[", "user: zz"]
    assert max(map(len, lines)) == 80
    assert finish_of(pieces).reason == "stop"


async def test_the_summary_of_one_message_names_it_once() -> None:
    text = text_of(await collect(MockProvider(), ask("hello", purpose="summary")))
    assert text == "mock summary (messages: 1)\nuser: hello"


def test_model_and_context_window_can_be_set() -> None:
    provider = MockProvider("tiny", context_window_tokens=500)
    assert (provider.name, provider.default_model) == ("mock", "tiny")
    assert provider.context_window("any") == 500


# --- the guide -------------------------------------------------------------------------------

EXAMPLES = re.findall(r"```mock\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_guide_names_every_directive() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for name in ("say", "text", "think", "slow", "tool", "then", "error", "hang", "usage"):
        assert f"`[[{name}" in text


@pytest.mark.parametrize("example", EXAMPLES)
async def test_the_examples_in_the_guide_are_correct(
    example: str, autojump_clock: trio.testing.MockClock
) -> None:
    provider = MockProvider()
    for conversation in re.split(r"^> ", example, flags=re.MULTILINE)[1:]:
        script, _, rest = conversation.partition("\n")
        history: list[ModelMessage] = []
        for call in rest.split("=\n"):
            shown = await shown_call(provider, script, history)
            for line in call.splitlines():
                assert line.removeprefix("< ") in shown
            history += [CALL, RESULT]


async def shown_call(provider: MockProvider, script: str, history: list[ModelMessage]) -> list[str]:
    """Make one call and return its outcome in the notation of the guide."""
    received = Collector()
    shown = []
    try:
        await provider.generate(ask(script, *history), received)
    except ProviderError as error:
        shown.append(f"error: {error.status}")
    else:
        usage = finish_of(received.pieces).usage
        assert usage is not None
        shown.append(f"usage: input={usage.input} output={usage.output}")
    shown.append(f"text: {text_of(received.pieces)}")
    shown.append(f"reasoning: {reasoning_of(received.pieces)}")
    shown += [f"call: {name} {arguments}" for name, arguments in calls_of(received.pieces)]
    return shown
