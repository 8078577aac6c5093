"""Checks of folders whose disks do not respond do not exhaust threads of other work."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from nousd.errors import FoldersSilent
from nousd.tools.fs.folder_threads import THREADS_MAX, WAIT_SECONDS, in_folder_thread


@asynccontextmanager
async def hanging_checks(count: int) -> AsyncIterator[threading.Event]:
    """Start that many checks that hang and whose callers have given up; yield the event to end them."""
    answer = threading.Event()

    async def give_up() -> None:
        await in_folder_thread(answer.wait, may_be_left=True)

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(give_up)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        yield answer
    finally:
        answer.set()


@pytest.mark.slow
async def test_a_check_runs_while_one_thread_less_than_the_limit_hangs() -> None:
    async with hanging_checks(THREADS_MAX - 1):
        assert await in_folder_thread(int, "7") == 7


async def test_a_check_that_finds_no_free_thread_in_time_fails(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with hanging_checks(THREADS_MAX) as answer:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def refused() -> None:
                with pytest.raises(FoldersSilent, match=f"{THREADS_MAX} looks at folders wait"):
                    await in_folder_thread(int, "7")

            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(WAIT_SECONDS)
        # Other work has its threads, and checks have theirs again after the disks respond.
        assert await trio.to_thread.run_sync(int, "8") == 8
        answer.set()
        assert await in_folder_thread(int, "9") == 9


@pytest.mark.parametrize("may_be_left", [True, False])
async def test_cancellation_abandons_only_a_check_that_may_be_left(may_be_left: bool) -> None:
    answer, left, scope = threading.Event(), trio.Event(), trio.CancelScope()

    async def look() -> None:
        with scope:
            await in_folder_thread(answer.wait, may_be_left=may_be_left)
        left.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        try:
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert left.is_set() == may_be_left
        finally:
            answer.set()
    assert left.is_set()


def test_checks_that_hang_when_their_event_loop_ends_take_no_threads_from_the_next() -> None:
    hung = threading.Event()

    async def leave_all_hanging() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(THREADS_MAX):
                nursery.start_soon(partial(in_folder_thread, hung.wait, may_be_left=True))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    try:
        trio.run(leave_all_hanging)
        clock = trio.testing.MockClock(autojump_threshold=0)
        assert trio.run(in_folder_thread, int, "7", clock=clock) == 7
    finally:
        hung.set()
