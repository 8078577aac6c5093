"""Titles of sessions: from their first message until they are named, in answers, events and lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from nousd.providers.mock.provider import MockProvider
from nousd.redaction.redactor import Redactor
from tests.harness.daemon import Client, Daemon, Payload, memory_daemon, socket_daemon


async def title(client: Client, session_id: str) -> str | None:
    """Return a session's title, which the list and the record have in common."""
    record: Payload = (await client.request("get_session", session_id=session_id))["session"]
    rows = (await client.request("list_sessions"))["sessions"]
    (listed,) = (row.get("title") for row in rows if row["session_id"] == session_id)
    assert record.get("title") == listed
    return listed  # type: ignore[no-any-return]


async def told(daemon: Daemon, session_id: str) -> list[Payload]:
    """Return the changes of a session that the log has."""
    client = await daemon.connect()
    page = await client.request("get_events", session_id=session_id, types=["session_updated"])
    return [event["payload"] for event in page["events"]]


@pytest.mark.behaviour("a_session_has_a_title")
async def test_the_first_prompt_gives_a_session_its_title_until_it_is_named(tmp_path: Path) -> None:
    async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        session_id = (await client.request("new_session"))["session_id"]
        assert await title(client, session_id) is None
        await client.request("prompt", text="\x1b[1m one \n two")
        assert await title(client, session_id) == "[1m one"
        await client.request("prompt", text="three")
        assert await title(client, session_id) == "[1m one"
        await client.request("rename_session", name="mine")
        assert await title(client, session_id) == "mine"
        assert await told(daemon, session_id) == [
            {"session_id": session_id, "title": "[1m one"},
            {"session_id": session_id, "name": "mine"},
        ]


async def test_a_title_comes_with_the_session_that_a_prompt_creates(tmp_path: Path) -> None:
    async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
        client, events = await daemon.connect(), await daemon.watch(types="all")
        accepted = await client.request("prompt", text="hello", wait=False)
        updated = await events.until("session_updated")
        assert updated["payload"] == {"session_id": accepted["session_id"], "title": "hello"}


async def test_an_appended_message_gives_a_title(tmp_path: Path) -> None:
    async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        session_id = (await client.request("append_message", text="noted"))["session_id"]
        await client.request("append_message", text="and this")
        assert await title(client, session_id) == "noted"


async def test_a_session_that_has_a_name_gets_no_title(tmp_path: Path) -> None:
    async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        session_id = (await client.request("new_session", name="mine"))["session_id"]
        await client.request("prompt", text="hello")
        assert await title(client, session_id) == "mine"
        assert await told(daemon, session_id) == []


async def test_a_branch_has_the_title_of_its_parent(tmp_path: Path) -> None:
    async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        session_id = (await client.request("prompt", text="hello", wait=False))["session_id"]
        branch = await client.request("branch_session", session_id=session_id)
        assert await title(client, branch["session_id"]) == "hello"


async def test_a_title_holds_no_secret_of_the_daemon(tmp_path: Path) -> None:
    secrets = Redactor(["sk-0123456789abcdef"])
    async with memory_daemon(workdir=tmp_path, provider=MockProvider(), secrets=secrets) as daemon:
        client = await daemon.connect()
        session_id = (await client.request("new_session"))["session_id"]
        await client.request("prompt", text="use sk-0123456789abcdef here")
        assert await title(client, session_id) == "use [redacted] here"


async def test_lists_are_searched_by_title_and_titles_survive_a_restart(short_folder: Path) -> None:
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        first = (await client.request("prompt", text="Fix the Parser", wait=False))["session_id"]
        await client.request("new_session")
    async with socket_daemon(short_folder, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        found = await client.request("list_sessions", q="the PARSER")
        assert [row["session_id"] for row in found["sessions"]] == [first]
        await client.request("rename_session", session_id=first, name="done")
        assert (await client.request("list_sessions", q="parser"))["count"] == 0
