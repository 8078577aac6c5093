"""Agent programs that say what no program should: the turn goes on, and so does the daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import of_type
from tests.runtimes.bench import runtime_bench, said
from tests.runtimes.contracted import AGENTS

DEEP = "[" * 100_000 + "]" * 100_000
NO_TEXT = "\xff"
"""A byte that is no UTF-8."""

HUGE = 10**400


def hook(id_: Any, **more: Any) -> dict[str, Any]:
    request = {"subtype": "hook_callback", **more}
    return {"type": "control_request", "request_id": id_, "request": request}


def mcp(message: Any) -> dict[str, Any]:
    request = {"subtype": "mcp_message", "server_name": "nousd", "message": message}
    return {"type": "control_request", "request_id": "mcp", "request": request}


def event(**event: Any) -> dict[str, Any]:
    return {"type": "stream_event", "event": event}


def rpc(method: str, params: Any, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params, **more}


def called(params: Any) -> dict[str, Any]:
    return {"id": 1, "method": "tools/call", "params": params}


def news(kind: str, what: Any) -> dict[str, Any]:
    return {"type": kind, "properties": {"sessionID": "s", "part": what, "info": what}}


ODD_ARGS = {"path": HUGE, "x": 2**63, "y": -0.0, "": None}

OF_ALL: dict[str, list[Any]] = {
    "deep": [{"type": "user", "id": 5, "method": "x", "params": DEEP}, DEEP],
    "not text": [NO_TEXT, {"type": NO_TEXT}, rpc("x", NO_TEXT)],
    "half of a character": [{"type": "\ud800"}, rpc("\ud800", "\udfff")],
    "nothing": ["\0\0\0", {"type": "\0"}],
    "odd ids": [rpc("x", {}, id=id_) for id_ in (HUGE, 10**40, 1.5, "")] + [{"id": 9**9}],
}

OF_ONE: dict[str, list[tuple[str, list[Any]]]] = {
    "claude": [
        ("not text", [event(type="x", delta={"text": NO_TEXT}), mcp(called(NO_TEXT))]),
        ("half", [event(type="content_block_delta", delta={"text": "\ud800"})]),
        ("hook", [hook("h", input=7), hook("h2"), hook(7, input={"tool_input": []})]),
        ("tools", [mcp(7), mcp({"id": 1, "method": 3}), mcp(called(3)), mcp(called({"name": 1}))]),
        ("an id again", [hook("same", input={"tool_name": "Bash"})] * 5),
        ("numbers", [event(type="message_delta", usage={"output_tokens": HUGE})]),
        ("args", [mcp(called({"name": "workspace_read", "arguments": ODD_ARGS}))]),
    ],
    "codex": [
        ("not text", [rpc(name, {"threadId": NO_TEXT}) for name in ("item/started", "error")]),
        ("not text asked", [rpc("item/tool/call", {"threadId": NO_TEXT}, id=77)]),
        ("half", [rpc("item/agentMessage/delta", {"threadId": "\ud800"})]),
        ("an id again", [rpc("nothing", {}, id=1)] * 5),
        ("args", [rpc("item/tool/call", {"tool": "workspace_read", "arguments": ODD_ARGS}, id=8)]),
    ],
    "acp": [
        ("not text", [rpc("session/update", {"sessionId": NO_TEXT})]),
        ("not text asked", [rpc("session/request_permission", {"sessionId": NO_TEXT}, id=9)]),
        ("half", [rpc("session/update", {"sessionId": "\ud800"})]),
        ("an id again", [rpc("nothing", {}, id=1)] * 5),
    ],
    "opencode": [
        ("not text", [news("message.part.delta", NO_TEXT), news(NO_TEXT, "")]),
        ("half", [news("message.updated", {"id": "\ud800", "role": "assistant"})]),
        ("odd parts", [news("message.part.updated", part) for part in (7, {}, {"id": 1})]),
        ("numbers", [news("session.idle", HUGE), {"type": "session.idle", "properties": HUGE}]),
        ("questions", [news("permission.asked", None), {"type": "permission.asked"}]),
    ],
}

CASES = [(agent, what, lines) for agent in AGENTS for what, lines in OF_ALL.items()]
CASES += [(agent, what, lines) for agent, all_ in OF_ONE.items() for what, lines in all_]


def raw(line: Any) -> str:
    """Return a line, a character for each byte."""
    if isinstance(line, str):
        return line
    text = json.dumps(line).replace("\\u00ff", NO_TEXT)
    return text.replace(json.dumps(DEEP), DEEP)


@pytest.mark.parametrize(
    ("agent", "lines"),
    [pytest.param(agent, lines, id=f"{agent}-{what}") for agent, what, lines in CASES],
)
@pytest.mark.slow(keep=1)
async def test_nonsense_harms_nothing(agent: str, lines: list[Any], tmp_path: Path) -> None:
    program = AGENTS[agent](tmp_path / "memory")
    async with runtime_bench(tmp_path, program) as bench:
        run = await bench.run({"say": "a"}, {"raw": [raw(line) for line in lines]}, {"say": "b"})
        assert said(run) == ["a", "b"]
        assert of_type(run, "error") == []
        assert said(await bench.run({"say": "c"})) == ["c"]
