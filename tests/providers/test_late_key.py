"""Lazy keys: fetched once, again after they expire, and never before they are needed."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from nousd.errors import ConfigError, ProviderError
from nousd.machine.context.model_input import ModelInput
from nousd.providers.interface import (
    NO_BLOBS,
    Blobs,
    Finished,
    Provider,
    Receive,
    Retrying,
    TextDelta,
)
from nousd.providers.mock.provider import MockProvider
from nousd.providers.retry import RetryingProvider
from nousd.providers.setup.lazy_key import LateKeyProvider
from tests.providers.helpers import Collector, ask


class Vendor:
    """A model server that accepts one key at a time, and the command that prints it."""

    def __init__(self) -> None:
        self.printed = self.good_key = "k1"
        self.asked_for_key = 0
        self.made: list[Keyed] = []
        self.gate: trio.Event | None = None

    def make(self, key: str) -> Provider:
        if key == "bad characters":
            raise ConfigError("it cannot be sent")
        self.made.append(Keyed(self, key))
        return self.made[-1]

    async def ask_key(self) -> str:
        self.asked_for_key += 1
        await trio.lowlevel.checkpoint()
        if not self.printed:
            raise ProviderError("api_key_command printed nothing")
        return self.printed


class Keyed(MockProvider):
    def __init__(self, vendor: Vendor, key: str) -> None:
        super().__init__("model-of-the-vendor", context_window_tokens=77)
        self.key = key
        self.closed = 0
        self._vendor = vendor

    def _check(self) -> None:
        assert not self.closed
        if self.key != self._vendor.good_key:
            raise ProviderError("bad key", status=401)

    async def models(self) -> tuple[str, ...]:
        self._check()
        return (self.key,)

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        self._check()
        await receive(TextDelta(self.key))
        if self._vendor.gate is not None:
            await self._vendor.gate.wait()
        assert not self.closed, "a connection was closed under a call"
        await receive(Finished("stop"))

    async def aclose(self) -> None:
        self.closed += 1


@pytest.fixture
def vendor() -> Vendor:
    return Vendor()


@pytest.fixture
def provider(vendor: Vendor) -> LateKeyProvider:
    return LateKeyProvider(vendor.make, vendor.ask_key)


async def generate_text(provider: Provider) -> str:
    received = Collector()
    await provider.generate(ask("hi"), received)
    return "".join(piece.text for piece in received.pieces if isinstance(piece, TextDelta))


def test_facts_about_models_need_no_key(vendor: Vendor, provider: LateKeyProvider) -> None:
    assert provider.name == "mock"
    assert provider.default_model == "model-of-the-vendor"
    assert provider.context_window("m") == 77
    assert provider.accepts("m", "text/html") is MockProvider().accepts("m", "text/html")
    assert vendor.asked_for_key == 0


async def test_concurrent_first_calls_fetch_the_key_once(
    vendor: Vendor, provider: LateKeyProvider
) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(generate_text, provider)
    assert await provider.models() == ("k1",)
    assert vendor.asked_for_key == 1


async def test_a_failed_key_command_fails_the_call_and_runs_again_for_the_next(
    vendor: Vendor, provider: LateKeyProvider
) -> None:
    vendor.printed = ""
    for _ in range(2):
        with pytest.raises(ProviderError, match="printed nothing"):
            await generate_text(provider)
    vendor.printed = "k1"
    assert await generate_text(provider) == "k1"
    assert vendor.asked_for_key == 3


async def test_a_key_that_cannot_be_sent_fails_the_call(
    vendor: Vendor, provider: LateKeyProvider
) -> None:
    vendor.printed = "bad characters"
    with pytest.raises(ProviderError, match="it cannot be sent"):
        await generate_text(provider)


async def test_a_key_that_never_worked_is_not_retried(
    vendor: Vendor, provider: LateKeyProvider
) -> None:
    vendor.good_key = "other"
    with pytest.raises(ProviderError, match="bad key") as caught:
        await generate_text(provider)
    assert not caught.value.retryable


async def test_an_expired_key_is_fetched_again_by_the_retry(
    vendor: Vendor, provider: LateKeyProvider, autojump_clock: trio.testing.MockClock
) -> None:
    retrying = RetryingProvider(provider, lambda: 0.0)
    assert await generate_text(retrying) == "k1"
    vendor.printed = vendor.good_key = "k2"
    received = Collector()
    await retrying.generate(ask("hi"), received)
    kinds = [type(piece) for piece in received.pieces]
    assert kinds == [Retrying, TextDelta, Finished]
    assert await generate_text(retrying) == "k2"
    assert vendor.asked_for_key == 2


async def test_a_revoked_key_is_fetched_once_more_and_then_fails(
    vendor: Vendor, provider: LateKeyProvider, autojump_clock: trio.testing.MockClock
) -> None:
    retrying = RetryingProvider(provider, lambda: 0.0)
    await generate_text(retrying)
    vendor.good_key = "none that is printed"
    with pytest.raises(ProviderError, match="bad key"):
        await generate_text(retrying)
    assert vendor.asked_for_key == 2


async def test_running_calls_keep_their_connection_when_the_key_changes(
    vendor: Vendor, provider: LateKeyProvider
) -> None:
    vendor.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generate_text, provider)
        await trio.testing.wait_all_tasks_blocked()
        vendor.printed = vendor.good_key = "k2"
        with pytest.raises(ProviderError, match="bad key"):
            await provider.models()
        assert await provider.models() == ("k2",)
        first = next(made for made in vendor.made if made.key == "k1")
        closed_before = first.closed
        vendor.gate.set()
    assert (closed_before, first.closed) == (0, 1)


async def test_closing_closes_every_provider_made(
    vendor: Vendor, provider: LateKeyProvider
) -> None:
    await generate_text(provider)
    await provider.aclose()
    assert [made.closed for made in vendor.made] == [1, 1]
