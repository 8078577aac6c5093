"""A follower receives every event once, whatever happens to its connections."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Iterator

import anyio
import pytest
from trio.testing import MockClock

from nousd.client.answers import ReceivedEvent
from nousd.client.follow import Follower, follow
from nousd.client.resuming import Interruption, Retry
from nousd.errors import AnswerInvalid, ConnectionLost, DaemonUnreachable, Refused
from nousd.wire.commands.subscribe import Subscribe
from tests.client.cutting import WHOLE, CuttingDaemon, script
from tests.harness.fake_daemon import event, ok

ALL = Subscribe(after="evt-0", types="all")
AT_ONCE = Retry(first=0.0, longest=0.0)
"""Tests do not wait between attempts."""


def following(
    backend: str,
    lines: list[bytes],
    budgets: Iterator[int],
    play: Callable[[Follower, CuttingDaemon], Awaitable[None]],
    *,
    wanted: Subscribe = ALL,
    retry: Retry = AT_ONCE,
    tell: Callable[[Interruption], None] = lambda _: None,
) -> None:
    """Run ``play`` with a follower of a scripted daemon; each connection has so many bytes."""

    async def run() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                daemon = CuttingDaemon(tasks, lines, lambda: next(budgets))
                try:
                    async with follow(daemon, wanted, retry=retry, on_interruption=tell) as events:
                        await play(events, daemon)
                finally:
                    tasks.cancel_scope.cancel()

    anyio.run(run, backend=backend)


async def taken(events: Follower, count: int) -> list[ReceivedEvent]:
    return [await anext(events) for _ in range(count)]


def first_then(*budgets: int) -> Iterator[int]:
    """The numbers of bytes that successive connections get; those after them get everything."""
    return itertools.chain(budgets, itertools.repeat(WHOLE))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("seed", range(2))
def test_a_stream_cut_at_random_bytes_loses_nothing_and_doubles_nothing(
    backend: str, seed: int
) -> None:
    dice = random.Random(seed)
    lines = script(600, dice)
    # The first connection has to stand, later ones may not even get their answer out.
    budgets = itertools.chain([400], iter(lambda: dice.choice((0, dice.randrange(1, 500))), None))
    interruptions: list[Interruption] = []

    async def play(events: Follower, daemon: CuttingDaemon) -> None:
        got = await taken(events, len(lines))
        assert [item.line + b"\n" for item in got] == lines
        assert events.cursor == "evt-600"
        assert daemon.connections > 600
        assert len(interruptions) == daemon.connections - 1

    following(backend, lines, budgets, play, tell=interruptions.append)


@pytest.mark.slow(keep=1)
def test_every_place_to_cut_one_stream_is_survived(backend: str) -> None:
    lines = script(3, random.Random(0))
    answer_and_lines = 150 + sum(map(len, lines))
    tried = 0
    for place in range(1, answer_and_lines):

        async def play(events: Follower, daemon: CuttingDaemon) -> None:
            nonlocal tried
            assert [item.line + b"\n" for item in await taken(events, 3)] == lines
            tried += daemon.connections > 2

        following(backend, lines, first_then(400, place), play)
    assert tried > 50


def test_cancelling_the_wait_for_an_event_loses_none(backend: str) -> None:
    dice = random.Random(7)
    lines = script(200, dice)
    budgets = itertools.chain([400], iter(lambda: dice.randrange(200, 900), None))

    async def play(events: Follower, _: CuttingDaemon) -> None:
        got: list[bytes] = []
        while len(got) < len(lines):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel_after, dice.randrange(6), scope)
                    got.append((await anext(events)).line + b"\n")
                    tasks.cancel_scope.cancel()
        assert got == lines

    following(backend, lines, budgets, play)


async def _cancel_after(steps: int, scope: anyio.CancelScope) -> None:
    for _ in range(steps):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


def test_who_wants_is_told_of_each_interruption(backend: str) -> None:
    lines = script(2, random.Random(0))
    told: list[Interruption] = []

    async def play(events: Follower, _: CuttingDaemon) -> None:
        await taken(events, 2)
        assert events.connections == 2

    following(backend, lines, first_then(130 + len(lines[0]), 0, 0), play, tell=told.append)
    assert [(type(item.error), item.cursor, item.attempt) for item in told] == [
        (ConnectionLost, "evt-1", 1),
        (DaemonUnreachable, "evt-1", 2),
        (DaemonUnreachable, "evt-1", 3),
    ]


def test_each_event_starts_the_attempts_over(backend: str) -> None:
    lines = script(3, random.Random(0))
    answer = len(ok("subscribed", {"cursor": "evt-0", "head": "evt-3"})({"id": "s1"}) or b"")
    told: list[Interruption] = []

    async def play(events: Follower, _: CuttingDaemon) -> None:
        await taken(events, 3)

    budgets = first_then(answer + len(lines[0]), 0, answer, 0, answer + len(lines[1]), answer)
    following(backend, lines, budgets, play, tell=told.append)
    assert [(item.cursor, item.attempt) for item in told] == [
        ("evt-1", 1),
        ("evt-1", 2),
        ("evt-1", 3),
        ("evt-1", 4),
        ("evt-2", 1),
        ("evt-2", 2),
    ]


def test_without_a_place_to_begin_it_goes_on_from_where_the_first_connection_began(
    backend: str,
) -> None:
    lines = script(5, random.Random(0))

    async def play(events: Follower, daemon: CuttingDaemon) -> None:
        # The script answers a subscription without `after` with its beginning.
        await taken(events, 5)
        assert "after" not in daemon.wanted[0]
        assert daemon.wanted[1]["after"] == "evt-0"

    following(backend, lines, first_then(120), play, wanted=Subscribe())


def test_a_daemon_that_is_not_there_at_first_is_an_error_at_once(backend: str) -> None:
    async def play(events: Follower, _: CuttingDaemon) -> None:
        raise AssertionError

    with pytest.raises(ExceptionGroup) as caught:
        following(backend, [], iter([0]), play)
    assert caught.group_contains(DaemonUnreachable)


def test_a_daemon_that_does_not_come_back_is_given_up(backend: str) -> None:
    retry = Retry(first=0.001, longest=0.002, give_up=0.02)
    lines = script(1, random.Random(0))
    budgets = itertools.chain([130 + len(lines[0])], itertools.repeat(0))

    async def play(events: Follower, daemon: CuttingDaemon) -> None:
        await anext(events)
        with pytest.raises(DaemonUnreachable):
            await anext(events)
        # Mostly about ten; a machine that stops for 20 ms leaves time for one attempt.
        assert daemon.connections > 1

    following(backend, lines, budgets, play, retry=retry)


async def test_quiet_hours_are_not_held_against_a_daemon_that_is_lost_now_and_then(
    autojump_clock: MockClock,
) -> None:
    answer = len(ok("subscribed", {"cursor": "evt-0", "head": "evt-0"})({"id": "s1"}) or b"")
    budgets = first_then(*[answer] * 5)
    wanted = Subscribe(after="evt-0", keepalive_seconds=100.0)
    with anyio.fail_after(10_000):
        async with anyio.create_task_group() as tasks:
            lines = script(1, random.Random(0))
            daemon = CuttingDaemon(tasks, lines, lambda: next(budgets), lasts=200.0)
            async with follow(daemon, wanted, retry=Retry(give_up=50.0)) as events:
                await anext(events)
                assert events.connections == 6
            tasks.cancel_scope.cancel()


def test_a_refusal_that_does_not_heal_is_an_error(backend: str) -> None:
    lines = script(3, random.Random(0))

    async def play(events: Follower, _: CuttingDaemon) -> None:
        await taken(events, 3)
        del lines[1:]  # the log of another day
        with pytest.raises(Refused, match="cursor_beyond_head"):
            await anext(events)

    following(backend, lines, first_then(130 + sum(map(len, lines))), play)


def test_garbage_is_an_error_and_no_interruption(backend: str) -> None:
    lines = [event(1, "status", message="x"), b"garbage\n"]
    told: list[Interruption] = []

    async def play(events: Follower, _: CuttingDaemon) -> None:
        await anext(events)
        with pytest.raises(AnswerInvalid):
            await anext(events)

    following(backend, lines, first_then(), play, tell=told.append)
    assert told == []


def test_a_daemon_that_falls_silent_is_left_for_another_connection(backend: str) -> None:
    """Only keep-alives distinguish a quiet log from a dead daemon; the script sends none."""
    lines = script(1, random.Random(0))
    told: list[Interruption] = []

    async def play(events: Follower, daemon: CuttingDaemon) -> None:
        await anext(events)
        assert events._subscription is not None
        assert events._subscription._silence_seconds == 45
        events._subscription._silence_seconds = 0.01
        lines.append(event(2, "status", message="in the next connection"))
        assert (await anext(events)).id == "evt-2"
        assert daemon.wanted[0]["keepalive_seconds"] == 15.0

    following(backend, lines, first_then(), play, tell=told.append)
    assert "no sign of life for 0.01 seconds" in str(told[0].error)
