"""All metrics of a bridge in one registry, and the reply to a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import nousd
from nousd.bridge.metrics.event_counters import EventCounters
from nousd.bridge.metrics.process import daemon_families
from nousd.bridge.metrics.requests import RequestCounters
from nousd.wire.responses import Metrics


class Exposition(NamedTuple):
    """The reply to a scrape."""

    data: bytes
    content_type: str


class Meters:
    """The metrics. ``events`` must count every event, ``requests`` every request."""

    def __init__(self) -> None:
        # Not the library's default registry, which all bridges of the process would share.
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        version = Gauge(
            "nousd_build_info",
            "Always 1; the version is a label.",
            ("version",),
            registry=self._registry,
        )
        version.labels(nousd.__version__).set(1)
        self.events = EventCounters(self._registry)
        self.requests = RequestCounters(self._registry)

    def expose(self, figures: Metrics | None, accept: str) -> Exposition:
        """Return all metrics as text. It may be called in a thread.

        Args:
            figures: those of the daemon; None if it does not answer.
            accept: the ``Accept`` header of the client.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # the version in ``accept`` is not a number
            encode, content_type = choose_encoder("")
        return Exposition(encode(_All(self._registry, daemon_families(figures))), content_type)


class _All(Collector):
    def __init__(self, registry: CollectorRegistry, more: Iterable[Metric]) -> None:
        self._registry = registry
        self._more = more

    def collect(self) -> Iterator[Metric]:
        return chain(self._registry.collect(), self._more)
