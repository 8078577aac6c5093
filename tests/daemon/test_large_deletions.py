"""Deletion of sessions that are too large to be dropped in one commit."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from nousd.errors import StoreFull
from nousd.providers.mock.provider import MockProvider
from nousd.store.sqlite import deleting
from nousd.store.sqlite import store as sqlite
from tests.harness.daemon import WAIT_SECONDS, Client, socket_daemon
from tests.store.helpers import append, appended, created, deleted


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "ROWS_PER_STEP", 2)


async def session_of_seven(client: Client) -> str:
    session_id: str = (await client.request("new_session"))["session_id"]
    for number in range(7):
        await client.request("append_message", text=f"text {number}", session_id=session_id)
    return session_id


async def test_a_large_session_is_gone_for_others_while_its_rows_are_dropped(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        client, other = await daemon.connect(), await daemon.connect()
        session_id = await session_of_seven(client)
        store = daemon.services.store
        drop, seen = store.drop_rows, []

        async def dropped_and_looked_for(session_id: str) -> bool:
            more = await drop(session_id)
            refusal = await other.refusal("get_messages", session_id=session_id)
            seen.append(refusal["code"])
            return more

        monkeypatch.setattr(store, "drop_rows", dropped_and_looked_for)
        answer = await client.request("delete_session", session_id=session_id)
        assert answer["deleted"]
        assert len(seen) > 3
        assert set(seen) == {"session_not_found"}
        assert await store.list_unfinished_deletions() == ()


async def test_a_deletion_is_finished_for_a_client_that_hangs_up(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        session_id = await session_of_seven(client)
        await client.request("append_message", text="x" * 240_000, session_id=session_id)
        store = daemon.services.store
        drop = store.drop_rows

        async def dropped_for_nobody(session_id: str) -> bool:
            await client.aclose()
            await trio.testing.wait_all_tasks_blocked()
            return await drop(session_id)

        monkeypatch.setattr(store, "drop_rows", dropped_for_nobody)
        # Nobody reads its answer, so the daemon learns that the client has gone.
        await client.ask("get_messages", session_id=session_id)
        await client.ask("delete_session", session_id=session_id)
        other = await daemon.connect()
        with trio.fail_after(WAIT_SECONDS):
            while await store.session(session_id) or await store.list_unfinished_deletions():
                await other.request("ping")


async def test_the_next_start_drops_what_a_killed_deletion_has_left(short_folder: Path) -> None:
    async with sqlite.open_store(short_folder / "nousd.db") as store:
        await append(store, created("s"), *(appended(f"e{n}", session_id="s") for n in range(9)))
        await append(store, deleted("s"))
        assert await store.list_unfinished_deletions() == ("s",)
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        store = daemon.services.store
        with trio.fail_after(WAIT_SECONDS):
            while await store.list_unfinished_deletions():
                await trio.lowlevel.checkpoint()


async def test_a_deletion_that_a_full_disk_breaks_off_is_no_success_and_the_session_is_gone(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        session_id = await session_of_seven(client)

        async def full(_: str) -> bool:
            raise StoreFull("no space")

        with monkeypatch.context() as during:
            during.setattr(daemon.services.store, "drop_rows", full)
            refusal = await client.refusal("delete_session", session_id=session_id)
        assert refusal["code"] == "session_error"
        refusal = await client.refusal("get_messages", session_id=session_id)
        assert refusal["code"] == "session_not_found"
        assert await daemon.services.store.list_unfinished_deletions() == (session_id,)
