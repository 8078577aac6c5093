"""An ended run leaves no reference cycles in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nousd.daemon.runs.run_host import RunHost
from nousd.providers.mock.provider import MockProvider
from tests.harness.daemon import WAIT_SECONDS, memory_daemon, of_type


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Let the cycles of this test stay, and nothing older be of the youngest generation."""
    gc.collect(0)
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "text",
    ["[[say 3]]", '[[tool read {"path":"missing.txt"}]]', '[[tool grep {"pattern":"("}]]'],
    ids=["an answer", "a tool that fails in a thread", "a tool that refuses its arguments"],
)
async def test_an_ended_run_is_freed_without_the_cycle_collector(
    tmp_path: Path, without_collector: None, text: str
) -> None:
    with trio.fail_after(WAIT_SECONDS):
        async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
            client, events = await daemon.connect(), await daemon.watch()
            await client.request("prompt", text=text, wait=False)
            assert of_type(await events.run(), "agent_end")[0]["status"] == "completed"
            await wait_all_tasks_blocked()
            assert not [each for each in gc.get_objects(generation=0) if isinstance(each, RunHost)]
