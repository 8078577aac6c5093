"""What the user has seen of a session: marks, what is unread, and what they leave as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from nousd.providers.mock.provider import MockProvider
from tests.harness.daemon import Client, Payload, memory_daemon, socket_daemon


async def record(client: Client, session_id: str) -> Payload:
    session: Payload = (await client.request("get_session", session_id=session_id))["session"]
    return session


async def unread(client: Client, session_id: str) -> bool:
    """Return whether a session is unread, which the list and the record agree on."""
    rows = (await client.request("list_sessions"))["sessions"]
    (listed,) = (row["unread"] for row in rows if row["session_id"] == session_id)
    assert (await record(client, session_id))["unread"] is listed
    return listed  # type: ignore[no-any-return]


@pytest.mark.behaviour("what_was_seen_is_shared")
async def test_an_answer_is_unread_until_a_client_has_shown_it(short_folder: Path) -> None:
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        client, other = await daemon.connect(), await daemon.connect()
        events = await daemon.watch(types=["session_seen"])
        session_id = (await client.request("prompt", text="hello"))["session_id"]
        assert await unread(client, session_id)
        await client.request("mark_seen")
        leaf_id = (await record(other, session_id))["leaf_id"]
        assert not await unread(other, session_id)
        told = await events.until("session_seen")
        assert told["payload"] == {"session_id": session_id, "entry_id": leaf_id}
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        assert not await unread(client, session_id)
        assert (await record(client, session_id))["seen_id"] == leaf_id
        await client.request("prompt", text="again")
        assert await unread(client, session_id)


async def test_marks_only_move_forward_and_are_logged_once(tmp_path: Path) -> None:
    async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        entries = [
            (await client.request("append_message", text=text))["entry_id"] for text in "abc"
        ]
        for entry_id in (entries[1], entries[0], entries[1], entries[2], entries[0], None):
            await client.request("mark_seen", entry_id=entry_id)
        page = await client.request("get_events", types=["session_seen"])
        assert [event["payload"]["entry_id"] for event in page["events"]] == entries[1:]


async def test_a_mark_does_not_change_when_a_session_was_used(tmp_path: Path) -> None:
    async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        first = (await client.request("append_message", text="one"))["session_id"]
        second = (await client.request("new_session"))["session_id"]
        before = await record(client, first)
        await client.request("mark_seen", session_id=first)
        rows = (await client.request("list_sessions"))["sessions"]
        assert [row["session_id"] for row in rows] == [second, first]
        assert (await record(client, first))["updated_at"] == before["updated_at"]
        assert rows[1]["updated_at"] == before["updated_at"]


async def test_branches_and_moved_leaves_take_the_mark_along(tmp_path: Path) -> None:
    async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        one = await client.request("append_message", text="one")
        await client.request("append_message", text="two")
        await client.request("set_leaf", leaf_id=one["entry_id"])
        assert await unread(client, one["session_id"])
        await client.request("append_message", text="three")
        await client.request("mark_seen")
        await client.request("set_leaf", leaf_id=one["entry_id"])
        assert not await unread(client, one["session_id"])
        branch = await client.request("branch_session", session_id=one["session_id"])
        assert not await unread(client, branch["session_id"])
        await client.request("append_message", text="four")
        assert await unread(client, branch["session_id"])
        assert not await unread(client, one["session_id"])
