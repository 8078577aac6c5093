"""Counters folded from the events of the log: sessions, runs, model calls, tool calls.

Every event arrives here once, from the hub's subscription. Only numbers and a few words are read from
it; the words are from a fixed list, or ``labels`` bounds their number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, get_args

from msgspec import UNSET
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from nousd.bridge.metrics.labels import OTHER, LabelValues
from nousd.client.answers import ReceivedEvent
from nousd.wire import events
from nousd.wire.codec.decoding import convert
from nousd.wire.events import EVENT_TYPES, EVENTS, Event, UsageReported
from nousd.wire.events.base import EndStatus
from nousd.wire.objects.entries import Usage

Fold = Callable[[Any, str], None]
"""Counts an event of one type; the second argument is its time (RFC 3339 UTC)."""

Folds = Mapping[type[Event], Fold]


class EventCounters(Collector):
    """All counters of events; ``count`` must be called with every event, in order."""

    def __init__(self, registry: CollectorRegistry) -> None:
        folds: Mapping[type[Event], Fold] = {
            **_run_folds(registry),
            **_model_folds(registry),
            **_tool_folds(registry),
        }
        self._folds = {EVENT_TYPES[struct]: (struct, fold) for struct, fold in folds.items()}
        self._events = dict.fromkeys((*EVENTS, OTHER), 0)
        registry.register(self)

    def count(self, received: ReceivedEvent) -> None:
        """Count an event."""
        self._events[received.type if received.type in self._events else OTHER] += 1
        # Most events are deltas, which have no fold.
        known = self._folds.get(received.type)
        if known is not None:
            struct, fold = known
            fold(convert(received.payload, struct), received.ts)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the number of events by type. They are plain integers, because a ``Counter`` is too slow
        for deltas.
        """
        family = CounterMetricFamily("nousd_events", "Events of the log, by type.", labels=["type"])
        for type_, count in self._events.items():
            family.add_metric([type_], count)
        yield family


def _makers(registry: CollectorRegistry) -> tuple[partial[Counter], partial[Histogram]]:
    """Return functions that make metrics in a registry."""
    return partial(Counter, registry=registry), partial(Histogram, registry=registry)


# --- runs -------------------------------------------------------------------------------------

CODES_MAX: Final = 50
"""Maximum distinct codes of warnings, and of errors."""

OPEN_RUNS_MAX: Final = 1024
"""Maximum active runs whose start is remembered; beyond it the oldest run's duration is not measured."""

_RUN_SECONDS: Final = (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


def _run_folds(registry: CollectorRegistry) -> Folds:
    """Register the counters and return their folds."""
    return {
        **_RunTimes(registry).folds,
        **_count_problems(registry),
        events.SessionCreated: _count_events(
            registry, "nousd_new_sessions", "Created sessions, those of tasks included."
        ),
        events.SessionDeleted: _count_events(
            registry, "nousd_deleted_sessions", "Deleted sessions."
        ),
        events.TurnStart: _count_events(registry, "nousd_turns", "Started turns."),
        events.RunConflict: _count_events(
            registry, "nousd_run_conflicts", "Runs refused because another one was active."
        ),
        events.QueueUpdate: _count_inputs(registry),
    }


def _count_events(registry: CollectorRegistry, name: str, help: str) -> Fold:
    counter = Counter(name, help, registry=registry)
    return lambda _event, _ts: counter.inc()


def _count_inputs(registry: CollectorRegistry) -> Fold:
    inputs = Counter("nousd_inputs", "Accepted inputs, by kind.", ("kind",), registry=registry)

    def queue_update(event: events.QueueUpdate, _ts: str) -> None:
        if event.change == "accepted":
            for accepted in event.inputs:
                inputs.labels(accepted.kind).inc()

    return queue_update


def _count_problems(registry: CollectorRegistry) -> Folds:
    counter, _ = _makers(registry)
    warnings = counter("nousd_warnings", "Warnings in runs, by code.", ("code",))
    errors = counter("nousd_errors", "Errors in runs, by code.", ("code",))
    warned, failed = LabelValues(CODES_MAX), LabelValues(CODES_MAX)
    return {
        events.Warning: lambda event, _ts: warnings.labels(*warned.of(event.code)).inc(),
        events.Error: lambda event, _ts: errors.labels(*failed.of(event.code)).inc(),
    }


class _RunTimes:
    """Counts runs by status, and measures the duration of those whose start was seen."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, histogram = _makers(registry)
        self._started: OrderedDict[str, datetime] = OrderedDict()
        self._begun = counter("nousd_runs_started", "Started runs.")
        self._ended = counter(
            "nousd_runs", "Ended runs, by status.", ("status",), registry=registry
        )
        self._seconds = histogram(
            "nousd_run_seconds", "Duration of runs, by status.", ("status",), buckets=_RUN_SECONDS
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
        started_at = self._started.pop(event.run_id, None)
        if started_at is not None:
            seconds = (datetime.fromisoformat(ts) - started_at).total_seconds()
            # The system clock may have been set back.
            self._seconds.labels(event.status).observe(max(0.0, seconds))


# --- model calls ------------------------------------------------------------------------------

MODELS_MAX: Final = 50
"""Maximum distinct models."""

_MODEL_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)

_MODEL: Final = ("provider", "model")


def _model_folds(registry: CollectorRegistry) -> Folds:
    """Register the counters and return their folds."""
    return {UsageReported: _ModelCalls(registry).count_call}


class _ModelCalls:
    def __init__(self, registry: CollectorRegistry) -> None:
        counter, histogram = _makers(registry)
        self._models = LabelValues(MODELS_MAX)
        self._calls = counter(
            "nousd_model_calls",
            "Model calls with at least a partial answer, by purpose.",
            (*_MODEL, "purpose"),
        )
        self._first_token_seconds = histogram(
            "nousd_model_first_token_seconds",
            "Time from a model call to its first token.",
            _MODEL,
            buckets=_MODEL_SECONDS,
        )
        self._seconds = histogram(
            "nousd_model_call_seconds", "Duration of model calls.", _MODEL, buckets=_MODEL_SECONDS
        )
        self._tokens = counter(
            "nousd_model_tokens",
            "Tokens by kind. No kind is part of another: input has what was not cached, output what"
            " was not reasoning.",
            (*_MODEL, "kind"),
        )
        self._dollars = counter(
            "nousd_model_cost_dollars", "Cost of model calls whose price is known.", _MODEL
        )

    def count_call(self, event: UsageReported, _ts: str) -> None:
        """Count a call."""
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
            for kind, tokens in _disjoint_tokens(event.usage).items():
                self._tokens.labels(*model, kind).inc(tokens)


def _disjoint_tokens(usage: Usage) -> dict[str, int]:
    """Return the tokens of a call by kind, so that no kind includes another."""
    cached = usage.cache_read + usage.cache_write
    tokens = {
        "input": usage.input - cached,
        "cache_read": usage.cache_read,
        "cache_write": usage.cache_write,
        "output": usage.output - usage.reasoning,
        "reasoning": usage.reasoning,
    }
    # A counter must not decrease, even if a server reports inconsistent numbers.
    return {kind: max(0, count) for kind, count in tokens.items()}


# --- tool calls -------------------------------------------------------------------------------

TOOLS_MAX: Final = 100
"""Maximum distinct tools."""

DECIDERS_MAX: Final = 20
"""Maximum distinct deciders."""

_TOOL_SECONDS: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)


def _tool_folds(registry: CollectorRegistry) -> Folds:
    """Register the counters and return their folds."""
    return {**_ToolCalls(registry).folds, **_count_requests(registry)}


class _ToolCalls:
    def __init__(self, registry: CollectorRegistry) -> None:
        counter, histogram = _makers(registry)
        self._tools = LabelValues(TOOLS_MAX)
        self._deciders = LabelValues(DECIDERS_MAX)
        self._calls = counter(
            "nousd_tool_calls",
            "Tool calls, by outcome. The name of a tool that never ran is other.",
            ("tool", "outcome"),
        )
        self._seconds = histogram(
            "nousd_tool_call_seconds",
            "Duration of tool calls that were not interrupted, by outcome.",
            ("tool", "outcome"),
            buckets=_TOOL_SECONDS,
        )
        self._decisions = counter(
            "nousd_tool_decisions", "Decisions on tool calls, by decider.", ("decision", "by")
        )
        self.folds: Folds = {
            events.ToolCallApproved: self._count_approval,
            events.ToolCallDenied: self._count_denial,
            events.ToolCallCompleted: self._count_completion,
        }

    def _count_approval(self, event: events.ToolCallApproved, _ts: str) -> None:
        self._decisions.labels("approved", *self._deciders.of(event.by)).inc()

    def _count_denial(self, event: events.ToolCallDenied, _ts: str) -> None:
        self._decisions.labels("denied", *self._deciders.of(event.by)).inc()
        self._calls.labels(*self._tools.look_up(event.tool_name), "denied").inc()

    def _count_completion(self, event: events.ToolCallCompleted, _ts: str) -> None:
        tool = self._tools.of(event.tool_name)
        ended = "error" if event.is_error else "ok"
        outcome = ended if event.stop_reason is UNSET else f"stopped_{event.stop_reason}"
        self._calls.labels(*tool, outcome).inc()
        if event.duration_ms is not UNSET:
            self._seconds.labels(*tool, outcome).observe(event.duration_ms / 1000)


def _count_requests(registry: CollectorRegistry) -> Folds:
    counter, _ = _makers(registry)
    asked = counter("nousd_permission_requests", "Approval requests.")
    questions = counter(
        "nousd_questions", "Questions of tools, by step.", ("step",), registry=registry
    )
    steps = {step: questions.labels(step) for step in ("asked", "answered", "rejected")}
    return {
        events.PermissionRequested: lambda _event, _ts: asked.inc(),
        events.QuestionAsked: lambda _event, _ts: steps["asked"].inc(),
        events.QuestionAnswered: lambda _event, _ts: steps["answered"].inc(),
        events.QuestionRejected: lambda _event, _ts: steps["rejected"].inc(),
    }
