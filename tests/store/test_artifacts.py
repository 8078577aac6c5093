"""Artifacts of any size, on every store: put in steps, visible only when complete, dropped if unused.

Tests of disk failures are at the end.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
import trio
from msgspec import UNSET

from nousd.errors import StoreError, StoreFull
from nousd.store.artifacts import CHUNK_BYTES, PUT_STEP_BYTES, Artifact, ArtifactInfo
from nousd.store.interface import PENDING_BYTES_MAX, Store
from nousd.store.sqlite import artifacts as _artifacts_sqlite
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite.database import open_for_writing
from nousd.wire import events
from nousd.wire.events.base import TurnKey
from nousd.wire.objects.entries import MessageEntry
from tests.harness.daemon import WAIT_SECONDS
from tests.store.faulty_disk import Fault, faulty_disk
from tests.store.helpers import (
    TS,
    Outcomes,
    Source,
    Watch,
    append,
    appended,
    created,
    deleted,
    source,
    updated,
)

EARLIER = "2026-01-01T00:00:00.000Z"
LATER = "2026-01-03T00:00:00.000Z"


def pattern(size: int) -> bytes:
    """Return bytes without repetition."""
    return b"".join(b"%07d " % number for number in range(size // 8 + 1))[:size]


LARGE = pattern(2 * PUT_STEP_BYTES + CHUNK_BYTES + 5)
SIZES = [
    0,
    1,
    CHUNK_BYTES - 1,
    CHUNK_BYTES,
    CHUNK_BYTES + 1,
    PUT_STEP_BYTES,
    PUT_STEP_BYTES + 1,
    len(LARGE),
]


async def put(store: Store, data: bytes, now: str = TS, media_type: str = "text/plain") -> str:
    with trio.fail_after(WAIT_SECONDS):
        return (await store.put_artifact(source(data), media_type, now=now)).id


async def is_there(store: Store, artifact_id: str) -> bool:
    return await store.artifact_info(artifact_id) is not None


# --- putting and reading -------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
async def test_a_stored_artifact_is_read_back_in_full_and_in_any_range(
    store: Store, size: int
) -> None:
    data = LARGE[:size]
    artifact_id = await put(store, data)
    assert await store.artifact_info(artifact_id) == ArtifactInfo(
        artifact_id, "text/plain", size, TS
    )
    assert await store.artifact(artifact_id) == Artifact(artifact_id, "text/plain", data)
    places = {0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, PUT_STEP_BYTES, size - 1, size, size + 1}
    for offset in places - {-1}:
        for length in (1, 10, CHUNK_BYTES, CHUNK_BYTES + 1, len(LARGE)):
            expected = data[offset : offset + length]
            assert await store.artifact_range(artifact_id, offset, length) == expected


@pytest.mark.parametrize("size", SIZES)
async def test_an_artifact_of_a_batch_is_read_back_in_full_and_in_a_range(
    store: Store, size: int
) -> None:
    small = source(LARGE[:size])
    kept = Artifact(small.artifact_id, "text/plain", small.data)
    await append(store, created(), appended("e1", artifact_id=kept.id), artifacts=[kept])
    assert await store.artifact(kept.id) == kept
    assert await store.artifact_info(kept.id) == ArtifactInfo(kept.id, "text/plain", size, TS)
    assert await store.artifact_range(kept.id, 1, size) == small.data[1:]


async def test_an_unknown_artifact_is_none_and_has_no_bytes(store: Store) -> None:
    assert await store.artifact("sha256:0") is None
    assert await store.artifact_info("sha256:0") is None
    assert await store.artifact_range("sha256:0", 0, 10) == b""
    assert await store.renew_artifact("sha256:0", now=TS) is None


async def test_equal_bytes_are_one_artifact_that_keeps_its_first_media_type(store: Store) -> None:
    first = await put(store, LARGE, EARLIER)
    again = await store.put_artifact(source(LARGE), "image/png", now=LATER)
    assert again == ArtifactInfo(first, "text/plain", len(LARGE), LATER)
    assert await store.artifact_info(first) == again


async def test_an_artifact_is_invisible_until_complete_and_blocks_no_commit(store: Store) -> None:
    large = source(LARGE)
    seen: list[bool] = []

    async def look(offset: int) -> None:
        await append(store, updated(name=f"at {offset}"))
        seen.append(await is_there(store, large.artifact_id))
        assert await store.artifact_range(large.artifact_id, 0, 10) == b""
        assert await store.artifact(large.artifact_id) is None

    large.before_read = look
    await append(store, created())
    await store.put_artifact(large, "text/plain", now=TS)
    assert seen == [False, False, False]
    assert await is_there(store, large.artifact_id)


async def test_a_source_whose_bytes_do_not_match_its_id_is_refused(store: Store) -> None:
    changed = Source(LARGE[:-1] + b"!", source(LARGE).artifact_id)
    with pytest.raises(StoreError, match="changed while it was put"):
        await store.put_artifact(changed, "text/plain", now=TS)
    assert not await is_there(store, changed.artifact_id)
    assert await put(store, LARGE) == changed.artifact_id
    assert await store.artifact(changed.artifact_id) == Artifact(
        changed.artifact_id, "text/plain", LARGE
    )


async def test_a_cancelled_put_leaves_no_artifact_and_can_be_repeated(
    store: Store,
) -> None:
    large = source(LARGE)
    with trio.CancelScope() as scope:

        async def cancel(offset: int) -> None:
            if offset:
                scope.cancel()
                await trio.lowlevel.checkpoint()

        large.before_read = cancel
        await store.put_artifact(large, "text/plain", now=TS)
    assert scope.cancelled_caught
    assert not await is_there(store, large.artifact_id)
    assert await put(store, LARGE) == large.artifact_id
    assert await store.artifact_range(large.artifact_id, 0, len(LARGE)) == LARGE


async def test_concurrent_puts_of_equal_bytes_all_succeed(store: Store) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(put, store, LARGE)
    found = await store.artifact(source(LARGE).artifact_id)
    assert found is not None
    assert found.data == LARGE


async def test_a_closed_store_refuses_an_artifact(tmp_path: Path) -> None:
    async with sqlite.open_store(tmp_path / "log.db") as store:
        pass
    with pytest.raises(StoreError, match="closed"):
        await store.put_artifact(source(LARGE), "text/plain", now=TS)


# --- unused artifacts ----------------------------------------------------------------------------


async def drop_unused(store: Store, put_before: str) -> list[str]:
    """Drop every unused artifact and return their ids."""
    gone = []
    for artifact_id in await store.list_unused_artifacts(put_before, limit=100):
        while await store.drop_artifact(artifact_id, put_before=put_before):
            pass
        gone.append(artifact_id)
    return gone


async def test_an_unreferenced_artifact_is_dropped_once_it_is_old(store: Store) -> None:
    artifact_id = await put(store, LARGE, TS)
    assert await drop_unused(store, TS) == []
    assert await drop_unused(store, LATER) == [artifact_id]
    assert not await is_there(store, artifact_id)
    assert await store.artifact_range(artifact_id, 0, 10) == b""
    assert await drop_unused(store, LATER) == []


async def test_a_referenced_artifact_is_not_dropped(store: Store) -> None:
    artifact_id = await put(store, LARGE, EARLIER)
    await append(store, created(), appended("e1", artifact_id=artifact_id))
    assert await drop_unused(store, LATER) == []
    assert await store.drop_artifact(artifact_id, put_before=LATER) is False
    assert await is_there(store, artifact_id)


async def test_putting_or_renewing_an_artifact_resets_its_age(store: Store) -> None:
    first, second = await put(store, b"one", EARLIER), await put(store, b"two", EARLIER)
    await put(store, b"one", TS)
    renewed = await store.renew_artifact(second, now=TS)
    assert renewed == ArtifactInfo(second, "text/plain", 3, TS)
    assert await drop_unused(store, TS) == []
    for artifact_id in (first, second):
        assert await store.drop_artifact(artifact_id, put_before=TS) is False
        assert await is_there(store, artifact_id)


async def test_unused_artifacts_are_listed_up_to_a_limit(store: Store) -> None:
    ids = {await put(store, b"%d" % number, EARLIER) for number in range(3)}
    told = await store.list_unused_artifacts(TS, limit=2)
    assert len(told) == 2
    assert set(told) < ids


async def test_an_artifact_that_is_being_put_is_not_dropped(store: Store) -> None:
    large = source(LARGE)

    async def drop(_offset: int) -> None:
        assert await store.drop_artifact(large.artifact_id, put_before=LATER) is False

    large.before_read = drop
    await store.put_artifact(large, "text/plain", now=TS)
    assert await store.artifact_range(large.artifact_id, 0, len(LARGE)) == LARGE


async def test_a_large_artifact_is_deleted_with_its_session(store: Store) -> None:
    artifact_id = await put(store, LARGE)
    await append(store, created(), appended("e1", artifact_id=artifact_id))
    await append(store, deleted())
    assert not await is_there(store, artifact_id)
    await drop_unused(store, "")
    assert await store.list_unused_artifacts(LATER, limit=1) == ()


async def test_an_artifact_deleted_with_a_session_during_its_put_is_complete_afterwards(
    store: Store,
) -> None:
    large = source(LARGE)
    whole = Artifact(large.artifact_id, "text/plain", LARGE)
    rounds = iter([appended("e1", artifact_id=whole.id)])

    async def come_and_go(offset: int) -> None:
        if offset == PUT_STEP_BYTES and (named := next(rounds, None)) is not None:
            await append(store, created(), named, artifacts=[whole])
            await append(store, deleted())

    large.before_read = come_and_go
    with trio.fail_after(WAIT_SECONDS):
        await store.put_artifact(large, "text/plain", now=TS)
    assert await store.artifact(whole.id) == whole


# --- many ----------------------------------------------------------------------------------------


def tool_called(number: int, artifact_id: str) -> list[events.Event]:
    """Return the large durable events of a call whose output was truncated."""
    where: TurnKey = {"session_id": "s1", "run_id": "r1", "turn_id": "1"}
    shown = f"{number} " * 1000
    end = events.ToolExecutionEnd(
        **where,
        tool_call_id=f"t{number}",
        tool_name="bash",
        result=shown,
        is_error=False,
        executed=True,
        artifact_id=artifact_id,
    )
    parent = UNSET if number == 0 else f"e{number - 1}"
    return [end, appended(f"e{number}", parent, text=shown, artifact_id=artifact_id)]


@pytest.mark.slow
async def test_outputs_of_5000_tool_calls_are_stored_and_deleted_with_their_session(
    store: Store,
) -> None:
    outcomes = Outcomes()
    store.submit(outcomes.batch("begin", [created()]))
    outputs = [source(b"output %d " % number * 800) for number in range(5000)]
    for number, output in enumerate(outputs):
        kept = Artifact(output.artifact_id, "text/plain", output.data)
        happened = tool_called(number, kept.id)
        store.submit(outcomes.batch("call", happened, artifacts=[kept]))
        await store.wait_room()
        if number % 500 == 0:
            assert (await store.figures()).queued_bytes < 2 * PENDING_BYTES_MAX
    await store.flush()
    assert outcomes.failed == []
    for output in outputs[::500]:
        assert await store.artifact_range(output.artifact_id, 0, 100_000) == output.data
    assert await store.list_unused_artifacts(LATER, limit=1) == ()
    path = await store.path("s1", "e4999", limit=5000, bytes_max=2**20)
    assert (
        sum(len(entry.text) for entry in path.entries if isinstance(entry, MessageEntry)) <= 2**20
    )
    await append(store, deleted())
    assert not await is_there(store, outputs[0].artifact_id)
    assert not await is_there(store, outputs[-1].artifact_id)


# --- on a disk -----------------------------------------------------------------------------------


def chunks_in(path: Path) -> int:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        count: int = connection.execute("SELECT count(*) FROM artifact_chunks").get
    finally:
        connection.close()
    return count


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


async def test_a_large_artifact_takes_several_transactions_of_which_the_last_is_synced(
    watched: Store, watch: Watch
) -> None:
    seen: list[tuple[str, int]] = []
    assert watch.connection is not None

    def trace(_cursor: object, statement: str, _bindings: object) -> bool:
        if statement == "COMMIT":
            assert watch.connection is not None
            seen.append(("commit", watch.connection.pragma("synchronous")))
        return True

    watch.connection.set_exec_trace(trace)
    await put(watched, LARGE)
    watch.connection.set_exec_trace(None)
    normal, full = ("commit", 1), ("commit", 2)
    assert seen == [normal, *[normal] * 3, full]


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("at", [0, 7, 530, 541, 700, 1050, 1100])
@pytest.mark.parametrize("fault", [Fault.FULL, Fault.ERROR])
async def test_a_disk_failure_during_a_put_leaves_no_artifact_and_no_chunks(
    path: Path, fault: Fault, at: int
) -> None:
    with faulty_disk() as disk:
        async with sqlite.open_store(path, connect=disk.connect) as store:
            disk.fail(fault, at=at, once=True, only=path.with_name("log.db-wal"))
            failure: StoreError | None = None
            try:
                await put(store, LARGE)
            except StoreError as error:
                failure = error
            disk.mend()
            artifact_id = source(LARGE).artifact_id
            assert not await is_there(store, artifact_id)
            assert failure is not None, "the fault came too late to matter"
            assert chunks_in(path) == 0
            assert isinstance(failure, StoreFull) or fault is Fault.ERROR
            await put(store, LARGE)
            assert await store.artifact_range(artifact_id, 0, len(LARGE)) == LARGE


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("parts", [1, 2, 3])
async def test_a_kill_during_a_put_leaves_no_artifact_and_chunks_to_drop_later(
    path: Path, tmp_path: Path, parts: int
) -> None:
    large = source(LARGE)
    with faulty_disk() as disk:
        async with sqlite.open_store(path, connect=disk.connect) as store:

            async def die(offset: int) -> None:
                if offset == (parts - 1) * PUT_STEP_BYTES:
                    disk.survive_kill(path, tmp_path / "killed")

            large.before_read = die
            await store.put_artifact(large, "text/plain", now=TS)
        left = tmp_path / "killed" / path.name
        async with sqlite.open_store(left, connect=disk.connect) as store:
            assert not await is_there(store, large.artifact_id)
            some_are_left = parts > 1
            expected = [large.artifact_id] if some_are_left else []
            assert await drop_unused(store, EARLIER) == expected
            assert chunks_in(left) == 0
            assert await put(store, LARGE) == large.artifact_id


async def test_a_stored_artifact_survives_a_power_cut(path: Path, tmp_path: Path) -> None:
    with faulty_disk(seed=7) as disk:
        async with sqlite.open_store(path, connect=disk.connect) as store:
            artifact_id = await put(store, LARGE)
            left = disk.after_power_cut(path, tmp_path / "cut")
    async with sqlite.open_store(left) as store:
        assert await store.artifact_range(artifact_id, 0, len(LARGE)) == LARGE


async def test_an_artifact_does_not_take_the_last_space_of_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite.open_store(path) as store:
        monkeypatch.setattr(_artifacts_sqlite, "FREE_BYTES_KEPT", 2**60)
        with pytest.raises(StoreFull, match=f"not the space for an artifact of {len(LARGE)} bytes"):
            await put(store, LARGE)
        assert not await is_there(store, source(LARGE).artifact_id)
        assert await is_there(store, await put(store, b"small"))
        await append(store, created())


async def test_no_artifact_statement_scans_a_whole_table(path: Path) -> None:
    connection = open_for_writing(path, apsw.Connection).connection
    queries = {
        name: value
        for name, value in vars(_artifacts_sqlite).items()
        if isinstance(value, str) and name in ("_INFO", "_CHUNKS", "_IS_USED", "_DROP_CHUNKS")
    }
    assert len(queries) == 4
    for query in queries.values():
        named: dict[str, str | int] = {"id": "", "count": 1}
        values = named if ":id" in query else ("",) * query.count("?")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
        assert not [step for step in plan if step.startswith("SCAN") or "TEMP B-TREE" in step]
    connection.close()
