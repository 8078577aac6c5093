"""What every provider does alike, asked of each: the built-in model and Chat Completions over HTTP.

A ``Scene`` says in no dialect what the model is to do; a ``Subject`` arranges it and asks.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
import trio
import trio.testing

from nousd.errors import ContextOverflow, ProviderError
from nousd.machine.model_input import ModelInput
from nousd.providers.interface import (
    Finished,
    Piece,
    Provider,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolCallPiece,
)
from nousd.providers.mock import MockProvider
from nousd.providers.openai import OpenAIProvider
from nousd.providers.retry import RetryingProvider
from tests.providers.helpers import (
    Collector,
    ask,
    calls_of,
    collect,
    finish_of,
    reasoning_of,
    text_of,
)
from tests.stub_model import (
    Gate,
    Part,
    Reply,
    StubModel,
    call_delta,
    delta,
    error_reply,
    finish,
    stub_model,
)


@dataclass(frozen=True)
class Scene:
    """What the model does in one call, in this order."""

    refusals: tuple[int, ...] = ()
    reasoning: str = ""
    text: str = ""
    breaks_with: int | None = None
    hangs: bool = False
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    input_tokens: int | None = None


class Subject(Protocol):
    provider: Provider

    def arrange(self, scene: Scene) -> ModelInput: ...

    async def wait_closed(self) -> None: ...


class MockSubject:
    """The built-in model, told by directives."""

    def __init__(self) -> None:
        self.provider: Provider = MockProvider()

    def arrange(self, scene: Scene) -> ModelInput:
        script = [f"[[error {status} x1]]" for status in scene.refusals]
        if scene.reasoning:
            script.append(f"[[think {len(scene.reasoning.split())}]]")
        script.append(f"[[text {scene.text}]]")
        if scene.breaks_with:
            script.append(f"[[error {scene.breaks_with}]]")
        if scene.hangs:
            script.append("[[hang]]")
        script += [f"[[tool {name} {json.dumps(args)}]]" for name, args in scene.calls]
        if scene.input_tokens is not None:
            script.append(f"[[usage {scene.input_tokens}]]")
        return ask("".join(script))

    async def wait_closed(self) -> None:
        """Nothing is ever open."""


class OpenAISubject:
    """Chat Completions from a stub, with everything in as many fragments as there are."""

    def __init__(self, stub: StubModel) -> None:
        self._stub = stub
        self.provider: Provider = OpenAIProvider(stub.api_base)

    def arrange(self, scene: Scene) -> ModelInput:
        self._stub.script(*(error_reply(status, "no") for status in scene.refusals))
        parts: list[Part] = [delta(reasoning_content=char) for char in scene.reasoning]
        parts += [delta(content=char) for char in scene.text]
        if scene.breaks_with:
            parts.append({"error": {"message": "broken", "code": scene.breaks_with}})
        if scene.hangs:
            parts.append(Gate())
        parts += self._fragments(scene)
        usage = {"prompt_tokens": scene.input_tokens or 0, "completion_tokens": 1}
        self._stub.script(Reply((*parts, *finish(usage=usage))))
        return ask("hi")

    @staticmethod
    def _fragments(scene: Scene) -> list[Part]:
        """Returns all calls at once, one character of each in turn."""
        heads: list[Part] = [
            call_delta(index=index, id=f"c{index}", function={"name": name, "arguments": ""})
            for index, (name, _) in enumerate(scene.calls)
        ]
        texts = [json.dumps(args) for _, args in scene.calls]
        rest: list[Part] = [
            call_delta(index=index, function={"arguments": text[position : position + 1]})
            for position in range(max(map(len, texts), default=0))
            for index, text in enumerate(texts)
        ]
        return heads + rest

    async def wait_closed(self) -> None:
        await self._stub.wait_closed()


@asynccontextmanager
async def mock_subject() -> AsyncIterator[Subject]:
    yield MockSubject()


@asynccontextmanager
async def openai_subject() -> AsyncIterator[Subject]:
    async with stub_model() as stub:
        subject = OpenAISubject(stub)
        yield subject
        await subject.provider.aclose()


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0.05)


@pytest.fixture(params=[mock_subject, openai_subject], ids=["mock", "openai"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    async with request.param() as subject:
        yield subject


async def perform(subject: Subject, scene: Scene) -> list[Piece]:
    with trio.fail_after(5):
        return await collect(subject.provider, subject.arrange(scene))


@pytest.mark.parametrize("text", ["one", "two words", " \n a\t\n\n b  ", "grüße 😀 \u2028", "  "])
async def test_text_arrives_with_every_character(subject: Subject, text: str) -> None:
    pieces = await perform(subject, Scene(text=text))
    assert text_of(pieces) == text
    assert finish_of(pieces).reason == "stop"
    assert all(isinstance(piece, TextDelta | Finished) for piece in pieces)


async def test_no_delta_is_empty(subject: Subject) -> None:
    pieces = await perform(subject, Scene(reasoning="word1", text="a b"))
    assert all(p.text for p in pieces if isinstance(p, TextDelta | ReasoningDelta))


async def test_an_empty_answer_is_just_finished(subject: Subject) -> None:
    pieces = await perform(subject, Scene(text=""))
    assert [type(piece) for piece in pieces] == [Finished]


async def test_reasoning_comes_apart_and_before_the_text(subject: Subject) -> None:
    pieces = await perform(subject, Scene(reasoning="word1 word2", text="So."))
    assert reasoning_of(pieces) == "word1 word2"
    assert text_of(pieces) == "So."
    kinds = [type(piece) for piece in pieces]
    assert kinds == sorted(kinds, key=[ReasoningDelta, TextDelta, Finished].index)


async def test_one_call_arrives_whole_behind_the_text(subject: Subject) -> None:
    pieces = await perform(subject, Scene(text="Look:", calls=(("read", {"path": "ä]]b"}),)))
    assert text_of(pieces) == "Look:"
    [(name, arguments)] = calls_of(pieces)
    assert (name, json.loads(arguments)) == ("read", {"path": "ä]]b"})
    assert isinstance(pieces[-2], ToolCallPiece)
    assert finish_of(pieces).reason == "tool_use"


async def test_parallel_calls_keep_their_order_and_differ_in_their_ids(subject: Subject) -> None:
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("read", {"path": "a"}),
        ("bash", {}),
        ("read", {"path": "a"}),
    )
    pieces = await perform(subject, Scene(calls=calls))
    assert [(name, json.loads(arguments)) for name, arguments in calls_of(pieces)] == list(calls)
    assert len({piece.id for piece in pieces if isinstance(piece, ToolCallPiece)}) == 3


async def test_usage_comes_with_the_end(subject: Subject) -> None:
    usage = finish_of(await perform(subject, Scene(text="a", input_tokens=1234))).usage
    assert usage is not None
    assert (usage.input, usage.output, usage.total) == (1234, 1, 1235)


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (401, False), (503, True)])
async def test_a_refusal_has_its_status_and_says_whether_it_passes(
    subject: Subject, status: int, retryable: bool
) -> None:
    received = Collector()
    request = subject.arrange(Scene(refusals=(status,)))
    with trio.fail_after(5), pytest.raises(ProviderError) as caught:
        await subject.provider.generate(request, received)
    assert (caught.value.status, caught.value.retryable) == (status, retryable)
    assert str(caught.value)
    assert received.pieces == []


async def test_an_overflow_is_told_apart(subject: Subject) -> None:
    request = subject.arrange(Scene(refusals=(413,)))
    with trio.fail_after(5), pytest.raises(ContextOverflow):
        await collect(subject.provider, request)


async def test_an_error_within_the_answer_comes_behind_its_text(subject: Subject) -> None:
    received = Collector()
    request = subject.arrange(Scene(text="half an", breaks_with=500))
    with trio.fail_after(5), pytest.raises(ProviderError) as caught:
        await subject.provider.generate(request, received)
    assert caught.value.status == 500
    assert text_of(received.pieces) == "half an"
    assert not any(isinstance(piece, Finished) for piece in received.pieces)


async def test_passing_refusals_are_retried_until_the_answer(
    subject: Subject, clock: trio.testing.MockClock
) -> None:
    provider = RetryingProvider(subject.provider, lambda: 0.0)
    pieces = await collect(provider, subject.arrange(Scene(refusals=(503, 429), text="ok")))
    retries = [piece for piece in pieces if isinstance(piece, Retrying)]
    assert [retry.attempt for retry in retries] == [1, 2]
    assert [retry.cause[:8] for retry in retries] == ["http 503", "http 429"]
    assert text_of(pieces) == "ok"


async def test_an_error_within_the_answer_is_not_retried(subject: Subject) -> None:
    provider = RetryingProvider(subject.provider, lambda: 0.0)
    received = Collector()
    request = subject.arrange(Scene(text="half", breaks_with=500))
    with trio.fail_after(5), pytest.raises(ProviderError):
        await provider.generate(request, received)
    assert text_of(received.pieces) == "half"
    assert not any(isinstance(piece, Retrying) for piece in received.pieces)


async def test_cancelling_in_the_middle_ends_it_at_once_and_leaves_nothing_open(
    subject: Subject,
) -> None:
    received = Collector()
    request = subject.arrange(Scene(text="begun", hangs=True))
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subject.provider.generate, request, received)
            while text_of(received.pieces) != "begun":
                await received.wait_for_more()
            nursery.cancel_scope.cancel()
        await subject.wait_closed()
    assert text_of(await perform(subject, Scene(text="again"))) == "again"


async def test_what_the_receiver_raises_comes_out_as_it_is(subject: Subject) -> None:
    async def receive(piece: Piece) -> None:
        raise ZeroDivisionError

    request = subject.arrange(Scene(text="a b c"))
    with trio.fail_after(5):
        with pytest.raises(ZeroDivisionError):
            await subject.provider.generate(request, receive)
        await subject.wait_closed()


async def test_closing_twice_is_fine(subject: Subject) -> None:
    await perform(subject, Scene(text="a"))
    with trio.fail_after(5):
        await subject.provider.aclose()
        await subject.wait_closed()
        await subject.provider.aclose()


async def test_it_has_a_name_a_model_and_a_window(subject: Subject) -> None:
    assert subject.provider.name in ("mock", "openai")
    assert subject.provider.default_model
    assert subject.provider.context_window(subject.provider.default_model) > 1000
