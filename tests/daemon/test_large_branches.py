"""Branches of sessions so large that their entries are copied before the branch is created."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from nousd.providers.mock.provider import MockProvider
from nousd.store.sqlite import branching
from nousd.store.sqlite import store as sqlite
from tests.harness.daemon import WAIT_SECONDS, Client, socket_daemon
from tests.store.helpers import append, appended, created


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "ENTRIES_PER_STEP", 2)


async def texts(client: Client, session_id: str) -> list[str]:
    answer = await client.request("get_messages", session_id=session_id)
    return [message["text"] for message in answer["messages"]]


async def parent_of_seven(client: Client) -> str:
    session_id: str = (await client.request("new_session"))["session_id"]
    for number in range(7):
        await client.request("append_message", text=f"text {number}", session_id=session_id)
    return session_id


async def test_a_large_session_is_branched_as_any_other(short_folder: Path) -> None:
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        parent = await parent_of_seven(client)
        branch = (await client.request("branch_session", session_id=parent))["session_id"]
        assert await texts(client, branch) == [f"text {number}" for number in range(7)]
        await client.request("delete_session", session_id=parent)
        assert len(await texts(client, branch)) == 7
        assert await daemon.services.store.list_uncreated_branches() == ()


async def test_a_parent_that_is_deleted_while_it_is_copied_has_no_branch_and_leaves_nothing(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        client, other = await daemon.connect(), await daemon.connect()
        parent = await parent_of_seven(client)
        store = daemon.services.store
        copy = store.copy_entries

        async def copied_and_deleted(parent_id: str, branch_id: str) -> None:
            await copy(parent_id, branch_id)
            assert await store.list_uncreated_branches() == (branch_id,)
            await other.request("delete_session", session_id=parent)

        monkeypatch.setattr(store, "copy_entries", copied_and_deleted)
        refusal = await client.refusal("branch_session", session_id=parent)
        assert refusal["code"] == "session_not_found"
        assert await store.list_uncreated_branches() == ()


async def test_the_next_start_drops_what_a_killed_branching_has_copied(short_folder: Path) -> None:
    async with sqlite.open_store(short_folder / "nousd.db") as store:
        await append(store, created("p"), *(appended(f"e{n}", session_id="p") for n in range(7)))
        await store.copy_entries("p", "never")
        assert await store.list_uncreated_branches() == ("never",)
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        store = daemon.services.store
        with trio.fail_after(WAIT_SECONDS):
            while await store.list_uncreated_branches():
                await trio.lowlevel.checkpoint()
        assert len(await store.tree("p", after=None, limit=9)) == 7
