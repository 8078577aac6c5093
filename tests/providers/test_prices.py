from __future__ import annotations

import pytest

from nousd.providers.models.prices import Price, cost_usd
from nousd.wire.objects.entries import Usage

PRICE = Price(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)


def used(**tokens: int) -> Usage:
    return Usage(**{"input": 0, "output": 0, "total": 0, **tokens})


def test_prices_are_per_million_tokens() -> None:
    assert cost_usd(used(input=1_000_000), PRICE) == pytest.approx(3.0)
    assert cost_usd(used(output=2_000), PRICE) == pytest.approx(0.03)
    assert cost_usd(used(), PRICE) == 0.0


def test_cached_tokens_are_part_of_the_input_with_their_own_prices() -> None:
    usage = used(input=1000, cache_read=600, cache_write=300, output=10)
    expected = (100 * 3.0 + 600 * 0.3 + 300 * 3.75 + 10 * 15.0) / 1_000_000
    assert cost_usd(usage, PRICE) == pytest.approx(expected)


def test_cached_tokens_without_a_price_cost_as_much_as_other_input() -> None:
    usage = used(input=1000, cache_read=600, cache_write=300)
    assert cost_usd(usage, Price(input=3.0, output=15.0)) == pytest.approx(0.003)


def test_a_price_of_zero_is_a_price() -> None:
    free = Price(input=3.0, output=0.0, cache_read=0.0)
    assert cost_usd(used(input=1000, cache_read=1000), free) == 0.0


def test_reasoning_is_part_of_the_output_and_not_charged_twice() -> None:
    assert cost_usd(used(output=100, reasoning=90), PRICE) == cost_usd(used(output=100), PRICE)


@pytest.mark.parametrize("parts", [{"cache_read": 50}, {"cache_write": 50}])
def test_more_cached_tokens_than_input_do_not_give_a_negative_cost(
    parts: dict[str, int],
) -> None:
    assert 0 < cost_usd(used(input=10, **parts), PRICE) <= 10 * 3.75 / 1_000_000
