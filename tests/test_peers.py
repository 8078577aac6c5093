"""What ``scripts/bench peers`` reads from other agents, what its model says, and who goes on."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from scripts.benchmarks.client import Arrival
from scripts.benchmarks.model_stub import make_deltas
from scripts.benchmarks.peer_programs import PEERS, running
from scripts.benchmarks.peer_speech import (
    Acp,
    AppServer,
    Lines,
    PeerFailed,
    PiRpc,
    Speech,
    StreamJson,
    Turn,
)
from scripts.benchmarks.peer_stub import Model
from scripts.benchmarks.peers import Agent, Contest, Entrant, Figures, Measured
from scripts.benchmarks.report import Missing, Row, as_json, at_most, table
from tests.harness.daemon import WAIT_SECONDS

# --- their protocols ----------------------------------------------------------------------------


def two_ends() -> tuple[Lines, trio.abc.SendStream]:
    """Return the lines of a program, and where to write them."""
    stdin, _ = trio.testing.memory_stream_one_way_pair()
    writer, stdout = trio.testing.memory_stream_one_way_pair()
    return Lines(stdin, stdout), writer


async def test_lines_are_put_together_and_those_after_the_last_one_stay() -> None:
    lines, writer = two_ends()
    await writer.send_all(b"on")
    async with trio.open_nursery() as nursery:

        async def send_the_rest() -> None:
            await trio.testing.wait_all_tasks_blocked()
            await writer.send_all(b"e\ntwo\nthree\nfo")

        nursery.start_soon(send_the_rest)
        taken = await lines.until(lambda line: line == b"two")
    assert [line.text for line in taken] == [b"one", b"two"]
    (third,) = await lines.until(lambda _: True)
    assert third.text == b"three"
    await writer.aclose()
    with pytest.raises(PeerFailed, match="ended"):
        await lines.until(lambda _: True)


CLAUDE_EVENT = {
    "type": "stream_event",
    "event": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "7 8"}},
}
CODEX_DELTA = {"method": "item/agentMessage/delta", "params": {"itemId": "i", "delta": "7 8"}}
ACP_CHUNK = {
    "jsonrpc": "2.0",
    "method": "session/update",
    "params": {
        "update": {
            "sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": "7 8"},
        }
    },
}
PI_UPDATE = {
    "type": "message_update",
    "assistantMessageEvent": {"type": "text_delta", "contentIndex": 0, "delta": "7 8"},
}


@pytest.mark.parametrize(
    ("kind", "other", "delta", "end"),
    [
        (StreamJson, {"type": "user"}, CLAUDE_EVENT, {"subtype": "success", "type": "result"}),
        (AppServer, {"method": "item/started"}, CODEX_DELTA, {"method": "turn/completed"}),
        (Acp, {"method": "session/update"}, ACP_CHUNK, {"id": 2, "result": {"stopReason": "e"}}),
        (PiRpc, {"type": "turn_end"}, PI_UPDATE, {"type": "agent_end", "messages": []}),
    ],
)
async def test_a_turn_has_the_deltas_up_to_its_end(
    kind: type[Speech], other: Any, delta: Any, end: Any, tmp_path: Path
) -> None:
    lines, writer = two_ends()
    before = time.monotonic_ns()
    for line in (other, delta, other, delta, end, delta):
        await writer.send_all(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    with trio.fail_after(WAIT_SECONDS):
        turn = await kind(lines, tmp_path).prompt("stamp")
    assert turn.text == "7 87 8"
    assert before < turn.sent <= turn.deltas[0].at <= turn.ended


async def test_a_turn_without_an_answer_says_how_it_ended(tmp_path: Path) -> None:
    lines, writer = two_ends()
    await writer.send_all(b'{"type":"result","is_error":true,"result":"no such model"}\n')
    with pytest.raises(PeerFailed, match="no such model"):
        await StreamJson(lines, tmp_path).prompt("stamp")


# --- their processes ----------------------------------------------------------------------------


async def test_a_program_that_is_not_there_cannot_be_started(tmp_path: Path) -> None:
    absent = replace(PEERS[0], program=replace(PEERS[0].program, version="0.0.0-absent"))
    with pytest.raises(PeerFailed, match="cannot be started"):
        async with running(absent, tmp_path, "http://127.0.0.1:1"):
            pytest.fail("it was started")


class Shell(StreamJson):
    """One whose process is a shell that has started another one."""

    async def begin(self) -> None:
        (line,) = await self._lines.until(lambda _: True)
        self.child = int(line.text)


async def test_a_program_is_killed_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.runtimes.real_programs.CACHE", tmp_path / "cache")
    program = replace(PEERS[0].program, binary="shell")
    program.path.parent.mkdir(parents=True)
    program.path.write_text("#!/bin/sh\ntrap '' TERM HUP\nsleep 600 &\necho $!\nwait\n")
    program.path.chmod(0o755)
    (tmp_path / "place").mkdir()
    shell = replace(PEERS[0], program=program, words=lambda _: (), speech=Shell)
    with trio.fail_after(WAIT_SECONDS):
        async with running(shell, tmp_path / "place", "http://127.0.0.1:1") as one:
            await one.speech.begin()
            assert isinstance(one.speech, Shell)
            child = one.speech.child
            assert is_running(child)
        # It was killed; the system has yet to take it away.
        while is_running(child):  # noqa: ASYNC110
            await trio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


# --- their model --------------------------------------------------------------------------------


def messages(text: str, calls: int) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "c", "name": "t", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "done"}
    said: list[Any] = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    said += [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ] * calls
    return {"model": "m", "messages": said, "tools": [{"name": "t"}]}


def responses(text: str, calls: int) -> dict[str, Any]:
    said: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": text}]}]
    said += [
        {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
    ] * calls
    return {"input": said, "tools": [{"type": "function", "name": "t"}]}


def completions(text: str, calls: int) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}
    said: list[Any] = [{"role": "user", "content": text}]
    said += [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ] * calls
    return {"messages": said, "tools": [{"type": "function", "function": {"name": "t"}}]}


def contents(text: str, calls: int) -> dict[str, Any]:
    call = {"functionCall": {"name": "t", "args": {}}}
    result = {"functionResponse": {"name": "t", "response": {"output": "done"}}}
    said: list[Any] = [{"role": "user", "parts": [{"text": text}]}]
    said += [{"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}] * calls
    return {"contents": said, "tools": [{"functionDeclarations": [{"name": "t"}]}]}


DIALECTS = [
    ("/v1/messages?beta=true", messages, '"text_delta", "text": "'),
    ("/v1/responses", responses, '"type": "response.output_text.delta", "delta": "'),
    ("/v1/chat/completions", completions, '"delta": {"content": "'),
    ("/v1beta/models/g:streamGenerateContent?alt=sse", contents, '"parts": [{"text": "'),
]


@asynccontextmanager
async def model() -> AsyncIterator[partial[Any]]:
    """Give how to post to a model."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, Model().serve, listeners)
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False
        ) as client:
            yield partial(client.post, timeout=WAIT_SECONDS)
        nursery.cancel_scope.cancel()


def deltas_in(body: str, mark: str) -> list[str]:
    return [piece.partition('"')[0] for piece in body.split(mark)[1:] if piece[0] != '"']


@pytest.mark.parametrize(("path", "said", "mark"), DIALECTS)
async def test_the_model_does_as_it_is_told_in_each_dialect(
    path: str, said: Any, mark: str
) -> None:
    async with model() as post:
        start = time.monotonic_ns()
        (stamp,) = deltas_in((await post(path, json=said("stamp", 0))).text, mark)
        arrived, sent = map(int, stamp.split())
        assert start < arrived <= sent < time.monotonic_ns()

        first, *rest = deltas_in((await post(path, json=said("burst 20", 0))).text, mark)
        assert sent < int(first) < time.monotonic_ns()
        assert rest == list(make_deltas(20))

        called = await post(path, json=said('call t {"command": "true"}', 0))
        assert "true" in called.text
        assert not deltas_in(called.text, mark)
        (told,) = deltas_in((await post(path, json=said('call t {"x": 1}', 1))).text, mark)
        took, result = told.split()
        assert 0 < int(took) < time.monotonic_ns() - start
        assert result == "done"


async def test_the_model_finds_nothing_where_no_model_is_asked() -> None:
    async with model() as post:
        assert (await post("/", json={})).status_code == 404


# --- in turns -----------------------------------------------------------------------------------

SPEED = Measured("speed", "ms", ("good",), at_most(2))


def no_args(command: str) -> dict[str, str]:
    return {}


def entrant(name: str, *, is_ours: bool = False, starts: bool = True) -> Entrant:
    @asynccontextmanager
    async def start(place: Path, origin: str) -> AsyncIterator[Agent]:
        if not starts:
            raise PeerFailed("is not in the mood")

        async def prompt(text: str) -> Turn:
            return Turn(0, [Arrival(0, name)], 0)

        yield Agent(prompt=prompt, new_session=trio.lowlevel.checkpoint, shell=("", no_args))

    return Entrant(name, f"{name} 1.0", start, is_ours=is_ours)


async def test_who_fails_takes_no_further_part_and_the_others_go_on(tmp_path: Path) -> None:
    asked: list[str] = []

    async def exercise(agent: Agent) -> Figures:
        name = (await agent.prompt("")).text
        asked.append(name)
        if name == "bad" and len(asked) > 3:
            raise PeerFailed("has had enough")
        return {SPEED: 3.0 if name == "us" else 2.0}

    async with AsyncExitStack() as stack:
        contest = Contest("", tmp_path, stack)
        for each in (
            entrant("us", is_ours=True),
            entrant("bad"),
            entrant("absent", starts=False),
            entrant("good"),
        ):
            await contest.enter(each)
        await contest.take("turns", 3, exercise)
        rows = list(contest.rows())
    assert asked == ["us", "bad", "good", "us", "bad", "good", "us", "good"]
    assert [each.name for each in contest.missing] == ["absent", "bad"]
    assert "is not in the mood" in contest.missing[0].why
    assert "has had enough" in contest.missing[1].why
    good = next(row for row in rows if row.beside == "good 1.0")
    assert good.name == "speed / good"
    assert good.ratio == 1.5
    assert good.is_kept


def test_what_is_missing_has_a_line_of_its_own() -> None:
    measured = Row("speed / good", 3.0, 2.0, "ms", "good 1.0")
    rows: list[Row | Missing] = [measured, Missing("bad", "npm is missing")]
    *_, last = table(rows, {})
    assert last.split() == ["bad", "npm", "is", "missing"]
    run = json.loads(as_json(rows))
    assert list(run["rows"]) == ["speed / good"]
    assert run["missing"] == {"bad": "npm is missing"}
