"""A tool with a time limit announces how long it may be quiet, so that its run is not stale."""

from __future__ import annotations

from typing import Any

import pytest

from nousd.tools.builtin.bash import TIMEOUT_SECONDS
from nousd.tools.search.process import SEARCH_SECONDS_MAX
from tests.tools.bench import Bench


@pytest.mark.parametrize(
    ("tool", "args", "seconds"),
    [
        ("bash", {"command": "true"}, TIMEOUT_SECONDS),
        ("bash", {"command": "true", "timeout": 7}, 7),
        ("find", {"pattern": "*"}, SEARCH_SECONDS_MAX),
        ("grep", {"pattern": "x"}, SEARCH_SECONDS_MAX),
    ],
)
async def test_a_tool_with_a_time_limit_announces_it(
    bench: Bench, tool: str, args: dict[str, Any], seconds: float
) -> None:
    await bench.call(tool, **args)
    assert bench.quiet_seconds == [seconds]


async def test_a_tool_without_a_time_limit_announces_nothing(bench: Bench) -> None:
    await bench.call("ls")
    assert bench.quiet_seconds == []
