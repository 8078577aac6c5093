"""Calls of models, counted: how many, how long, how many tokens, and what that cost."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET
from prometheus_client import CollectorRegistry, Counter, Histogram

from nousd.bridge.metrics.folds import Folds
from nousd.bridge.metrics.labels import OTHER, Names
from nousd.wire.events import UsageReported
from nousd.wire.objects.entries import Usage

MODELS_MAX: Final = 50
"""Models that are told apart."""

_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)

_MODEL: Final = ("provider", "model")


def model_folds(registry: CollectorRegistry) -> Folds:
    """Registers the counters, and returns what counts."""
    return {UsageReported: _Calls(registry).ended}


class _Calls:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._models = Names(MODELS_MAX)
        self._calls = Counter(
            "nousd_model_calls",
            "Calls that a provider answered, if only in part, by what they were for.",
            (*_MODEL, "purpose"),
            registry=registry,
        )
        self._first_token_seconds = Histogram(
            "nousd_model_first_token_seconds",
            "From a call of a model to the first thing that it said.",
            _MODEL,
            buckets=_SECONDS,
            registry=registry,
        )
        self._seconds = Histogram(
            "nousd_model_call_seconds",
            "From a call of a model to the end of its answer.",
            _MODEL,
            buckets=_SECONDS,
            registry=registry,
        )
        self._tokens = Counter(
            "nousd_model_tokens",
            "Tokens by kind. No kind is part of another: input has what was not cached, output what"
            " was not reasoning.",
            (*_MODEL, "kind"),
            registry=registry,
        )
        self._dollars = Counter(
            "nousd_model_cost_dollars",
            "What calls cost, where the price is known.",
            _MODEL,
            registry=registry,
        )

    def ended(self, event: UsageReported, _ts: str) -> None:
        """Counts a call."""
        provider = OTHER if event.provider is UNSET else event.provider
        purpose = "answer" if event.purpose is UNSET else event.purpose
        model = self._models.of(provider, event.model)
        self._calls.labels(*model, purpose).inc()
        if event.first_token_ms is not UNSET:
            self._first_token_seconds.labels(*model).observe(event.first_token_ms / 1000)
        if event.duration_ms is not UNSET:
            self._seconds.labels(*model).observe(event.duration_ms / 1000)
        if event.cost_usd is not UNSET:
            self._dollars.labels(*model).inc(event.cost_usd)
        if event.usage is not UNSET:
            for kind, tokens in _apart(event.usage).items():
                self._tokens.labels(*model, kind).inc(tokens)


def _apart(usage: Usage) -> dict[str, int]:
    """Returns the tokens of a call by kinds of which none is part of another."""
    cached = usage.cache_read + usage.cache_write
    tokens = {
        "input": usage.input - cached,
        "cache_read": usage.cache_read,
        "cache_write": usage.cache_write,
        "output": usage.output - usage.reasoning,
        "reasoning": usage.reasoning,
    }
    # A counter never falls, whatever a server reports.
    return {kind: max(0, count) for kind, count in tokens.items()}
