"""Measures the duration of one model call and collects the tokens that the provider reports.

Times are those of the last attempt; warnings report failed attempts and the waits between them.
"""

from __future__ import annotations

import trio
from msgspec import UNSET

from nousd.machine.context.model_input import ModelInput
from nousd.machine.session.usage import CallFigures
from nousd.providers.interface import (
    Finished,
    Piece,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolCallPiece,
    UsageSoFar,
)
from nousd.providers.models.prices import Price, cost_usd
from nousd.wire.codec.unset import or_unset
from nousd.wire.objects.entries import Usage


class Meter:
    """Observes the pieces of one call; created just before the call.

    Args:
        price: the price of the model, if it is known.
    """

    def __init__(self, request: ModelInput, price: Price | None) -> None:
        self._request = request
        self._price = price
        self._started_at = trio.current_time()
        self._first_token_at: float | None = None
        self._usage: Usage | None = None

    def note(self, piece: Piece) -> None:
        """Observe a piece as it arrives."""
        match piece:
            case TextDelta() | ReasoningDelta() | ToolCallPiece():
                self._first_token_at = (
                    trio.current_time() if self._first_token_at is None else self._first_token_at
                )
            case Finished(usage=Usage() as usage) | UsageSoFar(usage=usage):
                self._usage = usage
            case Retrying():
                self._started_at = trio.current_time() + piece.delay_seconds
                self._usage = None

    def figures(self) -> CallFigures:
        """Return the figures of the call so far."""
        usage, price = self._usage, self._price
        first_token_ms = (
            None
            if self._first_token_at is None
            else _milliseconds(self._first_token_at - self._started_at)
        )
        return CallFigures(
            provider=self._request.provider,
            model=self._request.model,
            purpose=self._request.purpose,
            duration_ms=_milliseconds(trio.current_time() - self._started_at),
            first_token_ms=or_unset(first_token_ms),
            usage=or_unset(usage),
            cost_usd=UNSET if usage is None or price is None else cost_usd(usage, price),
        )

    def figures_if_any(self) -> CallFigures | None:
        """Return the figures; None for a call without content and usage."""
        return None if self._first_token_at is None and self._usage is None else self.figures()


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
