"""What happened: events of the log, folded into counters.

The bridge's one subscription shows each event once. What is read of it here are numbers, and the few
words of which there is a list or which ``labels`` bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from nousd.bridge.metrics.folds import Fold
from nousd.bridge.metrics.labels import OTHER
from nousd.bridge.metrics.models import model_folds
from nousd.bridge.metrics.runs import run_folds
from nousd.bridge.metrics.tools import tool_folds
from nousd.client.answers import ReceivedEvent
from nousd.wire.events import EVENT_TYPES, EVENTS, Event


class Happened(Collector):
    """The counters; ``see`` is called with every event, in order."""

    def __init__(self, registry: CollectorRegistry) -> None:
        folds: Mapping[type[Event], Fold] = {
            **run_folds(registry),
            **model_folds(registry),
            **tool_folds(registry),
        }
        self._folds = {EVENT_TYPES[struct]: (struct, fold) for struct, fold in folds.items()}
        self._events = dict.fromkeys((*EVENTS, OTHER), 0)
        registry.register(self)

    def see(self, received: ReceivedEvent) -> None:
        """Counts an event."""
        self._events[received.type if received.type in self._events else OTHER] += 1
        # Most events are deltas, of which nothing else is counted.
        known = self._folds.get(received.type)
        if known is not None:
            struct, fold = known
            fold(msgspec.convert(received.payload, struct), received.ts)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yields the events by type, which are plain numbers, as there are very many."""
        family = CounterMetricFamily(
            "nousd_events", "Events that the daemon told, by type.", labels=["type"]
        )
        for type_, count in self._events.items():
            family.add_metric([type_], count)
        yield family
