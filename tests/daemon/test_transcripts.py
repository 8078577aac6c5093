"""Cached transcripts match the state they were read for, and stay small."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nousd.daemon.sessions import transcripts
from nousd.daemon.sessions.transcripts import Newest, Transcripts
from nousd.machine.session.state import SessionState
from nousd.providers.interface import Provider
from nousd.store.memory.store import MemoryStore
from nousd.wire.objects.entries import MessageEntry
from nousd.wire.responses import Messages
from tests.harness.daemon import Payload, memory_daemon
from tests.harness.stub_model import StubModel, error_reply, text_reply


def newest(session_id: str, text: str = "") -> Newest:
    entry = MessageEntry(
        id=f"{session_id}-m", role="user", text=text, run_id="", turn_kind="prompt", created_at=""
    )
    told = Messages(session_id=session_id, messages=(entry,), cursor="evt-1", has_more=False)
    return Newest(told, ())


def test_it_is_given_for_the_very_state_and_as_many_messages_as_it_was_read_for() -> None:
    kept = Transcripts()
    state = SessionState(session_id="s")
    read = newest("s")
    assert kept.find(state, 10) is None
    kept.keep(state, 10, read)
    assert kept.find(state, 10) is read
    assert kept.find(state, 9) is None
    # One that is equal came to be by other events, which may have been about what is no part of it.
    assert kept.find(msgspec.structs.replace(state), 10) is None
    kept.forget("s")
    assert kept.find(state, 10) is None
    kept.forget("s")


def test_as_many_as_fit_are_kept_and_the_one_that_was_asked_for_last_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transcripts, "KEPT_SESSIONS_MAX", 3)
    kept = Transcripts()
    states = [SessionState(session_id=f"s{number}") for number in range(5)]
    for state in states[:3]:
        kept.keep(state, 1, newest(state.session_id))
    assert kept.find(states[0], 1) is not None
    for state in states[3:]:
        kept.keep(state, 1, newest(state.session_id))
    assert [kept.find(state, 1) is not None for state in states] == [True, False, False, True, True]


def test_one_that_is_too_long_is_not_kept_nor_pushes_out_what_long_ones_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transcripts, "KEPT_BYTES_MAX", 10_000)
    kept = Transcripts()
    states = [SessionState(session_id=f"s{number}") for number in range(3)]
    for state in states[:2]:
        kept.keep(state, 1, newest(state.session_id, "x" * 4_000))
    assert [kept.find(state, 1) is not None for state in states] == [True, True, False]
    # In the place of what there was of it.
    kept.keep(states[1], 1, newest("s1", "y" * 4_000))
    assert [kept.find(state, 1) is not None for state in states] == [True, True, False]
    kept.keep(states[2], 1, newest("s2", "x" * 4_000))
    assert [kept.find(state, 1) is not None for state in states] == [False, True, True]
    kept.keep(states[0], 1, newest("s0", "x" * 10_000))
    assert [kept.find(state, 1) is not None for state in states] == [False, True, True]
    kept.keep(states[1], 1, newest("s1", "x" * 10_000))
    assert [kept.find(state, 1) is not None for state in states] == [False, False, True]


async def test_who_reads_a_session_again_is_told_all_that_happened_meanwhile(
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
            """Read it twice, of which the second time takes nothing of the log."""
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


async def test_nothing_of_a_deleted_session_is_kept(short_folder: Path, provider: Provider) -> None:
    async with memory_daemon(workdir=short_folder, provider=provider) as daemon:
        client, kept = await daemon.connect(), daemon.services.transcripts
        session_id = (await client.request("new_session"))["session_id"]
        await client.request("get_session", session_id=session_id, messages=5)
        state = (await daemon.services.sessions.get(session_id)).committed
        assert kept.find(state, 5) is not None
        await client.request("delete_session", session_id=session_id)
        assert kept.find(state, 5) is None
