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
    on_interruption: Callable[[Interruption], None] = lambda _: None,
) -> None:
    """Run ``play`` with a follower of a scripted daemon; ``budgets`` limits each connection's bytes."""

    async def run() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                daemon = CuttingDaemon(tasks, lines, lambda: next(budgets))
                try:
                    async with follow(
                        daemon, wanted, retry=retry, on_interruption=on_interruption
                    ) as events:
                        await play(events, daemon)
                finally:
                    tasks.cancel_scope.cancel()

    anyio.run(run, backend=backend)


async def take(events: Follower, count: int) -> list[ReceivedEvent]:
    return [await anext(events) for _ in range(count)]


def first_then(*budgets: int) -> Iterator[int]:
    """Return the byte budgets of the first connections; later ones get everything."""
    return itertools.chain(budgets, itertools.repeat(WHOLE))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_stream_cut_at_random_bytes_delivers_every_event_once(backend: str, seed: int) -> None:
    dice = random.Random(seed)
    lines = script(600, dice)
    # The first connection must be accepted; later ones may end before their answer.
    budgets = itertools.chain([400], iter(lambda: dice.choice((0, dice.randrange(1, 500))), None))
    interruptions: list[Interruption] = []

    async def play(events: Follower, daemon: CuttingDaemon) -> None:
        got = await take(events, len(lines))
        assert [item.line + b"\n" for item in got] == lines
        assert events.cursor == "evt-600"
        assert daemon.connections > 600
        assert len(interruptions) == daemon.connections - 1

    following(backend, lines, budgets, play, on_interruption=interruptions.append)


@pytest.mark.slow
def test_a_stream_cut_at_any_byte_delivers_every_event_once(backend: str) -> None:
    lines = script(3, random.Random(0))
    answer_and_lines = 150 + sum(map(len, lines))
    tried = 0
    for place in range(1, answer_and_lines):

        async def play(events: Follower, daemon: CuttingDaemon) -> None:
            nonlocal tried
            assert [item.line + b"\n" for item in await take(events, 3)] == lines
            tried += daemon.connections > 2

        following(backend, lines, first_then(400, place), play)
    assert tried > 50


def test_cancelling_a_wait_loses_no_event(backend: str) -> None:
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


def test_on_interruption_receives_each_interruption(backend: str) -> None:
    lines = script(2, random.Random(0))
    interruptions: list[Interruption] = []

    async def play(events: Follower, _: CuttingDaemon) -> None:
        await take(events, 2)
        assert events.connections == 2

    following(
        backend,
        lines,
        first_then(130 + len(lines[0]), 0, 0),
        play,
        on_interruption=interruptions.append,
    )
    assert [(type(item.error), item.cursor, item.attempt) for item in interruptions] == [
        (ConnectionLost, "evt-1", 1),
        (DaemonUnreachable, "evt-1", 2),
        (DaemonUnreachable, "evt-1", 3),
    ]


def test_each_event_resets_the_attempt_count(backend: str) -> None:
    lines = script(3, random.Random(0))
    answer = len(ok("subscribed", {"cursor": "evt-0", "head": "evt-3"})({"id": "s1"}) or b"")
    interruptions: list[Interruption] = []

    async def play(events: Follower, _: CuttingDaemon) -> None:
        await take(events, 3)

    budgets = first_then(answer + len(lines[0]), 0, answer, 0, answer + len(lines[1]), answer)
    following(backend, lines, budgets, play, on_interruption=interruptions.append)
    assert [(item.cursor, item.attempt) for item in interruptions] == [
        ("evt-1", 1),
        ("evt-1", 2),
        ("evt-1", 3),
        ("evt-1", 4),
        ("evt-2", 1),
        ("evt-2", 2),
    ]


def test_a_follower_without_a_cursor_resumes_from_the_start_of_its_first_connection(
    backend: str,
) -> None:
    lines = script(5, random.Random(0))

    async def play(events: Follower, daemon: CuttingDaemon) -> None:
        # The script answers a subscription without `after` with its beginning.
        await take(events, 5)
        assert "after" not in daemon.wanted[0]
        assert daemon.wanted[1]["after"] == "evt-0"

    following(backend, lines, first_then(120), play, wanted=Subscribe())


def test_a_missing_daemon_at_the_first_connection_is_an_error_at_once(backend: str) -> None:
    async def play(events: Follower, _: CuttingDaemon) -> None:
        raise AssertionError

    with pytest.raises(ExceptionGroup) as caught:
        following(backend, [], iter([0]), play)
    assert caught.group_contains(DaemonUnreachable)


def test_a_follower_gives_up_on_a_daemon_that_does_not_return(backend: str) -> None:
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


async def test_time_connected_does_not_count_towards_give_up(
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


def test_a_permanent_refusal_is_an_error(backend: str) -> None:
    lines = script(3, random.Random(0))

    async def play(events: Follower, _: CuttingDaemon) -> None:
        await take(events, 3)
        del lines[1:]  # the log of another day
        with pytest.raises(Refused, match="cursor_beyond_head"):
            await anext(events)

    following(backend, lines, first_then(130 + sum(map(len, lines))), play)


def test_an_invalid_line_is_an_error_and_not_an_interruption(backend: str) -> None:
    lines = [event(1, "status", message="x"), b"garbage\n"]
    interruptions: list[Interruption] = []

    async def play(events: Follower, _: CuttingDaemon) -> None:
        await anext(events)
        with pytest.raises(AnswerInvalid):
            await anext(events)

    following(backend, lines, first_then(), play, on_interruption=interruptions.append)
    assert interruptions == []


def test_a_follower_reconnects_when_keepalives_stop(backend: str) -> None:
    """Only keep-alives distinguish a quiet log from a dead daemon; the script sends none."""
    lines = script(1, random.Random(0))
    interruptions: list[Interruption] = []

    async def play(events: Follower, daemon: CuttingDaemon) -> None:
        await anext(events)
        assert events._subscription is not None
        assert events._subscription._silence_seconds == 45
        events._subscription._silence_seconds = 0.01
        lines.append(event(2, "status", message="in the next connection"))
        assert (await anext(events)).id == "evt-2"
        assert daemon.wanted[0]["keepalive_seconds"] == 15.0

    following(backend, lines, first_then(), play, on_interruption=interruptions.append)
    assert "no sign of life for 0.01 seconds" in str(interruptions[0].error)
