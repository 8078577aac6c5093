"""The cost of a model call, from configured prices. Pure: no prices are known here."""

from __future__ import annotations

from typing import Final

import msgspec

from nousd.wire.objects.entries import Usage

_TOKENS_PER_PRICE: Final = 1_000_000


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars per million tokens.

    ``cache_read`` is for input that came from the provider's cache, ``cache_write`` for input that was
    put into it; None means that it costs what other input costs.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None


def cost_usd(usage: Usage, price: Price) -> float:
    """Return the cost of a call in US dollars. Cached tokens are part of the input and are not counted
    twice. A reported number of them that exceeds the input is reduced to it.
    """
    cache_read = min(usage.cache_read, usage.input)
    cache_write = min(usage.cache_write, usage.input - cache_read)
    uncached = usage.input - cache_read - cache_write
    per_million = (
        uncached * price.input
        + cache_read * _or(price.cache_read, price.input)
        + cache_write * _or(price.cache_write, price.input)
        + usage.output * price.output
    )
    return per_million / _TOKENS_PER_PRICE


def _or(price: float | None, otherwise: float) -> float:
    return otherwise if price is None else price
