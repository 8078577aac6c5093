"""Cached transcripts match the state they were read for, and stay small."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nousd.daemon.sessions import transcripts
from nousd.daemon.sessions.transcripts import NewestMessages, Transcripts
from nousd.machine.session.state import SessionState
from nousd.providers.interface import Provider
from nousd.store.memory.store import MemoryStore
from nousd.wire.objects.entries import MessageEntry
from nousd.wire.responses import Messages
from tests.harness.daemon import Payload, memory_daemon
from tests.harness.stub_model import StubModel, error_reply, text_reply


def newest(session_id: str, text: str = "") -> NewestMessages:
    entry = MessageEntry(
        id=f"{session_id}-m", role="user", text=text, run_id="", turn_kind="prompt", created_at=""
    )
    messages = Messages(session_id=session_id, messages=(entry,), cursor="evt-1", has_more=False)
    return NewestMessages(messages, ())


def test_a_transcript_is_found_only_for_the_same_state_object_and_message_count() -> None:
    cache = Transcripts()
    state = SessionState(session_id="s")
    read = newest("s")
    assert cache.find(state, 10) is None
    cache.keep(state, 10, read)
    assert cache.find(state, 10) is read
    assert cache.find(state, 9) is None
    # An equal state may follow other events, which may have changed something outside the state.
    assert cache.find(msgspec.structs.replace(state), 10) is None
    cache.forget("s")
    assert cache.find(state, 10) is None
    cache.forget("s")


def test_the_least_recently_used_transcripts_are_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transcripts, "KEPT_SESSIONS_MAX", 3)
    cache = Transcripts()
    states = [SessionState(session_id=f"s{number}") for number in range(5)]
    for state in states[:3]:
        cache.keep(state, 1, newest(state.session_id))
    assert cache.find(states[0], 1) is not None
    for state in states[3:]:
        cache.keep(state, 1, newest(state.session_id))
    assert [cache.find(state, 1) is not None for state in states] == [
        True,
        False,
        False,
        True,
        True,
    ]


def test_the_cache_is_bounded_in_bytes_and_skips_a_transcript_that_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transcripts, "KEPT_BYTES_MAX", 10_000)
    cache = Transcripts()
    states = [SessionState(session_id=f"s{number}") for number in range(3)]
    for state in states[:2]:
        cache.keep(state, 1, newest(state.session_id, "x" * 4_000))
    assert [cache.find(state, 1) is not None for state in states] == [True, True, False]
    # It replaces the previous transcript of its session.
    cache.keep(states[1], 1, newest("s1", "y" * 4_000))
    assert [cache.find(state, 1) is not None for state in states] == [True, True, False]
    cache.keep(states[2], 1, newest("s2", "x" * 4_000))
    assert [cache.find(state, 1) is not None for state in states] == [False, True, True]
    cache.keep(states[0], 1, newest("s0", "x" * 10_000))
    assert [cache.find(state, 1) is not None for state in states] == [False, True, True]
    cache.keep(states[1], 1, newest("s1", "x" * 10_000))
    assert [cache.find(state, 1) is not None for state in states] == [False, False, True]


async def test_a_repeated_read_of_a_session_includes_every_change_since_the_first(
    short_folder: Path, provider: Provider, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []
    path = MemoryStore.path

    async def watched(store: MemoryStore, session_id: str, leaf_id: str, **bounds: int) -> object:
        paths.append(leaf_id)
        return await path(store, session_id, leaf_id, **bounds)

    monkeypatch.setattr(MemoryStore, "path", watched)
    stub.script(text_reply("well"), error_reply(400, "no"))
    async with memory_daemon(workdir=short_folder, provider=provider) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        session_id = (await client.request("new_session"))["session_id"]

        async def read() -> Payload:
            """Read the session twice; the second read must not read the store."""
            once = await client.request("get_session", session_id=session_id, messages=100)
            count = len(paths)
            again = await client.request("get_session", session_id=session_id, messages=100)
            assert again == once
            assert len(paths) == count
            whole = await client.request("get_messages", session_id=session_id, limit=100)
            assert once["transcript"] == whole
            return again

        assert (await read())["transcript"]["messages"] == []
        await client.request("append_message", session_id=session_id, text="first")
        assert len((await read())["transcript"]["messages"]) == 1
        for text, failed in (("second", 0), ("third", 1)):
            await client.request("prompt", session_id=session_id, text=text, wait=False)
            await events.run()
            assert len((await read())["failed_runs"]) == failed
        first = (await read())["transcript"]["messages"][0]["id"]
        await client.request("set_leaf", session_id=session_id, leaf_id=first)
        assert len((await read())["transcript"]["messages"]) == 1
        await client.request("rename_session", session_id=session_id, name="other")
        assert (await read())["session"]["name"] == "other"


async def test_the_transcript_of_a_deleted_session_is_evicted(
    short_folder: Path, provider: Provider
) -> None:
    async with memory_daemon(workdir=short_folder, provider=provider) as daemon:
        client, cache = await daemon.connect(), daemon.services.transcripts
        session_id = (await client.request("new_session"))["session_id"]
        await client.request("get_session", session_id=session_id, messages=5)
        state = (await daemon.services.sessions.get(session_id)).committed
        assert cache.find(state, 5) is not None
        await client.request("delete_session", session_id=session_id)
        assert cache.find(state, 5) is None
