"""Usage of model calls: the figures of one call as an event, and totals of many calls.

A total is a fold over ``usage_reported``, for a run or a session. A branch begins with zero: its
parent's cost is not its own.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.machine.session.lifecycle import LifecycleTracker
from nousd.wire.events import Event, UsageReported
from nousd.wire.events.models import Purpose
from nousd.wire.objects.entries import Usage, UsageTotals


class CallFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The duration, tokens and cost of one model call, as far as known, with the event's field names."""

    provider: str
    model: str
    purpose: Purpose
    duration_ms: int
    first_token_ms: int | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    cost_usd: float | UnsetType = UNSET

    def to_event(
        self,
        session_id: str,
        *,
        run_id: str | UnsetType = UNSET,
        turn_id: str | UnsetType = UNSET,
        message_id: str | UnsetType = UNSET,
        correlation_id: str | UnsetType = UNSET,
    ) -> UsageReported:
        """Return the event that reports the call."""
        return UsageReported(
            session_id=session_id,
            run_id=run_id,
            turn_id=turn_id,
            message_id=message_id,
            correlation_id=correlation_id,
            **msgspec.structs.asdict(self),
        )


def build_unreported_usage(tracker: LifecycleTracker) -> tuple[Event, ...]:
    """Return the event for the model call of a killed process, if its answer had begun. Its duration and
    cost are unknown. Earlier versions, which do not log the called model, did not count a call that was
    interrupted.
    """
    message, model_input = tracker.message, tracker.model_input
    if message is None or message.role != "assistant" or message.is_counted:
        return ()
    if model_input is None or model_input.provider is UNSET:
        return ()
    return (
        UsageReported(
            **tracker.where,
            message_id=message.message_id,
            model=model_input.model,
            provider=model_input.provider,
            purpose="answer",
        ),
    )


def with_call(sums: UsageTotals | None, call: UsageReported) -> UsageTotals:
    """Return the totals with one more call."""
    so_far = sums or NO_CALLS
    usage = _UNCOUNTED if call.usage is UNSET else call.usage
    return UsageTotals(
        calls=so_far.calls + 1,
        input=so_far.input + usage.input,
        output=so_far.output + usage.output,
        total=so_far.total + usage.total,
        cache_read=so_far.cache_read + usage.cache_read,
        cache_write=so_far.cache_write + usage.cache_write,
        reasoning=so_far.reasoning + usage.reasoning,
        duration_ms=so_far.duration_ms + (0 if call.duration_ms is UNSET else call.duration_ms),
        cost_usd=_dollars(so_far.cost_usd, call.cost_usd),
        uncounted_calls=so_far.uncounted_calls + (call.usage is UNSET),
        unpriced_calls=so_far.unpriced_calls + (call.cost_usd is UNSET),
    )


def _dollars(one: float | UnsetType, other: float | UnsetType) -> float | UnsetType:
    """Add known amounts, rounded so that no binary fractions show: ten tenths of a cent are one."""
    if one is UNSET or other is UNSET:
        return other if one is UNSET else one
    return round(one + other, _DOLLAR_DIGITS)


NO_CALLS: Final = UsageTotals(calls=0, input=0, output=0, total=0, duration_ms=0)

_UNCOUNTED: Final = Usage(input=0, output=0, total=0)

_DOLLAR_DIGITS: Final = 12
"""Digits after the point: a token of the cheapest model costs some billionths of a dollar."""
