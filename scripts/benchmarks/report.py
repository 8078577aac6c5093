"""Rows: a figure of the daemon, its yardstick, the ratio that is wanted; as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple


class Bound(NamedTuple):
    """The accepted ratios of daemon to yardstick."""

    kind: Literal["at most", "at least"]
    ratio: float

    def is_kept(self, ratio: float) -> bool:
        """True if the ratio is within the bound."""
        return ratio <= self.ratio if self.kind == "at most" else ratio >= self.ratio


def at_most(ratio: float) -> Bound:
    """For what costs: times, bytes, syncs."""
    return Bound("at most", ratio)


def at_least(ratio: float) -> Bound:
    """For what is gained: rates."""
    return Bound("at least", ratio)


class Row(NamedTuple):
    """A measurement.

    Args:
        daemon: the daemon's figure, in ``unit``.
        yardstick: that of the bare parts, in the same unit.
        beside: what the yardstick is.
        bound: None for a row that is there to explain another.
    """

    name: str
    daemon: float
    yardstick: float
    unit: str
    beside: str
    bound: Bound | None = None

    @property
    def ratio(self) -> float:
        """Daemon over yardstick."""
        return self.daemon / self.yardstick

    @property
    def is_kept(self) -> bool | None:
        """True if the ratio is within its bound; None without a bound."""
        return None if self.bound is None else self.bound.is_kept(self.ratio)


class Missing(NamedTuple):
    """What could not be measured, and why."""

    name: str
    why: str


def table(rows: Sequence[Row | Missing], earlier: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table; ``earlier`` are the ``rows`` of a JSON to compare with."""
    before = f"{'before':>8}{'change':>8}" if earlier else ""
    yield f"{'':34}{'nousd':>11}{'yardstick':>11}{'ratio':>8}  {'wanted':16}{before}  yardstick"
    for row in rows:
        if isinstance(row, Missing):
            yield f"{row.name:34}{row.why}"
            continue
        figures = f"{_figure(row.daemon):>11}{_figure(row.yardstick):>11}{row.ratio:8.2f}"
        compared = _format_comparison(row, earlier.get(row.name)) if earlier else ""
        yield f"{row.name:34}{figures}  {_verdict(row):16}{compared}  {row.unit}; {row.beside}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.2f}"


def _verdict(row: Row) -> str:
    if row.bound is None:
        return ""
    sign = {"at most": "<=", "at least": ">="}[row.bound.kind]
    return f"{sign} {row.bound.ratio:g} {'ok' if row.is_kept else 'past bound'}"


def _format_comparison(row: Row, old: Mapping[str, Any] | None) -> str:
    if old is None:
        return f"{'new':>8}{'':8}"
    return f"{old['ratio']:8.2f}{row.ratio / old['ratio'] - 1:+8.0%}"


def as_json(rows: Sequence[Row | Missing]) -> str:
    """Return the run as JSON: ``machine``, ``rows`` by name, and why others are ``missing``."""
    figures = {
        row.name: {
            **row._asdict(),
            "bound": None if row.bound is None else row.bound._asdict(),
            "ratio": row.ratio,
            "kept": row.is_kept,
        }
        for row in rows
        if isinstance(row, Row)
    }
    missing = {row.name: row.why for row in rows if isinstance(row, Missing)}
    run = {"machine": machine(), "rows": figures, "missing": missing}
    return json.dumps(run, indent=1) + "\n"


def machine() -> dict[str, Any]:
    """Return what the figures depend on most."""
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor()
