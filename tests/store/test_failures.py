"""A failed commit, on every store: nothing half-written, every callback called, and work continues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from nousd.errors import StoreError
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.sqlite import store as sqlite
from tests.store.helpers import (
    Outcomes,
    Watch,
    append,
    appended,
    created,
    deleted,
    delta,
    run_started,
    whole_log,
)


class Breakable(NamedTuple):
    """A store whose commits fail from ``break_it`` until ``mend``."""

    store: Store
    break_it: Callable[[], None]
    mend: Callable[[], None]


@pytest.fixture(params=["memory", "BEGIN", "INSERT", "UPDATE sessions", "COMMIT"])
async def breakable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Breakable]:
    if request.param == "memory":
        broken: list[bool] = []

        def refuse() -> None:
            if broken:
                raise StoreError("the log could not be written: database or disk is full")

        async with memory.open_store(before_commit=refuse) as store:
            yield Breakable(store, lambda: broken.append(True), broken.clear)
        return
    watch = Watch()
    async with sqlite.open_store(tmp_path / "log.db", connect=watch.connect) as store:
        yield Breakable(
            store,
            lambda: setattr(watch, "fail_at", request.param),
            lambda: setattr(watch, "fail_at", None),
        )


async def test_a_failed_batch_leaves_nothing_and_the_next_event_has_a_larger_number(
    breakable: Breakable,
) -> None:
    store = breakable.store
    await append(store, created())
    breakable.break_it()
    with pytest.raises(StoreError, match="disk is full"):
        await append(store, appended("e1"), run_started(), deleted("s1"))
    assert store.head == 1
    breakable.mend()
    assert [event.type for event in await whole_log(store)] == ["session_created"]
    assert await store.session("s1") is not None
    assert await store.entry("s1", "e1") is None
    assert await store.run("r1") is None
    (stored,) = await append(store, delta())
    assert stored.seq >= 2
    assert [event.seq for event in await whole_log(store)] == [1, stored.seq]


async def test_batches_queued_with_a_failed_batch_fail_in_order(
    breakable: Breakable,
) -> None:
    outcomes = Outcomes()
    breakable.break_it()
    names = [str(number) for number in range(20)]
    for name in names:
        breakable.store.submit(outcomes.batch(name, [created(name), run_started(name, name)]))
    await breakable.store.flush()
    assert outcomes.names == names
    assert outcomes.failed == names


async def test_a_failure_callback_can_submit_again(breakable: Breakable) -> None:
    outcomes = Outcomes()
    store = breakable.store
    again = outcomes.batch("again", [delta()])

    def mend_and_submit() -> None:
        breakable.mend()
        store.submit(again)

    breakable.break_it()
    store.submit(outcomes.batch("first", [created(), run_started()], then=mend_and_submit))
    await store.flush()
    await store.flush()
    assert outcomes.names == ["first", "again"]
    assert outcomes.failed == ["first"]
    assert outcomes.seqs("again") == [event.seq for event in await whole_log(store)]


async def test_a_store_recovers_after_repeated_failures(breakable: Breakable) -> None:
    store = breakable.store
    breakable.break_it()
    for _ in range(3):
        with pytest.raises(StoreError):
            await append(store, created(), run_started())
        assert (await store.figures()).queued_bytes == 0
    breakable.mend()
    stored = await append(store, created(), run_started())
    assert await whole_log(store) == stored
