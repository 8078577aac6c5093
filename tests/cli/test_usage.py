"""``nousctl usage``: a table of tokens, times and costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Nousctl
from tests.harness.fake_daemon import FakeDaemon, ok


def call(session: str, run: str | None, model: str, **figures: Any) -> dict[str, Any]:
    ran = {} if run is None else {"run_id": run, "turn_id": "1"}
    return {"session_id": session, "provider": "acme", "model": model, **ran, **figures}


CALLS = [
    call(
        "s1",
        "r1",
        "big",
        usage={"input": 1200, "output": 30, "total": 1230, "cache_read": 1000},
        first_token_ms=400,
        duration_ms=2000,
        cost_usd=0.25,
    ),
    call(
        "s1",
        "r1",
        "small",
        usage={"input": 10, "output": 5, "total": 15, "reasoning": 2},
        first_token_ms=600,
        duration_ms=1000,
    ),
    call("s2", None, "big", duration_ms=500),
]


@pytest.fixture(autouse=True)
def calls(daemon: FakeDaemon) -> None:
    """Make the daemon return the calls in two pages."""

    def page(request: dict[str, Any]) -> bytes | None:
        after = int(request["payload"]["after"].removeprefix("evt-"))
        shown = [
            {"id": f"evt-{number}", "type": "usage_reported", "payload": payload}
            for number, payload in enumerate(CALLS, 1)
            if after < number <= after + 2
        ]
        next_ = shown[-1]["id"] if shown else request["payload"]["after"]
        return ok("events", {"events": shown, "next": next_, "head": "evt-3"})(request)

    daemon.on["get_events"] = page


def test_usage_shows_a_row_for_each_session_and_the_totals(nousctl: Nousctl) -> None:
    outcome = nousctl("usage")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        (
            "session  calls  input  cache read  cache write  output  reasoning  first token s  seconds"
            "    cost USD"
        ),
        (
            "s1           2  1,210       1,000            0      35          2           0.50      3.0"
            "  0.2500 + ?"
        ),
        (
            "s2           1      0           0            0       0          0              ?      0.5"
            "           ?"
        ),
        (
            "total        3  1,210       1,000            0      35          2           0.50      3.5"
            "  0.2500 + ?"
        ),
        "(1 of 3 calls: tokens not known)",
        "(2 of 3 calls: cost not known)",
    ]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("run", [("s1", "r1"), ("s2", "-")]),
        ("model", [("acme", "big"), ("acme", "small")]),
        ("session", [("s1",), ("s2",)]),
    ],
)
def test_rows_of_each_grouping_add_up_to_the_same_total(
    nousctl: Nousctl, by: str, names: list[tuple[str, ...]]
) -> None:
    lines = nousctl("usage", "--by", by).out.splitlines()
    assert [tuple(line.split()[: len(names[0])]) for line in lines[1 : len(names) + 1]] == names
    report = json.loads(nousctl("usage", "--by", by, "--json").out)
    assert [tuple(row.values())[: len(names[0])] for row in report["rows"]] == names
    assert report["total"]["total"] == 1245
    assert report["total"]["cost_usd"] == 0.25
    assert sum(row["calls"] for row in report["rows"]) == report["total"]["calls"] == 3


def test_one_session_is_shown_by_its_runs(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    lines = nousctl("usage", "--session", "s1").out.splitlines()
    assert lines[0].split()[:2] == ["session", "run"]
    assert daemon.heard[1]["payload"] == {
        "types": ["usage_reported"],
        "after": "evt-0",
        "session_id": "s1",
    }


def test_a_log_without_calls_shows_only_a_zero_total(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["get_events"] = ok("events", {"events": [], "next": "evt-0", "head": "evt-0"})
    assert nousctl("usage").out.splitlines()[1:] == [
        (
            "total        0      0           0            0       0          0              ?      0.0"
            "    0.0000"
        )
    ]


def test_an_unknown_grouping_is_exit_code_2(nousctl: Nousctl) -> None:
    assert nousctl("usage", "--by", "day").code == 2


def test_run_shows_its_usage(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    sums = {"calls": 2, "input": 30, "output": 4, "total": 34, "duration_ms": 9, "cost_usd": 0.5}
    run = {
        "run_id": "r1",
        "session_id": "s1",
        "status": "completed",
        "started_at": "then",
        "runtime": "native",
        "model": "big",
        "turns": 1,
        "usage": sums,
    }
    daemon.on["get_run"] = ok("run", {"run": run})
    lines = nousctl("run", "r1").out.splitlines()
    assert lines[-1] == "usage   2 calls, 30 tokens in, 4 out, $0.5000"
