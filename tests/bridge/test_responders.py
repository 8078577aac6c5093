"""Which clients count as able to answer, in any order of their actions."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.bridge.embedded import open_memory_dial
from nousd.bridge.stream import responders as module
from nousd.bridge.stream.responders import LINGER_SECONDS, Responders
from nousd.client.client import Client
from nousd.client.dial import Dial
from nousd.daemon.policy.approvers import Audience
from nousd.daemon.transport.connection import serve_commands
from nousd.daemon.transport.feed import serve_events
from nousd.errors import DaemonUnreachable
from nousd.providers.mock.provider import MockProvider
from tests.harness.daemon import Daemon, memory_daemon


class Flaky:
    """A dial to a daemon that can be cut off for a while."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._streams: list[anyio.abc.AnyByteStream] = []
        self.is_cut = False

    def __str__(self) -> str:
        return "somewhere"

    async def commands(self) -> anyio.abc.AnyByteStream:
        return await self._dial.commands()

    async def events(self) -> anyio.abc.AnyByteStream:
        if self.is_cut:
            raise DaemonUnreachable("nobody is there")
        self._streams.append(await self._dial.events())
        return self._streams[-1]

    async def cut(self) -> None:
        self.is_cut = True
        for stream in self._streams:
            await stream.aclose()
        self._streams.clear()


class Kit:
    def __init__(self, daemon: Daemon, responders: Responders, way: Flaky) -> None:
        self.daemon = daemon
        self.responders = responders
        self.way = way

    def answers(self, session_id: str, run_id: str | None = None) -> bool:
        """True if the daemon has a client to ask."""
        return self.daemon.services.approvers.can_answer([Audience(session_id, run_id)])


@asynccontextmanager
async def before_daemon(workdir: Path) -> AsyncIterator[Kit]:
    async with memory_daemon(workdir=workdir, provider=MockProvider()) as daemon:
        serving = partial(serve_commands, daemon.services), partial(serve_events, daemon.services)
        async with open_memory_dial(*serving) as dial:
            way = Flaky(dial)
            async with Client(way) as client, anyio.create_task_group() as tasks:
                yield Kit(daemon, Responders(client, tasks), way)
                tasks.cancel_scope.cancel()


async def test_a_reader_of_a_session_answers_only_in_that_session(tmp_path: Path) -> None:
    async with before_daemon(tmp_path) as kit:
        assert not kit.answers("ses-1")
        async with kit.responders.count_reader("ses-1"):
            assert kit.answers("ses-1")
            assert kit.answers("ses-1", "run-1")
            assert not kit.answers("ses-2")


async def test_a_reader_of_a_run_answers_only_for_that_run(tmp_path: Path) -> None:
    async with before_daemon(tmp_path) as kit:
        async with kit.responders.count_reader(None, "run-1"):
            assert kit.answers("ses-1", "run-1")
            assert not kit.answers("ses-1", "run-2")
            assert not kit.answers("ses-1")
        async with kit.responders.count_reader("ses-2", "run-3"):
            assert kit.answers("ses-2", "run-3")
            assert not kit.answers("ses-2", "run-4")


async def test_a_reader_of_everything_or_a_client_that_listed_answers_everywhere(
    tmp_path: Path,
) -> None:
    async with before_daemon(tmp_path) as kit, kit.responders.count_reader(None):
        assert kit.answers("ses-1")
    async with before_daemon(tmp_path) as kit:
        kit.responders.note_listing()
        await wait_all_tasks_blocked()
        assert kit.answers("ses-1", "run-1")


async def test_a_reader_counts_for_a_while_after_it_left(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with before_daemon(tmp_path) as kit:
        async with kit.responders.count_reader("ses-1"):
            await trio.sleep(10 * LINGER_SECONDS)
            assert kit.answers("ses-1")
        await trio.sleep(LINGER_SECONDS - 1)
        assert kit.answers("ses-1")
        await trio.sleep(2)
        assert not kit.answers("ses-1")


async def test_a_client_that_starts_a_run_counts_for_a_while(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with before_daemon(tmp_path) as kit:
        await kit.responders.expect_reader("ses-1")
        assert kit.answers("ses-1", "run-1")
        await trio.sleep(LINGER_SECONDS - 1)
        await kit.responders.expect_reader("ses-1")
        await trio.sleep(LINGER_SECONDS - 1)
        assert kit.answers("ses-1", "run-2")
        await trio.sleep(2)
        assert not kit.answers("ses-1", "run-2")


async def test_a_lost_declaration_is_repeated(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with before_daemon(tmp_path) as kit, kit.responders.count_reader("ses-1"):
        await kit.way.cut()
        await trio.sleep(100)
        assert not kit.answers("ses-1")
        kit.way.is_cut = False
        await trio.sleep(2)
        assert kit.answers("ses-1")


async def test_an_unreachable_daemon_delays_a_reader_for_a_limited_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with before_daemon(tmp_path) as kit:
        kit.way.is_cut = True
        before = trio.current_time()
        async with kit.responders.count_reader("ses-1"):
            await kit.responders.expect_reader("ses-1")
        assert trio.current_time() - before == 2 * module.DECLARING_SECONDS


async def test_beyond_the_limit_one_declaration_covers_all_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCHES_MAX", 2)
    async with before_daemon(tmp_path) as kit, AsyncExitStack() as readers:
        for number in range(2):
            await readers.enter_async_context(kit.responders.count_reader(f"ses-{number}"))
        assert not kit.answers("ses-2")
        for number in range(2, 20):
            await readers.enter_async_context(kit.responders.count_reader(f"ses-{number}"))
            assert kit.answers(f"ses-{number}")
        assert len(kit.daemon.services.approvers._declared) == 3


STEPS = 60
"""More steps of the loop than the end of a declaration takes."""


@pytest.mark.slow
async def test_a_client_that_arrives_at_any_step_of_an_ending_declaration_counts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with before_daemon(tmp_path) as kit:
        for steps in range(STEPS):
            await kit.responders.expect_reader("ses-1")
            await trio.sleep_until(trio.current_time() + LINGER_SECONDS)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            await kit.responders.expect_reader("ses-1")
            for _ in range(STEPS):
                assert kit.answers("ses-1"), "and stays so"
                await trio.lowlevel.checkpoint()
            await trio.sleep(LINGER_SECONDS + 1)
            assert not kit.answers("ses-1")


class Model:
    """The expected presence, from the operations alone: readers, and how long one counts as present."""

    def __init__(self) -> None:
        self.readers: dict[str, int] = {}
        self.until: dict[str, float] = {}

    def linger(self, session_id: str) -> None:
        self.until[session_id] = trio.current_time() + LINGER_SECONDS

    @contextmanager
    def reader(self, session_id: str) -> Iterator[None]:
        self.readers[session_id] = self.readers.get(session_id, 0) + 1
        try:
            yield
        finally:
            self.readers[session_id] -= 1
            self.linger(session_id)

    def answers(self, session_id: str) -> bool:
        until = self.until.get(session_id, 0)
        return self.readers.get(session_id, 0) > 0 or until > trio.current_time()


SESSIONS = ("ses-1", "ses-2", "ses-3")


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("seed", range(30))
async def test_the_declared_readers_match_a_model_for_random_clients(
    seed: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    dice = random.Random(seed)
    model = Model()

    async def come_and_go(kit: Kit) -> None:
        for _ in range(20):
            session_id = dice.choice(SESSIONS)
            await pause()
            if dice.random() < 0.5:
                with model.reader(session_id):
                    async with kit.responders.count_reader(session_id):
                        assert kit.answers(session_id), "a reader counts when it begins"
                        await pause()
            else:
                model.linger(session_id)
                await kit.responders.expect_reader(session_id)
                assert kit.answers(session_id), "no declaration is lost"

    async def pause() -> None:
        # Mostly within a few steps of the loop around the moment when a watch ends.
        await trio.sleep(dice.choice((0, 0, 1, LINGER_SECONDS, LINGER_SECONDS, 2 * LINGER_SECONDS)))
        for _ in range(dice.randrange(12)):
            await trio.lowlevel.checkpoint()

    async def compare(kit: Kit) -> None:
        while True:
            await trio.sleep(LINGER_SECONDS / 7 + 0.01)
            for session_id in SESSIONS:
                assert kit.answers(session_id) == model.answers(session_id)

    async with before_daemon(tmp_path) as kit, trio.open_nursery() as comparing:
        comparing.start_soon(compare, kit)
        async with trio.open_nursery() as clients:
            for _ in range(6):
                clients.start_soon(come_and_go, kit)
        await trio.sleep(LINGER_SECONDS + 1)
        assert kit.responders._watches == {}
        assert kit.daemon.services.approvers._declared == {}
        comparing.cancel_scope.cancel()
