from __future__ import annotations

from itertools import pairwise

import pytest
import trio
import trio.testing

from nousd.errors import ContextOverflow, ProviderError
from nousd.machine.context.model_input import ModelInput
from nousd.providers.interface import (
    NO_BLOBS,
    Blobs,
    Finished,
    Piece,
    Provider,
    ReasoningDelta,
    Receive,
    Retrying,
    TextDelta,
    ToolCallPiece,
)
from nousd.providers.retry import RetryingProvider
from tests.harness.daemon import WAIT_SECONDS
from tests.providers.helpers import Collector, ask, collect


class ScriptedProvider:
    """Each call plays one list: pieces are passed on, an error is raised."""

    name = "scripted"
    default_model = "m"

    def __init__(self, *calls: list[Piece | ProviderError]) -> None:
        self.calls = list(calls)
        self.times: list[float] = []
        self.closed = False

    def context_window(self, model: str) -> int:
        return len(model)

    async def aclose(self) -> None:
        self.closed = True

    def accepts(self, model: str, media_type: str) -> bool:
        return True

    async def models(self) -> tuple[str, ...]:
        return (self.default_model,)

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        self.times.append(trio.current_time())
        for step in self.calls.pop(0):
            if isinstance(step, ProviderError):
                raise step
            await receive(step)


GOOD: list[Piece | ProviderError] = [TextDelta("ok"), Finished("stop")]


def busy(retry_after_seconds: float | None = None) -> ProviderError:
    return ProviderError(
        "busy", status=503, retryable=True, retry_after_seconds=retry_after_seconds
    )


BUSY: list[list[Piece | ProviderError]] = [[busy()]]


def retrying(
    *calls: list[Piece | ProviderError], random: float = 0.0, attempts_max: int = 3
) -> tuple[RetryingProvider, ScriptedProvider]:
    inner = ScriptedProvider(*calls)
    return RetryingProvider(inner, lambda: random, attempts_max=attempts_max), inner


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


async def test_a_successful_call_is_made_once() -> None:
    provider, inner = retrying(GOOD)
    assert await collect(provider, ask("hi")) == GOOD
    assert len(inner.times) == 1


async def test_a_failure_before_any_content_is_retried_after_a_notice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    provider, inner = retrying([busy()], [busy()], GOOD)
    pieces = await collect(provider, ask("hi"))
    assert pieces == [
        Retrying(1, 3, "http 503: busy", 0.25),
        Retrying(2, 3, "http 503: busy", 0.5),
        *GOOD,
    ]
    assert gaps(inner.times) == pytest.approx([0.25, 0.5])


async def test_the_last_failure_is_raised(autojump_clock: trio.testing.MockClock) -> None:
    provider, inner = retrying([busy()], [busy()], [busy()], GOOD)
    received = Collector()
    with pytest.raises(ProviderError, match="busy"):
        await provider.generate(ask("hi"), received)
    assert [type(piece) for piece in received.pieces] == [Retrying, Retrying]
    assert len(inner.times) == 3


async def test_waits_double_up_to_a_limit_with_jitter(
    autojump_clock: trio.testing.MockClock,
) -> None:
    provider, inner = retrying(*BUSY * 7, GOOD, random=0.5, attempts_max=8)
    await collect(provider, ask("hi"))
    assert gaps(inner.times) == pytest.approx([0.375, 0.75, 1.5, 3.0, 6.0, 6.0, 6.0])


async def test_a_retry_waits_as_long_as_the_server_asks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    provider, inner = retrying([busy(60.0)], [busy(0.0)], GOOD, random=0.9)
    pieces = await collect(provider, ask("hi"))
    assert gaps(inner.times) == pytest.approx([60.0, 0.0])
    assert [piece.delay_seconds for piece in pieces if isinstance(piece, Retrying)] == [60.0, 0.0]


async def test_a_server_that_asks_for_too_long_a_wait_is_not_retried() -> None:
    provider, inner = retrying([busy(60.1)], GOOD)
    received = Collector()
    with pytest.raises(ProviderError, match="busy; the server asks to wait 61 seconds"):
        await provider.generate(ask("hi"), received)
    assert received.pieces == []
    assert len(inner.times) == 1


@pytest.mark.parametrize(
    "error",
    [ProviderError("bad", status=400), ContextOverflow("long", status=400), ProviderError("x")],
)
async def test_a_permanent_failure_is_raised_at_once(error: ProviderError) -> None:
    provider, inner = retrying([error], GOOD)
    with pytest.raises(ProviderError) as caught:
        await collect(provider, ask("hi"))
    assert caught.value is error
    assert len(inner.times) == 1


@pytest.mark.parametrize(
    "content", [TextDelta("a"), ReasoningDelta("a"), ToolCallPiece("c", "read", "{}")]
)
async def test_a_failure_after_content_is_not_retried(content: Piece) -> None:
    provider, inner = retrying([content, busy()], GOOD)
    received = Collector()
    with pytest.raises(ProviderError, match="busy"):
        await provider.generate(ask("hi"), received)
    assert received.pieces == [content]
    assert len(inner.times) == 1


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ProviderError("the connection broke", retryable=True), "the connection broke"),
        (ProviderError("slow down", status=429, retryable=True), "http 429: slow down"),
        (
            ProviderError("http 502 Bad Gateway", status=502, retryable=True),
            "http 502 Bad Gateway",
        ),
    ],
)
async def test_the_retry_notice_has_the_cause(
    error: ProviderError, cause: str, autojump_clock: trio.testing.MockClock
) -> None:
    provider, _ = retrying([error], GOOD)
    notice = (await collect(provider, ask("hi")))[0]
    assert isinstance(notice, Retrying)
    assert notice.cause == cause


async def test_a_wait_can_be_cancelled() -> None:
    provider, inner = retrying([busy(30.0)], GOOD)
    received = Collector()
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(provider.generate, ask("hi"), received)
            await received.wait_for(Retrying)
            nursery.cancel_scope.cancel()
    assert len(inner.times) == 1


async def test_other_calls_are_forwarded_to_the_wrapped_provider() -> None:
    provider, inner = retrying()
    wrapped: Provider = provider
    assert (wrapped.name, wrapped.default_model) == ("scripted", "m")
    assert wrapped.context_window("four") == 4
    await wrapped.aclose()
    assert inner.closed
