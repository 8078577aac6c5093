"""Calls of tools, counted: how they ended, how long they took, and who decided on them.

A model may call a tool that there is not, by any name. So only what was started puts a name into a
label.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET
from prometheus_client import CollectorRegistry, Counter, Histogram

from nousd.bridge.metrics.folds import Folds
from nousd.bridge.metrics.labels import Names
from nousd.wire import events

TOOLS_MAX: Final = 100
"""Tools that are told apart."""

DECIDERS_MAX: Final = 20
"""Those who decide that are told apart."""

_SECONDS: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)


def tool_folds(registry: CollectorRegistry) -> Folds:
    """Registers the counters, and returns what counts."""
    return {**_Calls(registry).folds, **_requests(registry)}


class _Calls:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._tools = Names(TOOLS_MAX)
        self._deciders = Names(DECIDERS_MAX)
        self._calls = Counter(
            "nousd_tool_calls",
            "Calls of tools, by how they ended. The name of a tool that never ran is told as other.",
            ("tool", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "nousd_tool_call_seconds",
            "From a call's start to its own end, by how it ended; of those that were not cut off.",
            ("tool", "outcome"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._decisions = Counter(
            "nousd_tool_decisions",
            "Decisions whether a call may run, by who decided.",
            ("decision", "by"),
            registry=registry,
        )
        self.folds: Folds = {
            events.ToolCallApproved: self._approved,
            events.ToolCallDenied: self._denied,
            events.ToolCallCompleted: self._completed,
        }

    def _approved(self, event: events.ToolCallApproved, _ts: str) -> None:
        self._decisions.labels("approved", *self._deciders.of(event.by)).inc()

    def _denied(self, event: events.ToolCallDenied, _ts: str) -> None:
        self._decisions.labels("denied", *self._deciders.of(event.by)).inc()
        self._calls.labels(*self._tools.known(event.tool_name), "denied").inc()

    def _completed(self, event: events.ToolCallCompleted, _ts: str) -> None:
        tool = self._tools.of(event.tool_name)
        ended = "error" if event.is_error else "ok"
        outcome = ended if event.stop_reason is UNSET else f"stopped_{event.stop_reason}"
        self._calls.labels(*tool, outcome).inc()
        if event.duration_ms is not UNSET:
            self._seconds.labels(*tool, outcome).observe(event.duration_ms / 1000)


def _requests(registry: CollectorRegistry) -> Folds:
    asked = Counter(
        "nousd_permission_requests",
        "How often somebody was asked whether a call may run.",
        registry=registry,
    )
    questions = Counter(
        "nousd_questions", "Questions of tools, by step.", ("step",), registry=registry
    )
    steps = {step: questions.labels(step) for step in ("asked", "answered", "rejected")}
    return {
        events.PermissionRequested: lambda _event, _ts: asked.inc(),
        events.QuestionAsked: lambda _event, _ts: steps["asked"].inc(),
        events.QuestionAnswered: lambda _event, _ts: steps["answered"].inc(),
        events.QuestionRejected: lambda _event, _ts: steps["rejected"].inc(),
    }
