"""The tables of http.md.

What an event becomes is found by showing the examples of the reference pages to the views.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec

from nousd.bridge.access.callers import CALLERS, Caller
from nousd.bridge.openapi.document import ANY, WITH_COMMAND, WITH_TOKEN, refusals
from nousd.bridge.replies import FAILURES
from nousd.bridge.routes import ROWS
from nousd.bridge.routing.route import PrometheusText, Row
from nousd.views.tandem.events import TANDEM, decode_line, frames_of
from nousd.views.tandem.failures import KINDS
from nousd.views.tandem.frames import LoggedEvent
from nousd.wire.events import EVENT_TYPES, EVENTS, ToolCallApproved, ToolCallDenied

from .markdown import code_list, table
from .reference import REFERENCE
from .v1_tables import limits_table


def routes_table() -> str:
    def row(route: Row) -> tuple[str, ...]:
        names = "<br>".join(f"`{route.method} {path}`" for path in (route.path, *route.aliases))
        takes = [f"`{shape.__name__}`" for shape in (route.query, route.body) if shape is not None]
        answers = [f"{status} {shape_name(shape)}" for status, shape in route.replies.items()]
        refused = sorted(refusals(route) - ANY - WITH_TOKEN - WITH_COMMAND - set(route.replies))
        return (
            names,
            route.summary,
            code_list(route.sends) or "nothing",
            ", ".join(takes),
            "<br>".join(answers) + (", or a stream" if route.streams else ""),
            ", ".join(map(str, refused)),
        )

    header = ("route", "description", "commands", "request", "responses", "errors")
    return table(header, map(row, ROWS))


def shape_name(shape: Any) -> str:
    """Return the name of a reply's schema in the OpenAPI document."""
    if shape is None:
        return "nothing"
    if shape is str or shape is bytes or shape is PrometheusText:
        return "a stream" if shape is str else "text"
    if isinstance(shape, UnionType):
        return " or ".join(map(shape_name, get_args(shape)))
    if get_origin(shape) is list:
        return f"list of {shape_name(get_args(shape)[0])}"
    return f"`{shape.__name__}`" if isinstance(shape, type) and not get_args(shape) else "an object"


def http_errors_table() -> str:
    ordered = sorted(FAILURES, key=lambda failure: (failure.status, failure.code))
    return table(
        ("status", "code", "retryable"),
        (
            (str(failure.status), f"`{failure.code}`", "yes" if failure.retryable else "no")
            for failure in ordered
        ),
    )


def frames_table() -> str:
    """Return the frames that each kind of event becomes.

    Raises:
        SystemExit: if the page of an event that becomes a frame has no example.
    """
    frames: dict[str, dict[str, None]] = {}
    for name in EVENTS:
        for event in examples_in((REFERENCE / "events" / f"{name}.md").read_text(encoding="utf-8")):
            becomes = frames.setdefault(EVENT_TYPES[type(event.event)], {})
            for frame in frames_of(event):
                becomes[f"`{frame.type}`: {code_list(frame.properties)}"] = None
    if missing := TANDEM.types - {k for k, v in frames.items() if v}:
        raise SystemExit(f"protocol/reference/events: no example of {missing} that becomes a frame")
    return table(
        ("event", "frames and their properties"),
        (
            (f"[`{name}`](reference/events/{name}.md)", "<br>".join(becomes))
            for name, becomes in frames.items()
        ),
    )


def examples_in(page: str) -> Iterator[LoggedEvent]:
    """Yield the examples on an event's page; a decision about a call also as made by others."""
    for line in page.split("\n"):
        event = decode_line(line.encode()) if '"id":"evt-' in line[:30] else None
        if event is None:
            continue
        yield event
        if isinstance(event.event, ToolCallApproved | ToolCallDenied):
            for by in ("user", "timeout"):
                yield event._replace(event=msgspec.structs.replace(event.event, by=by))


def failures_table() -> str:
    """Return what a failed model call is in the contract's words."""
    return table(
        ("category", "`failureCategory`", "code"),
        ((f"`{name}`", f"`{kind.category}`", f"`{kind.code}`") for name, kind in KINDS.items()),
    )


def callers_table() -> str:
    def row(beginning: str, caller: Caller) -> tuple[str, ...]:
        needs = [name for name, wanted in caller._asdict().items() if wanted]
        return f"`{beginning}`", ", ".join(name.replace("_", " ") for name in needs)

    return table(("User-Agent begins with", "behaviour"), itertools.starmap(row, CALLERS))


HTTP_TABLES: dict[str, Callable[[], str]] = {
    "routes": routes_table,
    "errors": http_errors_table,
    "frames": frames_table,
    "failures": failures_table,
    "callers": callers_table,
    "bounds": partial(limits_table, "http_"),
}
