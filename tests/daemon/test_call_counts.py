"""The number of nousd functions on the most frequent ways through the code.

Each way has a bound: its count of today. A new layer shows here before it shows in a benchmark, and on
every machine alike. Lower the bound when you remove a layer.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from trio.testing import wait_all_tasks_blocked

from nousd.providers.interface import Provider
from tests.harness.daemon import Client, Daemon, Events, memory_daemon
from tests.harness.recorded_calls import files, in_one_task, recorded_calls, way
from tests.harness.stub_model import Gate, StubModel, text_reply, tool_reply

LINE: Final = "LineSplitter.feed"
SUBMIT: Final = "Store.submit"
WRITE: Final = "DirectStream.write_now"

QUIET_SECONDS: Final = 0.05

ARCHITECTURE: Final = Path(__file__).parents[2] / "ARCHITECTURE.md"


def assert_at_most(calls: Sequence[str], bound: int, name: str) -> None:
    """Assert that a way has at most ``bound`` calls; the message lists them."""
    listed = "\n  ".join(calls)
    assert len(calls) <= bound, (
        f"{name} enters {len(calls)} functions of nousd and not {bound}: merge what only passes on"
        f" (see 'Three ways through the code' in ARCHITECTURE.md)\n  {listed}"
    )


def drawn(heading: str) -> list[str]:
    """Return the files of a drawing in ARCHITECTURE, in order."""
    _, found, rest = ARCHITECTURE.read_text().partition(f"### {heading}\n")
    assert found, f"ARCHITECTURE.md draws no way '{heading}'"
    drawing = rest.split("```")[1]
    return re.findall(r"^\s*(\S+\.py)", drawing, re.MULTILINE)


def assert_drawn(calls: Sequence[str], heading: str) -> None:
    """Assert that the way enters the files of the drawing, in the drawing's order."""
    entered = files(calls)
    in_drawing = drawn(heading)
    assert in_drawing == [file for file in entered if file in in_drawing]


@asynccontextmanager
async def streaming(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> AsyncIterator[Gate]:
    """Start a run, wait for its first delta, and yield the gate before the second one."""
    second, last = Gate(), Gate()
    stub.script(text_reply("one ", second, "two ", last), text_reply("three"))
    await client.request("prompt", text="hello", wait=False)
    await events.until("message_update")
    await wait_all_tasks_blocked(QUIET_SECONDS)
    yield second
    second.open()
    last.open()
    await events.run()


async def test_a_ping_stays_within_its_call_count(client: Client) -> None:
    await client.request("ping")
    with recorded_calls() as calls:
        await client.request("ping")
    assert_at_most(way(calls, LINE, WRITE), 14, "a ping")


async def test_a_steer_stays_within_its_call_counts_and_follows_the_drawing(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    async with streaming(daemon, client, events, stub):
        await client.request("steer", text="first")
        with recorded_calls() as calls:
            await client.request("steer", text="go on")
    to_store = way(calls, LINE, SUBMIT)
    assert_at_most(to_store, 46, "a steer on its way to the store")
    to_client = way(calls, "PendingBatches.settle", WRITE)
    assert_at_most(to_client, 7, "an answer after the commit")
    assert_drawn(to_store + to_client, "A command")


async def test_a_prompt_stays_within_its_call_count(client: Client, stub: StubModel) -> None:
    stub.script(text_reply("one"), text_reply("two"))
    await client.request("prompt", text="first", wait=True)
    with recorded_calls() as calls:
        await client.request("prompt", text="second", wait=True)
    assert_at_most(way(calls, LINE, SUBMIT), 95, "a prompt on its way to the store")


async def test_a_delta_stays_within_its_call_counts_and_follows_the_drawing(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    async with streaming(daemon, client, events, stub) as gate:
        with recorded_calls() as calls:
            gate.open()
            await events.until("message_update")
    to_store = way(calls, "AnswerStream.feed", SUBMIT)
    to_reader = way(calls, "PendingBatches.settle", WRITE)
    assert_at_most(to_store, 38, "a delta on its way to the store")
    assert_at_most(to_reader, 19, "a delta on its way from the commit to a reader")
    assert_drawn(to_store + to_reader, "A delta")


async def test_a_first_delta_is_submitted_with_the_beginning_of_its_message(
    client: Client, events: Events, stub: StubModel
) -> None:
    first, last = Gate(), Gate()
    stub.script(text_reply(first, "one ", last))
    await client.request("prompt", text="hello", wait=False)
    await first.reached()
    await wait_all_tasks_blocked(QUIET_SECONDS)
    with recorded_calls() as calls:
        first.open()
        await events.until("message_update")
    last.open()
    await events.run()
    assert sum(call.endswith(SUBMIT) for call in calls) == 1


async def test_a_further_reader_of_a_delta_costs_little_more_than_its_write(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    others = [await daemon.watch() for _ in range(3)]
    async with streaming(daemon, client, events, stub) as gate:
        with recorded_calls() as calls:
            gate.open()
            for reader in (events, *others):
                await reader.until("message_update", delta="two ")
    to_readers = way(calls, "PendingBatches.settle", calls[-1])
    writes = [index for index, call in enumerate(to_readers) if call.endswith(WRITE)][:4]
    for before, write in pairwise(writes):
        assert_at_most(to_readers[before + 1 : write + 1], 4, "a delta to one more reader")


async def test_a_tool_call_stays_within_its_call_counts_and_follows_the_drawing(
    tmp_path: Path, provider: Provider, stub: StubModel
) -> None:
    (tmp_path / "file.txt").write_text("hello")
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client = await daemon.connect()
        for _ in range(2):  # the first run fills the caches of the session
            stub.script(tool_reply(("read", {"path": "file.txt"})), text_reply("done"))
            with recorded_calls() as calls:
                await client.request("prompt", text="read it", wait=True)
    call = in_one_task(calls, "CallRunner.execute")
    assert_at_most(way(call, "CallRunner.execute", SUBMIT), 268, "a call up to its start")
    assert_at_most(way(call, "_Call._complete", SUBMIT), 62, "a call from its result to the store")
    assert_drawn(call, "A tool call")


@pytest.mark.parametrize("heading", ["A command", "A delta", "A tool call"])
def test_every_drawn_file_exists(heading: str) -> None:
    names = drawn(heading)
    assert names
    assert [name for name in names if not (ARCHITECTURE.parent / "nousd" / name).is_file()] == []
