from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from nousd.errors import ConfigError, ProviderError
from nousd.machine.context.model_input import ModelChoice
from nousd.providers.interface import Provider
from nousd.providers.mock.provider import MockProvider
from nousd.providers.models import listing
from nousd.providers.models.catalog import ModelFacts, Models, name_of
from nousd.providers.models.listing import Listing, ModelLists, UnlistedProvider
from nousd.wire.limits import NAME_CHARS_MAX


class Server(MockProvider):
    """Lists the given names, or fails with ``failure``, after ``seconds``."""

    def __init__(self, *names: str, seconds: float = 0) -> None:
        super().__init__()
        self.names = names
        self.seconds = seconds
        self.failure: ProviderError | None = None
        self.asked = 0

    async def models(self) -> tuple[str, ...]:
        self.asked += 1
        await trio.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        return self.names


def unusable() -> Provider:
    raise ConfigError("b cannot be used")


def lists(**servers: Server) -> ModelLists:
    factories = {name: making(server) for name, server in servers.items()}
    default = ModelChoice(next(iter(servers)), "default")
    return ModelLists(Models(factories, default))


def making(server: Server) -> Callable[[], Provider]:
    return lambda: server


def names(told: Listing) -> list[str]:
    return [name_of(choice) for choice in told.models]


async def test_all_servers_are_queried_concurrently(autojump_clock: trio.testing.MockClock) -> None:
    these = lists(a=Server("m", "n", seconds=9), b=Server("o", seconds=9))
    told = await these.listing()
    assert trio.current_time() == 9
    assert names(told) == ["a/default", "a/m", "a/n", "b/o"]
    assert (told.unlisted, told.is_cut) == ((), False)


async def test_one_provider_can_be_listed_alone() -> None:
    a, b = Server("m"), Server("o")
    assert names(await lists(a=a, b=b).listing("b")) == ["b/o"]
    assert (a.asked, b.asked) == (0, 1)


async def test_a_list_is_cached_for_a_minute_unless_refreshed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = Server("m")
    these = lists(a=server)
    await these.listing()
    server.names = ("n",)
    await trio.sleep(59)
    assert names(await these.listing()) == ["a/default", "a/m"]
    await trio.sleep(1)
    assert names(await these.listing()) == ["a/default", "a/n"]
    server.names = ("o",)
    assert names(await these.listing(refresh=True)) == ["a/default", "a/o"]
    assert server.asked == 3


async def test_concurrent_listings_share_one_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = Server("m", seconds=5)
    these = lists(a=server)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(these.listing)
    assert (server.asked, trio.current_time()) == (1, 5)


async def test_an_unreachable_server_is_reported_and_queried_again_next_time() -> None:
    server = Server("m")
    server.failure = ProviderError("the server cannot be reached")
    these = lists(a=server, b=Server("o"))
    told = await these.listing()
    assert names(told) == ["a/default", "b/o"]
    assert told.unlisted == (UnlistedProvider("a", "the server cannot be reached"),)
    server.failure = None
    assert (await these.listing()).unlisted == ()


async def test_a_silent_server_is_reported_after_ten_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told = await lists(a=Server("m", seconds=11), b=Server("o")).listing()
    assert trio.current_time() == 10
    assert told.unlisted == (UnlistedProvider("a", "no answer within 10 seconds"),)
    assert names(told) == ["a/default", "b/o"]


async def test_an_unusable_provider_is_reported_with_its_configured_models() -> None:
    models = Models(
        {"a": Server, "b": unusable},
        ModelChoice("a", "default"),
        aliases={"x": ModelChoice("b", "aliased")},
        facts={"b/said": ModelFacts()},
    )
    told = await ModelLists(models).listing()
    assert names(told) == ["a/default", "b/aliased", "b/said"]
    assert told.unlisted == (UnlistedProvider("b", "b cannot be used"),)


async def test_each_model_is_listed_once_with_the_additional_ones() -> None:
    wanted = ModelChoice("a", "wanted")
    told = await lists(a=Server("m", "default", "m")).listing(also=(wanted,))
    assert names(told) == ["a/default", "a/wanted", "a/m"]


async def test_models_with_invalid_names_are_omitted() -> None:
    longest = "x" * (NAME_CHARS_MAX - 2)
    told = await lists(a=Server("", longest, longest + "x")).listing()
    assert names(told) == ["a/default", f"a/{longest}"]


async def test_a_list_is_truncated_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MODELS_LISTED_MAX", 3)
    at_the_bound = await lists(a=Server("m", "n")).listing()
    assert (len(at_the_bound.models), at_the_bound.is_cut) == (3, False)
    past_it = await lists(a=Server("m", "n", "o")).listing()
    assert (names(past_it), past_it.is_cut) == (["a/default", "a/m", "a/n"], True)
