"""Artifacts of a running daemon: uploads, outputs of any size, deletion of unused ones."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.daemon.blobs.uploads import IDLE_SECONDS_MAX
from nousd.daemon.eventlog import retention
from nousd.providers.interface import Provider
from nousd.store.artifacts import PUT_STEP_BYTES
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.sqlite import artifacts as _artifacts_sqlite
from nousd.tools.spooled_file import SpooledFile
from tests.daemon.process_harness import Place, Process, running
from tests.daemon.scripted import ScriptedProvider
from tests.harness.daemon import (
    WAIT_SECONDS,
    Client,
    Daemon,
    FakeClock,
    memory_daemon,
    of_type,
    socket_daemon,
)
from tests.harness.stub_model import StubModel, text_reply, tool_reply
from tests.store.helpers import append, appended, created, source

HOUR = 3600.0
DATA = b"".join(b"%07d " % number for number in range(50_000))
PIECE = 65_536


def id_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def send(client: Client, data: bytes, **fields: Any) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return await client.request(
        "put_artifact", **{"media_type": "text/plain", "data": encoded, **fields}
    )


async def refusal_of(client: Client, data: bytes, **fields: Any) -> tuple[str, str]:
    encoded = base64.b64encode(data).decode()
    error = await client.refusal(
        "put_artifact", **{"media_type": "text/plain", "data": encoded, **fields}
    )
    return error["code"], error["message"]


async def upload(client: Client, data: bytes) -> str:
    """Send bytes in pieces, and return the id of the artifact."""
    upload_id = (await send(client, data[:PIECE]))["upload_id"]
    for offset in range(PIECE, len(data), PIECE):
        last = offset + PIECE >= len(data)
        piece = data[offset : offset + PIECE]
        answer = await send(client, piece, upload_id=upload_id, offset=offset, final=last)
    return str(answer["artifact_id"])


async def read(client: Client, artifact_id: str, length: int = 100_000) -> bytes:
    data, eof = b"", False
    while not eof:
        part = await client.request(
            "get_artifact", artifact_id=artifact_id, offset=len(data), length=length
        )
        data += base64.b64decode(part["data"])
        eof = part["eof"]
    assert len(data) == part["size_bytes"]
    return data


@pytest.fixture(params=["memory", "sqlite"])
async def daemon(request: pytest.FixtureRequest, short_folder: Path) -> AsyncIterator[Daemon]:
    provider = ScriptedProvider()
    if request.param == "memory":
        async with memory_daemon(workdir=short_folder, provider=provider) as running_daemon:
            yield running_daemon
    else:
        async with socket_daemon(short_folder, provider=provider) as running_daemon:
            yield running_daemon


# --- uploads -------------------------------------------------------------------------------------


async def test_an_artifact_uploaded_in_pieces_is_read_back_in_parts(daemon: Daemon) -> None:
    client = await daemon.connect()
    artifact_id = await upload(client, DATA)
    assert artifact_id == id_of(DATA)
    assert await read(client, artifact_id) == DATA
    assert await upload(client, DATA) == artifact_id


async def test_uploads_of_many_clients_do_not_mix(daemon: Daemon) -> None:
    async def one(number: int) -> None:
        client = await daemon.connect()
        data = DATA[number:]
        assert await upload(client, data) == id_of(data)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(one, number)


async def test_an_upload_continues_over_another_connection(daemon: Daemon) -> None:
    first = await daemon.connect()
    upload_id = (await send(first, b"hello"))["upload_id"]
    await first.aclose()
    second = await daemon.connect()
    assert await refusal_of(second, b"", upload_id=upload_id, offset=0) == (
        "invalid_payload",
        "offset must be 5",
    )
    end = await send(second, b", world", upload_id=upload_id, offset=5, final=True)
    assert end["artifact_id"] == id_of(b"hello, world")


async def test_two_clients_sending_the_same_piece_at_once_do_not_corrupt_the_upload(
    daemon: Daemon,
) -> None:
    first, second = await daemon.connect(), await daemon.connect()
    upload_id = (await send(first, b"hello"))["upload_id"]
    payload = {
        "upload_id": upload_id,
        "media_type": "text/plain",
        "data": base64.b64encode(b"!").decode(),
        "offset": 5,
    }
    requests = [await client.ask("put_artifact", **payload) for client in (first, second)]
    answers = [await first.answer(requests[0]), await second.answer(requests[1])]
    assert sorted(answer["type"] for answer in answers) == ["error", "upload"]
    end = await send(first, b"", upload_id=upload_id, final=True)
    assert end["artifact_id"] == id_of(b"hello!")


async def test_a_refused_first_piece_begins_no_upload(daemon: Daemon) -> None:
    client = await daemon.connect()
    for _ in range(100):
        code, message = await refusal_of(client, b"x", offset=1)
        assert (code, message) == ("invalid_payload", "offset must be 0")
    await send(client, b"x", final=True)


async def pass_time(clock: MockClock, seconds: float) -> None:
    """Advance the clock and let due work happen. It does not jump by itself: threads are at work."""
    for step in (seconds, *[retention.PAUSE_SECONDS] * 10):
        clock.jump(step)
        await wait_all_tasks_blocked()


@pytest.mark.behaviour("an_idle_upload_ends")
async def test_an_upload_without_a_piece_for_ten_minutes_ends(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    async with memory_daemon(workdir=tmp_path, provider=ScriptedProvider()) as daemon:
        client = await daemon.connect()
        idle = (await send(client, b"x"))["upload_id"]
        busy = (await send(client, b"x"))["upload_id"]
        await pass_time(mock_clock, IDLE_SECONDS_MAX - 10)
        await send(client, b"y", upload_id=busy)
        await pass_time(mock_clock, 20)
        assert await refusal_of(client, b"y", upload_id=idle) == (
            "command_rejected",
            "upload_not_found",
        )
        end = await send(client, b"z", upload_id=busy, final=True)
        assert end["artifact_id"] == id_of(b"xyz")


async def test_an_upload_refused_on_a_full_disk_continues_once_there_is_space(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await daemon.connect()
    upload_id = (await send(client, b"hello"))["upload_id"]

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(SpooledFile, "write", fail)
        assert await refusal_of(client, b"!", upload_id=upload_id) == (
            "session_error",
            "the disk is full: nothing was accepted",
        )
        assert (await refusal_of(client, b"!"))[0] == "session_error"
    end = await send(client, b"!", upload_id=upload_id, offset=5, final=True)
    assert end["artifact_id"] == id_of(b"hello!")


async def test_a_final_piece_refused_on_a_full_disk_can_be_sent_again(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(PUT_STEP_BYTES + 1)
    async with socket_daemon(short_folder, provider=ScriptedProvider()) as daemon:
        client = await daemon.connect()
        upload_id = (await send(client, data))["upload_id"]
        with monkeypatch.context() as patch:
            patch.setattr(_artifacts_sqlite, "FREE_BYTES_KEPT", 2**60)
            assert (await refusal_of(client, b"", upload_id=upload_id, final=True))[1] == (
                "the disk is full: nothing was accepted"
            )
        end = await send(client, b"", upload_id=upload_id, final=True)
        assert end["artifact_id"] == id_of(data)


# --- deletion of unused artifacts ----------------------------------------------------------------


class Calendar(FakeClock):
    """A wall clock that follows trio's clock."""

    def now(self) -> str:
        now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=trio.current_time())
        return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def daemon_on(
    store: Store, workdir: Path, provider: ScriptedProvider | None = None
) -> AbstractAsyncContextManager[Daemon]:
    return memory_daemon(
        workdir=workdir,
        provider=provider or ScriptedProvider(),
        store=store,
        clock=Calendar(),
    )


@pytest.mark.behaviour("an_artifact_is_kept_while_an_event_names_it")
async def test_an_unreferenced_artifact_is_deleted_a_day_after_it_was_last_put(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    async with memory.open_store() as store, daemon_on(store, tmp_path) as daemon:
        client = await daemon.connect()
        used, unused, again = [await upload(client, DATA[number:]) for number in range(3)]
        await append(store, created(), appended("e1", artifact_id=used))
        await pass_time(mock_clock, 12 * HOUR)
        await upload(client, DATA[2:])
        await pass_time(mock_clock, 11 * HOUR)
        assert await read(client, unused) == DATA[1:]
        await pass_time(mock_clock, 2 * HOUR)
        error = await client.refusal("get_artifact", artifact_id=unused)
        assert (error["message"], error["details"]) == (
            "artifact_not_found",
            {"artifact_id": unused},
        )
        assert await read(client, again) == DATA[2:]
        await pass_time(mock_clock, 12 * HOUR)
        assert await store.artifact_info(again) is None
        assert await read(client, used) == DATA
        await client.request("delete_session", session_id="s1")
        assert await store.artifact_info(used) is None


async def test_a_large_artifact_is_deleted_before_the_deletion_of_its_session_is_answered(
    short_folder: Path,
) -> None:
    large = source(bytes(3 * PUT_STEP_BYTES))
    async with socket_daemon(short_folder, provider=ScriptedProvider()) as daemon:
        store, client = daemon.services.store, await daemon.connect()
        put = await store.put_artifact(large, "text/plain", now="2026-01-01T00:00:00Z")
        await append(store, created(), appended("e1", artifact_id=put.id))
        await client.request("delete_session", session_id="s1")
        assert await store.artifact_info(put.id) is None
        assert await store.list_unused_artifacts("", limit=1) == ()


async def test_a_half_stored_artifact_is_deleted_at_the_next_start(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = source(bytes(3 * PUT_STEP_BYTES))
    looked, looked_again = trio.Event(), trio.Event()

    async def cancel(offset: int) -> None:
        if offset == PUT_STEP_BYTES:
            scope.cancel()
            await trio.lowlevel.checkpoint()

    large.before_read = cancel
    when_collected(monkeypatch, looked)
    async with socket_daemon(short_folder, provider=ScriptedProvider()) as daemon:
        store = daemon.services.store
        with trio.fail_after(WAIT_SECONDS):
            await looked.wait()
        with trio.CancelScope() as scope:
            await store.put_artifact(large, "text/plain", now="2026-01-01T00:00:00Z")
        assert await store.list_unused_artifacts("", limit=1) == (large.artifact_id,)
    when_collected(monkeypatch, looked_again)
    async with socket_daemon(short_folder, provider=ScriptedProvider()) as daemon:
        store = daemon.services.store
        with trio.fail_after(WAIT_SECONDS):
            await looked_again.wait()
        assert await store.list_unused_artifacts("", limit=1) == ()


async def test_one_collection_deletes_all_unused_artifacts(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ARTIFACTS_PER_LOOK", 2)
    looked = trio.Event()
    when_collected(monkeypatch, looked)
    async with memory.open_store() as store, trio.open_nursery() as nursery:
        for number in range(5):
            put = source(b"%d" % number)
            await store.put_artifact(put, "text/plain", now="2025-01-01T00:00:00Z")
        nursery.start_soon(retention.collect_unused_artifacts, store, FakeClock())
        with trio.fail_after(retention.PERIOD_SECONDS / 2):
            await looked.wait()
        assert await store.list_unused_artifacts("2026-01-01T00:00:00Z", limit=5) == ()
        nursery.cancel_scope.cancel()


# --- outputs of tools ----------------------------------------------------------------------------


async def call_bash(client: Client, stub: StubModel, place: Place, command: str) -> dict[str, Any]:
    """Have the model run a command, and return the end of its execution."""
    stub.script(tool_reply(("bash", {"command": command})), text_reply("done"))
    events = await place.watch()
    await client.request("prompt", text="go", wait=False)
    run = await events.run()
    assert run[-1]["payload"]["status"] == "completed"
    (end,) = of_type(run, "tool_execution_end")
    return end


def highest_resident_bytes(process: Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


@pytest.mark.slow
@pytest.mark.behaviour("a_tool_output_of_any_size_is_kept")
async def test_an_output_of_200_megabytes_is_stored_whole_in_bounded_memory(
    short_folder: Path, stub: StubModel
) -> None:
    place = Place(short_folder, stub)
    size = 200_000_000
    async with running(place) as process:
        client = await place.connect()
        await call_bash(client, stub, place, "head -c 2000000 /dev/zero | tr '\\0' b")
        before = highest_resident_bytes(process)
        end = await call_bash(client, stub, place, f"head -c {size} /dev/zero | tr '\\0' a")
        assert highest_resident_bytes(process) - before < 24 * 2**20
        assert len(end["result"]) <= 8192
        digest = hashlib.sha256()
        piece = b"a" * 1_000_000
        for _ in range(size // len(piece)):
            digest.update(piece)
        assert end["artifact_id"] == f"sha256:{digest.hexdigest()}"
        for offset in (0, size // 2, size - 10):
            part = await client.request(
                "get_artifact", artifact_id=end["artifact_id"], offset=offset, length=10
            )
            assert base64.b64decode(part["data"]) == b"a" * 10
            assert (part["size_bytes"], part["eof"]) == (size, offset == size - 10)
        assert highest_resident_bytes(process) - before < 24 * 2**20


@pytest.mark.slow
async def test_an_uploaded_artifact_survives_a_kill(short_folder: Path) -> None:
    place = Place(short_folder)
    async with running(place) as process:
        client = await place.connect()
        artifact_id = await upload(client, DATA)
        await process.kill()
    async with running(place):
        assert await read(await place.connect(), artifact_id) == DATA


async def test_an_output_too_large_for_the_store_completes_its_call_with_a_remark(
    short_folder: Path, stub: StubModel, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_artifacts_sqlite, "FREE_BYTES_KEPT", 2**60)
    command = f"head -c {PUT_STEP_BYTES + 1} /dev/zero | tr '\\0' a"
    stub.script(tool_reply(("bash", {"command": command})), text_reply("done"))
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        await client.request("prompt", text="go", wait=False)
        run = await events.run()
        assert run[-1]["payload"]["status"] == "completed"
        (end,) = of_type(run, "tool_execution_end")
        assert (end["is_error"], "artifact_id" in end) == (False, False)
        result = stub.requests[-1].json["messages"][-1]["content"]
        assert result.endswith("\n[The whole output was not kept: the disk is full.]")


@pytest.mark.slow
async def test_a_thousand_tool_calls_keep_events_small_and_memory_bounded(
    short_folder: Path,
) -> None:
    place = Place(short_folder)
    calls = "[[tool ls {}]]" * 125 + "[[next]]"
    async with running(place) as process:
        client, events = await place.connect(), await place.watch(types=["agent_end"])
        for prompts in range(10):
            await client.request("prompt", text=f"{calls}prompt {prompts}", wait=False)
            assert (await events.next())["payload"]["status"] == "completed"
            if prompts == 4:
                before = highest_resident_bytes(process)
        assert highest_resident_bytes(process) - before < 16 * 2**20
        ended = longest = 0
        page: dict[str, Any] = {"next": "evt-0", "events": [None]}
        while page["events"]:
            page = await client.request("get_events", after=page["next"], types="all")
            ended += len(of_type(page["events"], "tool_execution_end"))
            longest = max([longest, *(len(json.dumps(event)) for event in page["events"])])
        assert ended == 1250
        assert longest < 16 * 1024


def when_collected(monkeypatch: pytest.MonkeyPatch, looked: trio.Event) -> None:
    """Set the event when the daemon has searched for unused artifacts once."""

    def debug(_: str, __: int, what: str, ___: str) -> None:
        if what == "unused artifacts":
            looked.set()

    monkeypatch.setattr(retention._log, "debug", debug)
