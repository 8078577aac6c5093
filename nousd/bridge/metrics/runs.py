"""Sessions, inputs, runs and turns, counted."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from nousd.bridge.metrics.folds import Fold, Folds
from nousd.bridge.metrics.labels import Names
from nousd.wire import events
from nousd.wire.events.base import EndStatus

CODES_MAX: Final = 50
"""Codes of warnings, and of errors, that are told apart."""

OPEN_RUNS_MAX: Final = 1024
"""Runs whose start is remembered; further ones push out the oldest, of which no time is told."""

_SECONDS: Final = (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


def run_folds(registry: CollectorRegistry) -> Folds:
    """Registers the counters, and returns what counts."""
    return {
        **_RunTimes(registry).folds,
        **_remarks(registry),
        events.SessionCreated: _plain(
            registry,
            "nousd_new_sessions",
            "Sessions that were made, those of tasks among them.",
        ),
        events.SessionDeleted: _plain(
            registry, "nousd_deleted_sessions", "Sessions that were deleted."
        ),
        events.TurnStart: _plain(registry, "nousd_turns", "Turns that began."),
        events.RunConflict: _plain(
            registry, "nousd_run_conflicts", "Runs that were refused beside another, as told."
        ),
        events.QueueUpdate: _inputs(registry),
    }


def _plain(registry: CollectorRegistry, name: str, help: str) -> Fold:
    counter = Counter(name, help, registry=registry)
    return lambda _event, _ts: counter.inc()


def _inputs(registry: CollectorRegistry) -> Fold:
    inputs = Counter(
        "nousd_inputs", "Inputs that were accepted, by kind.", ("kind",), registry=registry
    )

    def queue_update(event: events.QueueUpdate, _ts: str) -> None:
        if event.change == "accepted":
            for accepted in event.inputs:
                inputs.labels(accepted.kind).inc()

    return queue_update


def _remarks(registry: CollectorRegistry) -> Folds:
    warnings = Counter("nousd_warnings", "Warnings in runs, by code.", ("code",), registry=registry)
    errors = Counter("nousd_errors", "Errors in runs, by code.", ("code",), registry=registry)
    warned, failed = Names(CODES_MAX), Names(CODES_MAX)
    return {
        events.Warning: lambda event, _ts: warnings.labels(*warned.of(event.code)).inc(),
        events.Error: lambda event, _ts: errors.labels(*failed.of(event.code)).inc(),
    }


class _RunTimes:
    """Runs by how they ended, and how long they took, of those whose start was seen."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._started: OrderedDict[str, datetime] = OrderedDict()
        self._begun = Counter("nousd_runs_started", "Runs that began.", registry=registry)
        self._ended = Counter(
            "nousd_runs", "Runs that ended, by how.", ("status",), registry=registry
        )
        self._seconds = Histogram(
            "nousd_run_seconds",
            "From a run's beginning to its end, by how it ended.",
            ("status",),
            buckets=_SECONDS,
            registry=registry,
        )
        for status in get_args(EndStatus):
            self._ended.labels(status)
        self.folds: Folds = {events.AgentStart: self._start, events.AgentEnd: self._end}

    def _start(self, event: events.AgentStart, ts: str) -> None:
        self._begun.inc()
        self._started[event.run_id] = datetime.fromisoformat(ts)
        if len(self._started) > OPEN_RUNS_MAX:
            self._started.popitem(last=False)

    def _end(self, event: events.AgentEnd, ts: str) -> None:
        self._ended.labels(event.status).inc()
        started = self._started.pop(event.run_id, None)
        if started is not None:
            seconds = (datetime.fromisoformat(ts) - started).total_seconds()
            # The clock of the machine may have been set back.
            self._seconds.labels(event.status).observe(max(0.0, seconds))
