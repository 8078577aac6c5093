"""The rows of the limits table about lines and connections; see ``test_limits``."""

from __future__ import annotations

from functools import partial

import trio
from trio.testing import wait_all_tasks_blocked

from nousd.daemon import serve
from nousd.daemon.transport.connection import serve_commands
from nousd.daemon.transport.outbox import Outbox
from nousd.daemon.transport.sockets import open_listeners
from nousd.wire.limit_table import LIMITS
from nousd.wire.limits import LONG_LINE_BYTES
from tests.daemon.limits_bench import Kit, error_text, padded_line, table_text
from tests.harness.daemon import Client


async def line_bytes(kit: Kit, offset: int) -> None:
    await kit.client.send(padded_line(LIMITS["line_bytes_max"][0] + offset, "ping") + b"\n")
    answer = await kit.client.receive()
    if offset > 0:
        assert (answer["id"], error_text(answer["error"])) == ("", table_text("line_bytes_max"))
    else:
        assert (answer["id"], answer["type"]) == ("padded", "pong")


async def long_lines_bytes(kit: Kit, offset: int) -> None:
    budget, left = kit.daemon.services.line_budget, 1000
    assert budget.left == LIMITS["long_lines_bytes_max"][0]
    held_by_others = budget.left - left
    assert budget.take(held_by_others)
    line = padded_line(LONG_LINE_BYTES + left + offset, "ping") + b"\n"
    await kit.client.send(line)
    answer = await kit.client.receive()
    if offset > 0:
        assert (answer["id"], error_text(answer["error"])) == (
            "",
            table_text("long_lines_bytes_max"),
        )
        budget.give_back(held_by_others)
        await kit.client.send(line)
        answer = await kit.client.receive()
        held_by_others = 0
    assert (answer["id"], answer["type"]) == ("padded", "pong")
    await kit.client.aclose()
    await wait_all_tasks_blocked()
    budget.give_back(held_by_others)
    assert budget.left == LIMITS["long_lines_bytes_max"][0], "the memory of a line was not returned"
    kit.client = await kit.daemon.connect()


async def subscribe_bytes(kit: Kit, offset: int) -> None:
    line = padded_line(LIMITS["subscribe_bytes_max"][0] + offset, "subscribe", types=["error"])
    await kit.events.send(line + b"\n")
    answer = await kit.events.receive()
    if offset > 0:
        assert (answer["id"], error_text(answer["error"])) == (
            "",
            table_text("subscribe_bytes_max"),
        )
    else:
        assert (answer["id"], answer["type"]) == ("padded", "subscribed")
        await kit.events.subscribe()


async def nesting(kit: Kit, offset: int) -> None:
    arrays = LIMITS["nesting_max"][0] + offset - 2  # the envelope and the payload are two levels
    nested = b"[" * arrays + b"]" * arrays
    await kit.client.send(b'{"id":"n","type":"ping","payload":{"x":%b}}\n' % nested)
    answer = await kit.client.receive()
    if offset > 0:
        assert error_text(answer["error"]) == table_text("nesting_max")
    else:
        assert answer["type"] == "pong"


async def connections(kit: Kit, offset: int) -> None:
    bound = kit.scale("connections_max", serve, "CONNECTIONS_MAX", 3)
    folder = kit.folder / "more"
    folder.mkdir()
    async with open_listeners(folder / "s") as listeners, trio.open_nursery() as nursery:
        handler = partial(serve_commands, kit.daemon.services)
        nursery.start_soon(serve._accept, listeners.command, handler)
        clients = [Client(await trio.open_unix_socket(folder / "s")) for _ in range(bound + offset)]
        if offset > 0:
            refused = clients.pop()
            answer = await refused.receive()
            assert (answer["id"], error_text(answer["error"])) == (
                "",
                table_text("connections_max"),
            )
            await refused.aclose()
        for client in clients:
            assert (await client.request("ping"))["message"] == "pong"
            await client.aclose()
        nursery.cancel_scope.cancel()


async def pipeline(kit: Kit, offset: int) -> None:
    await room_for_one_more(b"\n", LIMITS["pipeline_max"][0] + offset - 1, room=offset <= 0)


async def pipeline_bytes(kit: Kit, offset: int) -> None:
    size = LIMITS["pipeline_bytes_max"][0] + offset - 1
    await room_for_one_more(b"x" * size, 1, room=offset <= 0)


async def room_for_one_more(line: bytes, count: int, *, room: bool) -> None:
    """Assert that there is or is not room for an answer while ``count`` lines wait for their reader."""
    box = Outbox()
    for _ in range(count):
        box.put(line)
    ours, theirs = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.run, ours)
        await wait_all_tasks_blocked()
        before = len(nursery.child_tasks)
        nursery.start_soon(box.wait_room)
        await wait_all_tasks_blocked()
        assert (len(nursery.child_tasks) == before) is room
        box.close()
        received = 0
        while received < count * len(line):
            received += len(await theirs.receive_some())
