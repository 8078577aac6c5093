"""Any runs in any order replay identically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from trio.testing import MockClock

from nousd.store.memory.rows import Rows
from tests.daemon.test_queue_properties import ALMOST_OVER, LIVES, Steps, at_once, live, quietly
from tests.replay.memory_log import replays
from tests.suites import examples


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workdir")


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(LIVES)
@example([quietly("prompt", "steer", "follow_up", "model_says", "model_says", "model_says")])
@example([quietly("prompt", "model_wants_3", "steer", "tool_works", "model_says")])
@example([quietly("prompt", "model_wants_1", "steer", "tool_works", "model_says")])
@example([quietly("prompt", "follow_up", "follow_up", "promote_1", "model_wants_1", "model_says")])
@example([quietly("prompt", "steers_all", "steer", "steer", "model_says", "model_fails", "resume")])
@example([quietly("prompt", "model_wants_1", "abort", "prompt", "model_fails_late", "resume")])
@example([quietly("prompt", "steer", "abort")])
@example([quietly("prompt", "follow_up", "follow_up", "edit_0", "move_1_0", "remove_1", "resume")])
@example([quietly("prompt", "steer", "model_says"), quietly("prompt", "follow_up", "remove_0")])
@example([at_once("prompt", "abort"), at_once("prompt", "steer"), quietly("resume", "clear")])
@example([quietly("prompt", "model_wants_3", "tool_works"), quietly("resume", "get_queue")])
@example([quietly(*ALMOST_OVER, "steer", "follow_up"), quietly("resume", "model_says")])
@example([quietly("prompt", "model_wants_1", "clear_steers", "tool_fails"), quietly("prompt")])
@example([quietly("prompt", "append", "model_says"), quietly("prompt", "steer", "abort_keep")])
@example(
    [quietly("prompt", "disk_pauses", "model_says", "append", "disk_writes"), quietly("prompt")]
)
def test_any_run_replays_identically(workdir: Path, lives: list[Steps]) -> None:
    clock = MockClock(autojump_threshold=0)
    log: Any = trio.run(live, lives, workdir, clock=clock).log
    rows: Rows = log._rows
    for run_id, report in trio.run(replays, rows).items():
        assert report.is_same, "\n".join([run_id, *report.lines])
