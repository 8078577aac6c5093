"""What subagents of agent programs say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nousd.runtimes.native.loop import NativeSettings
from tests.harness.daemon import Event, of_type
from tests.runtimes.bench import runtime_bench, said
from tests.runtimes.contracted import fake_acp, fake_claude

READ = ["workspace.read", {"path": "notes.txt"}]


def of_claude(text: str, parent: str) -> str:
    """Return a message of a subagent as Claude Code passes it on."""
    message = {"id": "msg_sub", "role": "assistant", "content": [{"type": "text", "text": text}]}
    return json.dumps({"type": "assistant", "message": message, "parent_tool_use_id": parent})


def of_acp(text: str, session_id: str, parent: str) -> str:
    """Return a text of a subagent as Claude's program of the Agent Client Protocol passes it on."""
    update = {
        "sessionUpdate": "agent_message_chunk",
        "content": {"type": "text", "text": text},
        "_meta": {"claudeCode": {"parentToolUseId": parent}},
    }
    params = {"sessionId": session_id, "update": update}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params})


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("what is noted")
    return folder


def subagents(run: list[Event]) -> list[tuple[str, Any, Any]]:
    return [
        (each["text"], each["runtime_tool_call_id"], each.get("parent_tool_call_id"))
        for each in of_type(run, "subagent_text")
    ]


async def test_the_text_of_a_subagent_names_the_call_that_it_works_for(
    workdir: Path, tmp_path: Path
) -> None:
    async with runtime_bench(workdir, fake_claude(tmp_path / "memory")) as bench:
        run = await bench.run(
            {"again": READ},
            {"raw": [of_claude("found it", "toolu_same"), of_claude("early", "toolu_other")]},
            {"say": "done"},
        )
        shown = await bench.client.request("get_events", view="normalized")
    (requested,) = of_type(run, "tool_call_requested")
    assert subagents(run) == [
        ("found it", "toolu_same", requested["tool_call_id"]),
        ("early", "toolu_other", None),
    ]
    assert said(run) == ["done"]
    deltas = [each["payload"] for each in shown["events"] if each["type"] == "model.output.delta"]
    assert [(each["delta"], each["kind"]) for each in deltas if "parent_tool_call_id" in each] == [
        ("found it", "unknown_delta")
    ]


async def test_a_long_text_of_a_subagent_is_whole_in_several_events(
    workdir: Path, tmp_path: Path
) -> None:
    text = "word " * 10_000
    async with runtime_bench(workdir, fake_claude(tmp_path / "memory")) as bench:
        run = await bench.run({"raw": [of_claude(text, "toolu_1")]}, {"say": "done"})
    pieces = [each["text"] for each in of_type(run, "subagent_text")]
    assert "".join(pieces) == text
    assert 1 < len(pieces) < 100


async def test_a_subagent_has_no_more_room_than_the_answers_of_its_run(
    workdir: Path, tmp_path: Path
) -> None:
    async with runtime_bench(
        workdir,
        fake_claude(tmp_path / "memory"),
        native=NativeSettings(run_answer_bytes_max=1000),
    ) as bench:
        run = await bench.run({"raw": [of_claude("x" * 2000, "toolu_1")]}, {"say": "done"})
    (failure,) = of_type(run, "error")
    assert failure["code"] == "answer_too_long"
    assert sum(len(each["text"]) for each in of_type(run, "subagent_text")) == 1000


async def test_a_subagent_over_acp_is_apart_from_its_agent(workdir: Path, tmp_path: Path) -> None:
    async with runtime_bench(workdir, fake_acp(tmp_path / "memory")) as bench:
        first = await bench.run({"say": "first"})
        (known, *_) = of_type(first, "agent_session")
        line = of_acp("found it", known["agent_session_id"], "toolu_1")
        run = await bench.run({"raw": [line]}, {"say": "done"})
    assert subagents(run) == [("found it", "toolu_1", None)]
    assert said(run) == ["done"]
