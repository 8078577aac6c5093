"""A model's reasoning is sent back to it, through the log and across restarts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tests.harness.daemon import WAIT_SECONDS, socket_daemon
from tests.harness.stub_model import Reply
from tests.providers.conformance import Dialect, Scene, Server, server_of
from tests.providers.dialects import DIALECTS

SIGNATURE = "c2lnbmVkIGJ5IG5vYm9keQ=="
THINKS = Scene(
    reasoning="hm", signature=SIGNATURE, text="Look:", calls=(("read", {"path": "notes.txt"}),)
)
ANSWERS = Scene(text="It is empty.")


@pytest.fixture(params=[d for d in DIALECTS if d.sends_back], ids=lambda dialect: dialect.name)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    dialect: Dialect = request.param
    async with server_of(dialect) as server:
        server.script(THINKS, ANSWERS)
        yield server


async def test_reasoning_is_sent_back_with_the_result_of_its_call(
    server: Server, short_folder: Path
) -> None:
    async with socket_daemon(short_folder, provider=server.provider) as daemon:
        client = await daemon.connect()
        assert (await client.request("prompt", text="go"))["output"] == "It is empty."
    with trio.fail_after(WAIT_SECONDS):
        first, second = [(await server.stub.next_request()).body.decode() for _ in range(2)]
    assert SIGNATURE not in first
    assert second.count(SIGNATURE) == 1


@pytest.mark.slow(keep=1)
async def test_reasoning_is_sent_back_after_a_restart(server: Server, short_folder: Path) -> None:
    server.script(ANSWERS)
    for prompt in ("go", "and?"):
        async with socket_daemon(short_folder, provider=server.provider) as daemon:
            client = await daemon.connect()
            await client.request("prompt", text=prompt)
    with trio.fail_after(WAIT_SECONDS):
        *_, last = [(await server.stub.next_request()).body.decode() for _ in range(3)]
    assert last.count(SIGNATURE) == 1


async def test_a_lone_surrogate_in_a_signature_does_not_break_the_session(
    server: Server, short_folder: Path
) -> None:
    events = server.dialect.stream(replace(THINKS, signature="\ud83d" + SIGNATURE))
    server.stub.script(
        Reply([b"data: " + json.dumps(event).encode() + b"\n\n" for event in events])
    )
    server.script(ANSWERS)
    async with socket_daemon(short_folder, provider=server.provider) as daemon:
        client = await daemon.connect()
        await client.request("prompt", text="go")
        assert (await client.request("prompt", text="go"))["output"] == "It is empty."


async def test_reasoning_is_not_sent_to_another_model(server: Server, short_folder: Path) -> None:
    server.script(ANSWERS)
    async with socket_daemon(short_folder, provider=server.provider) as daemon:
        client = await daemon.connect()
        await client.request("prompt", text="go")
        await client.request("set_model", model="other-model")
        await client.request("prompt", text="and?")
    with trio.fail_after(WAIT_SECONDS):
        *_, last = [(await server.stub.next_request()).body.decode() for _ in range(3)]
    assert "Look:" in last
    assert SIGNATURE not in last
