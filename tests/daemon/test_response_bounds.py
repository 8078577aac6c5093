"""Responses that carry texts: none is longer than its bound, and nothing is lost by that."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from nousd.daemon.commands import messages, pages
from nousd.daemon.runs import results
from nousd.daemon.sessions import history
from nousd.errors import ProviderError
from nousd.wire.limits import PAGE_BYTES_MAX
from tests.daemon.scripted import ScriptedProvider, says
from tests.harness.daemon import Client, memory_daemon

PAGE = 64 * 1024


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (messages, pages, history):
        assert module.PAGE_BYTES_MAX == PAGE_BYTES_MAX
        monkeypatch.setattr(module, "PAGE_BYTES_MAX", PAGE)


async def line_of(client: Client, type: str, **payload: Any) -> tuple[int, Any]:
    """Return the length of a response and its payload."""
    await client.ask(type, **payload)
    line = await client.receive_line()
    answer = json.loads(line)
    assert answer["ok"], answer
    return len(line), answer["payload"]


async def whole_of(client: Client, queued: Any) -> str:
    """Return the whole text of an input of a response."""
    if len(queued["text"].encode()) == queued.get("text_bytes", len(queued["text"].encode())):
        return str(queued["text"])
    told = await client.request("get_artifact", artifact_id=queued["text_ref"])
    return b64decode(told["data"]).decode()


@pytest.mark.behaviour("no_response_is_larger_than_its_bound")
@pytest.mark.parametrize("taking_back", ["abort", "clear_queue"])
async def test_a_queue_of_long_texts_is_shown_and_given_back_within_a_page(
    taking_back: str, tmp_path: Path
) -> None:
    provider = ScriptedProvider()
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client = await daemon.connect()
        await client.request("prompt", text="go", wait=False)
        await provider.calls.wait_waiting()
        texts = [f"{number} " + "x" * 20_000 for number in range(10)]
        for text in texts:
            await client.request("follow_up", text=text)
        for command in ("get_queue", taking_back):
            size, answer = await line_of(client, command)
            inputs = answer["inputs" if command == "get_queue" else "cleared"]
            assert size <= PAGE + 10 * 10_000
            assert [queued["text"] for queued in inputs[:3]] == texts[:3], "as far as there is room"
            assert [await whole_of(client, queued) for queued in inputs] == texts


async def test_the_first_text_of_a_queue_is_whole_also_if_it_is_longer_than_a_page(
    tmp_path: Path,
) -> None:
    provider = ScriptedProvider()
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client = await daemon.connect()
        await client.request("prompt", text="go", wait=False)
        await provider.calls.wait_waiting()
        text = "x" * 3 * PAGE
        await client.request("follow_up", text=text)
        await client.request("follow_up", text=text + "y")
        first, second = (await client.request("get_queue"))["inputs"]
        assert first["text"] == text
        assert len(second["text"]) < PAGE
        assert second["text_bytes"] == len(text) + 1


@pytest.mark.behaviour("no_response_is_larger_than_its_bound")
@pytest.mark.parametrize("compacted", [False, True])
async def test_a_transcript_is_read_page_by_page_also_as_a_model_receives_it(
    compacted: bool, tmp_path: Path
) -> None:
    provider = ScriptedProvider()
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client = await daemon.connect()
        texts = []
        for number in range(6):
            answer = f"{number} " + "y" * (PAGE // 3)
            provider.answer(says(answer))
            await client.request("prompt", text=f"q{number}")
            texts += [f"q{number}", answer]
        read: list[str] = []
        wanted: dict[str, Any] = {}
        while True:
            size, page = await line_of(client, "get_messages", compacted=compacted, **wanted)
            assert size <= PAGE + 1000
            read = [entry["text"] for entry in page["messages"]] + read
            if not page["has_more"]:
                break
            wanted = {"before": page["before"]}
        assert read == texts
        error = await client.refusal("get_messages", compacted=compacted, before="msg-none")
        assert error["message"] == "entry_not_found"


async def test_a_message_that_is_longer_than_a_page_is_a_page_of_its_own(tmp_path: Path) -> None:
    provider = ScriptedProvider()
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client = await daemon.connect()
        answer = "z" * 4 * PAGE
        provider.answer(says(answer))
        await client.request("prompt", text="go")
        for compacted in (False, True):
            page = await client.request("get_messages", compacted=compacted)
            assert [entry["text"] for entry in page["messages"]] == [answer]
            assert page["has_more"] is True


@pytest.mark.behaviour("no_response_is_larger_than_its_bound")
async def test_tools_are_listed_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_daemon(workdir=tmp_path, provider=ScriptedProvider()) as daemon:
        client = await daemon.connect()
        whole = await client.request("list_tools")
        assert "has_more" not in whole
        monkeypatch.setattr(pages, "PAGE_BYTES_MAX", 3000)
        read: list[Any] = []
        page: dict[str, Any] = {"has_more": True}
        while "has_more" in page:
            wanted = {"after": read[-1]["name"]} if read else {}
            size, page = await line_of(client, "list_tools", **wanted)
            assert size <= 3200
            assert page["tools"]
            read += page["tools"]
        assert read == whole["tools"]
        error = await client.refusal("list_tools", after="nosuch")
        assert error["message"] == "tool_not_registered: nosuch"


@pytest.mark.slow
@pytest.mark.behaviour("no_response_is_larger_than_its_bound")
async def test_the_events_of_a_result_end_where_their_bound_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULT_EVENTS_BYTES_MAX", 10_000)
    provider = ScriptedProvider()
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client = await daemon.connect()
        provider.answer(says(*["ten words "] * 1500))
        size, result = await line_of(client, "prompt", text="go")
        assert result["output"] == "ten words " * 1500
        assert result["events_truncated"] is True
        assert size <= len(result["output"]) + 11_000
        streamed = [each["delta"] for each in result["events"] if each["type"] == "message_update"]
        assert all(("ten words " * 1500).startswith(text) for text in streamed)


async def test_runs_that_failed_with_long_errors_are_listed_within_a_page(tmp_path: Path) -> None:
    provider = ScriptedProvider()

    async def fails_at_length(_: Any) -> None:
        raise ProviderError("e" * 8000)

    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client = await daemon.connect()
        for _ in range(12):
            provider.answer(fails_at_length)
            await client.refusal("prompt", text="go")
        listed: list[str] = []
        wanted: dict[str, Any] = {}
        while True:
            size, page = await line_of(client, "list_runs", limit=1000, **wanted)
            assert size <= PAGE + 1000
            listed += [run["run_id"] for run in page["runs"]]
            if not page["has_more"]:
                break
            wanted = {"before": listed[-1]}
        assert len(set(listed)) == 12
        session_id = (await client.request("get_state"))["session_id"]
        size, now = await line_of(client, "get_session", session_id=session_id, messages=10)
        assert size <= 2 * PAGE + 2000
        assert 0 < len(now["failed_runs"]) < 12
