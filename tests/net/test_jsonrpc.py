"""JSON-RPC with a program, without one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import trio

from nousd.errors import AgentFailed
from nousd.net.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, FollowedResult, JsonRpc, RpcError


class Params(msgspec.Struct):
    path: str


class Bench:
    """One end of a connection, and what it sends; implements ``Peer``."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.rpc = JsonRpc(self._write, self, nursery, withdrawal="give_up")
        self.begun: list[Any] = []
        self.sent: list[Any] = []
        self.failures: list[AgentFailed] = []
        self.puzzles: list[bytes] = []

    async def _write(self, line: bytes) -> None:
        self.sent.append(json.loads(line))

    async def answer(self, method: str, params: msgspec.Raw) -> Any:
        match method:
            case "path":
                return msgspec.json.decode(params, type=Params).path
            case "slow":
                self.begun.append(msgspec.json.decode(params, type=Params).path)
                await trio.sleep_forever()
            case "followed":
                return FollowedResult("a", lambda: self.sent.append("after it"))
            case "dead":
                raise AgentFailed("it ended")
        raise RpcError(METHOD_NOT_FOUND, method)

    async def take_notification(self, method: str, params: msgspec.Raw) -> None:
        pass

    async def take_unknown(self, line: bytes) -> None:
        self.puzzles.append(line)

    def end(self, failure: AgentFailed) -> None:
        self.failures.append(failure)

    async def ask(self, line: bytes) -> None:
        await self.rpc.take(line)
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        yield Bench(nursery)
        nursery.cancel_scope.cancel()


async def test_a_request_is_answered_under_its_id(bench: Bench) -> None:
    await bench.ask(b'{"id": 0, "method": "path", "params": {"path": "a"}}')
    assert bench.sent == [{"jsonrpc": "2.0", "id": 0, "result": "a"}]


@pytest.mark.parametrize("params", [b"{}", b'{"path": 1}', b"[]"])
async def test_parameters_that_do_not_fit_are_an_error(bench: Bench, params: bytes) -> None:
    await bench.ask(b'{"id": 1, "method": "path", "params": ' + params + b"}")
    (answer,) = bench.sent
    assert answer["error"]["code"] == INVALID_PARAMS


@pytest.mark.parametrize("inside", [b'"\xff"', b"[" * 100_000 + b"]" * 100_000])
async def test_a_line_of_which_a_part_cannot_be_decoded_is_no_message(
    bench: Bench, inside: bytes
) -> None:
    line = b'{"id": 1, "method": "path", "params": {"path": ' + inside + b"}}"
    await bench.ask(line)
    assert (bench.sent, bench.puzzles) == ([], [line])


async def test_a_program_that_ends_while_it_is_answered_is_over(bench: Bench) -> None:
    await bench.ask(b'{"id": 1, "method": "dead"}')
    assert [failure.cause for failure in bench.failures] == ["agent_failed: it ended"]
    assert bench.sent == []


async def test_requests_are_begun_in_the_order_of_their_lines(bench: Bench) -> None:
    for n in range(20):
        await bench.rpc.take(b'{"id": %d, "method": "slow", "params": {"path": "%d"}}' % (n, n))
        assert bench.begun == [str(number) for number in range(n + 1)]


async def test_what_follows_a_result_comes_after_it(bench: Bench) -> None:
    await bench.ask(b'{"id": 1, "method": "followed"}')
    assert bench.sent == [{"jsonrpc": "2.0", "id": 1, "result": "a"}, "after it"]


async def test_the_program_learns_that_a_request_is_given_up(bench: Bench) -> None:
    with trio.move_on_after(0):
        await bench.rpc.call("ask", {}, seconds=60)
    with pytest.raises(AgentFailed):
        await bench.rpc.call("ask", {}, seconds=0.001)
    given_up = [each["params"] for each in bench.sent if each["method"] == "give_up"]
    assert given_up == [{"requestId": 1}, {"requestId": 2}]


async def test_an_answered_request_is_not_given_up(bench: Bench) -> None:
    async def answer() -> None:
        await trio.testing.wait_all_tasks_blocked()
        await bench.rpc.take(b'{"id": 1, "result": "a"}')

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await bench.rpc.call("ask", {}, seconds=60)
    assert [each["method"] for each in bench.sent] == ["ask"]
