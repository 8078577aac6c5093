"""The usage of model calls: the event of one, and the sums of many."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from nousd.machine.session.usage import CallFigures, with_call
from nousd.wire.events import UsageReported
from nousd.wire.objects.entries import Usage, UsageTotals

counts = st.integers(0, 10**9)
usages = st.builds(
    Usage,
    input=counts,
    output=counts,
    total=counts,
    cache_read=counts,
    cache_write=counts,
    reasoning=counts,
)
millionths = st.integers(0, 10**6).map(lambda number: number / 10**6)
calls = st.builds(
    UsageReported,
    session_id=st.just("s"),
    model=st.just("m"),
    usage=st.just(UNSET) | usages,
    duration_ms=st.just(UNSET) | counts,
    cost_usd=st.just(UNSET) | millionths,
)


def totals_of(reports: list[UsageReported]) -> UsageTotals | None:
    sums: UsageTotals | None = None
    for call in reports:
        sums = with_call(sums, call)
    return sums


def test_a_usage_event_has_the_figures_of_its_call_and_omits_unknown_ones() -> None:
    figures = CallFigures(provider="mock", model="m", purpose="summary", duration_ms=7)
    assert figures.to_event("s") == UsageReported(
        session_id="s", provider="mock", model="m", duration_ms=7, purpose="summary"
    )


@given(st.lists(calls, min_size=1))
def test_each_total_is_the_sum_of_the_known_figures(reports: list[UsageReported]) -> None:
    sums = totals_of(reports)
    assert sums is not None
    counted = [call.usage for call in reports if call.usage is not UNSET]
    for name in ("input", "output", "total", "cache_read", "cache_write", "reasoning"):
        assert getattr(sums, name) == sum(getattr(usage, name) for usage in counted)
    assert sums.duration_ms == sum(
        call.duration_ms for call in reports if call.duration_ms is not UNSET
    )
    assert sums.calls == len(reports)
    assert sums.uncounted_calls == len(reports) - len(counted)
    assert sums.unpriced_calls == len([call for call in reports if call.cost_usd is UNSET])


@given(st.lists(millionths, min_size=1, max_size=1000))
def test_costs_add_up_to_the_millionth_of_a_dollar(costs: list[float]) -> None:
    sums = totals_of([UsageReported(session_id="s", model="m", cost_usd=cost) for cost in costs])
    assert sums is not None
    exact = sum(Fraction(round(cost * 10**6), 10**6) for cost in costs)
    assert sums.cost_usd == pytest.approx(float(exact), abs=1e-10)


def test_three_costs_of_ten_cents_add_up_to_exactly_thirty_cents() -> None:
    sums = totals_of([UsageReported(session_id="s", model="m", cost_usd=0.1)] * 3)
    assert sums is not None
    assert sums.cost_usd == 0.3
