"""Behaviour common to all providers: the built-in model and every dialect over HTTP.

Faults of servers only, such as broken connections and garbage, are in ``test_hosted_faults``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import pytest
import trio
import trio.testing

from nousd.errors import ContextOverflow, ProviderError
from nousd.machine.context.model_input import ModelInput
from nousd.providers.interface import (
    Finished,
    Piece,
    Provider,
    ReasoningDelta,
    ReasoningKept,
    Retrying,
    TextDelta,
    ToolCallPiece,
)
from nousd.providers.mock.provider import MockProvider
from nousd.providers.retry import RetryingProvider
from nousd.wire.objects.entries import Usage
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.stub_model import Gate
from tests.providers.conformance import Dialect, Scene, Server, server_of
from tests.providers.dialects import DIALECTS
from tests.providers.helpers import (
    Collector,
    ask,
    calls_of,
    collect,
    finish_of,
    reasoning_of,
    text_of,
)


class Subject(Protocol):
    """Arranges the model's actions in the next call, after the given refusals.

    ``breaks_with`` is the status of an error after the text; ``hangs`` makes the answer stop there.
    """

    provider: Provider

    def arrange(
        self,
        scene: Scene,
        *,
        refusals: tuple[int, ...] = (),
        breaks_with: int | None = None,
        hangs: bool = False,
    ) -> ModelInput: ...

    async def wait_closed(self) -> None: ...


class MockSubject:
    """The built-in model, controlled by directives."""

    def __init__(self) -> None:
        self.provider: Provider = MockProvider()

    def arrange(
        self,
        scene: Scene,
        *,
        refusals: tuple[int, ...] = (),
        breaks_with: int | None = None,
        hangs: bool = False,
    ) -> ModelInput:
        script = [f"[[error {status} x1]]" for status in refusals]
        if scene.reasoning:
            script.append(f"[[think {len(scene.reasoning.split())}]]")
        script.append(f"[[text {scene.text}]]")
        if breaks_with:
            script.append(f"[[error {breaks_with}]]")
        if hangs:
            script.append("[[hang]]")
        script += [f"[[tool {name} {json.dumps(args)}]]" for name, args in scene.calls]
        if scene.usage is not None:
            script.append(f"[[usage {scene.usage.input}]]")
        return ask("".join(script))

    async def wait_closed(self) -> None:
        """Return at once, since the built-in model has no connections."""


class HostedSubject:
    """A stub that speaks the dialect, with everything in as many fragments as possible."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.provider: Provider = server.provider

    def arrange(
        self,
        scene: Scene,
        *,
        refusals: tuple[int, ...] = (),
        breaks_with: int | None = None,
        hangs: bool = False,
    ) -> ModelInput:
        dialect, stub = self._server.dialect, self._server.stub
        stub.script(*(dialect.refuse(status) for status in refusals))
        if breaks_with:
            scene = replace(scene, then=(dialect.fault(breaks_with, "broken"),))
        if hangs:
            scene = replace(scene, then=(Gate(),))
        self._server.script(scene)
        return ask("hi")

    async def wait_closed(self) -> None:
        await self._server.stub.wait_closed()


@asynccontextmanager
async def mock_subject() -> AsyncIterator[Subject]:
    yield MockSubject()


@asynccontextmanager
async def hosted_subject(dialect: Dialect) -> AsyncIterator[Subject]:
    async with server_of(dialect) as server:
        yield HostedSubject(server)


SUBJECTS = {
    "mock": mock_subject,
    **{dialect.name: partial(hosted_subject, dialect) for dialect in DIALECTS},
}


@pytest.fixture(params=list(SUBJECTS.values()), ids=list(SUBJECTS))
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    async with request.param() as subject:
        yield subject


async def perform(subject: Subject, scene: Scene) -> list[Piece]:
    with trio.fail_after(WAIT_SECONDS):
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


async def test_an_empty_answer_is_only_finished(subject: Subject) -> None:
    pieces = await perform(subject, Scene(text=""))
    assert [type(piece) for piece in pieces] == [Finished]


async def test_reasoning_is_separate_and_precedes_the_text(subject: Subject) -> None:
    pieces = await perform(subject, Scene(reasoning="word1 word2", text="So."))
    assert reasoning_of(pieces) == "word1 word2"
    assert text_of(pieces) == "So."
    kinds = [type(piece) for piece in pieces]
    assert kinds == sorted(kinds, key=[ReasoningDelta, ReasoningKept, TextDelta, Finished].index)


async def test_a_call_arrives_complete_after_the_text(subject: Subject) -> None:
    pieces = await perform(subject, Scene(text="Look:", calls=(("read", {"path": "ä]]b"}),)))
    assert text_of(pieces) == "Look:"
    [(name, arguments)] = calls_of(pieces)
    assert (name, json.loads(arguments)) == ("read", {"path": "ä]]b"})
    assert isinstance(pieces[-2], ToolCallPiece)
    assert finish_of(pieces).reason == "tool_use"


async def test_parallel_calls_keep_their_order_and_have_different_ids(subject: Subject) -> None:
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("read", {"path": "a"}),
        ("bash", {}),
        ("read", {"path": "a"}),
    )
    pieces = await perform(subject, Scene(calls=calls))
    assert [(name, json.loads(arguments)) for name, arguments in calls_of(pieces)] == list(calls)
    assert len({piece.id for piece in pieces if isinstance(piece, ToolCallPiece)}) == 3


async def test_usage_comes_with_the_end(subject: Subject) -> None:
    told = Usage(input=1234, output=1, total=1235)
    usage = finish_of(await perform(subject, Scene(text="a", usage=told))).usage
    assert usage is not None
    assert (usage.input, usage.output, usage.total) == (1234, 1, 1235)


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (401, False), (503, True)])
async def test_a_refusal_has_its_status_and_is_retryable_or_not(
    subject: Subject, status: int, retryable: bool
) -> None:
    received = Collector()
    request = subject.arrange(Scene(), refusals=(status,))
    with trio.fail_after(WAIT_SECONDS), pytest.raises(ProviderError) as caught:
        await subject.provider.generate(request, received)
    assert (caught.value.status, caught.value.retryable) == (status, retryable)
    assert str(caught.value)
    assert received.pieces == []


async def test_a_context_overflow_is_an_error_of_its_own(subject: Subject) -> None:
    request = subject.arrange(Scene(), refusals=(413,))
    with trio.fail_after(WAIT_SECONDS), pytest.raises(ContextOverflow):
        await collect(subject.provider, request)


async def test_an_error_within_the_answer_comes_after_its_text(subject: Subject) -> None:
    received = Collector()
    request = subject.arrange(Scene(text="half an"), breaks_with=500)
    with trio.fail_after(WAIT_SECONDS), pytest.raises(ProviderError) as caught:
        await subject.provider.generate(request, received)
    assert caught.value.retryable
    assert str(caught.value)
    assert text_of(received.pieces) == "half an"
    assert not any(isinstance(piece, Finished) for piece in received.pieces)


@pytest.mark.slow(keep=1)
async def test_temporary_refusals_are_retried_until_the_answer(
    subject: Subject, clock: trio.testing.MockClock
) -> None:
    provider = RetryingProvider(subject.provider, lambda: 0.0)
    request = subject.arrange(Scene(text="ok"), refusals=(503, 429))
    pieces = await collect(provider, request)
    retries = [piece for piece in pieces if isinstance(piece, Retrying)]
    assert [retry.attempt for retry in retries] == [1, 2]
    assert [retry.cause[:8] for retry in retries] == ["http 503", "http 429"]
    assert text_of(pieces) == "ok"


async def test_an_error_within_the_answer_is_not_retried(subject: Subject) -> None:
    provider = RetryingProvider(subject.provider, lambda: 0.0)
    received = Collector()
    request = subject.arrange(Scene(text="half"), breaks_with=500)
    with trio.fail_after(WAIT_SECONDS), pytest.raises(ProviderError):
        await provider.generate(request, received)
    assert text_of(received.pieces) == "half"
    assert not any(isinstance(piece, Retrying) for piece in received.pieces)


async def test_cancelling_a_call_ends_it_at_once_and_closes_its_connection(
    subject: Subject,
) -> None:
    received = Collector()
    request = subject.arrange(Scene(text="begun"), hangs=True)
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subject.provider.generate, request, received)
            while text_of(received.pieces) != "begun":
                await received.wait_for_more()
            nursery.cancel_scope.cancel()
        await subject.wait_closed()
    assert text_of(await perform(subject, Scene(text="again"))) == "again"


async def test_an_error_of_the_receiver_is_raised_unchanged(subject: Subject) -> None:
    async def receive(piece: Piece) -> None:
        raise ZeroDivisionError

    request = subject.arrange(Scene(text="a b c"))
    with trio.fail_after(WAIT_SECONDS):
        with pytest.raises(ZeroDivisionError):
            await subject.provider.generate(request, receive)
        await subject.wait_closed()


async def test_a_provider_can_be_closed_twice(subject: Subject) -> None:
    await perform(subject, Scene(text="a"))
    with trio.fail_after(WAIT_SECONDS):
        await subject.provider.aclose()
        await subject.wait_closed()
        await subject.provider.aclose()


async def test_a_provider_has_a_name_a_default_model_and_a_context_window(subject: Subject) -> None:
    assert subject.provider.name in SUBJECTS
    assert subject.provider.default_model
    assert subject.provider.context_window(subject.provider.default_model) > 1000
