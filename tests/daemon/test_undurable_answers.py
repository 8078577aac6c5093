"""What became of a request is told once it is durable: after a crash it would have been untrue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nousd.store.memory import store as memory
from tests.daemon.asking_bench import FETCHES, Bench, asking_daemon, naming
from tests.daemon.scripted import says
from tests.daemon.test_queue_properties import KillableStore
from tests.harness.daemon import Client, Payload


@pytest.fixture
async def store() -> AsyncIterator[KillableStore]:
    async with memory.open_store() as own:
        yield KillableStore(own)


@pytest.fixture
async def bench(tmp_path: Path, store: KillableStore) -> AsyncIterator[Bench]:
    async with asking_daemon(tmp_path, store=store) as bench:
        yield bench


class _SecondAnswer:
    """The answers of two clients to one request, given while nothing reaches the disk."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.errors: list[Payload] = []

    async def give(self, nursery: trio.Nursery, type: str, **payload: Any) -> None:
        """Return when both wait for the disk."""
        other = await self._bench.daemon.connect()
        await self._bench.client.ask(type, **payload)
        await wait_all_tasks_blocked()
        nursery.start_soon(self._answer, other, type, payload)
        await wait_all_tasks_blocked()

    async def _answer(self, other: Client, type: str, payload: Payload) -> None:
        self.errors.append(await other.refusal(type, **payload))


async def waiting(bench: Bench, kind: str) -> tuple[str, Payload]:
    """Start a run that waits for the user; return the command that answers it."""
    if kind == "approval":
        return "confirm_tool", naming(await bench.asked(FETCHES, says("done")), "once")
    bench.fetched.asks = True
    request = await bench.asked(FETCHES, says("done"))
    await bench.client.request("confirm_tool", **naming(request, "once"))
    asked = (await bench.events.until("question_asked"))["payload"]
    return "answer_question", {"question_id": asked["question_id"], "answers": [{"text": "yes"}]}


REFUSALS = {"approval": "already_decided", "question": "already_answered"}


@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_second_client_is_told_of_the_first_answer_once_it_is_durable(
    kind: str, bench: Bench, store: KillableStore
) -> None:
    command, payload = await waiting(bench, kind)
    store.pause()
    async with trio.open_nursery() as nursery:
        second = _SecondAnswer(bench)
        await second.give(nursery, command, **payload)
        assert second.errors == []
        store.go_on()
    assert [error["message"] for error in second.errors] == [REFUSALS[kind]]
    await bench.events.run()


@pytest.mark.parametrize("kind", REFUSALS)
async def test_nobody_is_told_of_an_answer_that_never_becomes_durable(
    kind: str, bench: Bench, store: KillableStore
) -> None:
    command, payload = await waiting(bench, kind)
    store.pause()
    async with trio.open_nursery() as nursery:
        second = _SecondAnswer(bench)
        await second.give(nursery, command, **payload)
        assert second.errors == []
        store.kill()
    assert REFUSALS[kind] not in [error["message"] for error in second.errors]
