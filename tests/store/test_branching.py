"""Branches of large sessions: what they are given before they are created, and what is left where they
never are.
"""

from __future__ import annotations

import threading

import apsw
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nousd.store.interface import Store
from nousd.store.sqlite import branching, deleting
from tests.harness.daemon import WAIT_SECONDS
from tests.store.helpers import Watch, append, appended, created, deleted

NO_BOUND = 1 << 40


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "ENTRIES_PER_STEP", 3)
    monkeypatch.setattr(deleting, "ROWS_PER_STEP", 3)


async def write_parent(store: Store, entries: int) -> None:
    await append(store, created("p"), appended("e0", session_id="p"))
    for number in range(1, entries):
        await append(store, appended(f"e{number}", f"e{number - 1}", session_id="p"))


async def ids_of(store: Store, session_id: str) -> list[str]:
    return [node.id for node in await store.tree(session_id, after=None, limit=99)]


@pytest.mark.parametrize("entries", [1, 3, 4, 5, 7, 20])
async def test_a_branch_that_was_given_entries_before_has_what_any_branch_has(
    store: Store, entries: int
) -> None:
    await write_parent(store, entries)
    await store.copy_entries("p", "b")
    late = appended("late", f"e{entries - 1}", session_id="p")
    await append(store, late)
    await append(store, created("b", parent_id="p", leaf_id="late"))
    assert await ids_of(store, "b") == [*(f"e{number}" for number in range(entries)), "late"]
    assert await ids_of(store, "b") == await ids_of(store, "p")
    await append(store, deleted("p"))
    path = await store.path("b", "late", limit=99, bytes_max=NO_BOUND)
    assert len(path.entries) == entries + 1


async def test_a_branch_of_a_branch_is_given_what_that_was_given(store: Store) -> None:
    await write_parent(store, 10)
    await append(store, created("b", parent_id="p", leaf_id="e9"))
    await append(
        store, appended("own", "e9", session_id="b"), appended("p10", "e9", session_id="p")
    )
    await store.copy_entries("b", "c")
    await append(store, created("c", parent_id="b", leaf_id="own"))
    assert await ids_of(store, "c") == [*(f"e{number}" for number in range(10)), "own"]


async def test_others_commit_between_the_steps_of_a_copy(
    watched: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_parent(watched, 20)
    order: list[str] = []
    gate = threading.Event()
    step = branching.copy_step

    def slow_step(connection: apsw.Connection, parent_id: str, branch_id: str) -> bool:
        assert gate.wait(WAIT_SECONDS)
        order.append("step")
        return step(connection, parent_id, branch_id)

    monkeypatch.setattr(branching, "copy_step", slow_step)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.copy_entries, "p", "b")
        await wait_all_tasks_blocked()
        watched.after_commits(lambda: order.append("commit"))
        nursery.start_soon(append, watched, created("other"))
        await wait_all_tasks_blocked()
        gate.set()
    assert order.count("step") > 3
    # It is told of behind the second step, if that was begun before the loop heard of it.
    assert order.index("commit") <= 2


async def test_what_was_copied_for_a_branch_that_is_not_created_is_found_and_dropped(
    watched: Store, watch: Watch
) -> None:
    await write_parent(watched, 20)
    await append(watched, created("b", parent_id="p", leaf_id="e19"))
    assert await watched.list_uncreated_branches() == ()
    await watched.copy_entries("p", "never")
    assert await watched.list_uncreated_branches() == ("never",)
    await append(watched, deleted("p"), deleted("b"))
    for session_id in ("p", "b", "never"):
        steps = 0
        with trio.fail_after(WAIT_SECONDS):
            while await watched.drop_rows(session_id):
                steps += 1
        assert steps > 3
    assert await watched.list_uncreated_branches() == ()
    assert watch.connection is not None
    for table in ("entries", "entry_bodies"):
        assert watch.connection.execute(f"SELECT count(*) FROM {table}").get == 0


async def test_nothing_is_dropped_of_a_session_that_was_created(store: Store) -> None:
    await write_parent(store, 5)
    assert not await store.drop_rows("p")
    assert len(await ids_of(store, "p")) == 5


async def test_the_copies_for_a_branch_leave_the_entries_that_they_share(watched: Store) -> None:
    await write_parent(watched, 10)
    await watched.copy_entries("p", "never")
    while await watched.drop_rows("never"):
        pass
    path = await watched.path("p", "e9", limit=99, bytes_max=NO_BOUND)
    assert len(path.entries) == 10
