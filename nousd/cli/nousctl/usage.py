"""``nousctl usage``: prints tokens, time and cost of model calls as a table.

A row sums the ``usage_reported`` events of a run, a session or a model; the last row sums all events. So
every grouping has the same total, including calls without a run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nousd.cli.client_options import Options
from nousd.cli.nousctl.watch import up_to_now
from nousd.cli.output import DONE, sanitize_output

Call = Mapping[str, Any]
"""The payload of a ``usage_reported`` event."""

Sums = Counter[str]


class Grouping(NamedTuple):
    """A grouping of calls: the columns that name a group, and the function for a call's group."""

    columns: tuple[str, ...]
    key: Callable[[Call], tuple[str, ...]]


def _of_run(call: Call) -> tuple[str, ...]:
    return call["session_id"], call.get("run_id", _NO_RUN)


def _of_session(call: Call) -> tuple[str, ...]:
    return (call["session_id"],)


def _of_model(call: Call) -> tuple[str, ...]:
    return call.get("provider", _UNKNOWN), call["model"]


_NO_RUN: Final = "-"
_UNKNOWN: Final = "?"

GROUPINGS: Final[dict[str, Grouping]] = {
    "session": Grouping(("session",), _of_session),
    "run": Grouping(("session", "run"), _of_run),
    "model": Grouping(("provider", "model"), _of_model),
}


def usage(options: Options, *, by: str, session_id: str | None) -> int:
    """Print the table, or with ``--json`` the sums."""
    query = {"types": ["usage_reported"], "after": "evt-0"}
    if session_id is not None:
        query["session_id"] = session_id
    grouping = GROUPINGS[by]
    rows: dict[tuple[str, ...], Sums] = {}
    for event in up_to_now(options, query):
        call = event["payload"]
        rows.setdefault(grouping.key(call), Counter()).update(_figures(call))
    total: Sums = Counter()
    for sums in rows.values():
        total.update(sums)
    if options.json:
        print(json.dumps(_report(grouping.columns, rows, total), ensure_ascii=False))
    else:
        print(*map(sanitize_output, _table(grouping.columns, rows, total)), sep="\n")
    return DONE


def _figures(call: Call) -> dict[str, Any]:
    """Return the numbers that a call adds to the sums. ``timed_calls`` are those with a first token."""
    tokens = call.get("usage", {})
    return {
        "calls": 1,
        **{name: tokens.get(name, 0) for name in _TOKENS},
        "duration_ms": call.get("duration_ms", 0),
        "first_token_ms": call.get("first_token_ms", 0),
        "timed_calls": int("first_token_ms" in call),
        "cost_usd": call.get("cost_usd", 0.0),
        "uncounted_calls": int("usage" not in call),
        "unpriced_calls": int("cost_usd" not in call),
    }


_TOKENS: Final = ("input", "output", "total", "cache_read", "cache_write", "reasoning")


def _report(
    columns: Sequence[str], rows: Mapping[tuple[str, ...], Sums], total: Sums
) -> dict[str, Any]:
    named = [
        {**dict(zip(columns, key, strict=True)), **_round_cost(sums)} for key, sums in rows.items()
    ]
    return {"rows": named, "total": _round_cost(total)}


def _round_cost(sums: Sums) -> dict[str, Any]:
    return {**sums, "cost_usd": round(float(sums["cost_usd"]), 12)}


# --- the table -------------------------------------------------------------------------------


def _number(name: str) -> Callable[[Sums], str]:
    return lambda sums: f"{sums[name]:,}"


def _seconds(sums: Sums) -> str:
    return f"{sums['duration_ms'] / 1000:,.1f}"


def _first_token(sums: Sums) -> str:
    """Return the mean time to the first token in seconds, over the calls that have one."""
    timed = sums["timed_calls"]
    return f"{sums['first_token_ms'] / timed / 1000:,.2f}" if timed else _UNKNOWN


def _cost(sums: Sums) -> str:
    if sums["unpriced_calls"] == sums["calls"]:
        return _UNKNOWN if sums["calls"] else "0.0000"
    more = f" + {_UNKNOWN}" if sums["unpriced_calls"] else ""
    return f"{sums['cost_usd']:,.4f}{more}"


_COLUMNS: Final[dict[str, Callable[[Sums], str]]] = {
    "calls": _number("calls"),
    "input": _number("input"),
    "cache read": _number("cache_read"),
    "cache write": _number("cache_write"),
    "output": _number("output"),
    "reasoning": _number("reasoning"),
    "first token s": _first_token,
    "seconds": _seconds,
    "cost USD": _cost,
}
"""Column title -> function that formats its cell."""


def _table(
    columns: Sequence[str], rows: Mapping[tuple[str, ...], Sums], total: Sums
) -> Iterator[str]:
    padding = ("",) * (len(columns) - 1)
    lines = [
        (*columns, *_COLUMNS),
        *((*key, *_cells(sums)) for key, sums in rows.items()),
        ("total", *padding, *_cells(total)),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) if index < len(columns) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    yield from _remarks(total)


def _cells(sums: Sums) -> Iterator[str]:
    return (cell(sums) for cell in _COLUMNS.values())


def _remarks(total: Sums) -> Iterator[str]:
    for name, unit in (("uncounted_calls", "tokens"), ("unpriced_calls", "cost")):
        if total[name]:
            yield f"({total[name]:,} of {total['calls']:,} calls: {unit} not known)"
