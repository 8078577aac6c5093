"""The metrics of a bridge in one registry, and the reply to a scrape.

The daemon's own metrics come from its answer to ``get_metrics``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import accumulate, chain
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

import nousd
from nousd.bridge.metrics.event_counters import EventCounters
from nousd.bridge.metrics.requests import RequestCounters
from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.objects.metrics import Durations, LogMetrics
from nousd.wire.responses import Metrics


class Exposition(NamedTuple):
    """The reply to a scrape."""

    data: bytes
    content_type: str


class Meters:
    """The metrics. ``events`` must count every event, ``requests`` every request."""

    def __init__(self) -> None:
        # All bridges of the process would share the library's default registry.
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
        """Return all metrics as text. This method may be called in a thread.

        Args:
            figures: the daemon's metrics; None if it does not answer.
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


def daemon_families(figures: Metrics | None) -> Iterator[Metric]:
    """Yield the metrics of the daemon; only ``nousd_up`` if it does not answer."""
    yield _gauge("nousd_up", "Whether the daemon answers.", int(figures is not None))
    if figures is None:
        return
    yield from _activity(figures)
    yield from _waiting(figures)
    yield from _log_figures(figures.log)


def _activity(figures: Metrics) -> Iterator[Metric]:
    started = datetime.fromisoformat(figures.started_at).timestamp()
    yield _gauge("nousd_start_time_seconds", "When the daemon started, as Unix time.", started)
    yield _gauge("nousd_uptime_seconds", "Time since the daemon started.", figures.uptime_seconds)
    yield _gauge("nousd_sessions_loaded", "Sessions in memory.", figures.sessions)
    yield _gauge("nousd_runs_active", "Active runs.", figures.runs)
    yield _gauge(
        "nousd_command_connections",
        "Command connections, those of this bridge included.",
        figures.command_connections,
    )
    yield _gauge(
        "nousd_subscribers",
        "Event connections, those of this bridge included.",
        figures.subscribers,
    )
    yield _gauge("nousd_confirmers", "Subscribers that answer requests.", figures.confirmers)
    yield _gauges("nousd_mcp_servers", "MCP servers, by state.", "state", figures.mcp_servers)
    window = figures.window
    yield _gauge("nousd_window_events", "Events kept in memory for subscribers.", window.events)
    yield _gauge("nousd_window_bytes", "Bytes of their lines.", window.bytes)


def _waiting(figures: Metrics) -> Iterator[Metric]:
    pending = figures.pending_inputs
    kinds = {
        "prompt": pending.prompt,
        "steer": pending.steer,
        "follow_up": pending.follow_up,
        "message": pending.message,
    }
    yield _gauges("nousd_inputs_pending", "Queued inputs.", "kind", kinds)
    yield _gauge(
        "nousd_permissions_waiting",
        "Tool calls that wait for approval.",
        figures.waiting_permissions,
    )
    yield _gauge(
        "nousd_questions_waiting",
        "Questions of tools that wait for the user.",
        figures.waiting_questions,
    )
    yield _gauge("nousd_log_head", "The number of the newest event.", cursor_seq(figures.cursor))


def _log_figures(log: LogMetrics) -> Iterator[Metric]:
    commits = CounterMetricFamily(
        "nousd_log_commits", "Commits, by durability.", labels=["durability"]
    )
    commits.add_metric(["synced"], log.synced_commits)
    commits.add_metric(["unsynced"], log.unsynced_commits)
    yield commits
    for name, help, value in (
        ("nousd_log_commit_failures", "Failed commits.", log.failed_commits),
        ("nousd_log_events", "Written events.", log.events),
        ("nousd_log_bytes", "Bytes of written events.", log.bytes),
        ("nousd_log_artifacts", "Stored artifacts.", log.artifacts),
        ("nousd_log_artifact_bytes", "Bytes of stored artifacts.", log.artifact_bytes),
        ("nousd_log_checkpoints", "Checkpoints of the write-ahead log.", log.checkpoints),
        ("nousd_log_checkpoint_seconds", "Duration of checkpoints.", log.checkpoint_seconds),
    ):
        yield CounterMetricFamily(name, help, value)
    yield _histogram(
        "nousd_log_sync_seconds",
        "Time for which synced commits waited for the disk.",
        log.sync_seconds,
    )
    for name, help, value in (
        (
            "nousd_log_queue_batches",
            "Batches that wait to be written.",
            log.queued_batches,
        ),
        ("nousd_log_queue_bytes", "Bytes that wait to be written.", log.queued_bytes),
        ("nousd_log_database_bytes", "The size of the database.", log.database_bytes),
        ("nousd_log_wal_bytes", "The size of the write-ahead log.", log.wal_bytes),
    ):
        yield _gauge(name, help, value)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value)


def _gauges(name: str, help: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family


def _histogram(name: str, help: str, durations: Durations) -> Metric:
    bounds = [*map(floatToGoString, durations.bounds), "+Inf"]
    counts = map(float, accumulate(durations.counts))
    buckets = list(zip(bounds, counts, strict=True))
    return HistogramMetricFamily(name, help, buckets=buckets, sum_value=durations.sum)
