"""Deletion of sessions that have more rows than one commit drops: what others see of it at any moment,
and what is left of it behind a restart.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from nousd.errors import StoreFull
from nousd.store.artifacts import PUT_STEP_BYTES, Artifact
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.records import EventFilter, StoredEvent
from nousd.store.sqlite import deleting
from nousd.store.sqlite import store as sqlite
from nousd.wire import events
from tests.harness.daemon import WAIT_SECONDS
from tests.store.helpers import (
    NO_BOUND,
    TS,
    Watch,
    append,
    appended,
    created,
    deleted,
    queue_update,
    queued,
    run_ended,
    run_started,
    source,
    whole_log,
)
from tests.suites import examples

SECRET = "told in confidence"
LATER = "2026-01-03T00:00:00.000Z"


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "ROWS_PER_STEP", 2)


def small(data: bytes) -> Artifact:
    return Artifact(source(data).artifact_id, "text/plain", data)


OWN, SHARED = small(b"of the session alone"), small(b"of two sessions")


def tool_called(session_id: str) -> list[events.Event]:
    where: dict[str, Any] = {"session_id": session_id, "run_id": f"r-{session_id}", "turn_id": "1"}
    return [
        events.ToolCallRequested(
            **where, tool_call_id=f"call-{session_id}", tool_name="ls", args={}, attempt=1
        )
    ]


async def write(store: Store) -> None:
    """Write a session with rows of all kinds, a branch of it, and another session."""
    await append(store, created("s1", name=SECRET), created("other"))
    await append(store, events.SessionActivated(session_id="s1"))
    await append(store, appended("e0", session_id="s1", text=SECRET))
    for number in range(1, 7):
        last = f"e{number - 1}"
        await append(store, appended(f"e{number}", last, session_id="s1", text=SECRET))
    await append(store, created("branch", parent_id="s1", leaf_id="e3"))
    for session_id in ("s1", "other"):
        own = appended(f"own-{session_id}", session_id=session_id, artifact_id=SHARED.id)
        waiting = queued(f"i-{session_id}", text=SECRET, client_message_id="c1")
        await append(
            store,
            own,
            run_started(f"r-{session_id}", session_id),
            *tool_called(session_id),
            run_ended(f"r-{session_id}", session_id),
            queue_update("accepted", waiting, session_id=session_id),
            artifacts=[SHARED],
        )
    await append(store, appended("e7", "e6", session_id="s1", artifact_id=OWN.id), artifacts=[OWN])


async def ids_of(store: Store, session_id: str) -> list[str]:
    return [node.id for node in await store.tree(session_id, after=None, limit=99)]


async def check_gone(store: Store, tombstone: StoredEvent) -> None:
    """Check that nothing of the session can be read, and that the others are whole."""
    assert await store.session("s1") is None
    assert await store.entry("s1", "e0") is None
    assert (await store.path("s1", "e7", limit=9, bytes_max=NO_BOUND)).entries == ()
    assert await store.tree("s1", after=None, limit=9) == ()
    assert await store.pending_inputs("s1") == ()
    assert await store.input_by_client_id("s1", "c1") is None
    assert await store.input("s1", "i-s1") is None
    assert (await store.pending_counts()).follow_up == 1
    assert await store.run("r-s1") is None
    assert [run.session_id for run in await store.runs(None, limit=9, before=None)] == ["other"]
    assert await store.tool_call("call-s1", None) is None
    calls = await store.tool_calls(None, None, limit=9, before=NO_BOUND)
    assert [call.session_id for call in calls] == ["other"]
    assert (await store.defaults()).active_session_id is None
    assert await whole_log(store, EventFilter(session_id="s1")) == (tombstone,)
    assert await whole_log(store, EventFilter(run_id="r-s1")) == ()
    assert [event for event in await whole_log(store) if event.session_id == "s1"] == [tombstone]
    assert await store.artifact(OWN.id) is None
    assert await store.artifact_range(OWN.id, 0, 99) == b""
    assert await store.renew_artifact(OWN.id, now=LATER) is None

    assert await store.artifact(SHARED.id) == SHARED
    assert await ids_of(store, "branch") == [f"e{number}" for number in range(7)]
    path = await store.path("branch", "e6", limit=99, bytes_max=NO_BOUND)
    assert len(path.entries) == 7
    assert await ids_of(store, "other") == ["own-other"]
    assert len(await store.pending_inputs("other")) == 1


async def drop_all(store: Store, session_id: str = "s1") -> int:
    steps = 1
    with trio.fail_after(WAIT_SECONDS):
        while await store.drop_rows(session_id):
            steps += 1
    return steps


async def test_a_deleted_session_is_gone_for_everyone_before_its_rows_are(store: Store) -> None:
    await write(store)
    (tombstone,) = await append(store, deleted("s1"))
    await check_gone(store, tombstone)
    await drop_all(store)
    await check_gone(store, tombstone)
    assert await store.list_unfinished_deletions() == ()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("steps", [0, 1, 2, 4, 7, 11])
async def test_a_deletion_is_finished_behind_a_restart_at_any_step(
    tmp_path: Path, steps: int
) -> None:
    async with sqlite.open_store(tmp_path / "log.db") as store:
        await write(store)
        (tombstone,) = await append(store, deleted("s1"))
        for _ in range(steps):
            assert await store.drop_rows("s1")
    async with sqlite.open_store(tmp_path / "log.db") as store:
        await check_gone(store, tombstone)
        assert await store.list_unfinished_deletions() == ("s1",)
        await drop_all(store)
        await check_gone(store, tombstone)
        assert await store.list_unfinished_deletions() == ()


TABLES = ("entries", "inputs", "runs", "tool_calls", "artifact_uses")


def files_with(text: str, folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if text.encode() in file.read_bytes()]


async def test_the_last_step_leaves_no_row_and_no_byte_of_it(
    watched: Store, watch: Watch, tmp_path: Path
) -> None:
    await append(watched, created("s1", name=SECRET), created("kept"))
    await append(watched, *(appended(f"e{n}", session_id="s1", text=SECRET) for n in range(20)))
    await append(watched, queue_update("accepted", queued("i", text=SECRET), session_id="s1"))
    await append(watched, deleted("s1"))
    assert files_with(SECRET, tmp_path)
    assert await drop_all(watched) > 3
    # Once this is answered, the writer has finished the work behind the last step.
    await append(watched, appended("e", session_id="kept"))
    assert watch.connection is not None
    for table in TABLES:
        query = f"SELECT count(*) FROM {table} WHERE session_id = 's1'"
        assert watch.connection.execute(query).get == 0
    assert watch.connection.execute("SELECT count(*) FROM entry_bodies").get == 1
    assert files_with(SECRET, tmp_path) == []


async def test_others_commit_between_the_steps_of_a_deletion(
    watched: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(watched)
    await append(watched, deleted("s1"))
    order: list[str] = []
    gate = threading.Event()
    step = deleting.drop_step

    def slow_step(connection: apsw.Connection, session_id: str) -> bool:
        assert gate.wait(WAIT_SECONDS)
        order.append("step")
        return step(connection, session_id)

    monkeypatch.setattr(deleting, "drop_step", slow_step)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drop_all, watched)
        await wait_all_tasks_blocked()
        watched.after_commits(lambda: order.append("commit"))
        nursery.start_soon(append, watched, created("third"))
        await wait_all_tasks_blocked()
        gate.set()
    assert order.count("step") > 3
    # It is told of behind the second step, if that was begun before the loop heard of it.
    assert order.index("commit") <= 2


async def test_a_full_disk_in_a_step_changes_nothing_and_the_deletion_goes_on_later(
    watched: Store, watch: Watch
) -> None:
    await write(watched)
    (tombstone,) = await append(watched, deleted("s1"))
    assert await watched.drop_rows("s1")
    watch.fail_at, watch.fail_times = "DELETE FROM inputs", 1
    with pytest.raises(StoreFull):
        await drop_all(watched)
    await check_gone(watched, tombstone)
    assert await watched.list_unfinished_deletions() == ("s1",)
    await drop_all(watched)
    await check_gone(watched, tombstone)


async def test_long_rows_are_dropped_one_at_a_time(
    watched: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleting, "ROWS_PER_STEP", 100)
    monkeypatch.setattr(deleting, "BYTES_PER_STEP", 1000)
    await append(watched, created("s1"))
    await append(watched, *(appended(f"e{n}", session_id="s1", text="x" * 2000) for n in range(9)))
    await append(watched, deleted("s1"))
    assert await drop_all(watched) >= 17


@pytest.mark.parametrize("size", [100, PUT_STEP_BYTES + 100], ids=["small", "large"])
async def test_an_artifact_that_is_put_again_meanwhile_stays(store: Store, size: int) -> None:
    again = source(b"x" * size)
    await store.put_artifact(again, "text/plain", now=TS)
    await append(store, created("s1"))
    for number in range(9):
        await append(store, appended(f"e{number}", session_id="s1", artifact_id=again.artifact_id))
    await append(store, deleted("s1"))
    assert await store.artifact_info(again.artifact_id) is None
    await store.put_artifact(again, "text/plain", now=LATER)
    await drop_all(store)
    assert await store.artifact_range(again.artifact_id, 0, size) == again.data


async def test_an_artifact_that_another_session_is_given_meanwhile_stays(store: Store) -> None:
    await write(store)
    await append(store, deleted("s1"))
    await append(store, appended("e", session_id="other", artifact_id=OWN.id), artifacts=[OWN])
    await drop_all(store)
    assert await store.artifact(OWN.id) == OWN


async def test_nothing_is_dropped_of_a_session_that_is_there(store: Store) -> None:
    await write(store)
    assert not await store.drop_rows("s1")
    assert len(await ids_of(store, "s1")) == 9


# --- any order ----------------------------------------------------------------------------------

SESSIONS = ("a", "b", "c")
actions = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "branch", "delete", "drop", "restart"]),
        st.sampled_from(SESSIONS),
        st.sampled_from(SESSIONS),
    ),
    max_size=40,
)


class _Names:
    """The names of sessions, of which each is used once, and of entries."""

    def __init__(self) -> None:
        self.entries = count()
        self.sessions = count()
        self.alive = {name: name for name in SESSIONS}


async def _carry_out(store: Store, names: _Names, action: str, one: str, other: str) -> None:
    match action:
        case "append":
            entry_id = f"e{next(names.entries)}"
            artifact = small(entry_id[-1].encode())
            entry = appended(entry_id, session_id=names.alive[one], artifact_id=artifact.id)
            await append(store, entry, artifacts=[artifact])
        case "branch" if one != other:
            await append(store, deleted(names.alive[one]))
            parent, names.alive[one] = names.alive[other], f"s{next(names.sessions)}"
            await store.copy_entries(parent, names.alive[one])
            await append(store, created(names.alive[one], parent_id=parent))
        case "delete":
            await append(store, deleted(names.alive[one]))
            names.alive[one] = f"s{next(names.sessions)}"
            await append(store, created(names.alive[one]))
        case "drop":
            for session_id in (await store.list_unfinished_deletions())[:1]:
                await store.drop_rows(session_id)


async def _seen(store: Store) -> dict[str, Any]:
    page = await store.sessions(limit=99, before=None)
    ids = [row.session_id for row in page.rows]
    return {
        "log": await whole_log(store),
        "sessions": page,
        "trees": [await store.tree(id, after=None, limit=NO_BOUND) for id in ids],
        "artifacts": [await store.artifact(small(b"%d" % n).id) for n in range(10)],
    }


@pytest.mark.slow
@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(actions)
def test_a_session_that_is_being_deleted_is_never_seen_whatever_happens_meanwhile(
    wanted: Sequence[tuple[str, str, str]],
) -> None:
    async def run(path: Path) -> None:
        async with memory.open_store() as expected:
            ours, theirs = _Names(), _Names()
            opened = AsyncExitStack()
            store = await opened.enter_async_context(sqlite.open_store(path))
            for each in (expected, store):
                await append(each, *map(created, SESSIONS))
            for action in wanted:
                if action[0] == "restart":
                    await opened.aclose()
                    store = await opened.enter_async_context(sqlite.open_store(path))
                await _carry_out(expected, theirs, *action)
                await _carry_out(store, ours, *action)
                assert await _seen(store) == await _seen(expected)
            await opened.aclose()

    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, Path(folder) / "log.db")
